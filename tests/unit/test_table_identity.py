"""Tables that were added since a mark, and databases that were restored or failed over."""

from __future__ import annotations

import pytest

from loader.rows.cursor import Cursor, CursorType
from loader.rows.window import Bounds, next_cursor
from loader.sources.jdbc.postgresql.continuity import DatabaseContinuity, TransactionMark
from loader.sources.jdbc.postgresql.table_identity import TableIdentity
from loader.state import TableState


def _identity(*tables: int) -> TableIdentity:
    return TableIdentity(tables[0], frozenset(tables), False)


def test_only_tables_that_a_mark_does_not_know_are_new() -> None:
    mark = _identity(5, 7, 16384).to_mark()
    assert _identity(5, 7, 16384).list_added(mark) == frozenset()
    assert _identity(5, 7, 16384, 9).list_added(mark) == {9}
    assert _identity(5, 7).list_added(mark) == frozenset()
    assert _identity(5, 7).is_changed(mark)
    assert not _identity(16384, 7, 5).is_changed({**mark, "xmin": "1", "open": False})
    assert _identity(8).is_replaced(mark)
    assert not _identity(5).is_replaced(mark)
    # marks that do not record tables
    for unknown in (None, {}, {"xmin": "1"}):
        assert _identity(5).list_added(unknown) == frozenset()
        assert not _identity(5).is_replaced(unknown)


def test_the_mark_of_very_many_tables_is_short() -> None:
    many = _identity(*range(16384, 26384))
    mark = many.to_mark()
    assert len(mark["tables"]) < 50
    assert many.list_added(mark) == frozenset()
    more = _identity(*range(16384, 26385))
    assert more.list_added(mark) == more.tables


@pytest.mark.parametrize(
    ("system", "xmin", "fate"),
    [
        ("7/1", 100, DatabaseContinuity.SAME),
        ("7/1", 99, DatabaseContinuity.RESTORED),
        ("7/2", 101, DatabaseContinuity.FAILED_OVER),
        ("7/2", 50, DatabaseContinuity.FAILED_OVER),
        ("8/1", 101, DatabaseContinuity.RESTORED),
        ("", 101, DatabaseContinuity.SAME),
        ("", 50, DatabaseContinuity.RESTORED),
    ],
)
def test_a_restored_database_is_distinguished_from_a_failover(
    system: str, xmin: int, fate: DatabaseContinuity
) -> None:
    before = TransactionMark(None, 100, False, "7/1")
    assert before.compare_database(TransactionMark(None, xmin, False, system)) is fate


def test_a_cursor_goes_back_only_if_its_source_was_rewound() -> None:
    low, high = (Cursor(text, CursorType.INTEGER) for text in ("6", "12"))
    assert next_cursor(high, Bounds(3, high=low)) == high
    assert next_cursor(high, Bounds(3, high=low, is_rewound=True)) == low
    assert next_cursor(high, Bounds(0, is_rewound=True)) == high


def test_times_finer_than_microseconds() -> None:
    kind = CursorType.TIMESTAMP
    assert Cursor.is_finer("2025-01-01 00:00:00.123456789", kind)
    assert Cursor.is_finer("2025-01-01 00:00:00.1234560001", kind)
    assert not Cursor.is_finer("2025-01-01 00:00:00.123456000", kind)
    assert not Cursor.is_finer("2025-01-01 00:00:00", kind)
    assert not Cursor.is_finer("1.1234567", CursorType.DECIMAL)
    last = Cursor.parse("2025-01-01 23:59:59.999999", kind)
    assert last.next_microsecond == Cursor("2025-01-02 00:00:00", kind)
    assert Cursor.parse("9999-12-31 23:59:59.999999", kind).next_microsecond is None


@pytest.mark.parametrize(
    ("kind", "text", "keeps"),
    [
        (CursorType.INTEGER, "9", True),
        (CursorType.INTEGER, "10", True),
        (CursorType.INTEGER, "11", False),
        (CursorType.STRING, "10", True),
        (CursorType.STRING, "1", False),
    ],
)
def test_a_cursor_set_by_hand_keeps_the_mark_unless_it_may_skip_rows(
    kind: CursorType, text: str, keeps: bool
) -> None:
    state = TableState(3, 1, Cursor("10", kind), "c", {"xmin": "5"})
    moved = state.set_by_hand(Cursor(text, kind))
    assert moved.cursor == Cursor(text, kind)
    assert moved.mark == ({"xmin": "5", "set_by_hand": True} if keeps else None)
    assert TableState(3, 1, Cursor("10", kind), "c").set_by_hand(Cursor(text, kind)).mark is None
