"""PostgreSQL: a full read is split into ranges of pages if the table is in cursor order."""

from __future__ import annotations

import pytest

from loader.rows.window import Window
from loader.sources.jdbc.partitions import Ranges, RangeSplit
from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from tests.services import Database
from tests.sync.project import Project

ROWS = (
    "create table orders (id int primary key, note text, c int) with (autovacuum_enabled = false)",
    "insert into orders select g, repeat('x', 400), g from generate_series(1, 400) g",
)
READERS = 4


@pytest.fixture
def orders(project: Project, postgres_database: Database) -> Database:
    """A table of 400 rows on about twenty pages, stored in the order of their cursors."""
    postgres_database.execute(*ROWS)
    options = {"cursor_field": "c", "num_partitions": READERS}
    project.jdbc(postgres_database, ["orders"], table_options={"orders": options})
    return postgres_database


def _plan_split(project: Project) -> RangeSplit:
    """Returns how a first load would split the table among its readers."""
    [part] = Pipeline(load_spec(project.folder / "loader.yml"), project.spark).plan_tables()
    [plan] = part.plans
    window = Window(plan.cursor)
    with part.source.snapshot([plan.table]) as snapshot:
        bounds = snapshot.bounds(plan.table, window)
        return Ranges(snapshot, plan.table, window, bounds).divide(project.spark)  # type: ignore[arg-type]


def _is_split_by_pages(project: Project) -> bool:
    return bool(_plan_split(project).column)


def test_ranges_of_pages_have_each_row_once_and_are_of_similar_size(
    project: Project, orders: Database
) -> None:
    orders.execute(
        "delete from orders where id % 7 = 0", "update orders set note = 'y' where c > 390"
    )
    orders.execute("vacuum analyze orders")
    assert len(_plan_split(project).conditions or ()) == READERS
    assert _is_split_by_pages(project)
    project.run()
    expected = sorted(orders.query("select id, note, c from orders"))
    assert sorted(project.rows("select id, note, c from raw.orders")) == expected
    [(files, least)] = project.rows(
        "select count(*), min(rows) from "
        "(select count(*) as rows from raw.orders group by input_file_name())"
    )
    assert (files, least > len(expected) / 8) == (READERS, True)
    orders.execute("insert into orders values (1000, 'new', 1000)")
    assert project.run().table("shop.orders")["appended"] == 1


def test_a_table_that_is_not_in_cursor_order_is_not_split_by_pages(
    project: Project, orders: Database
) -> None:
    assert not _is_split_by_pages(project)  # the order is unknown before ANALYZE
    orders.execute("update orders set c = (id * 37) % 400", "vacuum analyze orders")
    assert not _is_split_by_pages(project)
    project.run()
    assert project.rows("select count(distinct id) from raw.orders") == [(400,)]


@pytest.mark.parametrize(
    "change",
    [
        "alter table orders rename to kept; create view orders as select * from kept",
        "alter table orders rename to kept; create table orders (like kept) partition by range (c);"
        "create table part partition of orders default; insert into orders select * from kept",
        "create table child () inherits (orders); insert into child select 1000, 'z', 1000",
    ],
    ids=["view", "partitioned", "inherited"],
)
def test_only_plain_tables_are_split_by_pages(
    project: Project, orders: Database, change: str
) -> None:
    orders.execute(change, "analyze")
    assert not _is_split_by_pages(project)
    project.run()
    [(rows,)] = orders.query("select count(*) from orders")
    assert project.rows("select count(*) from raw.orders") == [(rows,)]


def test_partition_column_takes_precedence(project: Project, orders: Database) -> None:
    orders.execute("vacuum analyze orders")
    options = {"cursor_field": "c", "num_partitions": READERS, "partition_column": "id"}
    project.jdbc(orders, ["orders"], table_options={"orders": options})
    assert not _is_split_by_pages(project)
