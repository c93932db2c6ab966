"""Reads the work that is open before a read, for databases whose rows hold no transaction id.

`now()` is the start of a statement, or of its transaction. Work that was open during one sync and
commits after it brings rows with cursors from before that sync, and a plain `cursor >= stored`
never sees them. So each sync stores a time that no such row can lie below (`since`), and the
next window reaches back that far. Rows that were read before are redelivered, and dropped.
(PostgreSQL knows which transaction wrote a row, so there only late rows are read:
:mod:`loader.sources.jdbc.postgresql.database_continuity`.)

A database shows when a transaction began, but its first statement may have begun earlier, and
waited for a lock. Two facts limit how much earlier. A statement that was running at the last sync
was in its list of statements; a statement that was not running then began after that sync.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from loader.rows.cursor import Cursor, CursorType
from loader.sources.jdbc.connection import Connection

_ROUNDING = dt.timedelta(seconds=1)
_LONGEST_WAIT = dt.timedelta(days=1)  # MariaDB's default of lock_wait_timeout
_EVER = dt.datetime(1970, 1, 2)


@dataclass(frozen=True)
class Writer:
    """A transaction that has changed rows and stays open.

    Attributes:
        started: when it began, in UTC, in whole seconds.
        adopted: it belongs to no session (it is prepared), and `started` may be a restart.
    """

    started: dt.datetime
    adopted: bool = False


@dataclass(frozen=True)
class OpenTransactions:
    """The open work of a database, read before a table's rows; times in UTC.

    Attributes:
        clock: the database's clock before anything else was read.
        base: no statement that can still bring rows began before it; the clock if none is running.
        writers: transactions that changed rows before `clock`, and may commit after the read.
        blind: why the database does not show its open work, for messages; empty if it does.
    """

    clock: dt.datetime
    base: dt.datetime
    writers: tuple[Writer, ...] = ()
    blind: str = ""

    def to_open_work(self, before: OpenWork | None, until: dt.datetime) -> OpenWork:
        """Returns the mark for the next sync.

        Args:
            before: the mark of the last sync.
            until: the database's clock after the table's bounds were read.
        """
        opened: dict[str, dt.datetime] = {}
        for writer in self.writers:
            key = writer.started.isoformat(sep=" ")
            found = _first_statement(writer, key, before)
            opened[key] = min(found, opened.get(key, found))
        return OpenWork(self.clock, self.base, until, opened)


def _first_statement(writer: Writer, key: str, before: OpenWork | None) -> dt.datetime:
    """Returns a time before which a transaction's first statement cannot have begun."""
    if writer.adopted:
        return before.since if before else _EVER
    known = before.open.get(key) if before else None
    if before and known:
        return min(known, before.base)  # several transactions may begin in one second
    if before and writer.started >= before.clock.replace(microsecond=0):
        return before.base  # its first statement ran at the last sync, or began after it
    return writer.started - _LONGEST_WAIT


@dataclass(frozen=True)
class OpenWork:
    """The mark that one sync stores for the next; times in UTC.

    Attributes:
        clock, base: see :class:`OpenTransactions`.
        until: the clock after the bounds were read: no row that was seen is younger.
        open: the transactions that stayed open: by the start of each, the earliest time at which
            its first statement can have begun.
    """

    clock: dt.datetime
    base: dt.datetime
    until: dt.datetime
    open: Mapping[str, dt.datetime] = field(default_factory=dict)

    @property
    def since(self) -> dt.datetime:
        """A time that no unseen row with a cursor from `now()` can lie below."""
        return min([self.base, *self.open.values()])

    @property
    def expects(self) -> bool:
        """Whether the next sync reads more than the last second again because of it."""
        return self.since < self.clock - _ROUNDING

    def is_settled(self, now: OpenWork) -> bool:
        """Returns whether the rows that it expects have arrived; if so, `now` replaces it."""
        return self.expects and now.since > self.clock

    def reach(self, low: Cursor, wall_offset: int) -> Cursor:
        """Returns a cursor that no late row can lie below, in the cursor's type.

        The writers of a wall clock may use another zone than the database, so there are two
        bounds, and the lower one counts. The first is the newest row that was seen, minus how much
        older a late row can be. The second is the database's own wall clock, which is lower if the
        clock was set back an hour since.

        Args:
            low: where the window begins.
            wall_offset: how many seconds the database's wall clock is ahead of UTC now.
        """
        late = self.since - _ROUNDING
        if low.type is not CursorType.TIMESTAMPTZ:
            newest = dt.datetime.fromisoformat(low.text)
            age = min(self.until - late, newest - dt.datetime.min)
            late = min(late + dt.timedelta(seconds=wall_offset), newest - age)
        return Cursor.parse(late.isoformat(sep=" ", timespec="microseconds"), low.type)

    def to_mark(self) -> dict[str, Any]:
        """Returns the form that the state stores."""
        return {
            "base": str(self.base),
            "clock": str(self.clock),
            "open": {key: str(moment) for key, moment in sorted(self.open.items())},
            "until": str(self.until),
        }

    @classmethod
    def from_mark(cls, mark: Mapping[str, Any] | None) -> OpenWork | None:
        """Reads the form that the state stores; None if the mark does not have it."""
        if mark is None or not {"base", "clock", "open", "until"} <= set(mark):
            return None
        clock, base, until = (
            dt.datetime.fromisoformat(str(mark[name])) for name in ("clock", "base", "until")
        )
        opened = {key: dt.datetime.fromisoformat(str(at)) for key, at in mark["open"].items()}
        return cls(clock, base, until, opened)


class TransactionWatcher(ABC):
    """Reads a database's open work; one object serves all tables of a run, in several threads."""

    @abstractmethod
    def read_activity(self, connection: Connection, catalog: str, table: str) -> OpenTransactions:
        """Reads the activity that a table's rows may come from; call it before reading the rows.

        Args:
            connection: a new one, on which no transaction has been seen yet.
        """
