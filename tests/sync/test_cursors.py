"""Cursor values keep their exact text, whatever the type and whatever the zones."""

from __future__ import annotations

import pytest

from tests.services import Database
from tests.sync.project import Project

# type, values in ascending order, the text that the state must hold after all of them
POSTGRES = [
    ("bigint", ["1", "9007199254740993"], "9007199254740993"),
    (
        "numeric(38, 10)",
        ["1", "1234567890123456789012345678.0123456789"],
        "1234567890123456789012345678.0123456789",
    ),
    ("date", ["'2024-02-29'", "'2025-01-31'"], "2025-01-31"),
    ("text", ["'a'", "'it''s \\ \"é\" 😀'"], 'it\'s \\ "é" 😀'),
    (
        "timestamp",
        ["'2024-03-10 02:30:00'", "'2024-11-03 01:30:00.000001'"],
        "2024-11-03 01:30:00.000001",
    ),
    (
        "timestamptz",
        ["'2024-11-03 01:30:00-04'", "'2024-11-03 01:30:00.999999-05'"],
        "2024-11-03 06:30:00.999999",
    ),
    ("double precision", ["0.1", "0.30000000000000004"], "0.30000000000000004"),
]
MARIADB = [
    ("bigint", ["1", "9007199254740993"], "9007199254740993"),
    (
        "decimal(30, 10)",
        ["1", "12345678901234567890.0123456789"],
        "12345678901234567890.0123456789",
    ),
    ("date", ["'2024-02-29'", "'2025-01-31'"], "2025-01-31"),
    ("varchar(50)", ["'a'", "'it''s \\\\ \"é\" 😀'"], 'it\'s \\ "é" 😀'),
    (
        "datetime(6)",
        ["'2024-03-10 02:30:00'", "'2024-11-03 01:30:00.000001'"],
        "2024-11-03 01:30:00.000001",
    ),
    # the server's sessions are at +05:00, the loader's in UTC
    (
        "timestamp(6)",
        ["'2024-03-10 02:30:00'", "'2024-11-03 06:30:00.999999'"],
        "2024-11-03 01:30:00.999999",
    ),
]


def _synced_thrice(project: Project, database: Database, kind: str, values: list[str]) -> None:
    last = "null" if kind.startswith("timestamp(") else "default"
    default = " null" if last == "null" else ""
    database.execute(
        f"create table t (id int primary key, c {kind}{default}, note varchar(20))",
        *(f"insert into t values ({i}, {v}, 'first')" for i, v in enumerate(values)),
    )
    project.jdbc(database, ["t"], table_options={"t": {"cursor_field": "c"}})
    assert project.run().table("shop.t")["appended"] == len(values)
    # the boundary row changes, its cursor does not; another comes with the same cursor
    top = "(select c from (select max(c) as c from t) as m)"
    database.execute(
        f"update t set note = 'second', c = c where id = {len(values) - 1}",
        f"insert into t (id, c, note) values (100, {top}, 'tie')",
    )
    assert project.run().table("shop.t")["appended"] == 2
    before = project.snapshots("t")
    again = project.run().table("shop.t")
    assert (again["status"], again["appended"], again["redelivered"]) == ("nothing new", 0, 2)
    assert project.snapshots("t") == before


@pytest.mark.parametrize(("kind", "values", "text"), POSTGRES, ids=[p[0] for p in POSTGRES])
def test_postgresql(
    project: Project, postgres_database: Database, kind: str, values: list[str], text: str
) -> None:
    _synced_thrice(project, postgres_database, kind, values)
    assert project.state("shop.t")["cursor"] == text


@pytest.mark.parametrize(("kind", "values", "text"), MARIADB, ids=[p[0] for p in MARIADB])
def test_mariadb(
    project: Project, mariadb_database: Database, kind: str, values: list[str], text: str
) -> None:
    _synced_thrice(project, mariadb_database, kind, values)
    assert project.state("shop.t")["cursor"] == text


