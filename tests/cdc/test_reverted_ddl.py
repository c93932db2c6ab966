"""No gap: a table is read again if it was altered and altered back between two runs."""

from __future__ import annotations

from tests.cdc.test_changes import follow, newest
from tests.services import Database
from tests.sync.project import Project

AGAIN = "all rows are read again"


def test_tables_that_were_altered_and_altered_back_are_read_again(
    project: Project, postgres_database: Database
) -> None:
    """The log has the writes in between under another name, in another format, or not at all."""
    tables = ("renamed", "retyped", "swapped", "other", "keyed", "fixed", "crossed", "valued")
    column = {"retyped": "timestamptz"}
    postgres_database.execute(
        *(
            f"create table {table} (id int primary key, v {column.get(table, 'int')}, "
            "u int not null unique)"
            for table in tables
        ),
        *(f"insert into {table} values (1, null, 1), (2, null, 2)" for table in tables),
        "create table parts (id int primary key, v int) partition by range (id)",
        "create table parts_1 partition of parts for values from (0) to (100)",
        "insert into parts values (1, 1), (2, 2)",
    )
    follow(project, postgres_database, *tables, "parts")
    project.run()
    postgres_database.execute(
        "alter table renamed rename v to x",
        "update renamed set x = 7 where id = 1",
        "alter table renamed rename x to v",
        "alter table retyped alter v type timestamp",
        "update retyped set v = '2024-01-02 03:04:05' where id = 1",
        "alter table retyped alter v type timestamptz",
        "alter table valued alter v type int using 10 + id",
        "alter table swapped rename to temporary",
        "alter table other rename to swapped",
        "alter table temporary rename to other",
        "update other set v = 8 where id = 1",
        "alter table swapped rename to temporary",
        "alter table other rename to swapped",
        "alter table temporary rename to other",
        "alter table keyed replica identity using index keyed_u_key",
        "delete from keyed where id = 1",
        "update keyed set id = 7 where id = 2",
        "alter table keyed replica identity default",
        "alter table fixed replica identity using index fixed_u_key",
        "delete from fixed where id = 1",
        "alter table fixed replica identity full",
        "begin; alter table crossed rename v to w; alter table crossed rename u to v; "
        "alter table crossed rename w to u; commit",
        "update crossed set v = 17 where id = 1",
        "begin; alter table crossed rename v to w; alter table crossed rename u to v; "
        "alter table crossed rename w to u; commit",
        "alter table parts detach partition parts_1",
        "delete from parts_1 where id = 1",
        "update parts_1 set v = 3 where id = 2",
        "alter table parts attach partition parts_1 for values from (0) to (100)",
    )
    ran = project.run()
    found = {warning.split(":")[0] for warning in ran.warnings if AGAIN in warning}
    assert found == {f"shop.{table}" for table in (*tables, "parts")}
    for table in (*tables, "parts"):
        rows = postgres_database.query(f"select id, v::text from {table} order by id")
        reported = newest(project, table, "id", "v")
        if table != "retyped":
            assert reported == [(key, None if v is None else int(v)) for key, v in rows], table
        else:
            assert [(key, v is None) for key, v in reported] == [(1, False), (2, True)]
    again = project.run()
    assert {again.table(f"shop.{t}")["status"] for t in (*tables, "parts")} == {"nothing new"}


HARMLESS = (
    ("alter table {t} alter v set default 7", "alter table {t} alter v set not null"),
    ("vacuum full {t}", "analyze {t}", "create index on {t} (v)"),
    ("alter table {t} add column x int", "grant select on {t} to public"),
    ("alter table {t} alter w set statistics 1000", "alter table {t} drop column w"),
    ("alter table {t} add check (v > 0)", "vacuum full pg_class", "vacuum freeze"),
    ("cluster {t} using {t}_pkey", "reindex table {t}", "analyze parts"),
    ("grant select on {t} to public", "grant select on all tables in schema public to public"),
    ("grant select (v) on {t} to public", "alter table {t} alter v set default 7"),
    ("grant select (v) on {t} to public", "alter table {t} alter v set statistics 1000"),
    ("alter table {t} alter v set default 7", "alter table {t} alter v set statistics 1000"),
    ("alter table {t} alter v drop not null", "alter table {t} alter v set not null"),
    ("alter table {t} add constraint c check (v > 0)", "alter table {t} drop constraint c"),
    ("alter table {t} disable row level security", "alter table {t} set (fillfactor = 90)"),
    ("alter table {t} set (fillfactor = 90)", "grant select on parts to public"),
)
"""Statements after which a table's changes can still be read from the log."""


def test_after_harmless_statements_no_rows_are_read_again(
    project: Project, postgres_database: Database
) -> None:
    """Each group runs on a table of its own, all run on one table, and each after another group."""
    tables = [f"things_{number}" for number in range(len(HARMLESS))]
    postgres_database.execute(
        *(
            f"create table {table} (id int primary key, v int, w text)"
            for table in (*tables, "things")
        ),
        *(f"insert into {table} values (1, 1, 'a')" for table in (*tables, "things")),
        "create table parts (id int primary key, v int) partition by range (id)",
        "create table parts_1 partition of parts for values from (0) to (100)",
        "insert into parts values (1, 1)",
    )
    every = (*tables, "things", "parts")
    follow(project, postgres_database, *every)
    project.run("--concurrency", "4")
    for table, statements in zip(tables, HARMLESS, strict=True):
        postgres_database.execute(
            *(statement.format(t=table) for statement in statements),
            f"update {table} set v = v + 1",
        )
    for statements in HARMLESS:
        postgres_database.execute(
            *(statement.format(t="things") for statement in statements),
            "update things set v = v + 1",
        )
    postgres_database.execute(
        "create table parts_2 partition of parts for values from (100) to (200)",
        "update parts set v = v + 1",
    )
    ran = project.run("--concurrency", "4")
    assert [warning for warning in ran.warnings if AGAIN in warning] == []
    appended = {table: ran.table(f"shop.{table}")["appended"] for table in every}
    assert appended == {table: len(HARMLESS) if table == "things" else 1 for table in every}
    for table, statements in zip(tables, [*HARMLESS[1:], HARMLESS[0]], strict=True):
        postgres_database.execute(
            *(statement.format(t=table) for statement in statements),
            f"update {table} set v = v + 1",
        )
    again = project.run("--concurrency", "4")
    assert [warning for warning in again.warnings if AGAIN in warning] == []
    assert {again.table(f"shop.{table}")["appended"] for table in tables} == {1}
