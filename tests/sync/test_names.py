"""Tables and columns with any name that a database allows are loaded, or fail with an error."""

from __future__ import annotations

import re

import pytest

from loader.lake.raw_table import list_raw_tables
from tests.services import Database
from tests.sync.project import ROOT, Project, Ran

NAMES = [
    "select",
    "my table",
    "we.ird",
    "back`tick",
    "naïve_ünï_表",
    "1abc",
    "UPPER Case",
    "it's",
    "per%cent_",
    "sla/sh",
    "co:lon",
    "que?ry#mark",
    "back\\slash",
    "snapshots",
]
COLUMNS = [
    "select",
    "up dated.at",
    "b`q",
    "naïve_表",
    "1st",
    "UPPER",
    "it's",
    "a/b:c?d",
    "x,y;z{}()=",
    "back\\slash",
]


def _quote(name: str, mark: str) -> str:
    return mark + name.replace(mark, mark * 2) + mark


def _create(database: Database, table: str, columns: list[str], mark: str) -> None:
    """Creates a table with three rows; the first column is its key, the second its cursor."""
    names = [_quote(name, mark) for name in columns]
    text = ", ".join(f"{name} varchar(20)" for name in names[2:])
    values = ", ".join("%s" for _ in names[2:])
    quoted = _quote(table, mark)
    database.execute(
        f"create table {quoted} ({names[0]} int primary key, {names[1]} int"
        f"{', ' + text if text else ''})"
    )
    for number in range(3):
        with database.connect() as connection, connection.cursor() as cursor:
            more = f", {values}" if values else ""
            cursor.execute(
                f"insert into {quoted} values ({number}, {number}{more})".replace(
                    quoted, quoted.replace("%", "%%")
                ),
                [f"{name}-{number}" for name in columns[2:]],
            )
            connection.commit()


def _list_results(ran: Ran) -> dict[str, tuple[str, int]]:
    return {e["table"]: (e["status"], e["appended"]) for e in ran.events if e["event"] == "table"}


def _sync_twice(project: Project, database: Database, tables: list[str], mark: str) -> None:
    expected = {f"shop.{re.sub('[./`]', '_', name)}" for name in tables}
    assert _list_results(project.run()) == dict.fromkeys(expected, ("synced", 3))
    for table in tables:
        database.execute(f"update {_quote(table, mark)} set c = 9 where id = 1")
    # State and raw rows are found by the name, so the row at the cursor is not appended again.
    ran = project.run()
    assert _list_results(ran) == dict.fromkeys(expected, ("synced", 1))
    assert {ran.table(name)["redelivered"] for name in expected} == {1}
    listed = project.loader("state", "list").events
    assert {(e["table"], e["cursor"], e["batch"]) for e in listed} == {
        (name, "9", 2) for name in expected
    }
    # No name creates a nested folder, which listing the raw tables would miss.
    listed = {f"shop.{name}" for name in list_raw_tables(project.lake())[0]}
    assert listed == expected


def test_tables_of_postgresql_with_any_name(project: Project, postgres_database: Database) -> None:
    tables = [*NAMES, 'quo"te']
    for table in tables:
        _create(postgres_database, table, ["id", "c"], '"')
    options = {name: {"cursor_field": "c"} for name in tables}
    project.jdbc(postgres_database, tables, table_options=options)
    _sync_twice(project, postgres_database, tables, '"')
    raw = project.lake().frame("back_tick")
    assert sorted(raw.select("id", "c").collect()) == [(0, 0), (1, 1), (1, 9), (2, 2)]


def test_tables_of_mariadb_with_any_name(project: Project, mariadb_database: Database) -> None:
    tables = [name for name in NAMES if name not in ("back\\slash",)]
    for table in tables:
        _create(mariadb_database, table, ["id", "c"], "`")
    options = {name: {"cursor_field": "c"} for name in tables}
    project.jdbc(mariadb_database, tables, table_options=options)
    _sync_twice(project, mariadb_database, tables, "`")


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_columns_with_any_name(project: Project, request: pytest.FixtureRequest, kind: str) -> None:
    fixture = {"postgresql": "postgres_database", "mariadb": "mariadb_database"}[kind]
    database: Database = request.getfixturevalue(fixture)
    mark = {"postgresql": '"', "mariadb": "`"}[kind]
    columns = [*COLUMNS, 'quo"te']
    _create(database, "t", columns, mark)
    project.jdbc(database, ["t"], table_options={"t": {"cursor_field": columns[1]}})
    first = project.run().table("shop.t")
    assert (first["appended"], first["cursor"]) == (3, "2")
    assert project.run().table("shop.t")["status"] == "nothing new"
    key, cursor = (_quote(name, mark) for name in columns[:2])
    database.execute(f"update t set {cursor} = 9 where {key} = 1")
    assert project.run().table("shop.t")["appended"] == 1
    raw = project.lake().frame("t")
    assert raw.columns[: len(columns)] == columns
    row = raw.where("_cq_batch = 2").collect()[0]
    assert list(row)[: len(columns)] == [1, 9, *(f"{name}-1" for name in columns[2:])]


