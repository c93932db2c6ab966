"""Other engines read what the loader and dbt wrote: the lines of docs/readers.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from loader.spark.java import choose_java
from loader.spark.spark_version import find_spark
from tests.cluster import project as cluster_project
from tests.services import Database, Postgres
from tests.setup.pages import ROOT, blocks
from tests.sync.project import Project, Ran

PAGE = (ROOT / "docs" / "readers.md").read_text()
ENVIRONMENT = Path(os.environ.get("READERS", ROOT / ".venv-readers"))
TABLE = "purchases"
MODELS = {kind: f"shop_{TABLE}_{kind}" for kind in ("latest", "history")}
FOLDER = "/srv/shop/warehouse"
Sums = list[str]


@dataclass(frozen=True)
class Lake:
    """A lake with a raw table, a latest table and a history.

    Attributes:
        replaced: what to write instead of the page's addresses and accounts.
        expected: the sums of each table, by its full name.
    """

    replaced: Mapping[str, str]
    expected: Mapping[str, Sums]


def _fill(project: Project, database: Database, replaced: Mapping[str, str]) -> Lake:
    """Loads a table, changes rows, and builds its models before and after."""
    database.execute(
        f"create table {TABLE} (id int primary key, total numeric(12, 2), at timestamptz)",
        f"insert into {TABLE} select n, n * 1.5, timestamptz '2025-01-01' + n * interval '1 s' "
        "from generate_series(1, 300) n",
    )
    asked = f"select count(*), sum(id), sum(total) from {TABLE}"
    [first] = database.query(asked)
    project.jdbc(database, [TABLE], table_options={TABLE: {"cursor_field": "at"}})
    dbt_project = project.folder / "dbt_project.yml"
    # Otherwise a small table is rebuilt, and no position deletes come about.
    dbt_project.write_text(f"{dbt_project.read_text()}  strandline__rebuild_up_to_rows: 0\n")
    for command in (("run",), ("codegen", "--history", f"shop.{TABLE}"), ("run", "--build")):
        _succeed(project.loader(*command))
    changed = "where id <= 40 or id > 300"
    database.execute(
        f"update {TABLE} set total = -total, at = '2025-02-01' where id <= 40",
        f"insert into {TABLE} select n, n, '2025-02-01' from generate_series(301, 320) n",
    )
    _succeed(project.loader("run", "--build"))
    [latest], [second] = database.query(asked), database.query(f"{asked} {changed}")
    versions = [str(a + b) for a, b in zip(first, second, strict=True)]
    expected = {
        f"{project.schema}.{TABLE}": versions,
        f"analytics.{MODELS['latest']}": [str(value) for value in latest],
        f"analytics.{MODELS['history']}": versions,
    }
    for model in MODELS.values():
        deletes = f"select count(*) from analytics.{model}.position_deletes"
        assert project.spark.sql(deletes).first()[0] > 0, f"{model} has no position deletes"
    return Lake(replaced, expected)


def _succeed(ran: Ran) -> None:
    assert ran.code == 0, ran.text


@pytest.fixture(scope="module")
def lake(
    spark: SparkSession,
    warehouse: Path,
    postgres: Postgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> Lake:
    """A lake of the target `embedded`."""
    project = Project(tmp_path_factory.mktemp("folder"), spark, f"raw_{uuid.uuid4().hex[:8]}")
    cluster_project.create_dbt_project(project.folder, project.schema)
    with postgres.database() as database:
        return _fill(project, database, {FOLDER: str(warehouse)})


@pytest.mark.parametrize("engine", ["pyiceberg", "duckdb", "pyspark"])
def test_the_lines_of_the_page_read_what_was_written(
    lake: Lake, engine: str, tmp_path: Path
) -> None:
    """From a folder that is not the project's, and without the loader's settings."""
    section = PAGE.partition("## A folder\n")[2].partition("\n## ")[0]
    [block] = [
        code for code in blocks(section, "python") if re.search(rf"^(from|import) {engine}\b", code)
    ]
    for old, new in {**lake.replaced, **_jars(block)}.items():
        block = block.replace(old, new)
    programs = []
    for table in lake.expected:
        schema, name = table.split(".")
        code = block.replace("analytics", schema).replace("shop_orders_latest", name)
        assert schema in code
        assert name in code
        programs.append(code)
    python = sys.executable if engine == "pyspark" else str(ENVIRONMENT / "bin" / "python")
    if not Path(python).exists():
        pytest.fail(f"there is no {python}: run `make test-cluster`", pytrace=False)
    own = ("STRANDLINE_", "SPARK_", "PYSPARK_", "DBT_", "AWS_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    done = subprocess.run(
        [python, Path(__file__).with_name("read_page.py")],
        input=json.dumps(programs),
        cwd=tmp_path,
        env={
            **environment,
            "HOME": str(tmp_path),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_HOME": str(Path(choose_java(find_spark().line).program).parents[1]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert dict(zip(lake.expected, found, strict=True)) == lake.expected


def _jars(block: str) -> dict[str, str]:
    """Returns the jars on this machine by the page's coordinates, so that nothing is downloaded."""
    from loader.spark.jars import cache_folder

    found = {'"spark.jars.packages"': '"spark.jars"'}
    for coordinates in set(re.findall(r"org\.[\w.]+:[\w.-]+:[\w.]+", block)):
        _, name, version = coordinates.split(":")
        found[coordinates] = str(cache_folder() / "jars" / f"{name}-{version}.jar")
    return found
