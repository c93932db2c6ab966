"""Rows at the stored cursor are reread only if they have changed since the last sync."""

from __future__ import annotations

import pytest

from loader.lake import system_tables
from tests.services import Database
from tests.sync.project import Project

ROWS = (
    "create table orders (id int primary key, a text, b text, at timestamptz not null)",
    "insert into orders select g, 'a' || g, 'b', timestamptz '2025-01-01' + g * interval '1 s' "
    "from generate_series(1, 5) g",
)
LAST = "id = 5"


@pytest.fixture
def orders(project: Project, postgres_database: Database) -> Database:
    """A table with five rows, synced once."""
    postgres_database.execute(*ROWS)
    _configure(project, postgres_database)
    project.run()
    return postgres_database


def _configure(project: Project, database: Database, **options: object) -> None:
    given = {"orders": {"cursor_field": "at", **options}}
    project.jdbc(database, ["orders"], table_options=given)


def _sync(project: Project) -> tuple[object, ...]:
    """Syncs; returns status, rows appended, rows redelivered, whether a Spark job ran."""
    jobs = _count_jobs(project)
    ran = project.run().table("shop.orders")
    return ran["status"], ran["appended"], ran["redelivered"], _count_jobs(project) > jobs


def _count_jobs(project: Project) -> int:
    return int(project.spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())  # type: ignore[attr-defined]


def _read_newest(
    project: Project, columns: str = "a, b", table: str = "orders"
) -> tuple[object, ...]:
    query = f"select {columns} from raw.{table} where {LAST} order by _cq_batch"
    [found] = project.rows(query)[-1:]
    return found


UNCHANGED = ("nothing new", 0, 1, False)


def test_unchanged_rows_at_the_cursor_are_not_read_again(
    project: Project, orders: Database
) -> None:
    before = project.state("shop.orders")
    assert _sync(project) == UNCHANGED
    orders.execute(f"update orders set a = a where {LAST}")  # written but equal
    assert _sync(project) == UNCHANGED
    assert project.state("shop.orders") == before


CHANGES: dict[str, tuple[str, tuple[object, ...]]] = {
    "one_column": ("a = 'x'", ("x", "b")),
    "exchanged": ("a = b, b = a", ("b", "a5")),
    "shifted": ("a = 'a', b = '5b'", ("a", "5b")),
    "emptied": ("b = null", ("a5", None)),
    "blanked": ("b = ''", ("a5", "")),
    "joined": ("a = 'a5,b', b = null", ("a5,b", None)),
    "padded": ("b = 'b '", ("a5", "b ")),
    "cleared": ("a = null, b = null", (None, None)),
}
"""By table: an update of its newest row, and the row's values after it."""


def test_changed_rows_at_the_cursor_are_read(project: Project, postgres_database: Database) -> None:
    """Each change has its own table; all tables are synced together."""
    for table in CHANGES:
        postgres_database.execute(*(row.replace("orders", table) for row in ROWS))
    options = {table: {"cursor_field": "at"} for table in CHANGES}
    project.jdbc(postgres_database, [*CHANGES], table_options=options)
    project.run()

    def synced() -> dict[str, tuple[object, ...]]:
        jobs, ran = _count_jobs(project), project.run()
        worked = _count_jobs(project) > jobs
        reported = {table: ran.table(f"shop.{table}") for table in CHANGES}
        return {
            table: (of["status"], of["appended"], of["redelivered"], worked)
            for table, of in reported.items()
        }

    system_tables._tables.clear()  # as in a new process
    assert synced() == dict.fromkeys(CHANGES, UNCHANGED)
    for table, (change, _) in CHANGES.items():
        postgres_database.execute(f"update {table} set {change} where {LAST}")
    assert {table: of[:2] for table, of in synced().items()} == dict.fromkeys(
        CHANGES, ("synced", 1)
    )
    for table, (_, newest) in CHANGES.items():
        assert _read_newest(project, table=table) == newest, table
    assert synced() == dict.fromkeys(CHANGES, UNCHANGED)


def test_a_row_that_replaces_the_last_one_is_read(project: Project, orders: Database) -> None:
    orders.execute(
        f"delete from orders where {LAST}",
        "insert into orders select 6, 'a5', 'b', max(at) + interval '1 s' from orders",
    )
    assert _sync(project)[:2] == ("synced", 1)
    orders.execute("delete from orders where id = 6")
    assert _sync(project)[:2] == ("nothing new", 0)


def test_a_value_that_was_changed_back_after_a_backfill_is_read(
    project: Project, orders: Database
) -> None:
    orders.execute(f"update orders set a = 'between' where {LAST}")
    project.loader("run", "--from", "2025-01-01")
    assert _read_newest(project) == ("between", "b")
    orders.execute(f"update orders set a = 'a5' where {LAST}")
    assert _sync(project)[:2] == ("synced", 1)
    assert _read_newest(project) == ("a5", "b")


