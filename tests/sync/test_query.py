"""`query`: the result of a SELECT is loaded as a table, with the key and cursor in the spec."""

from __future__ import annotations

from typing import Any

import pytest

from tests.services import Database
from tests.sync.project import Project

QUERY = """
    select o.id, o.amount, c.name as customer, greatest(o.at, c.at) as at
    from orders as o
    join customers as c on c.id = o.customer
    where o.amount > 0
"""
CREATE = (
    "create table customers (id int primary key, name varchar(20), at {time})",
    "create table orders (id int primary key, customer int, amount int, at {time})",
    "insert into customers values (1, 'Ada', '2026-01-01'), (2, 'Bob', '2026-01-02')",
    "insert into orders values (1, 1, 10, '2026-01-03'), (2, 2, 20, '2026-01-01'), "
    "(3, 2, 0, '2026-01-05')",
)


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Database:
    """A database of each kind."""
    name = {"postgresql": "postgres_database", "mariadb": "mariadb_database"}[request.param]
    found: Database = request.getfixturevalue(name)
    return found


def create(database: Database) -> None:
    """Creates customers and their orders."""
    is_mariadb = database.url.startswith("jdbc:mariadb")
    time = "datetime(6)" if is_mariadb else "timestamp"
    database.execute(*(statement.format(time=time) for statement in CREATE))


def load(project: Project, database: Database, name: str = "sales", **options: Any) -> None:
    """Syncs a table that is defined by a query."""
    own = {"primary_key": "id", "cursor_field": "at", "query": QUERY, **options}
    project.jdbc(database, [name], table_options={name: own})
    project.run()


def snapshot(project: Project, table: str = "sales") -> list[tuple[Any, ...]]:
    return project.rows(
        "select row.id, row.amount, row.customer from (select max_by(struct(*), "
        f"struct(_cq_generation, at, _cq_batch, _cq_seq)) as row from raw.{table} group by id) "
        "where not row._cq_deleted order by 1"
    )


def test_a_query_is_loaded_as_a_table(project: Project, database: Database) -> None:
    create(database)
    load(project, database)
    assert snapshot(project) == [(1, 10, "Ada"), (2, 20, "Bob")]
    assert project.state("shop.sales")["cursor"].startswith("2026-01-03 00:00:00")
    assert project.run().table("shop.sales")["appended"] == 0
    database.execute(
        "update customers set name = 'Bert', at = '2026-02-01' where id = 2",
        "insert into orders values (4, 1, 40, '2026-02-02')",
    )
    assert project.run().table("shop.sales")["appended"] == 2
    expected = [(1, 10, "Ada"), (2, 20, "Bert"), (4, 40, "Ada")]
    assert snapshot(project) == expected
    # A row that the query no longer returns counts as deleted, which reconcile finds.
    database.execute("update orders set amount = -1 where id = 1")
    project.run()
    assert snapshot(project) == expected
    repaired = project.loader("reconcile", "--repair", "--allow-deletes")
    assert repaired.code == 0, repaired.text
    assert snapshot(project) == expected[1:]
    assert project.loader("check").code == 0
    # After a change of the query, all of its rows are read.
    load(project, database, query=QUERY.replace("> 0", "> 30"))
    assert snapshot(project) == expected[2:]


def test_a_query_replaces_a_table_of_its_name_and_wildcards_match_it(
    project: Project, database: Database
) -> None:
    create(database)
    own = {"primary_key": "id", "cursor_field": "at", "query": QUERY}
    options = {"*": {"cursor_field": "at", "lookback": "1 hour"}, "orders": own}
    project.jdbc(database, ["*"], table_options=options)
    project.run()
    assert snapshot(project, "orders") == [(1, 10, "Ada"), (2, 20, "Bob")]
    assert project.rows("select count(*) from raw.customers") == [(2,)]