def test_values_arrive_as_they_are_in_the_database(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, c int, at timestamp, tz timestamptz, "
        "n numeric(20, 6))",
        "insert into t values (1, 1, '2024-03-10 02:30:00.123456', "
        "'2024-03-10 07:30:00.123456+00', 12345678901234.567891)",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    project.run()
    assert project.rows(
        "select cast(at as string), cast(tz as string), cast(n as string) from raw.t"
    ) == [("2024-03-10 02:30:00.123456", "2024-03-10 07:30:00.123456", "12345678901234.567891")]


def test_a_row_dated_in_the_future_is_loaded_warned_of_and_blinds_nothing(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, c timestamptz)",
        "insert into t values (1, now() - interval '1 hour'), (2, '2999-01-01')",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    first = project.run()
    assert first.table("shop.t")["appended"] == 2
    assert any("future" in warning for warning in first.warnings)
    assert project.state("shop.t")["cursor"] < "2900"
    postgres_database.execute("insert into t values (3, now())")
    assert project.run().table("shop.t")["appended"] == 1
    assert project.run().table("shop.t")["status"] == "nothing new"


@pytest.mark.parametrize("told_by", ["database", "spec"])
def test_the_clock_of_columns_without_zone_is_the_databases_own_or_the_specs(
    project: Project, postgres_database: Database, told_by: str
) -> None:
    # New York is behind UTC: a row one hour ahead of its wall clock is in UTC's past.
    postgres_database.execute(
        "create table t (id int primary key, c timestamp)",
        "insert into t values (1, localtimestamp), (2, localtimestamp + interval '1 hour')",
    )
    zone = "America/New_York"
    if told_by == "database":
        name = postgres_database.name
        postgres_database.execute(f"alter database {name} set timezone to '{zone}'")
    told = {"time_zone": zone} if told_by == "spec" else {}
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}}, **told)
    assert any("1 rows are dated in the future" in w for w in project.run().warnings)


def test_day_granular_cursor_loses_no_row_of_a_day(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute("create table t (id int primary key, c date)")
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    for number in range(3):
        postgres_database.execute(f"insert into t values ({number}, '2025-01-01')")
        assert project.run().table("shop.t")["appended"] == 1


@pytest.mark.parametrize("policy", ["include", "exclude", "fail"])
def test_null_cursors(project: Project, postgres_database: Database, policy: str) -> None:
    postgres_database.execute(
        "create table t (id int primary key, c int)", "insert into t values (1, 1), (2, null)"
    )
    options = {"t": {"cursor_field": "c", "null_cursor": policy}}
    project.jdbc(postgres_database, ["t"], table_options=options)
    first = project.loader("run")
    if policy == "fail":
        assert first.code == 1
        assert any("1 rows have no cursor" in error for error in first.errors)
        assert not project.lake().exists("t")
        return
    assert first.table("shop.t")["appended"] == (2 if policy == "include" else 1)
    again = project.run().table("shop.t")
    assert (again["status"], again["appended"]) == ("nothing new", 0)
    postgres_database.execute("insert into t values (3, null)")
    assert project.run().table("shop.t")["appended"] == (1 if policy == "include" else 0)


def test_a_batch_of_null_cursors_only_leaves_the_cursor_where_it_was(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        "create table t (id int primary key, c int)", "insert into t values (1, 7)"
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    project.run()
    postgres_database.execute("delete from t", "insert into t values (2, null)")
    assert project.run().table("shop.t")["appended"] == 1
    state = project.state("shop.t")
    del state["mark"]
    assert state == {
        "batch": 2,
        "cursor": "7",
        "cursor_field": "c",
        "cursor_type": "integer",
        "generation": 1,
    }


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("double precision", "'NaN'"),
        ("double precision", "'infinity'"),
        ("numeric", "'NaN'"),
        ("timestamptz", "'infinity'"),
        ("date", "'infinity'"),
    ],
)
def test_a_value_that_has_no_place_in_an_order_is_refused_and_blinds_nothing(
    project: Project, postgres_database: Database, kind: str, value: str
) -> None:
    low = {"timestamptz": "'2025-01-01Z'", "date": "'2025-01-01'"}.get(kind, "1")
    postgres_database.execute(
        f"create table t (id int primary key, c {kind})", f"insert into t values (1, {low})"
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    project.run()
    before = project.state("shop.t")["cursor"]
    postgres_database.execute(f"insert into t values (2, {value}), (3, {low})")
    ran = project.loader("run")
    assert ran.code == 1
    assert "a value of the cursor column cannot be used" in ran.errors[0]
    assert "Mend the value in the source, or choose another cursor_field" in ran.errors[0]
    assert project.state("shop.t")["cursor"] == before
    postgres_database.execute(f"update t set c = {low} where id = 2")
    assert project.run().table("shop.t")["appended"] == 2
