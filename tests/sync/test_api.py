"""`loader.api` runs the same commands as the command line, and returns typed results."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from loader.api import (
    Loader,
    LoaderError,
    RunResult,
    SpecError,
    TableError,
    build_spec,
    load_spec,
)
from tests.services import Database
from tests.sync.project import ROOT, Project


@pytest.fixture
def shop(project: Project, postgres_database: Database) -> Project:
    """Two tables; `broken` contains a value that the lake cannot store."""
    postgres_database.execute(
        "create table orders (id int primary key, note text, updated_at timestamptz)",
        "insert into orders values (1, 'a', '2025-01-01'), (2, 'b', '2025-01-02')",
        "create table broken (id int primary key, price numeric, updated_at timestamptz)",
        "insert into broken values (1, 'NaN', '2025-01-01')",
    )
    cursor = {"cursor_field": "updated_at"}
    project.jdbc(
        postgres_database, ["orders", "broken"], table_options={"orders": cursor, "broken": cursor}
    )
    return project


@pytest.fixture
def loader(shop: Project) -> Iterator[Loader]:
    with Loader(load_spec(shop.folder / "loader.yml")) as loader:
        yield loader


def _normalize(events: list[Any]) -> list[dict[str, Any]]:
    """Returns events without times, in an order that does not depend on threads."""
    varying = {"at", "seconds", "batch", "complete_until"}
    return sorted(
        ({key: event[key] for key in event if key not in varying} for event in events), key=str
    )


def test_a_run_has_typed_results_and_the_events_of_the_command_line(
    shop: Project, loader: Loader, capfd: pytest.CaptureFixture[str]
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    events: list[Any] = []
    first = loader.run(on_event=events.append)
    assert capfd.readouterr() == ("", "")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert [table.table for table in first.tables] == ["shop.broken", "shop.orders"]
    orders = first.table("shop.orders")
    assert (orders.status, orders.batch, orders.rows_read, orders.rows_appended) == (
        *("synced", 1),
        *(2, 2),
    )
    assert orders.error is None
    assert orders.cursor is not None
    assert orders.cursor.startswith("2025-01-02")
    assert orders.complete_until is not None
    with pytest.raises(FrozenInstanceError):
        orders.batch = 2  # type: ignore[misc]

    # The table `broken` fails with a typed error.
    broken = first.table("shop.broken")
    assert broken.status == "failed"
    assert isinstance(broken.error, TableError)
    assert "price" in str(broken.error)
    assert first.errors == (broken.error,)
    assert not first.success
    with pytest.raises(TableError, match="price"):
        first.raise_if_failed()

    second = loader.run("shop.orders")
    assert second.success
    assert [(table.table, table.status) for table in second.tables] == [
        ("shop.orders", "nothing new")
    ]
    status = {each.table: each for each in loader.status()}
    assert status["shop.orders"].rows_appended == 2
    assert status["shop.broken"].error is not None

    # With another namespace, the command line emits the same events.
    shop.schema = shop.schema.replace("raw_", "cli_")
    shop.write()
    by_command = shop.loader("run").events
    assert _normalize(by_command) == _normalize(events)
    assert {event["event"] for event in events} >= {"phase", "table", "error"}


def test_wrong_arguments_give_one_clear_error(loader: Loader, shop: Project) -> None:
    with pytest.raises(SpecError) as raised:
        loader.run(["shop.ordres"])
    assert (raised.value.where, raised.value.what) == (
        "select",
        "no table of the spec matches 'shop.ordres'",
    )
    assert "Did you mean `shop.orders`?" in raised.value.remedy
    with pytest.raises(SpecError, match=r"table: no table of the spec matches 'ordres'"):
        loader.preview("ordres")
    with pytest.raises(SpecError, match=r"table: 'shop\.\*' is a pattern"):
        loader.preview("shop.*")
    with pytest.raises(SpecError, match="limit: 0 is too small"):
        loader.preview("orders", 0)
    with pytest.raises(SpecError, match="dbt_arguments: there is no build"):
        loader.run(dbt_arguments=["--select", "a"])
    with pytest.raises(SpecError, match=r"dbt_build: there is no dbt_project.yml"):
        loader.run(dbt_build=True)
    with pytest.raises(KeyError):
        RunResult(()).table("shop.orders")


def test_a_session_of_the_caller_survives_unchanged(shop: Project, spark: SparkSession) -> None:
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    own.range(3).createOrReplaceTempView("mine")
    before = own.sql("set").collect()
    with Loader(load_spec(shop.folder / "loader.yml"), spark=own) as loader:
        rows = loader.preview("orders", limit=1)
        assert rows.columns == ["id", "note", "updated_at"]
        assert rows.count() == 1
        assert loader.run("shop.orders").success
    assert own.sql("set").collect() == before
    assert own.table("mine").count() == 3
    assert own.table(f"{shop.schema}.orders").count() == 2


def test_a_session_without_required_settings_is_refused(shop: Project, spark: SparkSession) -> None:
    own = spark.newSession()
    own.conf.set("spark.sql.catalog.lake.cache-enabled", "true")
    own.conf.set("spark.hadoop.parquet.page.verify-checksum.enabled", "false")
    zones: Any = spark._jvm.java.util.TimeZone  # type: ignore[union-attr]
    zones.setDefault(zones.getTimeZone("Asia/Tokyo"))
    try:
        with (
            Loader(load_spec(shop.folder / "loader.yml"), spark=own) as loader,
            pytest.raises(SpecError) as raised,
        ):
            loader.run()
    finally:
        zones.setDefault(zones.getTimeZone("UTC"))
    assert raised.value.where == "spark"
    assert raised.value.what == (
        "this Spark session lacks settings: spark.sql.catalog.lake.cache-enabled=false; "
        "spark.hadoop.parquet.page.verify-checksum.enabled=true; "
        "spark.driver.extraJavaOptions=-Duser.timezone=UTC"
    )
    with pytest.raises(SpecError, match="spark: it is a session of Spark Connect"):
        Loader(load_spec(shop.folder / "loader.yml"), spark=object()).run()  # type: ignore[arg-type]


def test_a_session_of_another_lake_is_not_used_silently(
    loader: Loader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STRANDLINE_WAREHOUSE", str(tmp_path / "elsewhere"))
    with pytest.raises(SpecError, match=r"other values of spark.sql.catalog.lake.warehouse"):
        loader.run()


_STOPPED_SESSIONS = """
import logging
import sys

