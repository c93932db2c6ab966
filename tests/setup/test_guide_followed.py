"""Follows the guide as a newcomer would, from a wheel, on a real PostgreSQL.

Its `loader setup` fetches jars into a cache of its own and records the class archive in the
background; the other tests here wait for that, and start a JVM with it.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest
import yaml
from pyiceberg.table import StaticTable

from loader.runtime import archive
from tests.services import Database, Postgres
from tests.setup.pages import GUIDE, blocks, commands, named

TABLES = """
    create table orders (
        order_id int primary key, total numeric(10, 2), updated_at timestamptz default now()
    );
    insert into orders select n, n * 1.5 from generate_series(1, 50) n;
    create table customers (
        customer_id int primary key, name text, updated_at timestamptz default now()
    );
    insert into customers select n, 'c' || n from generate_series(1, 10) n
"""
# Spark as dbt's method `session` starts it: in its own process, without our code.
_START = """
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.extraJavaOptions", "-Dours.is=kept")
    .getOrCreate()
)
print("kept", spark._jvm.System.getProperty("ours.is"))
"""


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a clean virtual environment with the wheel, and a PySpark that is not set up.

    The wheel's dependencies come from the suite's own environment, so nothing is downloaded.
    """
    venv = tmp_path_factory.mktemp("newcomer") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    [packages] = (venv / "lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python")]
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)],
        check=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    (packages / "suite.pth").write_text("\n".join(site.getsitepackages()))
    given = Path(pyspark.__file__).parent
    # Copies of what finds Spark's folder by its own path, links to the rest.
    shutil.copytree(given / "bin", packages / "pyspark" / "bin")
    for path in given.iterdir():
        if path.is_file():
            shutil.copy(path, packages / "pyspark")
        elif path.name not in ("bin", "jars", "conf", "strandline"):
            _link(path, packages / "pyspark" / path.name)
    for jar in (given / "jars").iterdir():
        if not jar.name.startswith(("iceberg-", "postgresql", "mariadb")):
            _link(jar.resolve(), packages / "pyspark" / "jars" / jar.name)
    script = f"#!{venv}/bin/python\nfrom dbt.cli.main import cli\ncli()\n"
    (venv / "bin" / "dbt").write_text(script)
    (venv / "bin" / "dbt").chmod(0o755)
    return venv / "bin"