TYPES = {
    "postgresql": "id int, at timestamptz, a numeric(10, 2), b varchar(5), c char(4), d boolean, "
    "e date, f bytea, g uuid, h double precision, i real, j smallint, k text[], l bit(3), m time, "
    "n jsonb, o interval, p bigint",
    "mariadb": "id int, at datetime(6), a decimal(10, 2), b varchar(5), c char(4), d tinyint(1), "
    "e date, f blob, g uuid, h double, i float, j smallint, k year, l bit(3), m time, n json, "
    "o enum('x', 'y'), p bigint unsigned, q bit(1), r set('x', 'y'), s mediumint",
}
VALUES = {
    "postgresql": "1, '2026-01-01 01:02:03.456789Z', 1.50, 'abc', 'ab', true, '1999-12-31', "
    r"'\x00ff', '4f3f0a2e-0000-4000-8000-000000000001', 0.1, 0.1, -3, array['x', null], '101', "
    "'23:59:59.5', '{}', '1 day', 9223372036854775807",
    "mariadb": "1, '2026-01-01 01:02:03.456789', 1.50, 'abc', 'ab', 1, '1999-12-31', x'00ff', "
    "'4f3f0a2e-0000-4000-8000-000000000001', 0.1, 0.1, -3, 2026, b'101', '23:59:59', '{}', 'y', "
    "18446744073709551615, 1, 'x,y', 7",
}


def test_types_and_values_are_those_of_the_table(project: Project, database: Database) -> None:
    kind = "postgresql" if database.url.startswith("jdbc:postgresql") else "mariadb"
    database.execute(
        f"create table kinds ({TYPES[kind]})", f"insert into kinds values ({VALUES[kind]})"
    )
    options = {"primary_key": "id", "cursor_field": "at"}
    query = {**options, "query": "select * from kinds"}
    project.jdbc(database, ["*"], table_options={"kinds": options, "asked": query})
    project.run()
    columns = project.spark.table(f"{project.schema}.kinds").columns
    names = ", ".join(column for column in columns if not column.startswith("_cq_"))
    found = {
        name: (
            project.rows(f"select {names} from raw.{name}"),
            project.spark.table(f"{project.schema}.{name}").dtypes,
        )
        for name in ("kinds", "asked")
    }
    assert found["asked"] == found["kinds"]
    if kind == "postgresql":
        database.execute("alter table kinds add column later text")
        database.execute("update kinds set later = 'x', at = '2026-02-01Z'")
        project.run()
        assert project.rows("select max(later) from raw.asked") == [("x",)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"sync_mode": "cdc"}, "sales has a query and sync_mode: cdc, which reads the log"),
        ({"sweep": "always"}, "sales has a query and sweep: always, which needs the transaction"),
        ({"where": "id > 1"}, "sales has a query and where: id > 1, which filters the rows of a"),
        ({"query": "select 1;"}, "sales.query: ; at character 9 ends the statement"),
        ({"query": "select 1 -- one"}, "sales.query: -- at character 10 begins a comment"),
        ({"cursor_field": "xmin"}, "do not record which transaction wrote a row"),
        ({"cursor_field": None}, "an incremental sync needs a cursor"),
        ({"primary_key": "nr"}, "there is no column 'nr'"),
        ({"query": "select id, at, 1 as id from orders"}, "the query returns two columns 'id'"),
        ({"query": "select nothing from orders"}, "table shop.sales, query"),
        ({"query": "delete from orders"}, "table shop.sales, query"),
        ({"query": "selct * from orders"}, "Correct the SELECT"),
    ],
)
def test_unsuitable_options_and_queries_are_refused(
    project: Project, postgres_database: Database, options: dict[str, Any], expected: str
) -> None:
    create(postgres_database)
    own = {"primary_key": "id", "cursor_field": "at", "query": QUERY, **options}
    own = {name: value for name, value in own.items() if value is not None}
    project.jdbc(postgres_database, ["sales"], table_options={"sales": own})
    for command in ("check", "run"):
        ran = project.loader(command)
        assert ran.code != 0
        [error] = ran.errors
        assert expected in error
    assert postgres_database.query("select count(*) from orders") == [(3,)]


def test_a_query_with_conflicting_wildcard_options_is_refused(
    project: Project, postgres_database: Database
) -> None:
    create(postgres_database)
    options = {"primary_key": "id", "cursor_field": "at"}
    for own, expected in (
        ({"s*": {**options, "query": QUERY}}, "s* has a query, and is a wildcard"),
        (
            {"*": {"where": "id > 1"}, "sales": {**options, "query": QUERY}},
            "the options of a wildcard filter this table, which is a query",
        ),
    ):
        project.jdbc(postgres_database, ["sales"], table_options=own)
        [error] = project.loader("check").errors
        assert expected in error
