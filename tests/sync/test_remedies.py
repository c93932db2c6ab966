"""After the documented fix, a failing dbt test passes again, and still detects the next error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.services import Database, Postgres
from tests.sync.original import Original
from tests.sync.project import Project

ON_RAW = ("no_cursor_ties", "cursor_plausible", "row_hash_valid")
TESTS = (*ON_RAW, "batches_complete", "inclusive_cursor", "state_consistent")
CHANGE = (
    "update orders set note = note || '.', at = timestamptz '2025-01-01Z' + {hours} * "
    "interval '1 hour' where id = {order}"
)


@dataclass(frozen=True)
class Shop:
    """Orders in a database, their raw table, and its dbt tests."""

    project: Project
    database: Database
    dbt: DbtProject
    manifest: Any

    def change(self, order: int, hours: int) -> None:
        """Updates an order, with a cursor that many hours into the year, and syncs."""
        self.database.execute(CHANGE.format(order=order, hours=hours))
        self.project.run()

    def sql(self, statement: str) -> None:
        """Runs a statement that bypasses the loader; `raw.` is replaced by the schema."""
        self.project.spark.sql(statement.replace("raw.", f"{self.project.schema}."))

    def list_failures(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the failing rows of each dbt test that fails."""
        chosen = (f"test_name:{test}" for test in TESTS)
        results = self.dbt.run("test", "--select", *chosen, manifest=self.manifest)
        assert len(results) == len(TESTS)
        assert {one.status for one in results.values()} <= {"pass", "fail"}, {
            name: one.message for name, one in results.items()
        }
        return {
            next(test for test in TESTS if test in name): self.dbt.failing_rows(one)
            for name, one in results.items()
            if one.status == "fail"
        }


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> Iterator[Database]:
    """The database that all tests share."""
    with postgres.database("remedied") as database:
        yield database


@pytest.fixture(scope="module")
def original(
    spark: SparkSession,
    warehouse: Path,
    database: Database,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Original]:
    """Five synced orders, one of which was updated a day later, in the second batch."""
    folder = tmp_path_factory.mktemp("remedied")
    project = Project(folder, spark, "raw_remedied")
    database.execute(
        "create table orders (id int primary key, note text, price numeric(8, 2), at timestamptz)",
        "insert into orders select n, 'n', n, timestamptz '2025-01-01Z' + n * interval "
        "'1 hour' from generate_series(1, 5) n",
    )
    project.jdbc(database, ["orders"], table_options={"orders": {"cursor_field": "at"}})
    project.run()
    database.execute(CHANGE.format(order=1, hours=24))
    project.run()
    original = Original(project, database, warehouse, folder / "copy")
    yield original
    original.remove()


@pytest.fixture(scope="module")
def dbt_tests(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[DbtProject, Any]:
    """A dbt project with the raw table's tests, and its manifest."""
    folder = tmp_path_factory.mktemp("proofs")
    dbt = DbtProject(spark, folder, schema="mart_remedied", raw_schema="raw_remedied")
    table = {
        "name": "orders",
        "config": {"meta": {"strandline": {"unique_key": "id", "cursor_field": "at"}}},
        "data_tests": [f"strandline.{test}" for test in ON_RAW],
    }
    source = {"name": "shop", "schema": "raw_remedied", "tables": [table]}
    dbt.write("models/shop.yml", {"sources": [source]})
    return dbt, dbt.parse()


@pytest.fixture
def shop(
    original: Original, database: Database, dbt_tests: tuple[DbtProject, Any], tmp_path: Path
) -> Shop:
    """The shop, restored to its original state."""
    return Shop(original.again(tmp_path), database, *dbt_tests)


def test_dbt_tests_pass_after_the_documented_fixes(shop: Shop) -> None:
    assert shop.list_failures() == {}

    # Rows between two windows are missing: they are read again.
    shop.sql("update raw._cq_syncs set cursor_low = '2025-01-01 06:00:00' where batch = 2")
    [gap] = shop.list_failures()["inclusive_cursor"]
    assert gap["stored_cursor"] == "2025-01-01 05:00:00"
    shop.project.run("--select", "shop.orders", "--from", gap["stored_cursor"])
    assert shop.list_failures() == {}

    # Two versions of a row have the same cursor: a full refresh tells which is the newest.
    shop.database.execute("update orders set note = 'unmoved' where id = 1")
    shop.project.run("--select", "shop.orders", "--from", "2025-01-01", "--to", "2025-02-01")
    assert {row["id"] for row in shop.list_failures()["no_cursor_ties"]} == {1}
    shop.project.run("--full-refresh")
    assert shop.list_failures() == {}

    # A row dated in the future is corrected in the source. Until then, other tests still work.
    shop.database.execute("insert into orders values (6, 'typo', 1, '2099-01-01Z')")
    shop.project.run()
    assert set(shop.list_failures()) == {"cursor_plausible"}
    kept = shop.project.state("shop.orders")["cursor"]
    shop.project.loader("state", "set", "shop.orders", "2050-01-01")
    [ahead] = shop.list_failures()["state_consistent"]
    assert ahead["problem"] == "the cursor is ahead of the raw table"
    shop.project.loader("state", "set", "shop.orders", kept)
    shop.database.execute("update orders set at = now() where id = 6")
    shop.project.run()
    assert shop.list_failures() == {}


def test_a_full_refresh_restores_deleted_rows(shop: Shop) -> None:
    shop.sql("delete from raw.orders where id = 3")
    assert {row["problem"] for row in shop.list_failures()["batches_complete"]} == {
        "row counts of ledger and raw table differ",
        "a commit by another program",
    }
    shop.project.run("--full-refresh")
    assert shop.list_failures() == {}
    shop.sql("delete from raw.orders where id = 3 and _cq_batch = 3")
    assert len(shop.list_failures()["batches_complete"]) == 2


def test_a_changed_value_is_found_by_its_hash(shop: Shop) -> None:
    shop.sql("update raw.orders set price = 9 where id = 2")
    found = shop.list_failures()
    assert [row["id"] for row in found["row_hash_valid"]] == [2]
    assert [row["problem"] for row in found["batches_complete"]] == ["a commit by another program"]


def test_a_raw_table_that_was_dropped_and_loaded_again(shop: Shop) -> None:
    """Batches are checked from the first one after the drop, which must exist."""
    shop.sql("drop table raw.orders")
    shop.project.run()
    shop.change(2, 30)
    assert shop.project.rows("select distinct _cq_batch from raw.orders order by 1") == [(3,), (4,)]
    assert shop.list_failures() == {}
    shop.sql("delete from raw.orders where _cq_batch = 3")
    shop.sql("delete from raw._cq_syncs where batch = 3")
    assert {(row["batch"], row["problem"]) for row in shop.list_failures()["batches_complete"]} == {
        (3, "committed, not in the raw table"),
        (None, "a commit by another program"),
    }
