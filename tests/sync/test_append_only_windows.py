"""Rows whose cursors exceed all cursors in the raw table are appended without being compared.

All other rows that a sync reads are compared with the raw table.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from loader.sync import extract
from tests.services import Database
from tests.sync.project import Project

ORDERS = (
    "create table {0} (id int primary key, a text, at timestamptz not null)",
    "insert into {0} select g, 'a' || g, timestamptz '2025-01-01' + g * interval '1 s' "
    "from generate_series(1, 5) g",
)
NEW = "insert into {0} select g, 'new', now() + g * interval '1 us' from generate_series(11, 13) g"
LAST = "id = 5"

Synced = Callable[[], dict[str, tuple[object, ...]]]


@pytest.fixture
def synced(project: Project, monkeypatch: pytest.MonkeyPatch) -> Synced:
    """Syncs; returns by table: rows appended, redelivered, and whether any were compared."""
    compared: list[str] = []
    marked = extract.flag_redelivered

    def spied(rows, raw, *others):  # type: ignore[no-untyped-def]
        compared.append(raw._jdf.queryExecution().analyzed().toString())
        return marked(rows, raw, *others)

    monkeypatch.setattr(extract, "flag_redelivered", spied)

    def run() -> dict[str, tuple[object, ...]]:
        compared.clear()
        events = [e for e in project.run().events if e["event"] == "table"]
        names = [event["table"].partition(".")[2] for event in events]
        return {
            name: (
                event["appended"],
                event["redelivered"],
                any(re.search(rf"\.{name}\b", plan) for plan in compared),
            )
            for name, event in zip(names, events, strict=True)
        }

    return run


def _create(project: Project, database: Database, tables: list[str], **options: object) -> None:
    for table in tables:
        database.execute(*(sql.format(table) for sql in ORDERS))
    given = {table: {"cursor_field": "at", **options} for table in tables}
    project.jdbc(database, tables, table_options=given)
    project.run()


def _read_newest(project: Project, table: str, row: int = 5) -> str:
    """Returns the text of a row's newest version, in the dbt package's order of versions."""
    [(text,)] = project.rows(
        "select max_by(a, struct(_cq_generation, at, _cq_batch, _cq_seq)) "
        f"from raw.{table} where id = {row}"
    )
    return str(text)


def test_new_rows_are_not_compared(
    project: Project, postgres_database: Database, synced: Synced
) -> None:
    _create(project, postgres_database, ["orders", "alone", "moved"])
    for table in ("orders", "alone", "moved"):
        postgres_database.execute(NEW.format(table))
    postgres_database.execute(
        f"delete from alone where {LAST}", f"update moved set a = 'x', at = now() where {LAST}"
    )
    assert synced() == {
        "orders": (3, 1, False),
        "alone": (3, 0, False),  # the row at the cursor was deleted
        "moved": (4, 0, False),  # the row at the cursor has a newer version
    }
    assert {of[0] for of in synced().values()} == {0}
    assert _read_newest(project, "moved") == "x"
    [(read, redelivered, appended)] = project.rows(
        "select rows_read, rows_redelivered, rows_appended from raw._cq_syncs "
        "where table_name = 'orders' and batch = 2"
    )
    assert (read, redelivered, appended) == (4, 1, 3)


CURSORS = {
    "int": ("int", "{}", False),
    "bigint": ("bigint", "9007199254740992 + {}", False),
    "date": ("date", "date '2025-01-01' + {}", False),
    "timestamp": ("timestamp", "timestamp '2025-01-01' + {} * interval '1 us'", False),
    "timestamptz": ("timestamptz", "timestamptz '2025-01-01' + {} * interval '1 us'", False),
    "numeric": ("numeric(20, 2)", "{} / 100.0", True),
    "text": ('text collate "C"', "'t' || chr(64 + {})", True),
}
"""Types of cursors; SQL that makes a cursor of a number; whether new rows are compared anyway."""


def test_neighbouring_cursors_of_every_type(
    project: Project, postgres_database: Database, synced: Synced
) -> None:
    """Each type has a table, with rows at the stored cursor and at the next possible values."""
    for name, (kind, _, _) in CURSORS.items():
        postgres_database.execute(f"create table of_{name} (id int primary key, at {kind})")

    def insert(row: int, number: int) -> None:
        for name, (_, value, _) in CURSORS.items():
            given = value.format(number)
            postgres_database.execute(f"insert into of_{name} values ({row}, {given})")

    insert(1, 5)
    tables = [f"of_{name}" for name in CURSORS]
    options = {table: {"cursor_field": "at"} for table in tables}
    project.jdbc(postgres_database, tables, table_options=options)
    project.run()
    insert(2, 6)
    assert synced() == {f"of_{name}": (1, 1, c) for name, (_, _, c) in CURSORS.items()}
    insert(3, 6)  # at the cursor, so the stored digest no longer matches
    insert(4, 7)
    assert synced() == {f"of_{name}": (2, 1, True) for name in CURSORS}
    insert(5, 8)
    assert synced() == {f"of_{name}": (1, 1, c) for name, (_, _, c) in CURSORS.items()}
    for table in tables:
        assert project.rows(f"select id from raw.{table} order by id") == [
            (n,) for n in range(1, 6)
        ]


def test_a_change_at_the_cursor_is_found_among_new_rows(
    project: Project, postgres_database: Database, synced: Synced
) -> None:
    _create(project, postgres_database, ["orders"])
    postgres_database.execute(f"update orders set a = 'x' where {LAST}", NEW.format("orders"))
    assert synced() == {"orders": (4, 0, True)}
    assert _read_newest(project, "orders") == "x"


def test_a_newer_read_outranks_a_row_dated_in_the_future(
    project: Project, postgres_database: Database, synced: Synced
) -> None:
    _create(project, postgres_database, ["orders"])
    postgres_database.execute("insert into orders values (6, 'future', '2999-01-01')")
    assert synced() == {"orders": (1, 1, False)}
    postgres_database.execute("delete from orders where id = 6")
    synced()
    postgres_database.execute("insert into orders values (6, 'today', now())")
    assert synced()["orders"][::2] == (1, True)
    assert _read_newest(project, "orders", 6) == "today"
    postgres_database.execute("update orders set a = 'tomorrow', at = now() where id = 6")
    assert synced()["orders"][0] == 1
    assert _read_newest(project, "orders", 6) == "tomorrow"


def test_late_rows_are_read_with_new_ones(
    project: Project, postgres_database: Database, synced: Synced
) -> None:
    _create(project, postgres_database, ["orders"])
    with postgres_database.connect() as late:
        late.autocommit = False
        late.execute(f"update orders set a = 'late', at = now() where {LAST}")
        postgres_database.execute("insert into orders values (6, 'a', clock_timestamp())")
        assert synced()["orders"][0] == 1
        late.commit()
    postgres_database.execute("insert into orders values (7, 'a', clock_timestamp())")
    assert synced() == {"orders": (2, 1, True)}
    assert _read_newest(project, "orders") == "late"


def test_rows_at_the_cursor_are_compared_after_a_backfill(
    project: Project, postgres_database: Database, synced: Synced
) -> None:
    _create(project, postgres_database, ["orders"])
    postgres_database.execute(f"update orders set a = 'between' where {LAST}")
    project.loader("run", "--from", "2025-01-01")
    postgres_database.execute(f"update orders set a = 'a5' where {LAST}", NEW.format("orders"))
    assert synced() == {"orders": (4, 0, True)}
    assert _read_newest(project, "orders") == "a5"


def test_rows_are_compared_after_the_cursor_was_set_back(
    project: Project, postgres_database: Database, synced: Synced
) -> None:
    _create(project, postgres_database, ["orders"])
    assert project.loader("state", "set", "shop.orders", "2025-01-01 00:00:03").code == 0
    postgres_database.execute(NEW.format("orders"))
    assert synced() == {"orders": (3, 5, True)}  # without its mark, the sync reads all rows


def test_within_a_lookback_changes_are_found(
    project: Project, postgres_database: Database, synced: Synced
) -> None:
    tables = ["same", "other"]
    _create(project, postgres_database, tables, lookback="3 s")
    postgres_database.execute(*(NEW.format(table) for table in tables))
    postgres_database.execute("update other set a = 'x' where id = 3")
    assert synced()["other"] == (4, 3, True)
    assert _read_newest(project, "other", 3) == "x"


def test_rows_without_a_key_are_appended_once(
    project: Project, postgres_database: Database, synced: Synced
) -> None:
    postgres_database.execute(
        "create table log (a text, at timestamptz)",
        "insert into log select 'a', now() - interval '1 day' from generate_series(1, 2)",
    )
    project.jdbc(postgres_database, ["log"], table_options={"log": {"cursor_field": "at"}})
    project.run()
    again = "insert into log select 'a', now() from generate_series(1, 2)"
    postgres_database.execute(again)
    assert synced() == {"log": (2, 2, False)}
    postgres_database.execute(again, "insert into log select 'a', max(at) from log")
    assert synced()["log"][0] == 3
    assert synced()["log"][0] == 0
