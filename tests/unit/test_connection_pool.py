"""The JDBC connection pool reuses connections, but never one that failed or is too old."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from loader.sources.jdbc import connections
from loader.sources.jdbc.connections import ConnectionPool


class Line:
    """A fake connection that records whether it is open."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.open = True
        self.lost = False
        self.reopen: Callable[[], Line] | None = None


@pytest.fixture
def lines() -> list[Line]:
    """All connections that were opened."""
    return []


@pytest.fixture
def pool(lines: list[Line]) -> ConnectionPool:
    """A pool of fake connections."""

    @contextmanager
    def opened(where: str) -> Iterator[Line]:
        line = Line(where)
        lines.append(line)
        try:
            yield line
        finally:
            line.open = False

    return ConnectionPool(opened)  # type: ignore[arg-type]


def test_a_returned_connection_is_reused_for_the_next_table(
    pool: ConnectionPool, lines: list[Line]
) -> None:
    for where in ("table a", "table b"):
        with pool.lend(where) as line:
            assert line.where == where
    assert [line.open for line in lines] == [True]


def test_concurrent_users_get_different_connections(
    pool: ConnectionPool, lines: list[Line]
) -> None:
    with pool.lend("table a") as one, pool.lend("table b") as other:
        assert one is not other
    pool.close()
    assert [line.open for line in lines] == [False, False]


def test_a_connection_is_not_reused_after_an_error(pool: ConnectionPool, lines: list[Line]) -> None:
    with pytest.raises(ValueError, match="no"), pool.lend("table a"):
        raise ValueError("no")
    with pool.lend("table b"):
        assert [line.open for line in lines] == [False, True]


def test_a_connection_that_was_idle_too_long_is_closed(
    pool: ConnectionPool, lines: list[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pool.lend("table a"):
        pass
    monkeypatch.setattr(connections, "_MAX_IDLE_SECONDS", 0)
    with pool.lend("table b"):
        assert [line.open for line in lines] == [False, True]


def test_no_connection_stays_open_after_close(pool: ConnectionPool, lines: list[Line]) -> None:
    with pool.lend("table a"):
        pool.close()
    with pool.lend("table b"):
        pass
    assert [line.open for line in lines] == [False, False]


def test_a_connection_with_a_lost_session_is_not_reused(
    pool: ConnectionPool, lines: list[Line]
) -> None:
    with pool.lend("table a"):
        lines[0].lost = True
    with pool.lend("table b"):
        assert [line.open for line in lines] == [False, True]


def test_a_connection_that_died_while_idle_is_replaced(
    pool: ConnectionPool, lines: list[Line]
) -> None:
    with pool.lend("table a") as first:
        assert first.reopen is None  # it was opened for this table
    with pool.lend("table b"):
        assert lines[0].reopen is not None
        assert lines[0].reopen() is lines[1]
        assert [line.open for line in lines] == [False, True]
        assert lines[1].where == "table b"
    pool.close()
    assert [line.open for line in lines] == [False, False]


def test_close_surplus_keeps_one_connection(pool: ConnectionPool, lines: list[Line]) -> None:
    with pool.lend("table a"), pool.lend("table b"):
        pass
    pool.close_surplus()
    assert [line.open for line in lines] == [True, False]