def test_rows_at_the_cursor_are_reread_if_deleted_field_changes(
    project: Project, orders: Database
) -> None:
    assert _sync(project) == UNCHANGED
    orders.execute("alter table orders add column gone timestamptz")
    _configure(project, orders, deleted_field="gone")
    assert _sync(project)[3]  # the columns have changed, so the rows are read once
    orders.execute(f"update orders set gone = now() where {LAST}")
    assert _sync(project)[:2] == ("synced", 1)
    assert _read_newest(project, "_cq_deleted") == (True,)
    _configure(project, orders)
    assert _sync(project)[:2] == ("synced", 1)
    assert _read_newest(project, "_cq_deleted") == (False,)


def test_a_cursor_set_by_hand_reads_again(project: Project, orders: Database) -> None:
    same = project.state("shop.orders")["cursor"]
    assert project.loader("state", "set", "shop.orders", same).code == 0
    assert _sync(project)[3]
    assert _sync(project) == UNCHANGED


def test_redelivered_rows_append_appends_them_again(project: Project, orders: Database) -> None:
    _configure(project, orders, redelivered_rows="append")
    assert _sync(project)[:2] == ("synced", 1)


def test_changed_rows_without_a_cursor_are_read(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(*(one.replace(" not null", "") for one in ROWS))
    postgres_database.execute("insert into orders values (6, 'a6', 'b', null)")
    _configure(project, postgres_database)
    project.run()
    assert _sync(project) == ("nothing new", 0, 2, False)
    postgres_database.execute("update orders set a = 'x' where id = 6")
    assert _sync(project)[:2] == ("synced", 1)


def test_a_transaction_that_commits_late_is_read(project: Project, orders: Database) -> None:
    with orders.connect() as late:
        late.autocommit = False
        late.execute("insert into orders values (7, 'late', 'b', now())")
        orders.execute("insert into orders values (8, 'a8', 'b', now())")
        assert _sync(project)[:2] == ("synced", 1)
        assert _sync(project)[:2] == ("nothing new", 0)
        late.commit()
    assert _sync(project)[:2] == ("synced", 1)
    assert project.rows("select a from raw.orders where id = 7") == [("late",)]


def test_many_rows_at_the_cursor_are_not_read_again(
    project: Project, postgres_database: Database
) -> None:
    postgres_database.execute(
        ROWS[0],
        "insert into orders select g, 'a', 'b', timestamptz '2025-01-01' "
        "from generate_series(1, 20000) g",
    )
    _configure(project, postgres_database)
    project.run()
    assert _sync(project) == ("nothing new", 0, 20_000, False)
    postgres_database.execute("update orders set a = 'x' where id = 7")
    assert _sync(project) == ("synced", 1, 19_999, True)


def test_a_view_is_always_read(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(*(one.replace("orders", "kept") for one in ROWS))
    postgres_database.execute("create view orders as select * from kept")
    _configure(project, postgres_database)
    project.run()
    # The default lookback of a view is five minutes.
    assert _sync(project) == ("nothing new", 0, 5, True)


@pytest.mark.parametrize(
    "options", [{"lookback": "1 day"}, {"sync_mode": "full_refresh"}], ids=["lookback", "always"]
)
def test_a_full_refresh_reads_all_rows_even_if_nothing_is_new(
    project: Project, postgres_database: Database, options: dict[str, object]
) -> None:
    postgres_database.execute(*ROWS)
    _configure(project, postgres_database, initial_cursor="2025-01-01", **options)
    project.run()
    postgres_database.execute("delete from orders where id = 3")
    project.run()
    assert project.run("--full-refresh").table("shop.orders")["appended"] == 4
    newest = "select max(_cq_generation) from raw.orders"
    assert project.rows(f"select id from raw.orders where _cq_generation = ({newest})") != []


def test_no_digest_is_stored_if_no_row_was_read(
    project: Project, postgres_database: Database
) -> None:
    # The cursor is never later than the clock, so it is below initial_cursor.
    postgres_database.execute(
        ROWS[0],
        "insert into orders values (1, 'a', 'b', now() + interval '1 hour'), "
        "(2, 'a', 'b', now() + interval '2 days')",
    )
    [(tomorrow,)] = postgres_database.query("select (now() + interval '1 day')::text")
    _configure(project, postgres_database, initial_cursor=tomorrow)
    project.run()
    assert "boundary" not in project.state("shop.orders")


def test_a_change_in_any_partition_is_read(project: Project, postgres_database: Database) -> None:
    postgres_database.execute(
        "create table orders (id int, a text, b text, at timestamptz) partition by list (b)",
        "create table near partition of orders for values in ('b')",
        ROWS[1],
    )
    _configure(project, postgres_database, primary_key=["id"])
    project.run()
    assert not _sync(project)[3]
    postgres_database.execute(
        "create table far (like orders)",
        f"insert into far select id, a, 'c', at from orders where {LAST}",
        f"delete from orders where {LAST}",
        "alter table orders attach partition far for values in ('c')",
    )
    assert _sync(project)[:2] == ("synced", 1)
    assert _read_newest(project) == ("a5", "c")
