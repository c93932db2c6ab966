"""Runs the guide's commands as a new user would, from a wheel, with a real PostgreSQL.

`loader setup` finds the jars and the class archive of the suite's own environment. The last test
starts a JVM with that archive.
"""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from pyiceberg.table import StaticTable

from loader.spark.class_archive import record_archive
from loader.spark.jars import CACHE_VARIABLE, cache_folder
from loader.spark.java import choose_java
from loader.spark.spark_version import find_spark
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
_START = """
import sys
from pathlib import Path
from loader.spark.profile import Profile
from loader.spark.session import session
conf = {"spark.master": "local[1]", "spark.ui.enabled": "false"}
conf["spark.driver.extraJavaOptions"] = f"-Dours.is=kept -Xlog:class+load:file={sys.argv[1]}"
spark = session(Profile("p", "t", "s", conf, Path("profiles.yml")))
print("kept", spark._jvm.System.getProperty("ours.is"))
"""


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a clean virtual environment with the wheel.

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
    script = f"#!{venv}/bin/python\nfrom dbt.cli.main import cli\ncli()\n"
    (venv / "bin" / "dbt").write_text(script)
    (venv / "bin" / "dbt").chmod(0o755)
    return venv / "bin"


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[Database]:
    """The guide's database, with its tables and its role."""
    with postgres.database("shop") as database:
        database.execute(TABLES, blocks(GUIDE, "sql")[0])
        yield database
        database.execute("drop owned by loader", "drop role loader")


@dataclass(frozen=True)
class Followed:
    """The result of the guide's commands.

    Attributes:
        said: their output.
        lakehouse: the project's folder.
    """

    said: str
    lakehouse: Path


def _script(lakehouse: Path) -> list[str]:
    """Returns the guide's commands, of which dbt's is run from another folder."""
    steps = commands(GUIDE)
    start = [line for line in steps[: steps.index("loader discover")] if "pip install" not in line]
    # the suite's database has another address
    start = [line for line in start if not line.startswith(("python3 -m venv", "export PG"))]
    assert start[0] == "mkdir lakehouse && cd lakehouse"
    load, build = steps[steps.index("loader discover") : -1], steps[-1]
    assert build == "dbt build"
    # The paths that dbt writes to must not depend on the current folder.
    build = f"{build} --project-dir {lakehouse} --profiles-dir {lakehouse}"
    return [
        *start,
        *load,
        "mkdir ../elsewhere",
        "cd ../elsewhere",
        build,
    ]


@pytest.fixture(scope="module")
def archive() -> None:
    """Records the class archive, or waits until `make test` has recorded it."""
    home = find_spark()
    record_archive(home, choose_java(home.line))


@pytest.fixture(scope="module")
def followed(
    environment: Path, archive: None, database: Database, tmp_path_factory: pytest.TempPathFactory
) -> Followed:
    """Runs the guide's commands."""
    folder = tmp_path_factory.mktemp("guide")
    host, port, name = re.findall(r"//(.*?):(\d+)/(\w+)", database.url)[0]
    [password] = re.findall(r"password '(.*?)'", blocks(GUIDE, "sql")[0])
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("STRANDLINE_", "PYTHONPATH"))}
    ran = subprocess.run(
        ["bash", "-xeuo", "pipefail", "-c", "\n".join(_script(folder / "lakehouse"))],
        cwd=folder,
        env={
            **kept,
            CACHE_VARIABLE: str(cache_folder()),
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
    return Followed(ran.stdout, folder / "lakehouse")


def test_the_commands_give_the_results_in_the_guide(followed: Followed) -> None:
    said, lakehouse = followed.said, followed.lakehouse
    line = find_spark().line
    assert f"Iceberg: {line.iceberg.file_name} is installed" in said
    assert f"Spark {line.version}: " in said
    assert "class archive: is installed, " in said
    assert "WARN=0 ERROR=0" in said
    assert "warning" not in said.lower().replace("warnings", ""), said

    spec = (lakehouse / "loader.yml").read_text()
    spec = re.sub(r"//[^/]+/shop", "//localhost:5432/shop", spec)
    excerpt = yaml.safe_load_all(named(GUIDE, "yaml", "loader.yml"))
    assert _is_within([*excerpt], [*yaml.safe_load_all(spec)]), spec

    written = lakehouse / "models" / "strandline"
    model = (written / "shop_orders_latest.sql").read_text().partition("\n")[2]
    assert model == named(GUIDE, "sql", "models/strandline/shop_orders_latest.sql")
    for name in ("models.yml", "sources.yml"):
        shown = yaml.safe_load(named(GUIDE, "yaml", f"models/strandline/{name}"))
        assert _is_within(shown, yaml.safe_load((written / name).read_text())), name

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


def _is_within(part: object, whole: object) -> bool:
    """Returns whether everything in a page's excerpt is in the whole file."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and _is_within(value, whole[key]) for key, value in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return all(any(_is_within(one, other) for other in whole) for one in part)
    return part == whole


@pytest.mark.usefixtures("archive")
def test_a_jvm_takes_its_classes_from_the_archive(tmp_path: Path) -> None:
    log = tmp_path / "classes.log"
    done = subprocess.run(
        [sys.executable, "-c", _START, str(log)],
        env={**os.environ, "SPARK_SUBMIT_OPTS": ""},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("kept kept\n", "")  # Java prints nothing else
    loaded = log.read_text().splitlines()
    shared = [line for line in loaded if line.endswith("shared objects file (top)")]
    assert any("org.apache.spark.SparkContext " in line for line in shared)
    assert len(shared) > len(loaded) / 2
