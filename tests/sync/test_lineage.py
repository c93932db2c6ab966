"""PostgreSQL: rows that come with a table, attached as a partition or put in another's place."""

from __future__ import annotations

import pytest

from tests.services import Database
from tests.sync.project import Project


def _notes(project: Project) -> list[tuple[int, str]]:
    return project.rows(
        "select id, max_by(note, struct(_cq_generation, _cq_batch, _cq_seq)) "
        "from raw.parts group by id order by id"
    )


@pytest.mark.parametrize("cursor", ["xmin", "at", "id"])
def test_the_rows_of_a_partition_that_was_attached_are_read(
    project: Project, postgres_database: Database, cursor: str
) -> None:
    columns = "(id int primary key, note text, at timestamptz default now())"
    postgres_database.execute(
        f"create table parts {columns} partition by range (id)",
        "create table high partition of parts for values from (100) to (200)",
        f"create table low {columns}",
        "insert into low (id, note) values (1, 'low'), (2, 'low')",
        "insert into high (id, note) values (101, 'high')",
    )
    project.jdbc(postgres_database, ["parts"], table_options={"parts": {"cursor_field": cursor}})
    assert project.run().table("shop.parts")["appended"] == 1
    postgres_database.execute("alter table parts attach partition low for values from (0) to (100)")
    ran = project.run().table("shop.parts")
    assert ran["appended"] == 2
    # Only once: rows of a known partition are read like any other, reattached or not.
    for change in ("detach partition low", "attach partition low for values from (0) to (100)"):
        postgres_database.execute(f"alter table parts {change}")
    assert project.run().table("shop.parts")["read"] <= 1
    postgres_database.execute("alter table parts detach partition low")
    project.run()
    postgres_database.execute(
        "update low set note = 'while away', at = now() where id = 1",
        "alter table parts attach partition low for values from (0) to (100)",
    )
    project.run()
    assert _notes(project) == postgres_database.query("select id, note from parts order by id")


@pytest.mark.parametrize("cursor", ["xmin", "at", "id"])
def test_a_table_that_was_put_in_anothers_place_is_read(
    project: Project, postgres_database: Database, cursor: str
) -> None:
    columns = "(id int primary key, note text, at timestamptz default now())"
    postgres_database.execute(
        f"create table parts {columns}",
        f"create table other {columns}",
        "insert into other (id, note) select n, 'new' from generate_series(1, 3) n",
        "insert into parts (id, note) select n, 'old' from generate_series(1, 2) n",
        "insert into parts (id, note) values (9, 'only there')",
    )
    project.jdbc(postgres_database, ["parts"], table_options={"parts": {"cursor_field": cursor}})
    project.run()
    postgres_database.execute(
        "alter table parts rename to gone", "alter table other rename to parts"
    )
    ran = project.run()
    assert ran.table("shop.parts")["appended"] == 3
    assert any("another table has taken its name" in warning for warning in ran.warnings)
    assert _notes(project) == [(1, "new"), (2, "new"), (3, "new"), (9, "only there")]
    assert project.run().warnings == []


@pytest.mark.parametrize("cursor", ["xmin", "at", "id"])
def test_a_copy_of_the_database_that_took_its_place_is_read(
    project: Project, postgres_database: Database, cursor: str
) -> None:
    """`create database ... template` copies the tables' ids, and the server stays the same."""
    name, columns = postgres_database.name, "(id int primary key, note text, at timestamptz)"
    postgres_database.execute(
        f"create table parts {columns}",
        "insert into parts select n, 'old', now() - interval '1 day' from generate_series(1, 3) n",
    )
    project.jdbc(postgres_database, ["parts"], table_options={"parts": {"cursor_field": cursor}})
    project.run()
    server = Database(postgres_database.server, "postgres")
    copy = f"{name}_new"
    server.execute(f"create database {copy} template {name}")
    Database(postgres_database.server, copy).execute(
        "update parts set note = 'migrated', at = now() where id = 2"
    )
    postgres_database.execute("insert into parts values (9, 'only there', now())")
    project.run()
    server.execute(
        f"alter database {name} rename to {name}_old", f"alter database {copy} rename to {name}"
    )
    try:
        ran = project.run()
        assert any("another table has taken its name" in warning for warning in ran.warnings)
        assert _notes(project) == [(1, "old"), (2, "migrated"), (3, "old"), (9, "only there")]
        assert project.run().warnings == []
    finally:
        server.execute(f"drop database {name}_old")


@pytest.mark.parametrize("cursor", ["xmin", "at", "id"])
@pytest.mark.parametrize(
    "changes",
    [
        ["rename note to c", "rename other to note", "rename c to other"],
        ["drop other", "add other text default 'x'"],
        ["alter other type varchar(9) using lower(other)"],
    ],
    ids=["swapped", "added again", "rewritten"],
)
def test_columns_that_change_places_between_two_runs_are_read_again(
    project: Project, postgres_database: Database, cursor: str, changes: list[str]
) -> None:
    postgres_database.execute(
        "create table parts (id int primary key, note text, other text, at timestamptz)",
        "insert into parts values (1, 'A', 'B', '2025-01-01'), (2, 'C', 'D', '2025-01-02')",
    )
    options = {"parts": {"cursor_field": cursor, "num_partitions": 1}}
    project.jdbc(postgres_database, ["parts"], table_options=options)
    project.run()
    postgres_database.execute("alter table parts add more int")
    assert project.run().warnings == []
    postgres_database.execute(*(f"alter table parts {change}" for change in changes))
    ran = project.run()
    assert [w for w in ran.warnings if "columns have changed places" in w]
    newest = (
        "select id, max_by(struct(note, other), struct(_cq_generation, _cq_batch, _cq_seq)) "
        "from raw.parts group by id order by id"
    )
    assert [(key, *row) for key, row in project.rows(newest)] == postgres_database.query(
        "select id, note, other from parts order by id"
    )
    assert project.run().warnings == []
