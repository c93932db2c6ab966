"""The models of docs/modes.md (overwrite, deduplicate, slowly changing) on one raw table."""

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
        "{{ config(materialized='deduped_latest', unique_key='id', "
        "meta={'strandline': {'cursor_field': 'at', 'delete_stale': true}}) }}\n"
        "select * from {{ source('shop', 'orders') }}"
    ),
    "deduped": (
        "{{ config(materialized='deduped_latest', unique_key='id', "
        "meta={'strandline': {'cursor_field': 'at'}}) }}\n"
        "select * from {{ source('shop', 'orders') }}"
    ),
    "slowly_changing": (
        "{{ config(materialized='deduped_history', unique_key='id', "
        "meta={'strandline': {'cursor_field': 'at', 'delete_stale': true}}) }}\n"
        "select * from {{ source('shop', 'orders') }}"
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
    """Each model is right after a first sync, an increment, a full refresh and another sync."""
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

    # full refresh: models append the new generation, overwrite with it, or hide deleted rows
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

    # later syncs belong to the generation of the refresh
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


def test_newest_refresh_reads_the_ledger_at_query_time(modes: Modes) -> None:
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
    # The state between the commits of rows and ledger, or after a crash there.
    modes.loader.rows("delete from raw._cq_syncs where batch = 2")
    assert asked() == before
    modes.loader.run()
    assert asked() == after


@pytest.mark.parametrize("how", ["dropped", "rolled back"])
def test_generations_that_start_again_below_those_in_the_ledger(modes: Modes, how: str) -> None:
    modes.sync()
    modes.database.execute("update orders set note = 'second' where id = 1")
    for _ in range(3):
        modes.loader.run("--full-refresh")
    if how == "dropped":
        modes.loader.rows("drop table raw.orders")
        modes.loader.rows("drop table raw._cq_state")
    else:
        [(first,)] = modes.loader.rows(
            "select snapshot_id from raw.orders.snapshots order by committed_at limit 1"
        )
        modes.loader.rows(
            f"call lake.system.rollback_to_snapshot('{modes.loader.schema}.orders', {first})"
        )
    modes.loader.run("--full-refresh")
    now = [(1, "second"), (2, "first"), (3, "first")]
    as_of_now = modes.dbt.run("run", "--select", "overwritten", manifest=modes.manifest)
    sql = as_of_now["overwritten"].sql
    assert modes.loader.rows(f"select id, note from ({sql}) order by 1") == now


def test_a_refresh_that_was_rolled_back_hides_nothing(modes: Modes) -> None:
    modes.sync()
    [(first,)] = modes.loader.rows(
        "select snapshot_id from raw.orders.snapshots order by committed_at limit 1"
    )
    for _ in range(2):
        modes.sync("--full-refresh")
    modes.loader.rows(
        f"call lake.system.rollback_to_snapshot('{modes.loader.schema}.orders', {first})"
    )
    modes.database.execute("insert into orders values (9, 'new', '2025-01-04 00:00:00Z')")
    modes.sync()  # an increment, of the first generation
    now = [(1, "first"), (2, "first"), (3, "first"), (9, "new")]
    assert [modes.rows(model) for model in ("overwritten", "overwritten_deduped")] == [now] * 2
    modes.database.execute("delete from orders where id = 2")
    modes.sync("--full-refresh")
    now.pop(1)
    assert [modes.rows(model) for model in ("overwritten", "overwritten_deduped")] == [now] * 2


def test_a_view_follows_a_raw_table_that_is_dropped(modes: Modes) -> None:
    config = "{{ config(materialized='ephemeral') }}\n"
    modes.dbt.write("models/seen.sql", config + MODELS["overwritten"])
    modes.dbt.write("models/seeing.sql", "select * from {{ ref('seen') }}")
    modes.sync()
    for _ in range(2):
        modes.loader.run("--full-refresh")
    sql = modes.dbt.run("run", "--select", "seeing")["seeing"].sql
    assert len(modes.loader.rows(sql)) == 3
    modes.loader.rows("drop table raw.orders")
    modes.loader.rows("drop table raw._cq_state")
    modes.loader.run()
    assert len(modes.loader.rows(sql)) == 3


def test_newest_refresh_of_an_ephemeral_model_is_refused(modes: Modes) -> None:
    modes.sync()
    config = "{{ config(materialized='ephemeral') }}\n"
    modes.dbt.write("models/eph.sql", config + "select * from {{ source('shop', 'orders') }}")
    modes.dbt.write("models/of_eph.sql", "{{ strandline.newest_refresh(ref('eph')) }}")
    [refused] = modes.dbt.run("run", "--select", "of_eph").values()
    assert refused.status == "error"
    assert "the ledger contains only raw tables" in refused.message


def test_macros_query_nothing_without_a_connection_or_in_a_unit_test(
    modes: Modes,
) -> None:
    modes.sync()
    relation = "source('shop', 'orders')"
    calls = {
        "latest": f"deduped_latest({relation}, 'id', 'at')",
        "stale_latest": f"deduped_latest({relation}, 'id', 'at', delete_stale=true)",
        "stale_history": f"deduped_history({relation}, 'id', 'at', delete_stale=true)",
        "latest_as_of": f"deduped_latest({relation}, 'id', 'at', as_of=1)",
        "newest": f"newest_refresh({relation})",
    }
    row = (
        "select 1 as id, 'a' as note, timestamp '2025-01-01' as at, 's' as _cq_source_name, "
        "1L as _cq_batch, 1L as _cq_seq, 1L as _cq_generation, false as _cq_deleted, "
        "timestamp '2025-01-01' as _cq_sync_time, 1L as _cq_row_hash"
    )
    given = [{"input": relation, "format": "sql", "rows": row}]
    expect = {"format": "sql", "rows": "select 1 as id"}
    for name, call in calls.items():
        modes.dbt.write(f"models/{name}.sql", f"select id from ({{{{ strandline.{call} }}}}) as x")
    tests = [
        {"name": f"t_{name}", "model": name, "given": given, "expect": expect} for name in calls
    ]
    modes.dbt.write("models/unit.yml", {"unit_tests": tests})
    results = modes.dbt.run("test", "--select", "test_type:unit")
    assert {name: one.status for name, one in results.items()} == {
        f"t_{name}": "pass" for name in calls
    }
    silent = ("--no-introspect", "--no-populate-cache")
    [compiled] = modes.dbt.run("compile", "--select", "latest", *silent).values()
    assert compiled.status == "success"
