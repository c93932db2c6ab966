"""Writers' sessions on a database, one op at a time, and a record of what no cursor tells."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar

from benchmarks.nemesis.schedule import AUTOCOMMIT, SESSIONS
from benchmarks.nemesis.tables import Shape

Key = tuple[Any, ...]
APPLICATION = ((-600, 0), (120, 0), (0, 1), (0, 60), (0, 3_600), (0, 86_400), (-259_200, 0))
"""Clocks of applications: seconds ahead of the database, and seconds to which times are cut."""


class Writers:
    """Sessions that write interleaved, each statement at the moment that the schedule says.

    A statement that waits for another session's lock fails soon, and ends its transaction; so
    does one that the database refuses. A schedule stays valid whatever ops are taken out of it.

    Attributes:
        shows_writers: whether rows name the transaction that wrote them, so that a sync finds
            writes that their cursor does not tell of.
        moment: SQL of a time, from seconds since 1970.
        unseen: per table the keys whose last write no sync finds (a delete, or an update that
            leaves the cursor alone, unless `shows_writers`); `loader reconcile` is for these.
        widened: tables all of whose rows changed so since the last quiet point, by a new column.
        refused: how many statements failed.
    """

    conflicts: tuple[type[BaseException], ...] = (Exception,)
    shows_writers: ClassVar[bool] = False
    moment: ClassVar[str] = "from_unixtime({:.6f})"

    def __init__(self, shapes: Mapping[str, Shape], connect: Any, session_sql: str) -> None:
        self.shapes = shapes
        self.connect = connect
        self.session_sql = session_sql
        self.unseen: dict[str, set[Key]] = defaultdict(set)
        self.widened: set[str] = set()
        self.refused = 0
        self.prepared: list[str] = []
        self._numbers = itertools.count(1)
        self._open: dict[int, Any] = {}
        self._within: set[int] = set()
        self._began: dict[int, float] = {}

    def create(self, tables: tuple[str, ...], rows: int) -> None:
        """Makes the tables with their first rows."""
        for table in tables:
            for statement in self.shapes[table].create:
                self.execute(AUTOCOMMIT, statement)
            for _ in range(rows):
                self.insert(AUTOCOMMIT, table)

    # What a schedule calls, by name. All take what an op gives.

    def begin(self, session: int) -> None:
        """Opens a transaction, where the session has none."""
        if session not in self._within:
            self._began[session] = time.time()
            self.execute(session, "begin")
            self._within.add(session)

    def commit(self, session: int) -> None:
        """Ends a transaction."""
        self._end(session, "commit")

    def rollback(self, session: int) -> None:
        """Ends a transaction as if it had not been."""
        self._end(session, "rollback")

    def savepoint(self, session: int) -> None:
        """What is written from here on is of a subtransaction."""
        if session in self._within:
            self.execute(session, "savepoint s")

    def undo(self, session: int) -> None:
        """Back to the last savepoint, where there is one."""
        if session in self._within:
            self.execute(session, "rollback to savepoint s")

    def insert(self, session: int, table: str, at: float = 0) -> None:
        """A new row, whose cursor the database writes."""
        self._insert(session, table, self.shapes[table].clock)

    def insert_by_application(self, session: int, table: str, at: float) -> None:
        """A new row, whose cursor an application computed before the transaction began."""
        if self.shapes[table].clock:
            for row in self._insert(session, table, self._read_clock(session, at)) or ():
                self._unseen(table, tuple(row))

    def update(self, session: int, table: str, at: float) -> None:
        """A row changes, and its cursor with it."""
        shape = self.shapes[table]
        if shape.updates:
            self._update(session, table, at, shape.touch)

    def update_by_application(self, session: int, table: str, at: float) -> None:
        """A row changes, and its cursor to a time that an application computed before."""
        if self.shapes[table].clock:
            cursor = self._read_clock(session, at)
            self._update(session, table, at, f"at = {cursor}", unseen=True)

    def quiet_update(self, session: int, table: str, at: float) -> None:
        """A row changes and its cursor does not: unseen, unless every write moves it."""
        shape = self.shapes[table]
        self._update(session, table, at, "", unseen=bool(shape.touch) or not shape.updates)

    def delete(self, session: int, table: str, at: float) -> None:
        """A row goes: unseen."""
        key = self._key(session, table, at)
        if key is not None:
            self.unseen[table].add(key)
            self.execute(session, f"delete from {table} where {self._is(table)}", key)

    def rekey(self, session: int, table: str, at: float) -> None:
        """A row's key changes: its old key goes unseen."""
        shape = self.shapes[table]
        key = self._key(session, table, at)
        if key is None or not shape.updates:
            return
        first = shape.key[0]
        fresh = (key[0] + 1_000_000, *key[1:])
        self.unseen[table].add(key)
        sets = ", ".join(filter(None, [f"{first} = {first} + 1000000", shape.touch]))
        if fresh[0] < 2_000_000:
            self.execute(session, f"update {table} set {sets} where {self._is(table)}", key)

    # What others ask.

    def execute(self, session: int, statement: str, values: Any = None) -> list[Any] | None:
        """Runs a statement in a session; its rows, or None where it failed."""
        try:
            connection = self._connection(session)
            with contextlib.closing(connection.cursor()) as cursor:
                cursor.execute(statement, values)
                return list(cursor.fetchall()) if cursor.description else []
        except self.conflicts as refusal:
            self.refused += 1
            self._failed(session, refusal)
            return None

    def settle(self) -> None:
        """Every transaction that is open commits; so do the prepared ones."""
        for session in SESSIONS:
            self.commit(session)

    def abandon(self) -> None:
        """All sessions are gone, as after a restart of the server."""
        for connection in self._open.values():
            with contextlib.suppress(Exception):
                connection.close()
        self._open.clear()
        self._within.clear()

    def rows(self, table: str) -> dict[Key, str]:
        """What the source has now: notes by key."""
        shape = self.shapes[table]
        listed = ", ".join(shape.key)
        found = self.execute(AUTOCOMMIT, f"select {listed}, note from {table}")
        if found is None:
            raise AssertionError(f"the source cannot be read: {table}")
        return {tuple(row[:-1]): row[-1] for row in found}

    def all_unseen(self, table: str) -> None:
        """Marks every row that the source has now, or had."""
        self.unseen[table] |= set(self.rows(table))

    def _insert(self, session: int, table: str, cursor: str) -> list[Any] | None:
        statement = self.shapes[table].insert.replace("{at}", cursor)
        return self.execute(session, statement, {"note": self._note("new")})

    def _read_clock(self, session: int, at: float) -> str:
        ahead, cut = APPLICATION[int(at * 1000) % len(APPLICATION)]
        began = self._began[session] if session in self._within else time.time()
        moment = began + ahead
        return self.moment.format(moment // cut * cut if cut else moment)

    def _unseen(self, table: str, key: Key) -> None:
        if not self.shows_writers:
            self.unseen[table].add(key)

    def _update(
        self, session: int, table: str, at: float, sets: str, *, unseen: bool = False
    ) -> None:
        key = self._key(session, table, at)
        if key is None:
            return
        if unseen:
            self._unseen(table, key)
        more = f", {sets}" if sets else ""
        self.execute(
            session,
            f"update {table} set note = %s{more} where {self._is(table)}",
            (self._note("changed"), *key),
        )

    def _key(self, session: int, table: str, at: float) -> Key | None:
        listed = ", ".join(self.shapes[table].key)
        counted = self.execute(session, f"select count(*) from {table}")
        if not counted or not counted[0][0]:
            return None
        offset = int(at * counted[0][0])
        found = self.execute(
            session, f"select {listed} from {table} order by {listed} limit 1 offset {offset}"
        )
        return tuple(found[0]) if found else None

    def _is(self, table: str) -> str:
        return " and ".join(f"{name} = %s" for name in self.shapes[table].key)

    def _note(self, what: str) -> str:
        return f"{what} {next(self._numbers)}"

    def _connection(self, session: int) -> Any:
        if session not in self._open:
            connection = self.connect()
            with contextlib.closing(connection.cursor()) as cursor:
                cursor.execute(self.session_sql)
            self._open[session] = connection
        return self._open[session]

    def _end(self, session: int, how: str) -> None:
        if session in self._within:
            self.execute(session, how)
            self._within.discard(session)

    def _failed(self, session: int, refusal: BaseException) -> None:
        connection = self._open.get(session)
        self._within.discard(session)
        try:
            with contextlib.closing(connection.cursor()) as cursor:
                cursor.execute("rollback")
        except Exception:
            self._open.pop(session, None)
