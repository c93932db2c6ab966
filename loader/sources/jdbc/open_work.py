"""What was open before a table was read, for databases that keep no transaction's id in a row.

`now()` is the start of a statement, or of its transaction. Work that was open during one sync and
commits after it brings rows with cursors from before that sync, and a plain `cursor >= stored`
never sees them. So each sync remembers a time that no such row can lie below (`since`), and the
next window reaches back that far. Rows that were read before are read again, and dropped as
redeliveries. (PostgreSQL knows which transaction wrote a row, and reads only those that are late:
:mod:`loader.sources.jdbc.postgresql.horizon`.)

A database shows when a transaction began, not when the first statement in it did: that one may
have waited for a lock before. Two things bound it. A statement that was running at the last sync
was in its list of statements, and one that was not began after that sync.
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
        adopted: it belongs to no session (a prepared one), and `started` may be a restart.
    """

    started: dt.datetime
    adopted: bool = False


@dataclass(frozen=True)
class Activity:
    """The open work of a database, read before a table's rows; times in UTC.

    Attributes:
        clock: the database's clock before anything else was read.
        base: no statement that can still bring rows began before; the clock if none is running.
        writers: transactions that changed rows before `clock`, and may commit after the read.
        blind: why the database does not show its open work, for people; empty where it does.
    """

    clock: dt.datetime
    base: dt.datetime
    writers: tuple[Writer, ...] = ()
    blind: str = ""

    def remembered(self, before: OpenWork | None, until: dt.datetime) -> OpenWork:
        """What the next sync has to know.

        Args:
            before: what the last sync remembered.
            until: the clock after the table's bounds were read.
        """
        opened: dict[str, dt.datetime] = {}
        for writer in self.writers:
            key = writer.started.isoformat(sep=" ")
            found = _first_statement(writer, key, before)
            opened[key] = min(found, opened.get(key, found))
        return OpenWork(self.clock, self.base, until, opened)


def _first_statement(writer: Writer, key: str, before: OpenWork | None) -> dt.datetime:
    """A time that the first statement of a transaction cannot have begun before."""
    if writer.adopted:
        return before.since if before else _EVER
    known = before.open.get(key) if before else None
    if before and known:
        return min(known, before.base)  # several transactions may begin in one second
    if before and writer.started >= before.clock.replace(microsecond=0):
        return before.base  # at the last sync it was running, or had not begun
    return writer.started - _LONGEST_WAIT


@dataclass(frozen=True)
class OpenWork:
    """What one sync remembers for the next; times in UTC.

    Attributes:
        clock, base: see :class:`Activity`.
        until: the clock after the bounds were read: no row that was seen is younger.
        open: of each transaction that stayed open, by its start, when its first statement began
            at the earliest.
    """

    clock: dt.datetime
    base: dt.datetime
    until: dt.datetime
    open: Mapping[str, dt.datetime] = field(default_factory=dict)

    @property
    def since(self) -> dt.datetime:
        """No row that was not seen, and has its cursor from `now()`, is older."""
        return min([self.base, *self.open.values()])

    @property
    def expects(self) -> bool:
        """Whether more than the last second is read again because of it."""
        return self.since < self.clock - _ROUNDING

    def settled(self, now: OpenWork) -> bool:
        """Whether the rows that it expects have come: worth remembering `now` instead."""
        return self.expects and now.since > self.clock

    def reach(self, low: Cursor, wall_offset: int) -> Cursor:
        """A cursor that no late row can lie below, in the cursor's type.

        A wall clock is trusted only as far as it goes with the rows. If the writers' zone is not
        the database's, what counts is how far below the stored cursor a late row can be: no
        further than it can be older than the newest row that was seen. If the clock was set back
        an hour meanwhile, the database's own wall clock is the lower one.

        Args:
            low: where the window begins.
            wall_offset: seconds that the database's wall clock is ahead of UTC now.
        """
        late = self.since - _ROUNDING
        if low.type is not CursorType.TIMESTAMPTZ:
            newest = dt.datetime.fromisoformat(low.text)
            age = min(self.until - late, newest - dt.datetime.min)
            late = min(late + dt.timedelta(seconds=wall_offset), newest - age)
        return Cursor.parse(late.isoformat(sep=" ", timespec="microseconds"), low.type)

    def to_mark(self) -> dict[str, Any]:
        """As the state keeps it."""
        return {
            "base": str(self.base),
            "clock": str(self.clock),
            "open": {key: str(moment) for key, moment in sorted(self.open.items())},
            "until": str(self.until),
        }

    @classmethod
    def from_mark(cls, mark: Mapping[str, Any] | None) -> OpenWork | None:
        """As the state kept it; None where it did not."""
        if mark is None or not {"base", "clock", "open", "until"} <= set(mark):
            return None
        clock, base, until = (
            dt.datetime.fromisoformat(str(mark[name])) for name in ("clock", "base", "until")
        )
        opened = {key: dt.datetime.fromisoformat(str(at)) for key, at in mark["open"].items()}
        return cls(clock, base, until, opened)


class Lookout(ABC):
    """Asks a database for its open work; one serves all tables of a run, from several threads."""

    @abstractmethod
    def seen(self, connection: Connection, catalog: str, table: str) -> Activity:
        """The activity that a table's rows may come from, read before its rows are.

        Args:
            connection: a new one, of which nobody has seen a transaction yet.
        """
