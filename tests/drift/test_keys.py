"""A type change of a key or cursor is refused, or can be accepted if it widens the column."""

from __future__ import annotations

import pytest

from tests.services import Database
from tests.sync.project import Project

ACCEPT = "--accept-key-change"


@pytest.fixture
def table(project: Project, postgres_database: Database) -> Database:
    """A table with three rows that were synced."""
    postgres_database.execute(
        "create table t (id int primary key, c int, note text)",
        "insert into t select n, n, 'n' from generate_series(1, 3) n",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    project.run()
    return postgres_database


def _expect_refusal(project: Project, *flags: str) -> str:
    ran = project.loader("run", *flags)
    assert ran.code == 1
    [error] = ran.errors
    assert ran.table("shop.t")["status"] == "failed"
    return error


def _types(project: Project, table: str = "t") -> dict[str, str]:
    fields = project.lake().frame(table).schema.fields[:3]
    return {field.name: field.dataType.simpleString() for field in fields}


@pytest.mark.parametrize(("column", "role"), [("id", "key"), ("c", "cursor")])
def test_a_widened_key_or_cursor_is_refused_until_it_is_accepted(
    project: Project, table: Database, column: str, role: str
) -> None:
    table.execute(f"alter table t alter {column} type bigint")
    refusal = (
        f"table shop.t: the {role} column '{column}' changed its type from int to bigint. Accept "
        "it with `loader run --accept-key-change --select shop.t`: the raw table can be changed in "
        "place"
    )
    assert _expect_refusal(project) == refusal  # although no row is new
    for command in (("run", "--dry-run"), ("check",)):
        asked = project.loader(*command)
        assert (asked.code, asked.errors) == (1, [refusal])
    table.execute("insert into t values (4, 4, 'n')")
    assert _expect_refusal(project, "--full-refresh") == refusal
    accepted = project.run(ACCEPT).table("shop.t")
    # the rows that the ALTER rewrote, with a wider key, are recognised; the state stays valid
    assert (accepted["appended"], accepted["redelivered"]) == (1, 3)
    assert _types(project)[column] == "bigint"
    assert project.rows("select schema_changes from raw._cq_syncs where batch = 2") == [
        (f"widened {column} int to bigint",)
    ]
    assert project.run().table("shop.t")["status"] == "nothing new"
    table.execute(
        "insert into t values (5, 5, 'n')", f"update t set {column} = 3000000000 where id = 5"
    )
    assert project.run().table("shop.t")["appended"] == 1
    assert project.rows(f"select max({column}) from raw.t") == [(3000000000,)]


OTHERS = {
    "key_text": ("id", "key", "text", "string"),
    "key_numeric": ("id", "key", "numeric(20, 0)", "decimal(20,0)"),
    "cursor_text": ("c", "cursor", "text", "string"),
    "cursor_numeric": ("c", "cursor", "numeric(20, 0)", "decimal(20,0)"),
}
"""By table: the column, its role, its new type, and Spark's name for the type."""


def test_other_type_changes_require_a_reload(project: Project, postgres_database: Database) -> None:
    """Each change is tested on a table of its own."""
    for table in OTHERS:
        postgres_database.execute(
            f"create table {table} (id int primary key, c int, note text)",
            f"insert into {table} select n, n, 'n' from generate_series(1, 3) n",
        )
    options = {table: {"cursor_field": "c"} for table in OTHERS}
    project.jdbc(postgres_database, [*OTHERS], table_options=options)
    project.run()
    for table, (column, _, new, _) in OTHERS.items():
        postgres_database.execute(
            f"alter table {table} alter {column} type {new}",
            f"insert into {table} values ('4', '4')",
        )
    for flags in ((), (ACCEPT,), (ACCEPT, "--full-refresh")):
        ran = project.loader("run", *flags)
        assert ran.code == 1
        assert sorted(ran.errors) == sorted(
            f"table shop.{table}: the {role} column '{column}' changed its type from int to "
            f"{shown}. The raw table cannot be changed in place: undo the change with column_types "
            "or a view of the source, or reload the table into another schema or under another "
            "name"
            for table, (column, role, _, shown) in OTHERS.items()
        )
        assert {ran.table(f"shop.{table}")["status"] for table in OTHERS} == {"failed"}
    for table in OTHERS:
        assert project.rows(f"select count(*) from raw.{table}") == [(3,)]
        assert _types(project, table) == {"id": "int", "c": "int", "note": "string"}


def test_a_renamed_key_asks_for_a_full_refresh(project: Project, table: Database) -> None:
    table.execute("alter table t rename id to number", "insert into t values (4, 4, 'n')")
    assert _expect_refusal(project).startswith(
        "table shop.t: the key column 'number' is new: the rows in"
    )
    assert project.run("--full-refresh").table("shop.t")["appended"] == 4
    assert project.rows("select number, id from raw.t where _cq_generation = 2 order by 1") == [
        (1, None),
        (2, None),
        (3, None),
        (4, None),
    ]
    assert project.run().table("shop.t")["status"] == "nothing new"


def test_key_and_cursor_keep_their_names_in_raw_state_and_ledger(
    project: Project, table: Database
) -> None:
    table.execute('alter table t rename id to "ID"', 'alter table t rename c to "C"')
    options = {"t": {"cursor_field": "C", "primary_key": ["ID"], "lookback": 10}}
    project.jdbc(table, ["t"], table_options=options)
    assert project.run().table("shop.t")["redelivered"] == 3
    table.execute("insert into t values (4, 4, 'n')")
    assert project.run().table("shop.t")["appended"] == 1
    assert list(_types(project)) == ["id", "c", "note"]
    assert project.state("shop.t")["cursor_field"] == "c"
    assert project.rows(
        "select cursor_field, schema_changes from raw._cq_syncs where batch = 2"
    ) == [("c", "renamed id to ID, in id; renamed c to C, in c")]


def test_a_frozen_table_refuses_every_change_and_no_row(project: Project, table: Database) -> None:
    options = {"t": {"cursor_field": "c", "schema_changes": "freeze"}}
    project.jdbc(table, ["t"], table_options=options)
    table.execute("insert into t values (4, 4, 'n')")
    assert project.run().table("shop.t")["appended"] == 1
    table.execute("alter table t add extra date", "alter table t alter note type int using 1")
    assert _expect_refusal(project) == (
        "table shop.t, schema_changes: freeze: the source's columns have changed: changed note "
        "string to int; added extra date. Set schema_changes: evolve to accept the change, or "
        "undo it in the source or in a view of it"
    )
    assert list(_types(project).values()) == ["int", "int", "string"]
    table.execute("alter table t drop extra", "alter table t alter note type text")
    assert project.run().table("shop.t")["status"] == "synced"  # the boundary row's note is 1
