"""Stored cursors keep their exact text, for every type and time zone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.services import Database
from tests.sync.project import Project

Kind = tuple[str, list[str], str]
# The type, values in ascending order, and the cursor that the state must contain afterwards.
POSTGRES: list[Kind] = [
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
MARIADB: list[Kind] = [
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
    # The server's sessions use the time zone +05:00, the loader's use UTC.
    (
        "timestamp(6)",
        ["'2024-03-10 02:30:00'", "'2024-11-03 06:30:00.999999'"],
        "2024-11-03 01:30:00.999999",
    ),
]


def _check_cursors(project: Project, database: Database, kinds: list[Kind]) -> None:
    """Syncs a table for each cursor type three times, and checks rows and stored cursors."""
    tables = {f"t{number}": kind for number, kind in enumerate(kinds)}

    def each(status: str) -> dict[str, Any]:
        ran = project.run()
        found = {kind: ran.table(f"shop.{table}") for table, (kind, *_) in tables.items()}
        assert {one["status"] for one in found.values()} == {status}, found
        return found

    for table, (kind, values, _) in tables.items():
        last = "null" if kind.startswith("timestamp(") else "default"
        default = " null" if last == "null" else ""
        database.execute(
            f"create table {table} (id int primary key, c {kind}{default}, note varchar(20))",
            *(f"insert into {table} values ({i}, {v}, 'first')" for i, v in enumerate(values)),
        )
    options = {table: {"cursor_field": "c"} for table in tables}
    project.jdbc(database, [*tables], table_options=options)
    first = {kind: one["appended"] for kind, one in each("synced").items()}
    assert first == {kind: len(values) for kind, values, _ in kinds}
    # The row at the cursor changes, but not its cursor; a new row has the same cursor.
    for table, (_, values, _) in tables.items():
        top = f"(select c from (select max(c) as c from {table}) as m)"
        database.execute(
            f"update {table} set note = 'second', c = c where id = {len(values) - 1}",
            f"insert into {table} (id, c, note) values (100, {top}, 'tie')",
        )
    assert {kind: one["appended"] for kind, one in each("synced").items()} == {
        kind: 2 for kind, *_ in kinds
    }
    before = {table: project.snapshots(table) for table in tables}
    again = {
        kind: (one["appended"], one["redelivered"]) for kind, one in each("nothing new").items()
    }
    assert again == {kind: (0, 2) for kind, *_ in kinds}
    assert {table: project.snapshots(table) for table in tables} == before
    found = {kind: project.state(f"shop.{table}")["cursor"] for table, (kind, *_) in tables.items()}
    assert found == {kind: text for kind, _, text in kinds}


def test_every_cursor_type_of_postgresql(project: Project, postgres_database: Database) -> None:
    _check_cursors(project, postgres_database, POSTGRES)


def test_every_cursor_type_of_mariadb(project: Project, mariadb_database: Database) -> None:
    _check_cursors(project, mariadb_database, MARIADB)


def test_times_and_decimals_are_loaded_exactly(
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


def test_a_row_dated_in_the_future_is_reported_and_hides_no_later_row(
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


@pytest.mark.parametrize("set_by", ["database", "spec"])
def test_times_without_a_zone_are_in_the_zone_of_the_database_or_the_spec(
    project: Project, postgres_database: Database, set_by: str
) -> None:
    # A row one hour ahead of New York's clock is in the future there, but in the past in UTC.
    postgres_database.execute(
        "create table t (id int primary key, c timestamp)",
        "insert into t values (1, localtimestamp), (2, localtimestamp + interval '1 hour')",
    )
    zone = "America/New_York"
    if set_by == "database":
        name = postgres_database.name
        postgres_database.execute(f"alter database {name} set timezone to '{zone}'")
    reported = {"time_zone": zone} if set_by == "spec" else {}
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}}, **reported)
    assert any("1 row is dated in the future" in w for w in project.run().warnings)


def test_day_granular_cursor_loses_no_row_of_a_day(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute("create table t (id int primary key, c date)")
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "c"}})
    for number in range(3):
        postgres_database.execute(f"insert into t values ({number}, '2025-01-01')")
        assert project.run().table("shop.t")["appended"] == 1


def test_null_cursors(project: Project, postgres_database: Database) -> None:
    policies = ("include", "exclude", "fail")
    for policy in policies:
        postgres_database.execute(
            f'create table "{policy}" (id int primary key, c int)',
            f'insert into "{policy}" values (1, 1), (2, null)',
        )
    options = {policy: {"cursor_field": "c", "null_cursor": policy} for policy in policies}
    project.jdbc(postgres_database, [*policies], table_options=options)

    def ran() -> dict[str, tuple[str, int]]:
        ran = project.loader("run")
        assert ran.code == 1
        [error] = ran.errors
        assert error.startswith("table shop.fail, ")
        assert "1 row has no cursor" in error
        assert not project.lake().exists("fail")
        reported = {policy: ran.table(f"shop.{policy}") for policy in ("include", "exclude")}
        return {policy: (one["status"], one["appended"]) for policy, one in reported.items()}

    assert ran() == {"include": ("synced", 2), "exclude": ("synced", 1)}
    assert ran() == {"include": ("nothing new", 0), "exclude": ("nothing new", 0)}
    for policy in ("include", "exclude"):
        postgres_database.execute(f'insert into "{policy}" values (3, null)')
    assert ran() == {"include": ("synced", 1), "exclude": ("nothing new", 0)}


def test_a_batch_with_only_null_cursors_does_not_move_the_cursor(
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
    del state["mark"], state["boundary"]
    assert state == {
        "batch": 2,
        "cursor": "7",
        "cursor_field": "c",
        "cursor_type": "integer",
        "generation": 1,
    }


def test_nan_and_infinite_cursors_are_rejected_and_no_row_is_missed(
    project: Project, postgres_database: Database
) -> None:
    cases = [
        ("double precision", "'NaN'", "1"),
        ("double precision", "'infinity'", "1"),
        ("numeric", "'NaN'", "1"),
        ("timestamptz", "'infinity'", "'2025-01-01Z'"),
        ("date", "'infinity'", "'2025-01-01'"),
    ]
    tables = {f"t{number}": case for number, case in enumerate(cases)}
    for table, (kind, _, low) in tables.items():
        postgres_database.execute(
            f"create table {table} (id int primary key, c {kind})",
            f"insert into {table} values (1, {low})",
        )
    options = {table: {"cursor_field": "c"} for table in tables}
    project.jdbc(postgres_database, [*tables], table_options=options)
    project.run()
    before = {table: project.state(f"shop.{table}")["cursor"] for table in tables}
    for table, (_, value, low) in tables.items():
        postgres_database.execute(f"insert into {table} values (2, {value}), (3, {low})")
    ran = project.loader("run")
    assert ran.code == 1
    for table in tables:
        [error] = [text for text in ran.errors if f"{table}, column c: " in text]
        assert "a value of the cursor column cannot be used" in error
        assert "Correct the value in the source, or choose another cursor_field" in error
    assert {table: project.state(f"shop.{table}")["cursor"] for table in tables} == before
    for table, (_, _, low) in tables.items():
        postgres_database.execute(f"update {table} set c = {low} where id = 2")
    ran = project.run()
    assert [ran.table(f"shop.{table}")["appended"] for table in tables] == [2] * len(tables)
