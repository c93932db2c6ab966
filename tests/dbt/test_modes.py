"""docs/modes.md, row by row: one loader, one raw table, and the models for the modes."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.services import Database
from tests.sync.project import Project

MODELS = {
    "overwritten": "{{ strandline.newest_refresh(source('shop', 'orders')) }}",
    "overwritten_deduped": (
        "{{ config(materialized='deduped_latest', primary_key='id', cursor_field='at', "
        "delete_stale=true) }}\nselect * from {{ source('shop', 'orders') }}"
    ),
    "deduped": (
        "{{ config(materialized='deduped_latest', primary_key='id', cursor_field='at') }}\n"
        "select * from {{ source('shop', 'orders') }}"
    ),
    "slowly_changing": (
        "{{ config(materialized='deduped_history', primary_key='id', cursor_field='at', "
        "delete_stale=true) }}\nselect * from {{ source('shop', 'orders') }}"
    ),
}


class Modes:
    """A table that is synced, changed, and read through every model."""

    def __init__(self, project: Project, database: Database, folder: Path) -> None:
        self.loader = project
        self.database = database
        database.execute(
            "create table orders (id int primary key, note text, at timestamptz)",
            "insert into orders select n, 'first', timestamptz '2025-01-01 00:00:00Z' "
            "from generate_series(1, 3) n",
        )
        project.jdbc(database, ["orders"], table_options={"orders": {"cursor_field": "at"}})
        name = project.schema
        self.dbt = DbtProject(project.spark, folder, schema=f"mart_{name}", raw_schema=name)
        for model, sql in MODELS.items():
            self.dbt.write(f"models/{model}.sql", sql)
        self.dbt.write(
            "models/sources.yml",
            {"sources": [{"name": "shop", "schema": name, "tables": [{"name": "orders"}]}]},
        )
        self.dbt.write(
            "dbt_project.yml",
            (folder / "dbt_project.yml").read_text()
            + "models: {+file_format: iceberg, +materialized: table}\n",
        )
        self.manifest = self.dbt.parse()

    def sync(self, *arguments: str) -> list[str]:
        """Syncs and builds; returns the warnings."""
        warnings = self.loader.run(*arguments).warnings
        results = self.dbt.run("run", "--select", *MODELS, manifest=self.manifest)
        assert {one.status for one in results.values()} == {"success"}, results
        return warnings

    def rows(self, model: str) -> list[tuple[int, str]]:
        """Returns key and payload of each row."""
        return sorted((row["id"], row["note"]) for row in self.dbt.rows(model))

    def raw(self) -> list[tuple[int, int, str]]:
        """Returns generation, key and payload of each row."""
        return self.loader.rows(
            "select _cq_generation, id, note from raw.orders order by 1, 2, _cq_batch"
        )


@pytest.fixture
def modes(spark: SparkSession, postgres_database: Database, tmp_path: Path) -> Modes:
    (tmp_path / "loader").mkdir()
    project = Project(tmp_path / "loader", spark, f"raw_{uuid.uuid4().hex[:8]}")
    return Modes(project, postgres_database, tmp_path / "dbt")


def test_modes(modes: Modes) -> None:
    first = [(1, "first"), (2, "first"), (3, "first")]
    modes.sync()
    assert [modes.rows(model) for model in MODELS] == [first] * 4

    # incremental: an update, and a delete that no cursor sees
    modes.database.execute(
        "update orders set note = 'second', at = '2025-01-02 00:00:00Z' where id = 1",
        "delete from orders where id = 3",
    )
    modes.sync()
    assert modes.raw() == [(1, 1, "first"), (1, 1, "second"), (1, 2, "first"), (1, 3, "first")]
    latest = [(1, "second"), (2, "first"), (3, "first")]
    assert modes.rows("deduped") == modes.rows("overwritten_deduped") == latest

    # full refresh: a generation that appends, overwrites, or hides what is gone
    modes.sync("--full-refresh")
    assert modes.raw()[4:] == [(2, 1, "second"), (2, 2, "first")]
    assert modes.rows("overwritten") == [(1, "second"), (2, "first")]
    assert modes.rows("overwritten_deduped") == [(1, "second"), (2, "first")]
    assert modes.rows("deduped") == latest
    history = {
        (row["id"], row["note"]): (row["valid_to"] is None, row["is_current"])
        for row in modes.dbt.rows("slowly_changing")
    }
    assert history == {
        (1, "first"): (False, False),
        (1, "second"): (True, True),
        (2, "first"): (True, True),
        (3, "first"): (False, False),
    }

    # what comes after it belongs to it
    modes.database.execute("insert into orders values (4, 'new', '2025-01-04 00:00:00Z')")
    modes.sync()
    now = [(1, "second"), (2, "first"), (4, "new")]
    assert modes.rows("overwritten") == modes.rows("overwritten_deduped") == now


def test_an_empty_refresh_hides_nothing(modes: Modes) -> None:
    modes.sync()
    modes.database.execute("delete from orders")
    (warning,) = modes.sync("--full-refresh")
    assert "the source is empty" in warning
    assert len(modes.rows("overwritten_deduped")) == len(modes.rows("overwritten")) == 3


def test_a_query_asks_the_ledger_itself(modes: Modes) -> None:
    modes.sync()
    compiled = modes.dbt.run("run", "--select", "overwritten", manifest=modes.manifest)
    as_in_a_view = compiled["overwritten"].sql

    def asked() -> list[tuple[int, str]]:
        now = modes.dbt.run("run", "--select", "overwritten", manifest=modes.manifest)
        found = [
            modes.loader.rows(f"select id, note from ({sql}) order by 1")
            for sql in (as_in_a_view, now["overwritten"].sql)
        ]
        assert found[0] == found[1] == modes.rows("overwritten")
        return found[0]

    before = [(1, "first"), (2, "first"), (3, "first")]
    after = [(1, "second"), (2, "first"), (3, "first")]
    modes.database.execute("update orders set note = 'second' where id = 1")
    modes.loader.run("--full-refresh")
    assert asked() == after
    # As between the commit of the rows and that of the ledger, or after a kill there.
    modes.loader.rows("delete from raw._cq_syncs where batch = 2")
    assert asked() == before
    modes.loader.run()
    assert asked() == after