def _link(path: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(path)


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[Database]:
    """The guide's database, with its tables and its role."""
    with postgres.database() as database:
        database.execute(TABLES, blocks(GUIDE, "sql")[0])
        yield database
        database.execute("drop owned by loader", "drop role loader")


@dataclass(frozen=True)
class Followed:
    """What there is when the guide's commands have been run.

    Attributes:
        said: their output.
        lakehouse: the project's folder.
        home: the folder of its Spark.
    """

    said: str
    lakehouse: Path
    home: Path


def _script(lakehouse: Path) -> list[str]:
    """Returns the guide's commands; where it runs dbt, from another folder."""
    steps = commands(GUIDE)
    start = [line for line in steps[: steps.index("loader discover")] if "pip install" not in line]
    # the suite's database is elsewhere
    start = [line for line in start if not line.startswith(("python3 -m venv", "export PG"))]
    assert start[0] == "mkdir lakehouse && cd lakehouse"
    load, build = steps[steps.index("loader discover") : -1], steps[-1]
    assert build == "dbt build"
    # dbt runs in another folder: what it writes must not depend on where it was started.
    build = f"{build} --project-dir {lakehouse}"
    return [
        *start,
        "cp ../guide.yml loader.yml",
        *load,
        "mkdir ../elsewhere",
        "cd ../elsewhere",
        build,
    ]


@pytest.fixture(scope="module")
def followed(
    environment: Path, database: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Followed]:
    """Runs the guide's commands."""
    folder = tmp_path_factory.mktemp("guide")
    [home] = environment.parent.glob("lib/python*/site-packages/pyspark")
    killed = home / "strandline" / "making-one"  # where another setup's JVM may still be writing
    (killed / "run").mkdir(parents=True)
    (killed / "classes.jsa").touch()
    (folder / "guide.yml").write_text(named(GUIDE, "yaml", "loader.yml"))
    host, port, name = re.findall(r"//(.*?):(\d+)/(\w+)", database.url)[0]
    [password] = re.findall(r"password '(.*?)'", blocks(GUIDE, "sql")[0])
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("STRANDLINE_", "PYTHONPATH"))}
    ran = subprocess.run(
        ["bash", "-xeuo", "pipefail", "-c", "\n".join(_script(folder / "lakehouse"))],
        cwd=folder,
        env={
            **kept,
            "PATH": f"{environment}:{os.environ['PATH']}",
            "PGHOST": host,
            "PGPORT": port,
            "PGDATABASE": name,
            "PGUSER": "loader",
            "PGPASSWORD": password,
            "NO_COLOR": "1",
            "COLUMNS": "200",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
    yield Followed(ran.stdout, folder / "lakehouse", home)
    shutil.rmtree(home / "strandline")  # 190 MB


def test_the_guide_is_followed_to_the_letter(followed: Followed) -> None:
    said, lakehouse = followed.said, followed.lakehouse
    assert "iceberg-spark-runtime-3.5_2.12-1.10.2.jar linked" in said
    assert f"Spark: {followed.home}" in said
    assert "class archive: being made" in said
    assert " MB, made in " in said
    assert "WARN=0 ERROR=0" in said
    assert "warning" not in said.lower().replace("warnings", ""), said

    written = lakehouse / "models" / "strandline"
    model = (written / "shop_orders_latest.sql").read_text().partition("\n")[2]
    assert model == named(GUIDE, "sql", "models/strandline/shop_orders_latest.sql")
    for name in ("models.yml", "sources.yml"):
        shown = yaml.safe_load(named(GUIDE, "yaml", f"models/strandline/{name}"))
        assert _within(shown, yaml.safe_load((written / name).read_text())), name

    rows = {}
    for table in sorted((lakehouse / "warehouse").glob("*/*/metadata")):
        version = (table / "version-hint.text").read_text()
        read = StaticTable.from_metadata(str(table / f"v{version}.metadata.json"))
        assert read.metadata.location == str(table.parent)
        rows["/".join(table.parts[-3:-1])] = len(read.scan().to_arrow())
    assert rows["raw/orders"] == rows["analytics/shop_orders_latest"] == 50
    assert rows["analytics/shop_customers_latest"] == 10
    assert rows["raw/_cq_syncs"] > 0
    assert rows["analytics/cq_sync_log"] > 0


def _within(part: object, whole: object) -> bool:
    """Returns whether everything in a page's excerpt is in the whole file."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and _within(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return all(any(_within(one, other) for other in whole) for one in part)
    return part == whole


def _started(home: Path, script: str = _START, **env: str) -> subprocess.CompletedProcess[str]:
    own = {**os.environ, "SPARK_HOME": str(home), **env}
    return subprocess.run(
        [sys.executable, "-c", script], env=own, cwd=home, capture_output=True, text=True
    )


def test_a_jvm_takes_its_classes_from_the_archive(followed: Followed) -> None:
    home = followed.home
    log = home / "classes.log"

    # the suite's own garbage collector, not the one that the archive was made with
    own = f"-XX:+UseSerialGC -Xlog:class+load:file={log}"
    done = _started(home, SPARK_SUBMIT_OPTS=own)

    assert (done.stdout, done.stderr) == ("kept kept\n", "")  # quiet: the log settings are found
    loaded = log.read_text().splitlines()
    shared = [line for line in loaded if line.endswith("shared objects file (top)")]
    assert any("org.apache.spark.SparkContext " in line for line in shared)
    assert len(shared) > len(loaded) / 2
    again: list[str] = []
    archive.prepare(home, again.append)
    assert len(again) == 1, again
    assert archive._recorded(home / "strandline", archive._jvm()) is not None
    assert again[0].startswith("class archive: is there, ")


def test_a_java_agent_is_no_reason_to_crash(followed: Followed) -> None:
    """Monitoring tools are agents; the JVM's flight recorder is one that every Java has."""
    recording = "-XX:StartFlightRecording:disk=false -Xlog:jfr*=off"
    done = _started(followed.home, SPARK_SUBMIT_OPTS=f"-XX:+UseSerialGC {recording}")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "kept kept"), done.stderr


def test_after_a_jar_changed_spark_starts_without_a_word(followed: Followed) -> None:
    home = followed.home
    jar = next(home.glob("jars/avro-1*.jar"))
    before = archive.fingerprint(home, "17")
    copy = home / "fresh"
    shutil.copyfile(jar, copy)
    linked = jar.readlink()
    copy.replace(jar)
    try:
        assert archive.fingerprint(home, "17") != before
        done = _started(home)
        assert (done.stdout, done.stderr) == ("kept kept\n", "")
    finally:
        jar.unlink()
        jar.symlink_to(linked)


def test_the_training_leaves_nothing_in_the_folder(followed: Followed) -> None:
    home = followed.home
    left = {path.name for path in (home / "strandline").iterdir()}
    bases = {name for name in left if name.startswith("base-")}
    assert left - bases == {".lock", "classes.jsa", "fingerprint", "java"}
    assert len(bases) <= 1
