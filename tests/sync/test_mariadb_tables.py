"""MariaDB: replaced tables, invisible columns, unsuitable cursors, and locked tables."""

from __future__ import annotations

import pytest

from loader.sources.jdbc.mysql.late_commits_by_time import read_identity
from loader.sources.jdbc.options import JdbcOptions
from loader.sources.jdbc.source import JdbcSource
from tests.services import Database
from tests.sync.project import Project


def _read_notes(project: Project) -> list[tuple[int, str]]:
    return project.rows(
        "select id, max_by(note, struct(_cq_generation, _cq_batch, _cq_seq)) "
        "from raw.parts group by id order by id"
    )


@pytest.mark.parametrize("cursor", ["id", "at"])
def test_a_table_that_was_truncated_or_replaced_is_read(
    project: Project, mariadb_database: Database, cursor: str
) -> None:
    columns = "(id int primary key auto_increment, note text, at datetime default now())"
    mariadb_database.execute(
        f"create table parts {columns}",
        f"create table other {columns}",
        "insert into parts (note) values ('old'), ('old'), ('old')",
        "insert into other (note, at) values ('swapped', '2020-01-01')",
    )
    project.jdbc(mariadb_database, ["parts"], table_options={"parts": {"cursor_field": cursor}})
    assert project.run().table("shop.parts")["appended"] == 3
    assert project.run().warnings == []
    mariadb_database.execute("alter table parts add column more int")  # in place
    assert project.run().warnings == []

    mariadb_database.execute(
        "truncate parts", "insert into parts (note, at) values ('new', '2020-01-01')"
    )
    ran = project.run()
    assert [w for w in ran.warnings if "the table was replaced" in w]
    mariadb_database.execute("insert into parts (note, at) values ('after', now())")
    assert project.run().table("shop.parts")["appended"] == 1
    assert _read_notes(project) == [(1, "new"), (2, "after"), (3, "old")]

    mariadb_database.execute("rename table parts to gone, other to parts")
    project.run()
    assert _read_notes(project)[0] == (1, "swapped")
    assert project.run().warnings == []


def test_a_views_hash_equals_the_servers_md5(project: Project, mariadb_database: Database) -> None:
    mariadb_database.execute("create view v as select 'äöü€' as x, 1 as y")
    [(stored,)] = mariadb_database.query(
        "select md5(concat(table_schema, '.', table_name, view_definition)) "
        "from information_schema.views where table_schema = database()"
    )
    database = mariadb_database
    options = JdbcOptions(url=database.url, user=database.user, password=database.password)
    source = JdbcSource("shop", options, project.spark, project.folder)
    with source.connect() as connection:
        found = read_identity(connection, source.dialect.text, database.name, "v")
    assert found.split()[-1] == stored


def test_invisible_columns_are_read(project: Project, mariadb_database: Database) -> None:
    mariadb_database.execute(
        "create table t (id int primary key, `a b` int invisible default 5, c int)",
        "insert into t (id, c) values (1, 1)",
    )
    project.jdbc(mariadb_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    project.run()
    assert project.rows("select id, `a b`, c from raw.t") == [(1, 5, 1)]


def test_enums_sets_and_times_of_day_are_refused_as_cursors(
    project: Project, mariadb_database: Database, postgres_database: Database
) -> None:
    """MariaDB compares enums by text but sorts them by position: later states would be missed."""
    kinds = {"e": "enum('new', 'paid', 'closed')", "s": "set('b', 'a')", "t": "time"}
    mariadb_database.execute(*(f"create table {n} (id int, c {kinds[n]})" for n in kinds))
    options = {name: {"cursor_field": "c"} for name in kinds}
    project.jdbc(mariadb_database, list(kinds), table_options=options)
    why = "which compares by text but sorts by position. Choose another column, or"
    anew = "c is a {}, a time of day, which repeats every day. Choose another column"
    e, s, t = sorted(project.loader("run").errors)
    assert f"shop.e, cursor_field: c is a ENUM, {why}" in e
    assert f"shop.s, cursor_field: c is a SET, {why}" in s
    assert t.endswith(anew.format("TIME"))
    postgres_database.execute("create table t (id int, c timetz)")
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    [reported] = project.loader("run").errors
    assert reported.endswith(anew.format("timetz"))


def test_zero_dates_are_null_cursors_and_bits_are_refused_as_cursors(
    project: Project, mariadb_database: Database
) -> None:
    with mariadb_database.connect() as connection, connection.cursor() as cursor:
        for statement in (
            "set sql_mode = ''",
            "create table strict_ (id int primary key, c datetime not null)",
            "create table loose (id int primary key, c date)",
            "insert into strict_ values (1, 0), (2, '2025-01-01')",
            "insert into loose values (1, 0), (2, '2025-01-01'), (3, null)",
            "create table flags (id int primary key, c bit(8))",
            "insert into flags values (1, 200)",
        ):
            cursor.execute(statement)
        options = {name: {"cursor_field": "c"} for name in ("strict_", "loose", "flags")}
        project.jdbc(mariadb_database, list(options), table_options=options)
        assert project.loader("run").errors == [
            "table shop.flags, cursor_field: c is a BIT(8), which has no order. Choose another "
            "column, or read the table through a view that casts it to an integer"
        ]
        select = ("--select", "shop.strict_", "--select", "shop.loose")
        assert project.run(*select).table("shop.strict_")["appended"] == 0
        cursor.execute("insert into strict_ values (3, 0)")
        cursor.execute("insert into loose values (4, 0)")
        ran = project.run(*select)
        assert [ran.table(f"shop.{name}")["appended"] for name in ("strict_", "loose")] == [1, 1]
        assert project.rows("select id, c is null from raw.loose order by id") == [
            (1, True),
            (2, False),
            (3, True),
            (4, True),
        ]


def test_a_locked_table_fails_after_the_lock_timeout(
    project: Project, mariadb_database: Database
) -> None:
    mariadb_database.execute(
        "create table t (id int primary key)", "create table u (id int primary key)"
    )
    options = {"t": {"cursor_field": "id"}, "u": {"cursor_field": "id"}}
    project.jdbc(mariadb_database, list(options), table_options=options, lock_timeout="1 second")
    with mariadb_database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("lock tables t write")
        ran = project.loader("run")
        cursor.execute("unlock tables")
    assert ran.code == 1
    assert ran.table("shop.u")["status"] == "nothing new"
    [error] = ran.errors
    assert "shop.t" in error
    assert error.endswith("or raise the source's lock_timeout")
