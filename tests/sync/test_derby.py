"""Derby, which comes with Spark, is read by the same connector as any other database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tests.dbt.dbtproject import DbtProject
from tests.sync.project import Project

Execute = Callable[..., None]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"jdbc:derby:{tmp_path / 'shop'}"


@pytest.fixture
def execute(spark: SparkSession, url: str) -> Iterator[Execute]:
    """Runs statements in a new database, in Spark's JVM."""
    manager: Any = spark._jvm.java.sql.DriverManager  # type: ignore[union-attr]
    connection = manager.getConnection(f"{url};create=true")

    def run(*statements: str) -> None:
        statement = connection.createStatement()
        for each in statements:
            statement.execute(each)
        statement.close()

    yield run
    connection.close()
    with pytest.raises(Py4JJavaError, match="shutdown"):  # Derby reports success with this error
        manager.getConnection(f"{url};shutdown=true")


def test_folded_names_ties_and_the_boundary(project: Project, execute: Execute, url: str) -> None:
    execute(
        "create table orders (order_id int primary key, note varchar(20), "
        'amount decimal(10, 2), updated_at timestamp, "Mixed Case" varchar(5))',
        "insert into orders values (1, 'a', 1.50, timestamp('2025-01-01 00:00:00.123456'), 'x'), "
        "(2, 'b', null, timestamp('2025-01-02 00:00:00.123456'), null), "
        "(3, 'c', 3.25, timestamp('2025-01-02 00:00:00.123456'), 'z')",
    )
    table = {"cursor_field": "updated_at"}
    project.add("shop", "jdbc", ["orders"], {"url": url, "table_options": {"orders": table}})
    discovered = project.loader("discover")
    assert discovered.code == 0, discovered.text
    [found] = discovered.events
    assert (found["table"], found["primary_key"]) == ("orders", ["order_id"])
    first = project.run().table("shop.orders")
    assert (first["appended"], first["cursor"]) == (3, "2025-01-02 00:00:00.123456")
    raw = project.lake().frame("orders")
    assert raw.columns[:5] == ["order_id", "note", "amount", "updated_at", "Mixed Case"]
    assert raw.schema["amount"].dataType.simpleString() == "decimal(10,2)"

    snapshots = project.snapshots("orders")
    again = project.run().table("shop.orders")
    assert (again["status"], again["redelivered"]) == ("nothing new", 2)
    assert project.snapshots("orders") == snapshots

    # An update without a new cursor, a new row with the same cursor, and a delete.
    execute(
        "update orders set note = 'B' where order_id = 2",
        "insert into orders values (4, 'd', 4, timestamp('2025-01-02 00:00:00.123456'), 'w')",
        "delete from orders where order_id = 1",
    )
    assert project.run().table("shop.orders")["appended"] == 2
    rows = project.rows("select order_id, note, _cq_batch from raw.orders order by 3, 1")
    assert rows == [(1, "a", 1), (2, "b", 1), (3, "c", 1), (2, "B", 2), (4, "d", 2)]


@pytest.mark.fast
def test_one_sync_and_one_build_of_everything(
    project: Project, execute: Execute, url: str, tmp_path: Path
) -> None:
    """Runs the loader, codegen, and a dbt build with all tests, twice: the fast end-to-end test."""
    execute(
        "create table orders (id int primary key, note varchar(20), changed timestamp)",
        "insert into orders values (1, 'a', timestamp('2025-01-01 00:00:00')), "
        "(2, 'b', timestamp('2025-01-02 00:00:00'))",
    )
    own = {"url": url, "table_options": {"orders": {"cursor_field": "changed"}}}
    project.add("shop", "jdbc", ["orders"], own)
    schema = project.schema
    dbt = DbtProject(project.spark, project.folder, schema=f"mart_{schema}", raw_schema=schema)
    assert project.run().table("shop.orders")["appended"] == 2
    assert project.loader("codegen").code == 0
    everything = ("build", "--select", "source:shop+", "cq_sync_log", "cq_state_current")
    results = dbt.run(*everything)
    assert {one.status for one in results.values()} == {"success", "pass"}, results
    assert len(results) == 3 + 5
    assert results["shop_orders_latest"].message == "REBUILD to batch 1"
    execute(
        "update orders set note = 'A', changed = timestamp('2025-01-03 00:00:00') where id = 1",
        "insert into orders values (3, 'c', timestamp('2025-01-02 00:00:00'))",
    )
    assert project.run().table("shop.orders")["appended"] == 2
    results = dbt.run(*everything)
    assert {one.status for one in results.values()} == {"success", "pass"}, results
    assert results["shop_orders_latest"].message == "MERGE to batch 2"
    newest = {row["id"]: row["note"] for row in dbt.rows("shop_orders_latest")}
    assert newest == {1: "A", 2: "b", 3: "c"}
    assert project.run().table("shop.orders")["status"] == "nothing new"


def test_every_type_of_cursor(project: Project, execute: Execute, url: str) -> None:
    types = {
        "integer": ("int", ["1", "2"], "2"),
        "bigint": ("bigint", ["1", "9007199254740993"], "9007199254740993"),
        "decimal": ("decimal(20, 5)", ["1", "12345678901234.56789"], "12345678901234.56789"),
        "double": ("double", ["0.1", "0.30000000000000004"], "0.30000000000000004"),
        "day": ("date", ["'2025-01-01'", "'2025-01-31'"], "2025-01-31"),
        "text": ("varchar(20)", ["'a'", "'it''s \\'"], "it's \\"),
    }
    for name, (kind, values, _) in types.items():
        execute(
            f"create table {name}s (id int primary key, c {kind})",
            *(f"insert into {name}s values ({i}, {v})" for i, v in enumerate(values)),
        )
    tables = {f"{name}s": {"cursor_field": "c"} for name in types}
    project.add("shop", "jdbc", ["*"], {"url": url, "table_options": tables})
    ran = project.run()
    found = {name: ran.table(f"shop.{name}s")["cursor"] for name in types}
    assert found == {name: text for name, (_, _, text) in types.items()}
    again = project.run()
    assert {again.table(f"shop.{name}s")["redelivered"] for name in types} == {1}


def test_a_partitioned_read_has_every_row_once(
    project: Project, execute: Execute, url: str
) -> None:
    execute("create table t (id int primary key, c int)")
    for start in range(0, 1000, 100):
        values = ", ".join(f"({i}, {i if i % 10 else 'null'})" for i in range(start, start + 100))
        execute(f"insert into t values {values}")
    table = {"cursor_field": "c", "num_partitions": 4}
    project.add("shop", "jdbc", ["t"], {"url": url, "table_options": {"t": table}})
    assert project.run().table("shop.t")["appended"] == 1000
    [(rows, keys, files)] = project.rows(
        "select count(*), count(distinct id), (select count(*) from raw.t.files) from raw.t"
    )
    assert (rows, keys, files) == (1000, 1000, 4)
