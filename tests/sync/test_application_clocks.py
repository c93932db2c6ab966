"""Rows are found even if an application's clock is slow, or its times are truncated."""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from loader.sync import plan_window
from tests.services import Database
from tests.sync.project import Project

BEHIND = dt.timedelta(minutes=3)


def _read_clock(database: Database) -> dt.datetime:
    """Returns the time of the database's clock in UTC."""
    sql = "select utc_timestamp(6)"
    if database.url.startswith("jdbc:postgresql"):
        sql = "select timezone('UTC', clock_timestamp())"
    [(now,)] = database.query(sql)
    return dt.datetime.fromisoformat(str(now))


def _truncate(moment: dt.datetime, seconds: int) -> dt.datetime:
    return moment - (moment - dt.datetime.min) % dt.timedelta(seconds=seconds or 1e-6)


def _upsert_sql(n: int, at: dt.datetime, key: int | None = None, table: str = "orders") -> str:
    """Returns SQL that inserts a row, or updates it if its key exists."""
    columns = f"({'' if key is None else f'{key}, '}{n}, '{at}')"
    update = "" if key is None else f" on duplicate key update n = {n}, at = '{at}'"
    return f"insert into {table} values {columns}{update}"


def _create(
    database: Database,
    kind: str = "timestamp(6) not null",
    keyed: bool = True,
    table: str = "orders",
) -> None:
    key = "id int primary key, " if keyed else ""
    database.execute(f"create table {table} ({key}n int, at {kind}, index (at))")


@contextmanager
def _application(database: Database, *statements: str) -> Iterator[Any]:
    """Opens an application's transaction, and commits it at the end of the block."""
    with closing(database.connect()) as connection:
        if database.url.startswith("jdbc:postgresql"):
            connection.autocommit = False
        else:
            connection.autocommit(False)
            # The application writes times in UTC, regardless of the server's time zone.
            connection.cursor().execute("set time_zone = '+00:00'")
        for statement in statements:
            connection.cursor().execute(statement)
        yield connection
        connection.commit()


def _write(database: Database, *statements: str) -> None:
    with _application(database, *statements):
        pass


def _configure(project: Project, database: Database, *tables: str, **own: object) -> None:
    names = [*tables] or ["orders"]
    options = {name: {"cursor_field": "at", **own} for name in names}
    project.jdbc(database, names, table_options=options)


def _is_complete(
    project: Project, database: Database, keyed: bool = True, source: str = "orders"
) -> bool:
    """Returns whether the newest versions in the raw table equal the rows of the source."""
    table = source if source != "orders" else project.sources[0]["tables"][0]
    if not keyed:
        found = Counter(project.rows(f"select n from raw.{table}"))
        return found == Counter(tuple(row) for row in database.query(f"select n from {source}"))
    newest = project.rows(
        "select id, max_by(n, struct(_cq_generation, at, _cq_batch, _cq_seq)) "
        f"from raw.{table} group by id"
    )
    return set(newest) == {tuple(row) for row in database.query(f"select id, n from {source}")}


@pytest.mark.parametrize("kind", ["timestamp(6) not null", "datetime(6)"])
def test_a_clock_that_is_three_minutes_behind_loses_no_row(
    project: Project, mariadb_database: Database, kind: str
) -> None:
    shop = mariadb_database
    _create(shop, kind)
    now = _read_clock(shop)
    _write(shop, *(_upsert_sql(1, now - dt.timedelta(days=1), key) for key in (1, 2)))
    _configure(project, shop)
    project.run()
    late = _read_clock(shop) - BEHIND
    with _application(shop, _upsert_sql(2, late, 1), _upsert_sql(2, late, 10)):
        _write(shop, _upsert_sql(1, _read_clock(shop), 3))
        assert project.run().table("shop.orders")["appended"] == 1
    # This transaction begins after the sync, and its application's clock is slow, too.
    _write(
        shop,
        _upsert_sql(2, _read_clock(shop) - BEHIND, 2),
        _upsert_sql(2, _read_clock(shop) - BEHIND, 11),
    )
    ran = project.run()
    assert ran.table("shop.orders")["appended"] == 4
    assert ran.warnings == []
    assert _is_complete(project, shop)
    assert project.run().table("shop.orders")["appended"] == 0


CUTS = [(1, 1), (60, 60), (900, 3600), (3600, 86400)]
"""The units, in seconds, to which times are truncated: by most writers, and by one application."""


