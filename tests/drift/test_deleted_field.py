"""`deleted_field`: rows that a column marks as deleted become tombstones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dbt.dbtproject import DbtProject
from tests.services import Database
from tests.sync.project import Project

KINDS = {
    "boolean": "true",
    "timestamp": "now()",
    "timestamptz": "now()",
    "date": "now()",
    "smallint": "1",
    "numeric(4, 2)": "-0.5",
    "double precision": "'nan'",
}
NOT_DELETED = {"boolean": "false", "smallint": "0", "numeric(4, 2)": "0", "double precision": "0"}


def _names() -> dict[str, str]:
    return {kind: f"t{number}" for number, kind in enumerate(KINDS)}


def test_deleted_fields_of_every_type(project: Project, postgres_database: Database) -> None:
    names = _names()
    for kind, name in names.items():
        postgres_database.execute(
            f"create table {name} (id int primary key, c int, note text, gone {kind})",
            f"insert into {name} values (1, 1, 'a', null), (2, 1, 'b', {KINDS[kind]}), "
            f"(3, 1, 'c', {NOT_DELETED.get(kind, 'null')})",
        )
    options = {name: {"cursor_field": "c", "deleted_field": "GONE"} for name in names.values()}
    project.jdbc(postgres_database, list(options), table_options=options)
    project.run()
    for kind, name in names.items():
        found = project.rows(
            f"select id, note, _cq_deleted, gone is null from raw.{name} order by 1"
        )
        assert [row[:3] for row in found] == [(1, "a", False), (2, "b", True), (3, "c", False)], (
            kind
        )
        assert not found[1][3]
    again = project.run()
    assert {again.table(f"shop.{n}")["status"] for n in names.values()} == {"nothing new"}
    assert again.table("shop.t0")["redelivered"] == 3


def test_a_latest_table_hides_marked_rows_and_shows_restored_ones(
    project: Project, postgres_database: Database, tmp_path: Path
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, c int, deleted_at timestamptz)",
        "insert into t select n, 1, null from generate_series(1, 3) n",
    )
    options = {"t": {"cursor_field": "c", "deleted_field": "deleted_at"}}
    project.jdbc(postgres_database, ["t"], table_options=options)
    schema = project.schema
    dbt = DbtProject(project.spark, tmp_path / "dbt", schema=f"mart_{schema}", raw_schema=schema)
    source = {"name": "shop", "schema": schema, "tables": [{"name": "t"}]}
    dbt.write("models/shop.yml", {"sources": [source]})
    dbt.write(
        "models/latest.sql",
        "{{ config(materialized='deduped_latest', unique_key='id', "
        "meta={'strandline': {'cursor_field': 'c'}}) }}\n"
        "select * from {{ source('shop', 't') }}",
    )
    manifest = dbt.parse()

    def shown() -> list[int]:
        project.run()
        dbt.run("run", manifest=manifest)
        return sorted(row["id"] for row in dbt.rows("latest"))

    assert shown() == [1, 2, 3]
    postgres_database.execute("update t set deleted_at = now(), c = 2 where id = 2")
    assert shown() == [1, 3]
    assert shown() == [1, 3]
    postgres_database.execute("update t set deleted_at = null, c = 3 where id = 2")
    assert shown() == [1, 2, 3]


@pytest.mark.parametrize("key", [["id"], None], ids=["with key", "without"])
def test_a_deleted_field_that_is_set_later_applies_to_rows_read_again(
    project: Project, postgres_database: Database, key: list[str] | None
) -> None:
    postgres_database.execute(
        f"create table t (id int{' primary key' if key else ''}, c int, gone boolean)",
        "insert into t values (1, 1, true), (2, 1, false)",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    project.run()
    options = {"t": {"cursor_field": "c", "deleted_field": "gone"}}
    project.jdbc(postgres_database, ["t"], table_options=options)
    ran = project.run().table("shop.t")
    assert (ran["appended"], ran["redelivered"]) == (1, 1)
    assert project.rows("select id, _cq_deleted from raw.t where _cq_batch = 2") == [(1, True)]
    assert project.run().table("shop.t")["status"] == "nothing new"


def test_a_deleted_field_whose_type_changes(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(
        "create table t (id int primary key, c int, gone boolean)",
        "insert into t values (1, 1, true), (2, 1, false)",
    )
    options = {"t": {"cursor_field": "c", "deleted_field": "gone"}}
    project.jdbc(postgres_database, ["t"], table_options=options)
    project.run()
    postgres_database.execute(
        "alter table t alter gone type int using case when gone then 7 else 0 end",
        "update t set c = 2",
    )
    project.run()
    assert project.rows(
        "select id, gone, gone__int, _cq_deleted from raw.t where _cq_batch = 2 order by id"
    ) == [(1, None, 7, True), (2, None, 0, False)]


def test_unusable_deleted_fields_are_reported_with_candidates(
    project: Project, postgres_database: Database
) -> None:
    names = ["absent", "texts", "hinted", "fine"]
    postgres_database.execute(
        *(
            f"create table {name} (id int primary key, c int, is_deleted boolean, "
            "deleted_at timestamp, deleted_by int, state text)"
            for name in names
        ),
        *(f"insert into {name} values (1, 1)" for name in names),
        *(f"create index on {name} (c)" for name in names),
    )
    options = {name: {"cursor_field": "c"} for name in names}
    options["absent"]["deleted_field"] = "deletedat"
    options["texts"]["deleted_field"] = "state"
    options["fine"]["deleted_field"] = "deleted_at"
    project.jdbc(postgres_database, names, table_options=options)
    checked = project.loader("check")
    assert set(checked.errors) == {
        "table shop.absent, deleted_field: there is no column 'deletedat'. Did you mean "
        "`deleted_at`? Its columns: id, c, is_deleted, deleted_at, deleted_by, state (candidates: "
        "is_deleted, deleted_at)",
        "table shop.texts, deleted_field: the column 'state' of type string cannot mark deleted "
        "rows. Choose a boolean (true: deleted), a date or time (not null), or a number (not 0) "
        "(candidates: is_deleted, deleted_at)",
    }
    notes = {e["table"]: e["notes"] for e in checked.events if "notes" in e}
    assert notes == {
        "shop.hinted": "is_deleted may flag deleted rows: set deleted_field to load them as "
        "tombstones",
        "shop.fine": "",
    }
    ran = project.loader("run")
    assert set(ran.errors) == set(checked.errors)
    assert ran.table("shop.fine")["appended"] == 1
