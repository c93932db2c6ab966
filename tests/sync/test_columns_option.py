"""`columns`: excluded columns are never read, and a changed selection loses no change."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from tests.services import Database
from tests.sync.project import Project, Ran

PASSWORD = "only-some-columns"
_LATEST = """
    select {columns}
    from (
        select max_by(struct(*), struct(_cq_generation, _cq_batch, _cq_seq)) as newest
        from raw.{table}
        group by id
    )
    where not newest._cq_deleted
    order by newest.id
"""


def _select(project: Project, database: Database, columns: Any, **options: Any) -> Ran:
    """Sets the `columns` option and runs."""
    _set(project, database, columns, **options)
    return project.run()


def _set(project: Project, database: Database, columns: Any, **options: Any) -> None:
    own = {"cursor_field": "at", "columns": columns}
    project.jdbc(database, ["people"], table_options={"people": own}, **options)


def _read_latest(project: Project, *columns: str, table: str = "people") -> list[tuple[Any, ...]]:
    newest = ", ".join(f"newest.{name}" for name in columns)
    return project.rows(_LATEST.format(columns=newest, table=table))


def _create(database: Database) -> None:
    database.execute(
        "create table people (id int primary key, at timestamp, name varchar(50), "
        "ssn varchar(50), card_secret varchar(50))",
        *(
            f"insert into people values ({n}, '2025-01-0{n} 00:00:00', 'n{n}', 's{n}', 'c')"
            for n in (1, 2, 3)
        ),
    )


@pytest.mark.parametrize("server", ["postgres_database", "mariadb_database"])
def test_a_column_is_excluded_and_included(
    project: Project, server: str, request: pytest.FixtureRequest
) -> None:
    database = request.getfixturevalue(server)
    _create(database)
    # The wildcard i* does not exclude the key, id.
    ran = _select(project, database, {"exclude": ["ssn", "*_secret", "i*"]})
    assert ran.table("shop.people")["appended"] == 3, ran.text
    names = project.lake().frame("people").columns
    assert [name for name in names if not name.startswith("_cq_")] == ["id", "at", "name"]

    ran = _select(project, database, {"exclude": "*_secret"})
    assert _read_latest(project, "id", "ssn") == [(1, "s1"), (2, "s2"), (3, "s3")], ran.text
    [(changes,)] = project.rows("select max_by(schema_changes, batch) from raw._cq_syncs")
    assert changes.startswith("included ssn")

    database.execute(
        "update people set ssn = 'new', at = timestamp '2025-02-01 00:00:00' where id = 1"
    )
    ran = _select(project, database, ["name"])
    # Appended: id 1, and id 3, which was at the cursor and is now read without ssn.
    assert ran.table("shop.people")["appended"] == 2
    assert _read_latest(project, "id", "name", "ssn") == [
        (1, "n1", None),
        (2, "n2", "s2"),
        (3, "n3", None),
    ]
    [(changes,)] = project.rows("select max_by(schema_changes, batch) from raw._cq_syncs")
    assert changes.startswith("excluded ssn")

    # Changes made while the column was excluded are not missed.
    _select(project, database, ["name", "ssn"])
    assert _read_latest(project, "id", "ssn") == [(1, "new"), (2, "s2"), (3, "s3")]
    assert project.run().table("shop.people")["status"] == "nothing new"
    assert project.loader("reconcile").code == 0


def test_a_role_that_may_not_read_the_excluded_column(
    project: Project, postgres_database: Database
) -> None:
    database = postgres_database
    with contextlib.suppress(Exception):
        database.execute("drop owned by clerk", "drop role clerk")
    _create(database)
    database.execute(
        # The loader cannot store this type.
        "alter table people add shape xid8[][]",
        f"create role clerk login password '{PASSWORD}'",
        "grant select (id, at, name, xmin, ctid, tableoid) on people to clerk",
    )
    as_clerk = {"user": "clerk", "password": PASSWORD}
    ran = _select(project, database, ["name"], **as_clerk)
    assert ran.table("shop.people")["appended"] == 3, ran.text
    database.execute(
        "update people set name = 'late' where id = 1",  # only a sweep finds it
        "insert into people values (4, timestamp '2025-01-04 00:00:00', 'n4')",
    )
    assert project.run().table("shop.people")["appended"] == 2
    database.execute("delete from people where id = 2")
    reconciled = project.loader("reconcile", "--repair", "--allow-deletes")
    assert reconciled.code == 0, reconciled.text
    assert project.loader("check").code == 0
    assert _read_latest(project, "id", "name") == [(1, "late"), (3, "n3"), (4, "n4")]


def test_without_a_key_a_changed_selection_starts_a_generation(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table people (at timestamp, name text, ssn text)",
        "insert into people select '2025-01-01', 'a', n::text from generate_series(1, 3) as n",
    )
    assert _select(project, postgres_database, ["name"]).table("shop.people")["appended"] == 3
    postgres_database.execute("insert into people values ('2025-01-01', 'a', '4')")
    assert project.run().table("shop.people")["appended"] == 1
    ran = _select(project, postgres_database, {"exclude": "name"})
    assert ran.table("shop.people")["appended"] == 4, ran.text
    assert "all rows are read again, in a new generation" in ran.text
    assert project.rows(
        "select ssn from raw.people where _cq_generation = "
        "(select max(_cq_generation) from raw.people) order by ssn"
    ) == [("1",), ("2",), ("3",), ("4",)]
    assert project.run().table("shop.people")["status"] == "nothing new"


def test_without_a_key_and_rows_a_changed_selection_starts_a_generation_later(
    project: Project, postgres_database: Database
) -> None:
    """The rows that are inserted later start the new generation."""
    row = "insert into people values ('2025-01-01', 'a', '1')"
    postgres_database.execute("create table people (at timestamp, name text, ssn text)", row)
    _select(project, postgres_database, ["name", "ssn"])
    postgres_database.execute("delete from people")
    ran = _select(project, postgres_database, {"exclude": "ssn"})
    assert ran.table("shop.people")["appended"] == 0
    postgres_database.execute(row)
    ran = project.run()
    assert ran.table("shop.people")["appended"] == 1, ran.text
    newest = "_cq_generation = (select max(_cq_generation) from raw.people)"
    assert project.rows(f"select name, ssn from raw.people where {newest}") == [("a", None)]
    assert project.run().table("shop.people")["status"] == "nothing new"


MISTAKES: list[tuple[Any, str, int]] = [
    (["nam"], "'nam' is not a column", 1),
    ({"exclude": ["x_*"]}, "'x_*' matches no column", 1),
    ({"exclude": ["id"]}, "the column 'id' cannot be excluded", 1),
    ({"exclud": ["ssn"]}, "exclude", 2),
    (["-ssn"], "{exclude: [ssn]}", 1),
    ({"name": "text"}, "Rename `columns` to `column_types`", 2),
]
"""Values of the option, a part of each error, and the exit code."""


def test_each_mistake_is_one_clear_error(project: Project, postgres_database: Database) -> None:
    _create(postgres_database)
    for columns, said, code in MISTAKES:
        _set(project, postgres_database, columns)
        ran = project.loader("run")
        assert ran.code == code, ran.text
        [error] = ran.errors
        assert said in error
        assert "Traceback" not in ran.text


def test_random_selections_and_writes(project: Project, postgres_database: Database) -> None:
    """Syncs three tables with random rows and selections; their latest rows equal the source."""
    tables, names = {f"people_{seed}": random.Random(seed) for seed in range(3)}, ["a", "b", "c"]
    for table in tables:
        postgres_database.execute(
            f"create table {table} (id int primary key, "
            "at timestamptz default clock_timestamp(), a int, b int, c int)"
        )
    for step in range(5):
        chosen = {}
        for table, chance in tables.items():
            for _ in range(chance.randrange(3)):
                values = [chance.randrange(9) for _ in range(4)]
                postgres_database.execute(
                    "insert into {} (id, a, b, c) values ({}, {}, {}, {}) on conflict (id) "
                    "do update set at = clock_timestamp(), a = excluded.a, b = excluded.b, "
                    "c = excluded.c".format(table, *values)
                )
            chosen[table] = [name for name in names if chance.random() < 0.6]
        options = {
            table: {"cursor_field": "at", "columns": own or {"exclude": names}}
            for table, own in chosen.items()
        }
        project.jdbc(postgres_database, [*tables], table_options=options)
        project.run()
        for table, own in chosen.items():
            if project.lake().exists(table):
                listed = ["id", *own]
                source = postgres_database.query(
                    f"select {', '.join(listed)} from {table} order by id"
                )
                found = _read_latest(project, *listed, table=table)
                assert found == [tuple(row) for row in source], (table, step, own)