def test_truncated_times_lose_no_row(project: Project, mariadb_database: Database) -> None:
    """One application truncates its times more than the others, such as to a day in UTC-02:00."""
    shop = mariadb_database
    cuts = {
        f"orders_{unit}_{'keyed' if keyed else 'keyless'}": (others, unit, keyed)
        for others, unit in CUTS
        for keyed in (True, False)
    }
    now, first, late, rows, keys = _read_clock(shop), {}, {}, [], {}
    for table, (others, unit, keyed) in cuts.items():
        _create(shop, "timestamp not null default '2000-01-01'", keyed, table)
        first[table], zone = _truncate(now, others), dt.timedelta(hours=2 * (unit == 86400))
        late[table] = _truncate(now - BEHIND - zone, unit) + zone
        keys[table] = iter(range(1, 9)) if keyed else itertools.repeat(None)
        insert = [_upsert_sql(n, first[table], next(keys[table]), table) for n in (1, 1, 1)]
        _write(shop, *insert, _upsert_sql(7, late[table], next(keys[table]), table))
        rows.append(_upsert_sql(7, late[table], next(keys[table]), table))
        rows.append(_upsert_sql(8, late[table], 1 if keyed else None, table))
    _configure(project, shop, *cuts)

    def count_appended() -> set[int]:
        ran = project.run()
        return {ran.table(f"shop.{table}")["appended"] for table in cuts}

    assert count_appended() == {4}
    with _application(shop, *rows):
        newest = {
            table: _truncate(_read_clock(shop), others) for table, (others, _, _) in cuts.items()
        }
        for table in cuts:
            _write(shop, _upsert_sql(1, newest[table], next(keys[table]), table))
        assert count_appended() == {1}
    assert count_appended() == {2}
    for table, (_, _, keyed) in cuts.items():
        assert _is_complete(project, shop, keyed, table), table
    assert count_appended() == {0}
    notes = {
        each["table"]: each["notes"] for each in project.loader("check").events if "notes" in each
    }
    for table, (_, unit, _) in cuts.items():
        note = notes[f"shop.{table}"]
        times = (first[table], late[table], newest[table])
        # A time that is truncated to a second may happen to be a whole minute.
        assert ("truncated to whole" in note) == (unit > 1 or any(not t.second for t in times)), (
            table
        )
        # In the first minutes of an hour, all times may be truncated to the same time.
        assert ("below the last cursor" in note) == (late[table] < newest[table]), table


def test_a_fourth_equal_row_with_the_day_as_cursor_is_found(
    project: Project, mariadb_database: Database
) -> None:
    shop = mariadb_database
    _create(shop, "date", keyed=False)
    day = _read_clock(shop).replace(hour=0, minute=0, second=0, microsecond=0)
    _write(shop, *[_upsert_sql(1, day)] * 3)
    _configure(project, shop)
    project.run()
    with _application(shop, _upsert_sql(1, day)):
        _write(shop, _upsert_sql(2, day + dt.timedelta(days=1)))
        project.run()
    project.run()
    assert _is_complete(project, shop, keyed=False)


@pytest.mark.parametrize("server", ["postgres_database", "mariadb_database"])
def test_a_view_is_read_again_from_five_minutes_below_the_cursor(
    project: Project, request: pytest.FixtureRequest, server: str
) -> None:
    shop: Database = request.getfixturevalue(server)
    shop.execute(
        "create table orders (id int, n int, at timestamp(6))",
        "create view keyed as select * from orders",
        "create view keyless as select * from orders",
    )
    _write(shop, *(_insert_sql(n, _read_clock(shop) - dt.timedelta(days=1)) for n in (1, 2)))
    options: dict[str, dict[str, Any]] = {
        "keyed": {"cursor_field": "at", "primary_key": ["id"]},
        "keyless": {"cursor_field": "at"},
    }
    project.jdbc(shop, [*options], table_options=options)

    def sync_views() -> set[tuple[int, int]]:
        """Syncs; returns how many rows were read and appended."""
        ran = project.run()
        tables = [ran.table(f"shop.{view}") for view in options]
        return {(table["read"], table["appended"]) for table in tables}

    project.run()
    _write(shop, _insert_sql(3, _read_clock(shop)))
    with _application(shop, _insert_sql(4, _read_clock(shop) - BEHIND)):
        time.sleep(0.1)
        _write(shop, _insert_sql(5, _read_clock(shop)))
        assert {appended for _, appended in sync_views()} == {2}
    _write(shop, _insert_sql(6, _read_clock(shop) - BEHIND), "update orders set n = 9 where id = 5")
    assert {appended for _, appended in sync_views()} == {3}
    expected = {tuple(row) for row in shop.query("select id, n from orders")}
    for view in options:
        rows = project.rows(f"select id, max_by(n, _cq_batch) from raw.{view} group by id")
        assert set(rows) == expected, view
    assert sync_views() == {(4, 0)}


