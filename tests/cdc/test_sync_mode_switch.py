"""A table can switch from a cursor to `sync_mode: cdc` and back; its dbt models stay the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dbt.dbtproject import DbtProject
from tests.services import Database
from tests.sync.project import Project

TESTS: list[Any] = [
    "strandline.matches_raw",
    "strandline.unique_key",
    "strandline.no_cursor_ties",
    "strandline.no_duplicates",
]
# The log also has rows whose cursor is null or went back; the test excludes them.
PLAUSIBLE = {"arguments": {"row_condition": "at >= timestamp '2025-01-01'"}}
MODELS = {
    "orders": ("deduped_latest", TESTS),
    "orders_history": ("deduped_history", ["strandline.matches_raw", "strandline.unique_key"]),
}
RECORDS = ("cq_sync_log", "cq_state_current")
CURSOR = {"cursor_field": "at"}
LOG = {"cursor_field": "at", "sync_mode": "cdc"}


class Shop:
    """A table of orders, and dbt models of it that use a cursor in both modes."""

    def __init__(self, project: Project, database: Database, folder: Path) -> None:
        self.project = project
        self.database = database
        database.execute(
            "create table orders (id int primary key, v int, at timestamptz)",
            "insert into orders select n, n, timestamptz '2025-01-01Z' + n * interval '1 hour' "
            "from generate_series(1, 6) n",
        )
        name = project.schema
        self.dbt = DbtProject(project.spark, folder, schema=f"mart_{name}", raw_schema=name)
        meta = {"strandline": {"unique_key": "id", "cursor_field": "at"}}
        on_raw = [{"strandline.cursor_plausible": PLAUSIBLE}]
        table = {"name": "orders", "config": {"meta": meta}, "data_tests": on_raw}
        models = []
        for model, (kind, tests) in MODELS.items():
            self.dbt.write(
                f"models/{model}.sql",
                f"{{{{ config(materialized='{kind}', unique_key='id', "
                "meta={'strandline': {'cursor_field': 'at'}}) }}\n"
                "select * from {{ source('shop', 'orders') }}",
            )
            models.append({"name": model, "data_tests": tests})
        source = {"name": "shop", "schema": name, "tables": [table]}
        self.dbt.write("models/shop.yml", {"sources": [source], "models": models})

    def sync(self, options: dict[str, str]) -> int:
        """Syncs; returns the number of rows appended."""
        self.project.jdbc(self.database, ["orders"], table_options={"orders": options})
        appended: int = self.project.run().table("shop.orders")["appended"]
        return appended

    def build_and_check(self) -> None:
        """Builds and tests the models; their current rows must equal the source."""
        results = self.dbt.run("build", "--select", "source:shop", *RECORDS, *MODELS)
        wrong = {n: one for n, one in results.items() if one.status not in ("success", "pass")}
        assert not wrong
        living = self.database.query("select id, v, at from orders order by id")
        current = [row for row in self.dbt.rows("orders_history") if row["is_current"]]
        for rows in (self.dbt.rows("orders"), current):
            found = sorted((row["id"], row["v"]) for row in rows)
            assert found == [(key, value) for key, value, _ in living]


@pytest.fixture
def shop(project: Project, postgres_database: Database, tmp_path: Path) -> Shop:
    return Shop(project, postgres_database, tmp_path / "dbt")


def test_from_a_cursor_to_the_log_and_back(shop: Shop) -> None:
    assert shop.sync(CURSOR) == 6
    # The switch reads all rows, and finds what a cursor misses: an update without it, a delete.
    shop.database.execute(
        "update orders set v = 20 where id = 2", "delete from orders where id = 3"
    )
    assert shop.sync(LOG) == 5 + 1
    shop.build_and_check()
    shop.database.execute(
        "update orders set v = 100, at = '2020-01-01Z' where id = 1",
        "begin; update orders set v = 40, at = now() where id = 4; "
        "update orders set v = 41 where id = 4; commit",
        "delete from orders where id = 5",
        "update orders set v = 60, at = null where id = 6",
        "insert into orders values (3, 30, '2019-01-01Z')",
    )
    assert shop.sync(LOG) == 6
    shop.database.execute(
        "delete from orders where id = 6", "update orders set id = 7 where id = 4"
    )
    assert shop.sync(LOG) == 3
    assert shop.sync(LOG) == 0
    shop.build_and_check()
    # The switch back also reads all rows, and appends only those that differ.
    shop.database.execute("update orders set v = 101 where id = 1")
    assert shop.sync(CURSOR) == 1
    shop.build_and_check()
    shop.database.execute("update orders set v = 102, at = now() where id = 1")
    assert shop.sync(CURSOR) == 1
    assert shop.sync(LOG) == 4
