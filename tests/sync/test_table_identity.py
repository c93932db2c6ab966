"""PostgreSQL: rows of attached partitions, swapped tables and recreated columns are read."""

from __future__ import annotations

from loader.sources.jdbc.options import JdbcOptions
from loader.sources.jdbc.postgresql.table_identity import TableIdentity, read_table_identity
from loader.sources.jdbc.source import JdbcSource
from tests.services import Database
from tests.sync.project import Project

CURSORS = {"of_xmin": "xmin", "of_time": "at", "of_number": "id"}
"""The cursor of each table. All tables are synced together."""


def _configure(project: Project, database: Database) -> None:
    options = {table: {"cursor_field": cursor} for table, cursor in CURSORS.items()}
    project.jdbc(database, [*CURSORS], table_options=options)


def _execute_each(database: Database, *statements: str) -> None:
    """Runs statements for each table; `parts` is replaced by its name, also within other names."""
    for table in CURSORS:
        database.execute(*(statement.replace("parts", table) for statement in statements))


def _run(project: Project, reported: str = "") -> list[int]:
    """Syncs and returns the rows appended. Each table must have this warning, or none has any."""
    ran = project.run()
    assert len(ran.warnings) == (len(CURSORS) if reported else 0), ran.warnings
    for table in CURSORS if reported else ():
        assert [w for w in ran.warnings if reported in w and table in w], (table, ran.warnings)
    return [ran.table(f"shop.{table}")["appended"] for table in CURSORS]


def _read_notes(project: Project) -> list[list[tuple[int, str]]]:
    return [
        project.rows(
            "select id, max_by(note, struct(_cq_generation, _cq_batch, _cq_seq)) "
            f"from raw.{table} group by id order by id"
        )
        for table in CURSORS
    ]


def test_the_rows_of_an_attached_partition_are_read(
    project: Project, postgres_database: Database
) -> None:
    columns = "(id int primary key, note text, at timestamptz default now())"
    attach = "alter table parts attach partition parts_low for values from (0) to (100)"
    detach = "alter table parts detach partition parts_low"
    _execute_each(
        postgres_database,
        f"create table parts {columns} partition by range (id)",
        "create table parts_high partition of parts for values from (100) to (200)",
        f"create table parts_low {columns}",
        "insert into parts_low (id, note) values (1, 'low'), (2, 'low')",
        "insert into parts_high (id, note) values (101, 'high')",
    )
    _configure(project, postgres_database)
    assert _run(project) == [1] * len(CURSORS)
    _execute_each(postgres_database, attach)
    ran = project.run()
    assert [ran.table(f"shop.{table}")["appended"] for table in CURSORS] == [2] * len(CURSORS)
    # Only once: after a known partition is reattached, its rows are not all read again.
    _execute_each(postgres_database, detach, attach)
    ran = project.run()
    assert max(ran.table(f"shop.{table}")["read"] for table in CURSORS) <= 1
    _execute_each(postgres_database, detach)
    project.run()
    _execute_each(
        postgres_database,
        "update parts_low set note = 'while away', at = now() where id = 1",
        attach,
    )
    project.run()
    assert _read_notes(project) == [
        postgres_database.query(f"select id, note from {table} order by id") for table in CURSORS
    ]


def test_a_table_that_replaced_another_is_read(
    project: Project, postgres_database: Database
) -> None:
    columns = "(id int primary key, note text, at timestamptz default now())"
    _execute_each(
        postgres_database,
        f"create table parts {columns}",
        f"create table parts_next {columns}",
        "insert into parts_next (id, note) select n, 'new' from generate_series(1, 3) n",
        "insert into parts (id, note) select n, 'old' from generate_series(1, 2) n",
        "insert into parts (id, note) values (9, 'only there')",
    )
    _configure(project, postgres_database)
    _run(project)
    _execute_each(
        postgres_database,
        "alter table parts rename to parts_gone",
        "alter table parts_next rename to parts",
    )
    assert _run(project, "the table was replaced") == [3] * len(CURSORS)
    newest = [(1, "new"), (2, "new"), (3, "new"), (9, "only there")]
    assert _read_notes(project) == [newest] * len(CURSORS)
    _run(project)