def test_every_column_may_be_a_cursor_key_or_range_whatever_its_name(
    project: Project, postgres_database: Database
) -> None:
    # The column is both cursor and key, and two readers split the table by its values.
    tables = {}
    for number, name in enumerate(["b`q", "up dated.at", 'quo"te', "it's", "select"]):
        table = f"t{number}"
        _create(postgres_database, table, ["id", name], '"')
        tables[table] = {"cursor_field": name, "primary_key": [name], "num_partitions": 2}
    project.jdbc(postgres_database, list(tables), table_options=tables)
    expected = {f"shop.{table}" for table in tables}
    assert _list_results(project.run()) == dict.fromkeys(expected, ("synced", 3))
    assert _list_results(project.run()) == dict.fromkeys(expected, ("nothing new", 0))


def test_conflicting_and_reserved_names_are_refused(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table fine (id int primary key, c int)",
        "insert into fine values (1, 1)",
        "create table taken (id int primary key, c int, _CQ_batch int)",
        'create table twins (id int primary key, c int, "C" int)',
        "create table _cq_syncs (id int primary key, c int)",
        "create table _cq_locks (id int primary key, c int)",
        "create table kept (id int primary key, c int)",
        "create schema a",
        "create table a.b (id int primary key, c int)",
        "create table a_b (id int primary key, c int)",
    )
    names = ["fine", "taken", "twins", "_cq_syncs", "_cq_locks", "kept", "a.b", "a_b"]
    options = {name: {"cursor_field": "c"} for name in names}
    project.jdbc(postgres_database, names, table_options=options)
    project.sources[0]["backend_options"] = {"table_name": "kept"}
    project.write()
    ran = project.loader("run")
    assert ran.code == 1
    assert ran.table("shop.fine")["status"] == "synced"
    # The wording differs between versions of Spark.
    errors = [error.replace("Consider to choose", "Choose") for error in ran.errors]
    assert sorted(errors) == [
        "source shop, tables: a.b and a_b would share the raw table a_b. Load one of them through "
        "a second source with another `schema`, or exclude it with skip_tables",
        *(
            f"table shop.{name}: the raw table would be called {name}, and names that start with "
            "_cq_ are reserved for the loader. Read it through a view with another name in the "
            "source"
            for name in ("_cq_locks", "_cq_syncs")
        ),
        "table shop.kept: the raw table would be called kept, which is the name of the state table "
        "of source shop. Set backend_options.table_name of shop to another name",
        "table shop.taken: the source has a column '_cq_batch', which the loader writes itself. "
        "Rename it, or read the other columns through a view in the source",
        "table shop.twins: Spark cannot read its columns: The column `c` already exists. Choose "
        "another name or rename the existing column. Read it through a view that renames or omits "
        "columns",
    ]