from loader.api import Loader, LoaderError, load_spec

logging.basicConfig()
spec = load_spec(sys.argv[1])
owner, other = Loader(spec), Loader(spec)
print(owner.run("shop.orders").success, other.run("shop.orders").success)
owner.close()
print(other.run("shop.orders").success)
session = other.spark
given = Loader(spec, spark=session)
print(given.run("shop.orders").success)
session.stop()
try:
    given.run("shop.orders")
except LoaderError as error:
    print(error)
print(other.run("shop.orders").success)
other.close()
"""


def test_a_stopped_session_is_replaced_unless_the_caller_passed_it(shop: Project) -> None:
    # A variable that only the spec reads, and whose name resembles one that the profile reads.
    shop.sources[0]["spec"]["properties"] = {"ApplicationName": "${STRANDLINE_S3_PATH_STILE}"}
    shop.write()
    ran = subprocess.run(
        [sys.executable, "-c", _STOPPED_SESSIONS, str(shop.folder / "loader.yml")],
        env={**os.environ, "STRANDLINE_S3_PATH_STILE": "x"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.stdout.splitlines() == [
        "True True",
        "True",
        "True",
        "spark: it is stopped. Pass a running session whose driver is this process, or no session",
        "True",
    ], ran.stderr
    assert "nothing reads the variable" not in ran.stderr


def test_the_drivers_of_a_callers_session_log_nothing(shop: Project, spark: SparkSession) -> None:
    log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setLevel("org.mariadb", log4j.Level.DEBUG)
    with Loader(load_spec(shop.folder / "loader.yml"), spark=spark) as loader:
        assert loader.check("shop.orders").success
    assert not log4j.LogManager.getLogger("org.mariadb.jdbc").isErrorEnabled()


def test_a_spec_built_in_code_is_read_like_a_file(
    shop: Project, postgres_database: Database
) -> None:
    documents: list[dict[str, Any]] = [
        {
            "kind": "source",
            "spec": {
                "name": "shop",
                "path": "jdbc",
                "tables": ("orders",),
                "destinations": ["lake"],
                "spec": {
                    "url": postgres_database.url,
                    "user": postgres_database.user,
                    "password": "${SHOP_PASSWORD}",
                    "table_options": {"orders": {"cursor_field": "updated_at"}},
                },
            },
        },
        {
            "kind": "destination",
            "spec": {
                "name": "lake",
                "path": "spark",
                "spec": {"schema": shop.schema, "profiles_dir": ROOT / "profiles"},
            },
        },
    ]
    env = {"SHOP_PASSWORD": postgres_database.password}
    with Loader(build_spec(documents, folder=shop.folder, env=env)) as loader:
        assert loader.check().success
        assert loader.run().table("shop.orders").rows_appended == 2

    documents[0]["spec"]["destinatons"] = ["lake"]
    with pytest.raises(SpecError, match=r"build_spec, document 1 \(source shop\), spec.destinaton"):
        build_spec(documents, env=env)
    documents[0]["spec"]["spec"]["password"] = object()
    with pytest.raises(SpecError, match=r"build_spec: .*a value has the type object"):
        build_spec(documents)


def test_errors_have_no_secrets_and_no_causes_that_have_them(
    shop: Project, caplog: pytest.LogCaptureFixture
) -> None:
    """The user name is equal to the password, and the driver's message contains it."""
    source = shop.sources[0]["spec"]
    source["user"] = source["password"] = "pa55-w0rd"
    shop.write()
    caplog.set_level(logging.DEBUG, "loader")
    events: list[Any] = []
    with Loader(load_spec(shop.folder / "loader.yml")) as loader:
        result = loader.run(on_event=events.append)
        [error] = result.errors
        assert loader.check().errors
        with pytest.raises(LoaderError) as raised:
            loader.preview("orders")
    errors = [table.error for table in result.tables if table.error is not None]
    for each in (error, raised.value, *errors):
        assert "***" in str(each)
        assert (each.__cause__, each.__context__) == (None, None)
    shown = "".join(traceback.format_exception(raised.value))
    with pytest.raises(LoaderError) as failed:
        result.raise_if_failed()
    shown += "".join(traceback.format_exception(failed.value))
    for text in (repr(result), repr(events), shown, caplog.text):
        assert "pa55-w0rd" not in text