def _insert_sql(n: int, at: dt.datetime) -> str:
    return f"insert into orders values ({n}, {n}, '{at}')"


def test_a_lookback_replaces_the_five_minutes(project: Project, mariadb_database: Database) -> None:
    shop = mariadb_database
    _create(shop)
    _write(shop, _upsert_sql(1, _read_clock(shop), 1))
    _configure(project, shop, lookback="1 hour")
    project.run()
    _write(shop, _upsert_sql(1, _read_clock(shop) - 10 * BEHIND, 2))
    assert project.run().table("shop.orders")["appended"] == 1
    _configure(project, shop, lookback="0 seconds")
    _write(shop, _upsert_sql(1, _read_clock(shop) - BEHIND, 3))
    assert project.run().table("shop.orders")["appended"] == 0


def test_a_clock_that_is_two_hours_behind_loses_rows_and_check_says_so(
    project: Project, mariadb_database: Database
) -> None:
    shop = mariadb_database
    _create(shop)
    _write(shop, _upsert_sql(1, _read_clock(shop), 1))
    _configure(project, shop)
    project.run()
    _write(
        shop,
        _upsert_sql(1, _read_clock(shop) - dt.timedelta(hours=2), 2),
        _upsert_sql(1, _read_clock(shop), 3),
    )
    assert project.run().table("shop.orders")["appended"] == 1
    project.run()
    assert not _is_complete(project, shop)
    [checked] = [e for e in project.loader("check").events if "notes" in e]
    assert checked["notes"] == (
        "rows whose at is more than 5 minutes behind the database's clock may be missed: set a "
        "longer lookback if an application writes such times"
    )


def test_rows_below_a_cursor_that_the_user_sets_are_not_read_later(
    project: Project, mariadb_database: Database
) -> None:
    shop = mariadb_database
    _create(shop)
    now = _read_clock(shop)
    minutes = [now - dt.timedelta(minutes=n) for n in (4, 3, 2, 1)]
    _write(shop, *(_upsert_sql(1, at, n) for n, at in enumerate(minutes, 1)))
    _configure(project, shop, initial_cursor=str(minutes[1]))
    assert project.run().table("shop.orders")["appended"] == 3
    _write(shop, _upsert_sql(1, now, 5))
    assert project.run().table("shop.orders")["appended"] == 1
    _write(shop, _upsert_sql(1, minutes[3] + dt.timedelta(seconds=1), 6))
    project.loader("state", "set", "shop.orders", str(_read_clock(shop)))
    _write(shop, *(_upsert_sql(1, _read_clock(shop), n) for n in (7, 8)))
    assert project.run().table("shop.orders")["appended"] == 2
    _write(shop, _upsert_sql(1, _read_clock(shop), 9))
    assert project.run().table("shop.orders")["appended"] == 1
    ids = project.rows("select id from raw.orders order by id")
    assert [n for (n,) in ids] == [2, 3, 4, 5, 7, 8, 9]


def test_redelivered_rows_append_disables_the_five_minutes(
    project: Project, mariadb_database: Database
) -> None:
    shop = mariadb_database
    _create(shop)
    shop.execute("create view seen as select * from orders")
    _write(
        shop,
        _upsert_sql(1, _read_clock(shop) - dt.timedelta(minutes=1), 1),
        _upsert_sql(1, _read_clock(shop), 2),
    )
    for table in ("orders", "seen"):
        _configure(project, shop, table, redelivered_rows="append")
        project.run()
        assert project.run().table(f"shop.{table}")["appended"] == 1  # the row at the cursor


def test_an_idle_table_is_read_again_only_for_a_while(
    project: Project, mariadb_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_window, "DEFAULT_SLACK", 4)
    shop = mariadb_database
    _create(shop, "datetime(6)")
    _write(shop, *(_upsert_sql(1, _read_clock(shop), n) for n in (1, 2, 3)))
    _configure(project, shop)

    def read() -> int:
        table = project.run().table("shop.orders")
        return int(table["read"])

    assert (read(), read()) == (3, 3)
    time.sleep(5)
    assert (read(), read(), read()) == (3, 1, 1)
    late = _read_clock(shop) - dt.timedelta(seconds=3)
    _write(shop, _upsert_sql(1, late, 4))
    assert read() == 2
    assert _is_complete(project, shop)
