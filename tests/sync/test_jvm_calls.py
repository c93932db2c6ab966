"""Calls to the JVM and the database are few, return exact values, and leave no objects behind."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
from pyspark.sql import SparkSession

from loader.rows.cursor import Cursor, CursorType
from loader.sources.jdbc.connections import Connection
from tests.services import Database
from tests.sync.project import Project


def test_objects_that_python_has_dropped_leave_the_jvm(spark: SparkSession) -> None:
    from py4j.java_gateway import JavaObject

    jvm: Any = spark._jvm
    client: Any = spark.sparkContext._gateway._gateway_client  # type: ignore[union-attr]
    JavaObject("GATEWAY_SERVER", client)  # must stay valid although Python drops it
    server = JavaObject("GATEWAY_SERVER", client)
    held = server.getGateway().getBindings()
    kept = jvm.java.util.ArrayList()
    before = held.size()
    for number in range(2000):
        jvm.java.util.ArrayList().add(number)
    gc.collect()
    until = time.monotonic() + 30
    while held.size() > before + 300 and time.monotonic() < until:
        time.sleep(0.05)
    assert held.size() <= before + 300
    assert kept.size() == 0  # must still exist
    assert server.getGateway() is not None


COMMENTS = {
    "quoted": """it's "so", and so; \\ and 'so'""",
    "lines": "first\nsecond\r\n\tthird",
    "blank": "  around  ",
    "wide": "é" * 140_000,
    "sign": "# no comment",
    "separator": "\x1f",
}


def test_column_comments_are_read_exactly(project: Project, postgres_database: Database) -> None:
    columns = ", ".join(f'"{name}" text' for name in COMMENTS)
    postgres_database.execute(
        f'create table notes (id int primary key, "a ""b"", c" int, {columns})'
    )
    for name, text in COMMENTS.items():
        doubled = text.replace("'", "''")
        postgres_database.execute(f"comment on column notes.\"{name}\" is '{doubled}'")
    options = {"notes": {"sync_mode": "full_refresh"}}
    project.jdbc(postgres_database, ["notes"], table_options=options)
    project.run()
    from loader.spec.spec import load_spec
    from loader.sync.pipeline import Pipeline

    [part] = Pipeline(load_spec(project.folder / "loader.yml"), project.spark).plan_tables()
    [plan] = part.plans
    reported = plan.table.column_comments
    assert {name: reported[name] for name in COMMENTS} == COMMENTS
    assert reported["id"] == ""
    assert plan.table.schema.names == ["id", 'a "b", c', *COMMENTS]


def test_a_run_opens_few_connections(project: Project, postgres_database: Database) -> None:
    """Each connection costs thousands of password hashes and a server process."""
    postgres_database.execute(
        "create table t (id int primary key, at timestamptz default now(), name text)",
        "insert into t select n, now(), 'x' from generate_series(1, 100) as n",
    )
    project.jdbc(postgres_database, ["t"], table_options={"t": {"cursor_field": "at"}})

    def count_connections() -> int:
        """Returns how many connections a run opens."""
        before = await_count()
        project.run()
        return await_count() - before

    def await_count() -> int:
        """Returns the database's count of sessions once it is stable; updates are delayed."""
        seen, now = -1, None
        while seen != now:
            time.sleep(0.5)
            seen, now = now, counting.execute(opened).fetchone()[0]
        return int(now)

    opened = "select sessions from pg_stat_database where datname = current_database()"
    with postgres_database.server.connect(postgres_database.name) as counting:
        reading = count_connections() - 2  # without the snapshot's session and the one for queries
        assert reading in (1, 2)  # Spark 4.1 opens one more, but reads the rows only once
        assert count_connections() == 2  # nothing new: only these two
        postgres_database.execute("insert into t values (101)")
        assert count_connections() == 2 + reading


ENDS = {
    CursorType.TIMESTAMPTZ: "timestamptz",
    CursorType.TIMESTAMP: "timestamp",
    CursorType.INTEGER: "bigint",
    CursorType.DECIMAL: "numeric",
}
VALUES = {
    "timestamp": (
        *("2025-01-01 12:34:56", "2025-01-01 12:34:56.120000", "9999-12-31 23:59:59.999999"),
        *("0001-01-01", "2500-01-01 BC", "12025-01-01", "infinity", "-infinity"),
    ),
    "bigint": ("0", "-1", "9223372036854775807"),
    "numeric": ("1.50", "1e20", "-1e-20", "1000", "NaN", "0.000"),
}


@pytest.mark.parametrize("type_", ENDS)
def test_bounds_are_the_same_in_one_call_and_value_by_value(
    spark: SparkSession, postgres_database: Database, type_: CursorType
) -> None:
    database, name = postgres_database, ENDS[type_]
    options = {"url": database.url, "user": database.user, "password": database.password}
    with Connection.open(spark, {**options, "driver": "org.postgresql.Driver"}, "here") as asked:
        for value in (None, *VALUES[name.removesuffix("tz")]):
            literal = "null" if value is None else f"'{value}'"
            query = f"select min(v), count(*) from (values ({literal}::{name})) as shown (v)"
            [(text, rows)] = asked.text_rows(query)
            [(expected, _)] = asked.rows(query)
            if type_ is CursorType.DECIMAL and value not in (None, "NaN"):
                assert Cursor.parse(text, type_) == Cursor.parse(expected, type_)
            else:
                assert text == expected
            assert rows == "1"