def test_a_copy_that_replaced_the_database_is_read(
    project: Project, postgres_database: Database
) -> None:
    """`create database ... template` copies the tables' ids, so the database's id is compared."""
    name, columns = postgres_database.name, "(id int primary key, note text, at timestamptz)"
    _execute_each(
        postgres_database,
        f"create table parts {columns}",
        "insert into parts select n, 'old', now() - interval '1 day' from generate_series(1, 3) n",
    )
    _configure(project, postgres_database)
    project.run()
    server = Database(postgres_database.server, "postgres")
    copy = f"{name}_new"
    server.execute(f"create database {copy} template {name}")
    _execute_each(
        Database(postgres_database.server, copy),
        "update parts set note = 'migrated', at = now() where id = 2",
    )
    _execute_each(postgres_database, "insert into parts values (9, 'only there', now())")
    project.run()
    server.execute(
        f"alter database {name} rename to {name}_old", f"alter database {copy} rename to {name}"
    )
    try:
        _run(project, "the table was replaced")
        newest = [(1, "old"), (2, "migrated"), (3, "old"), (9, "only there")]
        assert _read_notes(project) == [newest] * len(CURSORS)
        _run(project)
    finally:
        server.execute(f"drop database {name}_old")


CHANGES = {
    "swapped": ["rename note to c", "rename other to note", "rename c to other"],
    "again": ["drop other", "add other text default 'x'"],
    "rewritten": ["alter other type varchar(9) using lower(other)"],
}


def test_swapped_recreated_and_rewritten_columns_are_read_again(
    project: Project, postgres_database: Database
) -> None:
    """There is one table for each change and cursor."""
    tables = {
        f"{change}_{table}": (cursor, CHANGES[change])
        for change in CHANGES
        for table, cursor in CURSORS.items()
    }
    for table in tables:
        postgres_database.execute(
            f"create table {table} (id int primary key, note text, other text, at timestamptz)",
            f"insert into {table} values (1, 'A', 'B', '2025-01-01'), (2, 'C', 'D', '2025-01-02')",
        )
    options = {
        table: {"cursor_field": cursor, "num_partitions": 1}
        for table, (cursor, _) in tables.items()
    }
    project.jdbc(postgres_database, [*tables], table_options=options)
    project.run()
    postgres_database.execute(*(f"alter table {table} add more int" for table in tables))
    assert project.run().warnings == []
    for table, (_, changes) in tables.items():
        postgres_database.execute(*(f"alter table {table} {change}" for change in changes))
    reported = [w for w in project.run().warnings if "columns were renamed or recreated" in w]
    for table in tables:
        assert [w for w in reported if table in w], (table, reported)
        newest = (
            "select id, max_by(struct(note, other), struct(_cq_generation, _cq_batch, _cq_seq)) "
            f"from raw.{table} group by id order by id"
        )
        assert [(key, *row) for key, row in project.rows(newest)] == postgres_database.query(
            f"select id, note, other from {table} order by id"
        ), table
    assert project.run().warnings == []


def test_a_views_hash_does_not_depend_on_search_path_or_md5(
    project: Project, postgres_database: Database
) -> None:
    """Older checkpoints contain an md5() of the view's SQL as it is shown in a search_path."""
    name = "äöü€"
    role = f"{postgres_database.name}_role"
    postgres_database.execute(
        "create schema lacks",
        "create function lacks.md5(text) returns text language plpgsql as "
        "$$ begin raise 'could not compute MD5 hash: unsupported'; end $$",
        "create table t (id int)",
        f'create view "{name}" as select id, \'{name}\' as "{name}" from t',
        f"create role {role} login password 'lacks-4711'",
        f"grant usage on schema lacks to {role}",
    )
    [(stored,)] = postgres_database.query(
        f"select md5('public.{name}' || pg_get_viewdef('public.{name}'::regclass))"
    )

    def read_identity(path: str) -> TableIdentity:
        """Reads the view's identity with a search_path, which must not change."""
        postgres_database.execute(f"alter role {role} set search_path = {path}")
        options = JdbcOptions(url=postgres_database.url, user=role, password="lacks-4711")
        source = JdbcSource("shop", options, project.spark, project.folder)
        with source.connect() as connection, connection.transaction():
            connection.execute("set transaction isolation level repeatable read read only")
            found = read_table_identity(connection, f"'public.\"{name}\"'")
            assert read_table_identity(connection, f"'public.\"{name}\"'") == found
            assert connection.rows("show search_path") == [(path,)]
        return found

    try:
        before, is_in_other_database = read_identity("public"), read_identity("lacks, pg_catalog")
        assert not before.is_redefined({"view": stored})
        assert before.view == is_in_other_database.view
        mark = before.to_mark()
        postgres_database.execute(
            f'create or replace view "{name}" as select id, \'{name}\' as "{name}" from t limit 9'
        )
        assert read_identity("public").is_redefined(mark)
        assert read_identity("lacks, pg_catalog").is_redefined({"view": stored})
    finally:
        postgres_database.execute(f"drop owned by {role}", f"drop role {role}")