def test_reconcile_finds_and_repairs_what_a_cursor_misses(
    shop: Project, loader: Loader, postgres_database: Database
) -> None:
    loader.run("shop.orders")
    postgres_database.execute("delete from orders where id = 1")
    [table] = loader.reconcile("shop.orders", allow_deletes=True).tables
    assert (table.status, table.missed_deletes, table.sample) == (
        *("differs", 1),
        (("missed delete", "id=1"),),
    )
    repaired = loader.reconcile("shop.orders", repair=True, allow_deletes=True)
    assert repaired.success
    assert repaired.tables[0].status == "repaired"


def test_a_stop_between_two_calls_stops_nothing(loader: Loader) -> None:
    loader.stop()
    assert loader.run("shop.orders").success


def test_another_thread_stops_a_run(loader: Loader) -> None:
    def stop(event: Any) -> None:
        if event["event"] == "phase" and event["table"] == "shop.orders":
            threading.Thread(target=loader.stop).start()
            stopping.wait(1)

    stopping = threading.Event()
    stopped = loader.run(["shop.orders"], on_event=stop)
    assert "the run was interrupted" in str(stopped.errors[0])
    assert loader.run(["shop.orders"]).success


def test_a_callback_that_fails_or_calls_back_ends_no_run(
    loader: Loader, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Callable[[], Any]] = [loader.status]

    def fail(event: Any) -> None:
        calls[0]()

    assert loader.run("shop.orders", on_event=fail).success
    assert "Loader: another call is still running" in caplog.text


def test_dbt_builds_in_the_same_process(
    shop: Project, loader: Loader, capfd: pytest.CaptureFixture[str], spark: SparkSession
) -> None:
    project = {"name": "shop", "profile": "strandline", "version": "1.0.0", "config-version": 2}
    (shop.folder / "dbt_project.yml").write_text(
        "\n".join(f"{key}: {value}" for key, value in project.items())
    )
    models = shop.folder / "models"
    models.mkdir()
    model = "{{ config(materialized='table', schema='" + shop.schema + "') }} "
    (models / "good.sql").write_text(model + f"select * from {shop.schema}.orders")
    arguments = ["--target-path", str(shop.folder / "target"), "--log-path", str(shop.folder)]
    built = loader.run("shop.orders", dbt_build=True, dbt_arguments=arguments)
    assert built.success
    assert built.build is not None
    assert (built.build.succeeded, built.build.failed) == (1, 0)
    (models / "bad.sql").write_text(model + "select no_such_column")
    failed = loader.run("shop.orders", dbt_build=True, dbt_arguments=arguments)
    assert failed.tables[0].status == "nothing new"
    assert failed.build is not None
    assert (failed.success, failed.build.exit_code) == (False, 1)
    assert list(failed.build.failures) == ["model.shop.bad"]
    with pytest.raises(LoaderError, match="no_such_column"):
        failed.raise_if_failed()
    assert capfd.readouterr() == ("", "")
    spark.sql(f"drop table if exists analytics_{shop.schema}.good")
