"""Maintenance handles tables that others have locked last, and waits for their locks."""

from __future__ import annotations

import pytest

from loader.errors import LockedError, TableError
from loader.lake import locks


def _create_error(table: str) -> LockedError:
    return LockedError("another run holds this table", where=table, remedy="wait")


def test_a_locked_table_comes_last_and_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "RETRY_INTERVAL", 0.0)
    asked: list[str] = []

    def work(table: str) -> str:
        asked.append(table)
        if table == "orders" and asked.count("orders") < 4:
            raise _create_error(table)
        if table == "broken":
            raise TableError("broken", where=table, remedy="mend it")
        return f"{table} done"

    ended = list(locks.retry_locked_tables(["orders", "broken", "lines"], work))
    assert [table for table, _ in ended] == ["broken", "lines", "orders"]
    assert isinstance(ended[0][1], TableError)
    assert [outcome for _, outcome in ended[1:]] == ["lines done", "orders done"]
    assert asked == ["orders", "broken", "lines", "orders", "orders", "orders"]


def test_all_locked_tables_share_one_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(1, 100))
    monkeypatch.setattr(locks, "RETRY_INTERVAL", 0.0)
    monkeypatch.setattr(locks, "RETRY_TIMEOUT", 6.0)
    monkeypatch.setattr(locks.time, "monotonic", lambda: float(next(times)))
    asked: list[str] = []

    def work(table: str) -> str:
        asked.append(table)
        raise _create_error(table)

    ended = list(locks.retry_locked_tables(["a", "b"], work))
    assert [table for table, _ in ended] == ["a", "b"]
    assert all(isinstance(outcome, LockedError) for _, outcome in ended)
    assert len(asked) == 2 * 7  # once, five times within six seconds, and a last time after them


def test_the_time_of_completed_tables_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(locks, "RETRY_INTERVAL", 0.0)
    monkeypatch.setattr(locks, "RETRY_TIMEOUT", 6.0)
    monkeypatch.setattr(locks.time, "monotonic", lambda: now[0])
    asked: list[str] = []

    def work(table: str) -> str:
        asked.append(table)
        if asked.count(table) == 1 or (table == "b" and asked.count(table) < 4):
            raise _create_error(table)
        now[0] += 100
        return "done"

    assert list(locks.retry_locked_tables(["a", "b"], work)) == [("a", "done"), ("b", "done")]


def test_without_tables_there_is_no_result() -> None:
    assert list(locks.retry_locked_tables([], str)) == []
