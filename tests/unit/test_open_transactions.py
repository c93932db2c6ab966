"""How far back a sync must read because MySQL transactions are still open."""

from __future__ import annotations

import datetime as dt

import pytest

from loader.rows.cursor import Cursor, CursorType
from loader.sources.jdbc.mysql.open_transactions import OpenTransactions, OpenWork, Writer

NOON = dt.datetime(2026, 3, 1, 12)


def _at(minutes: float) -> dt.datetime:
    return NOON + dt.timedelta(minutes=minutes)


def _seen(minutes: float, *writers: float, running: float | None = None) -> OpenTransactions:
    base = minutes if running is None else running
    return OpenTransactions(_at(minutes), _at(base), tuple(Writer(_at(w)) for w in writers))


def _compute_bounds(*looks: OpenTransactions) -> list[float]:
    found, before = [], None
    for look in looks:
        before = OpenWork.from_mark(look.to_open_work(before, look.clock).to_mark())
        assert before is not None
        found.append((before.since - NOON).total_seconds() / 60)
    return found


def test_without_open_transactions_the_bound_is_the_clock() -> None:
    assert _compute_bounds(_seen(0), _seen(10)) == [0, 10]


def test_a_statement_is_known_by_its_start() -> None:
    assert _compute_bounds(_seen(0), _seen(10, running=3), _seen(20)) == [0, 3, 20]


def test_a_first_statement_may_have_started_at_the_last_sync() -> None:
    # its first statement may have started at minute 0 or 3 and waited until minute 8
    assert _compute_bounds(_seen(0), _seen(10, 8)) == [0, 0]
    assert _compute_bounds(_seen(5, running=3), _seen(10, 8)) == [3, 3]


def test_a_long_transaction_lowers_the_bound_only_while_it_is_open() -> None:
    looks = [_seen(0), _seen(10, 8), _seen(20, 8, 15), _seen(30, 15, 25), _seen(40, 35), _seen(50)]
    assert _compute_bounds(*looks) == [0, 0, 0, 10, 30, 50]


def test_transactions_of_one_second_count_as_the_older_one() -> None:
    assert _compute_bounds(_seen(0), _seen(10, 10), _seen(20, 10)) == [0, 0, 0]


def test_a_transaction_that_was_not_seen_may_have_waited_for_a_day() -> None:
    assert _compute_bounds(_seen(0, -5)) == [-5 - 24 * 60]
    # not seen at minute 0, because it ran on another server
    assert _compute_bounds(_seen(0), _seen(10, -5)) == [0, -5 - 24 * 60]


def test_a_prepared_transaction_is_as_old_as_the_oldest_open_one() -> None:
    is_prepared = OpenTransactions(_at(20), _at(20), (Writer(_at(19), is_prepared=True),))
    assert _compute_bounds(_seen(0), _seen(10, 8), is_prepared) == [0, 0, 0]
    assert _compute_bounds(is_prepared)[0] < -60 * 24 * 365 * 50


@pytest.mark.parametrize(
    ("low", "type_", "offset", "reach"),
    [
        ("2026-03-01 12:09:00", CursorType.TIMESTAMPTZ, 3600, "2026-03-01 12:02:59"),
        ("2026-03-01 13:09:00", CursorType.TIMESTAMP, 3600, "2026-03-01 13:01:59"),
        # the writers are eight hours behind the database's zone, or ahead of it
        ("2026-03-01 05:09:00", CursorType.TIMESTAMP, 3600, "2026-03-01 05:01:59"),
        ("2026-03-01 21:09:00", CursorType.TIMESTAMP, 3600, "2026-03-01 13:02:59"),
        # the clock has been set back an hour: rows written now lie below the cursor
        ("2026-03-01 14:09:00", CursorType.TIMESTAMP, 3600, "2026-03-01 13:02:59"),
        ("2026-03-01", CursorType.DATE, 3600, "2026-02-28"),
        ("0001-01-01 00:00:01", CursorType.TIMESTAMP, 0, "0001-01-01 00:00:00"),
    ],
)
def test_the_bound_has_the_cursors_type(
    low: str, type_: CursorType, offset: int, reach: str
) -> None:
    work = OpenWork(clock=_at(9), base=_at(3), until=_at(10))
    assert work.reach(Cursor.parse(low, type_), offset).text == reach


def test_a_cursor_at_the_end_of_the_calendar_is_no_error() -> None:
    work = OpenWork(clock=_at(99), base=_at(99), until=_at(10))
    end = Cursor.parse("9999-12-31 23:59:59", CursorType.TIMESTAMP)
    assert work.reach(end, 0).text == "2026-03-01 13:38:59"


def test_a_late_mark_is_settled_once_its_transaction_has_ended() -> None:
    quiet = _seen(10).to_open_work(None, _at(10))
    late = _seen(20, 8).to_open_work(quiet, _at(20))
    still = _seen(30, 8).to_open_work(late, _at(30))
    over = _seen(30).to_open_work(late, _at(30))
    assert not quiet.is_settled(over)
    assert not late.is_settled(still)
    assert late.is_settled(over)


def test_a_mark_of_another_kind_is_ignored() -> None:
    assert OpenWork.from_mark(None) is None
    assert OpenWork.from_mark({"since": "x", "xmin": "3", "open": True, "system": ""}) is None
