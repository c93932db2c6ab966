"""Other engines read the tables of the loader and dbt, with the code of docs/readers.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from loader.spark.jars import folders
from loader.spark.java import choose_java
from loader.spark.spark_version import find_spark
from tests.cluster.lake import FilledLake
from tests.services import Database
from tests.services.seaweed import ACCOUNT, BUCKET, Seaweed
from tests.setup.pages import ROOT, blocks

PAGE = (ROOT / "docs" / "readers.md").read_text()
ENVIRONMENT = Path(os.environ.get("READERS", ROOT / ".venv-readers"))
engines = pytest.mark.parametrize("engine", ["pyiceberg", "duckdb", "pyspark"])


@engines
def test_a_folder(embedded: FilledLake, warehouse: Path, engine: str, tmp_path: Path) -> None:
    replaced = {"/srv/shop/warehouse": str(warehouse)}
    _read("A folder", embedded, engine, replaced, tmp_path)


@engines
@pytest.mark.parametrize("place", ["jdbc"], indirect=True)
def test_a_jdbc_catalog_and_s3(
    filled: FilledLake,
    catalog_database: Database,
    object_store: Seaweed,
    engine: str,
    tmp_path: Path,
) -> None:
    catalog = catalog_database
    user, address = f"{catalog.user}:{catalog.password}", f"127.0.0.1:{catalog.server.port}"
    replaced = {
        "reader:secret@db:5432/catalog": f"{user}@{address}/{catalog.name}",
        "//db:5432/catalog?user=reader&password=secret": f"//{address}/{catalog.name}"
        f"?user={catalog.user}&password={catalog.password}",
        "s3://lake/warehouse": f"s3://{BUCKET}/{catalog.name}",
        "s3:8333": object_store.endpoint.removeprefix("http://"),
        "s3-reader": ACCOUNT["AWS_ACCESS_KEY_ID"],
        "s3-secret": ACCOUNT["AWS_SECRET_ACCESS_KEY"],
    }
    account = {name: ACCOUNT[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    _read("A JDBC catalog and S3", filled, engine, replaced, tmp_path, **account)


def _read(
    section: str,
    lake: FilledLake,
    engine: str,
    replaced: Mapping[str, str],
    folder: Path,
    **variables: str,
) -> None:
    """Runs the page's code outside the project's folder and without its settings.

    Args:
        replaced: replacements for the page's addresses and accounts.
    """
    for table in list(lake.sums)[1:]:
        deletes = f"select count(*) from {table}.position_deletes"
        assert lake.project.spark.sql(deletes).first()[0] > 0, f"{table} has no position deletes"
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    [block] = [
        code for code in blocks(text, "python") if re.search(rf"^(from|import) {engine}\b", code)
    ]
    for old, new in {**replaced, **_jars(block)}.items():
        block = block.replace(old, new)
    programs = []
    for table in lake.sums:
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
        cwd=folder,
        env={
            **environment,
            **variables,
            "HOME": str(folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "JAVA_HOME": str(Path(choose_java(find_spark().line).program).parents[1]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert dict(zip(lake.sums, found, strict=True)) == lake.sums


def _jars(block: str) -> dict[str, str]:
    """Maps the page's jar coordinates to local files, so that nothing is downloaded."""
    found = {'"spark.jars.packages"': '"spark.jars"'}
    for coordinates in set(re.findall(r"org\.[\w.]+:[\w.-]+:[\w.]+", block)):
        _, name, version = coordinates.split(":")
        file = f"{name}-{version}.jar"
        [path] = {jar for jar in (each / file for each in folders()) if jar.exists()}
        found[coordinates] = str(path)
    return found
