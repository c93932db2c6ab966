"""PostgreSQL: values that an ALTER changes without writing a row are read."""

from __future__ import annotations

import pytest

from tests.services import Database
from tests.sync.project import Project

CHANGED = "labels of an enum or the expression of a virtual column may have changed"


def _read_latest(project: Project, table: str, column: str = "status") -> list[tuple[object, ...]]:
    """Reads the newest version of each key, like a latest table."""
    newest = f"max_by({column}, struct(_cq_generation, c, _cq_batch, _cq_seq))"
    return project.rows(f"select id, {newest} from raw.{table} group by id order by id")


def _sync(project: Project, *tables: str) -> tuple[list[int], int]:
    """Syncs; returns the rows appended to each table and how many tables are read again."""
    ran = project.run()
    appended = [ran.table(f"shop.{table}")["appended"] for table in tables]
    return appended, sum(CHANGED in warning for warning in ran.warnings)


def test_a_renamed_label_of_an_enum_is_read(project: Project, postgres_database: Database) -> None:
    holds = {
        "plain": "mood",
        "many": "mood[]",
        "limited": "some_mood",
        "by_xmin": "mood",
    }
    value = {"many": "array['{}']::mood[]"}
    postgres_database.execute(
        "create type mood as enum ('calm', 'rough')",
        "create domain some_mood as mood check (value is not null)",
        "create table hidden (id int primary key, c int, status mood)",
        "create view seen as select * from hidden",
    )
    for table, type_ in {**holds, "hidden": ""}.items():
        calm, rough = (value.get(table, "'{}'").format(label) for label in ("calm", "rough"))
        postgres_database.execute(
            *(
                [f"create table {table} (id int primary key, c int, status {type_})"]
                if type_
                else []
            ),
            f"insert into {table} values (1, 1, {calm}), (2, 2, {rough}), (3, 3, {rough})",
        )
    tables = (*holds, "seen")
    options = {table: {"cursor_field": "c"} for table in tables}
    options["by_xmin"]["cursor_field"] = "xmin"
    options["seen"]["primary_key"] = "id"
    project.jdbc(postgres_database, list(tables), table_options=options)
    project.run()
    assert _sync(project, *tables) == ([0] * 5, 0)

    postgres_database.execute("alter type mood add value 'still' before 'calm'")
    assert _sync(project, *tables) == ([0] * 5, 0)

    postgres_database.execute("alter type mood rename value 'rough' to 'wild'")
    assert _sync(project, *tables) == ([2] * 5, 5)
    assert _sync(project, *tables) == ([0] * 5, 0)
    for table in tables:
        column = "status[0]" if table == "many" else "status"
        assert _read_latest(project, table, column) == [(1, "calm"), (2, "wild"), (3, "wild")]

    # Two labels swap their names: both were known before.
    postgres_database.execute(
        "alter type mood rename value 'wild' to 'x'",
        "alter type mood rename value 'calm' to 'wild'",
        "alter type mood rename value 'x' to 'calm'",
    )
    assert _sync(project, *tables) == ([3] * 5, 5)
    assert _read_latest(project, "plain") == [(1, "wild"), (2, "calm"), (3, "calm")]


def test_without_a_key_renamed_labels_and_new_defaults_are_reported(
    project: Project, postgres_database: Database
) -> None:
    """If such rows were read again, they would be appended as duplicates."""
    postgres_database.execute(
        "create type mood as enum ('calm', 'rough')",
        "create table log (c int, status mood)",
        "insert into log values (1, 'calm'), (2, 'rough'), (3, 'rough')",
    )
    project.jdbc(postgres_database, ["log"], table_options={"log": {"cursor_field": "c"}})
    project.run()
    postgres_database.execute("alter type mood rename value 'calm' to 'still'")
    assert _sync(project, "log") == ([0], 1)
    assert _sync(project, "log") == ([0], 0)
    postgres_database.execute(
        "alter table log add column note text default 'none'",
        "insert into log values (4, 'still', 'x')",
    )
    ran = project.run()
    expected = (
        "shop.log: rows that were read before have values in note, new in the source. Without a "
        "key, these rows keep nulls in the raw table until a full refresh"
    )
    assert expected in ran.warnings
    assert expected not in project.run().warnings
    assert project.run("--full-refresh").table("shop.log")["appended"] == 4


def test_a_changed_expression_of_a_virtual_column_is_read(
    project: Project, postgres_database: Database
) -> None:
    [(version,)] = postgres_database.query("select current_setting('server_version_num')::int")
    if version < 180000:
        pytest.skip("virtual columns exist since PostgreSQL 18")
    postgres_database.execute(
        "create table t (id int primary key, c int, status int generated always as (c + 1))",
        "insert into t values (1, 1), (2, 2), (3, 3)",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    project.run()
    postgres_database.execute("alter table t alter column status set expression as (c + 2)")
    assert _sync(project, "t") == ([3], 1)
    assert _read_latest(project, "t") == [(1, 3), (2, 4), (3, 5)]
