"""Airflow runs the loader: real DAGs, in a separate environment with Airflow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from loader.lake.locks import lock_table
from tests.services import Database
from tests.services.server import PASSWORD
from tests.sync.project import ROOT, Project

FOLDER = Path(os.environ.get("AIRFLOW", ROOT / ".venv-airflow"))
LOADER = Path(sys.executable).parent / "loader"
ORDERS, CUSTOMERS = "x-strandline://shop/orders", "x-strandline://shop/customers"
WAITING = "select 1 from pg_locks where relation = 'orders'::regclass and not granted"


@dataclass
class Airflow:
    """An installation of Airflow with its own database and folder of DAGs."""

    home: Path

    def environment(self) -> dict[str, str]:
        """Returns the variables of Airflow's processes."""
        connection = {"conn_type": "postgres", "password": PASSWORD}
        return {
            **os.environ,
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW_CONN_SHOP": json.dumps(connection),
        }

    def write(self, dags: str) -> None:
        """Writes the only file with DAGs."""
        folder = self.home / "dags"
        folder.mkdir(exist_ok=True)
        (folder / "dags.py").write_text(dags)

    def start(self, dag: str) -> subprocess.Popen[bytes]:
        """Starts a run of a DAG."""
        with (self.home / "log").open("wb") as log:
            return subprocess.Popen(
                [FOLDER / "bin" / "python", ROOT / "tests/schedulers/airflow_run.py", dag],
                env=self.environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self, run: subprocess.Popen[bytes]) -> tuple[dict[str, Any], str]:
        """Waits for the end of a run. Returns its states and events, and its log."""
        try:
            code = run.wait(timeout=300)
        finally:
            run.kill()
        log = (self.home / "log").read_text()
        assert code == 0, log
        return json.loads(log.splitlines()[-1]), log

    def run(self, dag: str) -> tuple[dict[str, Any], str]:
        """Runs a DAG. Returns its states and events, and its log."""
        return self.wait(self.start(dag))


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Airflow:
    if not (FOLDER / "bin" / "airflow").exists():
        pytest.fail(f"there is no {FOLDER}: run `make test-environment`", pytrace=False)
    installed = Airflow(tmp_path_factory.mktemp("airflow"))
    subprocess.run(
        [FOLDER / "bin" / "airflow", "db", "migrate"],
        env=installed.environment(),
        check=True,
        capture_output=True,
    )
    return installed


@pytest.fixture
def shop(project: Project, postgres_database: Database) -> Project:
    """A project with two tables. The database's password is an environment variable."""
    postgres_database.execute(
        *(
            statement
            for table in ("orders", "customers")
            for statement in (
                f"create table {table} (id int primary key, version bigint)",
                f"insert into {table} values (1, 5), (2, 6)",
            )
        )
    )
    options = {table: {"cursor_field": "version"} for table in ("orders", "customers")}
    project.jdbc(postgres_database, ["orders", "customers"], table_options=options)
    project.sources[0]["spec"]["password"] = "${PGPASSWORD}"
    project.write()
    return project


def _read_example(shop: Project, contained: str = "build_task_group") -> str:
    """Returns a code block of docs/schedulers.md, with the paths of this test."""
    page = (ROOT / "docs" / "schedulers.md").read_text()
    [code] = [
        block
        for block in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        if contained in block
    ]
    code = code.replace("/srv/shop/.venv/bin/loader", str(LOADER))
    return str(code.replace("/srv/shop", str(shop.folder)))


def test_the_example_of_the_page_emits_an_asset_for_each_table(
    airflow: Airflow, shop: Project
) -> None:
    airflow.write(_read_example(shop))
    result, log = airflow.run("shop")
    assert result["state"] == "success", log
    assert result["tasks"] == {
        "strandline.load": ["success", 1],
        "strandline.shop.orders": ["success", 1],
        "strandline.shop.customers": ["success", 1],
    }
    assert result["events"].keys() == {ORDERS, CUSTOMERS}
    orders = result["events"][ORDERS]
    assert (orders["status"], orders["batch"], orders["rows_appended"]) == ("synced", 1, 2)
    assert orders["cursor"] == "6"
    assert shop.rows("select count(*) from raw.orders") == [(2,)]


def test_the_operator_alone_emits_the_assets_of_its_tables(airflow: Airflow, shop: Project) -> None:
    operator = _read_example(shop, "LoaderRunOperator(").replace("--build", "--full-refresh")
    own = f"executable='{LOADER}', env={{'PGPASSWORD': '{PASSWORD}'}}, config="
    airflow.write(
        "from airflow.sdk import DAG\n"
        "from loader.schedulers.airflow import LoaderRunOperator\n"
        f"with DAG('whole'):\n    {operator.replace('config=', own)}"
    )
    result, log = airflow.run("whole")
    assert result["tasks"] == {"load": ["success", 1]}, log
    assert result["events"].keys() == {ORDERS}
    assert result["events"][ORDERS]["rows_appended"] == 2


def test_a_locked_table_is_retried_and_leaves_the_assets_of_the_others(
    airflow: Airflow, shop: Project
) -> None:
    airflow.write(_read_example(shop).replace("retries=2", "retries=1, retry_delay=0"))
    with lock_table(shop.lake(), "orders", timeout=0):
        result, log = airflow.run("shop")
    assert result["state"] == "failed", log
    assert result["tasks"] == {
        "strandline.load": ["failed", 2],
        "strandline.shop.orders": ["failed", 1],
        "strandline.shop.customers": ["success", 1],
    }
    assert result["events"].keys() == {CUSTOMERS}
    assert log.count("table shop.orders: another run holds this table") >= 2


def test_an_invalid_spec_is_not_retried(airflow: Airflow, shop: Project) -> None:
    airflow.write(_read_example(shop).replace("retries=2", "retries=1, retry_delay=0"))
    shop.sources[0]["destinations"] = ["sea"]
    shop.write()
    result, log = airflow.run("shop")
    assert result["tasks"] == {
        "strandline.load": ["failed", 1],
        "strandline.shop.orders": ["failed", 1],
        "strandline.shop.customers": ["failed", 1],
    }
    assert result["events"] == {}
    assert "there is no destination 'sea'" in log
    assert "shop.orders was not synced: see the log of strandline.load" in log


@pytest.mark.parametrize("timeout", [None, 10])
def test_a_stopped_task_ends_its_loader(
    airflow: Airflow, shop: Project, postgres_database: Database, timeout: int | None
) -> None:
    shop.sources[0]["spec"]["lock_timeout"] = "1 hour"
    shop.write()
    limit = f", execution_timeout=datetime.timedelta(seconds={timeout})" if timeout else ""
    airflow.write(
        f"import datetime\n{_read_example(shop)}".replace("retries=2", f"retries=0{limit}")
    )
    with postgres_database.connect() as session:
        session.autocommit = False
        session.execute("lock table orders in access exclusive mode")  # the sync waits for it
        run = airflow.start("shop")
        while not timeout and not postgres_database.query(WAITING):
            assert run.poll() is None, "no sync waited for the lock"
        if not timeout:
            run.terminate()
        result, log = airflow.wait(run)
    assert result["tasks"]["strandline.load"] == ["failed", 1], log
    assert result["tasks"]["strandline.shop.orders"] == ["failed", 1], log
    running = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in running if str(shop.folder / "loader.yml") in command]
