"""The disk fills up during a run: no partial batch is visible, and the next run succeeds."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.services import Database
from tests.sync.project import Project

ROWS = 4000


@pytest.fixture
def place(project: Project) -> Iterator[Path]:
    """The folder of the project's namespace, which a test may put on a separate disk."""
    folder = Path(project.spark.conf.get("spark.sql.catalog.lake.warehouse") or "")
    folder /= project.schema
    folder.mkdir(parents=True)
    yield folder
    if folder.is_mount():
        _run("umount", "-l", folder)


@contextmanager
def _little_space(project: Project, folder: Path) -> Iterator[None]:
    """Limits a folder to two megabytes."""
    if not _run("mount", "-t", "tmpfs", "-o", "size=2m", "strandline", folder):
        yield
        _run("mount", "-o", "remount,size=200m", folder)
        return
    # Without the right to mount: limit the size of any file that Spark writes.
    jvm: Any = project.spark._jvm
    pid = jvm.java.lang.ProcessHandle.current().pid()
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def _run(*command: object) -> int:
    return subprocess.run([str(c) for c in command], capture_output=True, check=False).returncode


def test_the_disk_fills_up_during_a_write(
    project: Project, postgres_database: Database, place: Path
) -> None:
    postgres_database.execute(
        "create table blobs (id int primary key, body text)",
        "insert into blobs select n, (select string_agg(md5(random()::text || n || g), '') "
        f"from generate_series(1, 50) g) from generate_series(1, {ROWS}) n",
        "create table small (id int primary key)",
        "insert into small values (1)",
    )
    options = {"blobs": {"cursor_field": "id"}, "small": {"cursor_field": "id"}}
    project.jdbc(postgres_database, ["blobs", "small"], table_options=options)
    with _little_space(project, place):
        ran = project.loader("run", "--concurrency", "1")
        assert ran.code == 1
        [error] = [e for e in ran.errors if e.startswith("table shop.blobs:")]
        assert "No space left on device. Free disk space and run again" in error or (
            "File too large" in error
        )
    lake = project.lake()
    assert not lake.exists("blobs") or lake.frame("blobs").count() == 0
    project.run()
    assert project.rows("select count(*), count(distinct id) from raw.blobs") == [(ROWS, ROWS)]
    assert project.rows("select count(*) from raw.small") == [(1,)]
    ledger = "select count(*) from raw._cq_syncs where table_name = 'blobs' and batch is not null"
    assert project.rows(ledger) == [(1,)]
