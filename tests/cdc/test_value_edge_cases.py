"""Values from the log: nulls, database settings, very large values, values that do not fit."""

from __future__ import annotations

import pytest

from tests.cdc.test_changes import follow, newest
from tests.services import Database
from tests.sync.project import Project

DEFAULTS = {
    "i": "int default 5",
    "t": "text default 'x'",
    "b": "boolean default true",
    "n": "numeric(10, 2) default 1.5",
    "tz": "timestamptz default now()",
    "d": "date default current_date",
    "u": "uuid default gen_random_uuid()",
    "j": "jsonb default '{}'",
    "m": "mood default 'ok'",
}


def test_a_null_in_a_column_with_a_default_is_a_null(
    project: Project, postgres_database: Database
) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in DEFAULTS.items())
    nulls = ", ".join(f"{name} = null" for name in DEFAULTS)
    postgres_database.execute(
        "create type mood as enum ('sad', 'ok')",
        f"create table things (id int primary key, {columns})",
        "insert into things (id) values (1), (2)",
    )
    follow(project, postgres_database, "things")
    project.run()
    postgres_database.execute(
        f"update things set {nulls} where id = 1",
        f"insert into things values (3{', null' * len(DEFAULTS)})",
    )
    assert project.run().table("shop.things")["appended"] == 2
    found = {row[0]: row[1:] for row in newest(project, "things", "id", *DEFAULTS)}
    assert found[1] == found[3] == (None,) * len(DEFAULTS)
    assert None not in found[2]


def test_values_do_not_depend_on_database_settings(
    project: Project, postgres_database: Database
) -> None:
    [(name,)] = postgres_database.query("select current_database()")
    reported = {
        "bytea_output": "escape",
        "DateStyle": "SQL, DMY",
        "IntervalStyle": "sql_standard",
        "TimeZone": "Asia/Kathmandu",
        "extra_float_digits": "-15",
    }
    postgres_database.execute(
        "create table things (id int primary key, b bytea, r tstzrange, f float8)",
        *(f'alter database "{name}" set "{key}" = \'{value}\'' for key, value in reported.items()),
    )
    follow(project, postgres_database, "things")
    project.run()
    postgres_database.execute(
        r"insert into things values (1, 'abcdefgh', '[2024-05-06 00:00+00,)', 0.1::float8 + 0.2), "
        r"(2, '\x000102ff5c', null, 1)"
    )
    project.run()
    [one, two] = newest(project, "things", "id", "b", "r", "f")
    assert (bytes(one[1]), one[3]) == (b"abcdefgh", 0.1 + 0.2)
    assert one[2].startswith('["2024-05-06 00:00:00+00"')
    assert bytes(two[1]) == b"\x00\x01\x02\xff\\"


def test_a_value_of_more_than_twenty_million_characters(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute("create table things (id int primary key, v text, w int)")
    follow(project, postgres_database, "things")
    project.run()
    postgres_database.execute(
        "alter table things add column x int",  # makes the loader check column names
        "insert into things values (1, repeat('é', 21000000), 1, 7)",
    )
    project.run()
    assert project.rows("select id, length(v), x from raw.things") == [(1, 21000000, 7)]


def test_a_value_that_the_raw_table_cannot_store_is_refused(
    project: Project, postgres_database: Database
) -> None:
    """The error names the column and the remedy. Values read by a query are refused, too."""
    kinds = {"far": "timestamp", "far_tz": "timestamptz", "odd": "numeric"}
    postgres_database.execute(
        *(f"create table {table} (id int primary key, v {kind})" for table, kind in kinds.items())
    )
    follow(project, postgres_database, *kinds)
    project.run()
    latest = "'294276-12-31 23:59:59.999999'"
    postgres_database.execute(
        f"insert into far values (1, {latest}), (2, 'infinity')",
        f"insert into far_tz values (1, timestamptz {latest[:-1]}+00'), (2, 'infinity')",
        "insert into odd values (1, 'NaN')",
    )
    errors = {error.split(":")[0]: error for error in project.loader("run").errors}
    assert set(errors) == {f"table shop.{table}" for table in kinds}
    for table in ("far", "far_tz"):
        assert "v has a time after the year 294246" in errors[f"table shop.{table}"]
    assert "column_types (v: string)" in errors["table shop.odd"]
    assert all("--full-refresh" in error for error in errors.values())


def test_a_row_that_is_too_large_for_debeziums_memory(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres_database.execute("create table things (id int primary key, v text)")
    follow(project, postgres_database, "things")
    project.run()
    postgres_database.execute("insert into things values (1, repeat('v', 60000000))")
    monkeypatch.setenv("_JAVA_OPTIONS", "-Xmx128m")  # overrides Debezium's options
    [error] = project.loader("run").errors
    assert "a row in the log is too large for Debezium" in error
    assert "drop the replication slot" in error