def test_another_table_of_the_same_name_does_not_take_over_a_raw_table(
    project: Project, postgres_database: Database
) -> None:
    made = "(id int primary key, c int)"
    postgres_database.execute(
        "create schema a_b",
        f"create table a_b.c {made}",
        f"create table orders {made}",
        f"create table items {made}",
        "create schema s",
        f"create table s.t {made}",
        *(f"insert into {name} values (1, 1)" for name in ("a_b.c", "orders", "items", "s.t")),
    )
    tables = ["a_b.c", "Orders", "items", "s.t"]
    options = {name: {"cursor_field": "c"} for name in tables}
    project.jdbc(postgres_database, ["a*", *tables[1:]], table_options=options)
    project.run()

    postgres_database.execute(
        "create schema a",  # sorts before a_b
        f"create table a.b_c {made}",
        f'create table "Orders" {made}',  # matches the spec's name exactly
        f'create table public."s.t" {made}',
        "insert into a.b_c values (666, 666)",
        """insert into "Orders" values (666, 666)""",
        'insert into public."s.t" values (666, 666)',
        "insert into a_b.c values (2, 2)",
    )
    ran = project.loader("run")
    assert ran.code == 1
    out = "Load one of them through a second source with another `schema`, or exclude it with "
    assert sorted(ran.errors) == [
        "source shop, tables: a.b_c and a_b.c would share the raw table a_b_c, which was loaded "
        f"from a_b.c. {out}skip_tables",
        'source shop, tables: public."s.t" and s.t would share the raw table s_t, which was loaded '
        f"from s.t. {out}skip_tables",
        f"table shop.Orders: the raw table {project.schema}.Orders was loaded from public.orders, "
        "and would now be loaded from public.Orders. If this is the same table, renamed or "
        "moved, reload it: `loader run --full-refresh --select shop.Orders`. If not, "
        "write the name of the table that should be loaded in `tables` of source shop, with its "
        "schema",
    ]
    assert _list_results(ran) == {
        "shop.Orders": ("failed", None),
        "shop.a_b_c": ("synced", 1),
        "shop.items": ("nothing new", 0),
        "shop.s_t": ("nothing new", 0),
    }

    schema = postgres_database.user  # the first schema in the search path
    postgres_database.execute(
        f'create schema "{schema}"',
        f'create table "{schema}".items {made}',
        f'insert into "{schema}".items values (666, 666)',
    )
    ran = project.loader("run", "--select", "items")
    assert (ran.code, _list_results(ran)) == (1, {"shop.items": ("failed", None)})
    assert f"loaded from public.items, and would now be loaded from {schema}.items" in ran.errors[0]
    # A full refresh confirms that the new table is the right one.
    ran = project.run("--full-refresh", "--select", "items")
    assert _list_results(ran) == {"shop.items": ("synced", 1)}
    assert _list_results(project.run("--select", "items")) == {"shop.items": ("nothing new", 0)}


def test_an_underscore_in_a_schema_name_is_not_a_wildcard(
    project: Project, postgres_database: Database
) -> None:
    """The driver treats a schema's name as a pattern: `a_b` also matches `axb`."""
    postgres_database.execute(
        "create schema a_b",
        "create schema axb",
        "create table a_b.t (id int primary key, at timestamptz)",
        "create table axb.t (id int primary key, at timestamp)",
    )
    options = {"a_b.t": {"sync_mode": "full_refresh"}}
    project.jdbc(postgres_database, ["a_b.t"], table_options=options)
    project.run()
    raw = project.spark.table(f"{project.schema}.a_b_t")
    assert raw.schema["at"].dataType.simpleString() == "timestamp"


def test_a_number_that_spark_cannot_hold_is_refused_and_not_nulled(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table big (id int primary key, c int, v numeric)",
        "insert into big values (1, 1, 1e30)",
        "create table fine (id int primary key, c int)",
        "insert into fine values (1, 1)",
    )
    options = {name: {"cursor_field": "c"} for name in ("big", "fine")}
    project.jdbc(postgres_database, ["big", "fine"], table_options=options)
    ran = project.loader("run")
    assert (ran.code, ran.table("shop.fine")["appended"]) == (1, 1)
    [error] = ran.errors
    assert error.startswith("table shop.big, column v: ")
    assert "1 values of v do not fit decimal(38,18)" in error


def test_a_profile_cannot_turn_substitution_on(
    project: Project, postgres_database: Database
) -> None:
    text = (ROOT / "profiles" / "profiles.yml").read_text()
    off, on = 'variable.substitute: "false"', 'variable.substitute: "true"'
    assert text.count(off) == 2
    (project.folder / "profiles.yml").write_text(text.replace(off, on))
    postgres_database.execute('create table t (id int primary key, "${env:STRANDLINE_MARKER}" int)')
    options = {"t": {"cursor_field": "id"}}
    project.lakes = {"lake": {"profiles_dir": str(project.folder)}}
    project.jdbc(postgres_database, ["t"], table_options=options)
    [warning] = project.run().warnings
    assert "spark.sql.variable.substitute is on. The loader turns it off" in warning
    assert "${env:STRANDLINE_MARKER}" in project.lake().frame("t").columns
