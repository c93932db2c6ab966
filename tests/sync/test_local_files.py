"""After a few batches, Hadoop runs no `chmod` subprocesses; file modes stay the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from loader.spark import local_files
from tests.services import Database
from tests.sync.project import Project

OWN = "strandline.LocalFiles"
HADOOPS = "org.apache.hadoop.fs.RawLocalFileSystem"


@pytest.fixture
def files(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Hadoop's local file system, reset to its state at the start of a process."""
    jvm: Any = spark._jvm
    configured = spark.sparkContext._jsc.hadoopConfiguration()
    systems, local = jvm.org.apache.hadoop.fs.FileSystem, jvm.java.net.URI.create("file:///")
    shared = systems.get(local, configured)
    fresh = systems.newInstance(local, configured).getRawFileSystem()
    kind: Any = jvm.java.lang.Class.forName("org.apache.hadoop.fs.FilterFileSystem")
    field = kind.getDeclaredField("fs")
    field.setAccessible(True)
    field.set(shared, fresh)
    monkeypatch.setattr(local_files, "_batches", 0)
    return shared


def test_hadoops_file_system_is_replaced_after_a_few_batches(
    files: Any, project: Project, postgres_database: Database
) -> None:
    postgres_database.execute("create table t (id int primary key)")
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "id"}})
    for batch in range(1, local_files._BATCHES + 1):
        assert files.getRawFileSystem().getClass().getName() == HADOOPS
        postgres_database.execute(f"insert into t values ({batch})")
        assert project.run().table("shop.t")["appended"] == 1
    assert files.getRawFileSystem().getClass().getName() == OWN
    postgres_database.execute("insert into t values (100)")
    assert project.run().table("shop.t")["appended"] == 1
    assert len(project.rows("select id from raw.t")) == local_files._BATCHES + 1


def test_file_modes_equal_those_that_hadoop_sets(
    files: Any, spark: SparkSession, tmp_path: Path
) -> None:
    jvm: Any = spark._jvm

    def modes(where: Path) -> dict[str, str]:
        where.mkdir()
        found = {}
        for wanted in ("600", "640", "444", "755"):
            mode = jvm.org.apache.hadoop.fs.permission.FsPermission(wanted)
            files.mkdirs(_path(jvm, where / f"d{wanted}"), mode)
            path = _path(jvm, where / f"f{wanted}")
            files.create(path, mode, True, 4096, 1, 4096, None).close()
        files.create(_path(jvm, where / "by-default")).close()
        files.mkdirs(_path(jvm, where / "a" / "b"))
        sticky = jvm.org.apache.hadoop.fs.permission.FsPermission("1777")
        files.setPermission(_path(jvm, where / "a" / "b"), sticky)
        shared_by_a_group = where / "group"
        shared_by_a_group.mkdir()
        shared_by_a_group.chmod(0o2775)
        files.mkdirs(_path(jvm, shared_by_a_group / "inside" / "it"))
        (where / "target").touch(mode=0o600)
        (where / "link").symlink_to("target")
        shared = jvm.org.apache.hadoop.fs.permission.FsPermission("664")
        files.setPermission(_path(jvm, where / "link"), shared)
        for path in sorted(where.rglob("*")):
            found[str(path.relative_to(where))] = oct(path.lstat().st_mode)
        return found

    before = os.umask(0o027)
    try:
        hadoops = modes(tmp_path / "hadoop's")
        local_files._replace_file_system(spark)
        assert files.getRawFileSystem().getClass().getName() == OWN
        assert modes(tmp_path / "own") == hadoops
    finally:
        os.umask(before)
    assert hadoops["f640"].endswith("640")
    assert hadoops["a/b"].endswith("1777")
    assert hadoops["group/inside/it"].endswith("2755")
    mode = jvm.org.apache.hadoop.fs.permission.FsPermission("600")
    with pytest.raises(Py4JJavaError) as error:
        files.setPermission(_path(jvm, tmp_path / "not there"), mode)
    assert "not there" in str(error.value.java_exception)


def _path(jvm: Any, path: Path) -> Any:
    return jvm.org.apache.hadoop.fs.Path(str(path))
