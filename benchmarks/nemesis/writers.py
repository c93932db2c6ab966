"""Writers' sessions, one operation at a time, with a record of changes that no cursor shows."""

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
"""The clocks of applications: seconds ahead of the database, and the unit of truncation."""


class Writers:
    """Sessions that write concurrently, each statement at the point that the schedule specifies.

    A statement that waits for another session's lock soon fails and ends its transaction, and so
    does a statement that the database rejects. A schedule stays valid if operations are removed.

    Attributes:
        shows_writers: whether rows name the transaction that wrote them, so that a sync finds
            writes that the cursor does not show.
        moment: SQL for a time, given as seconds since 1970.
        unseen: for each table, the keys whose last write no sync finds: a delete or, unless
            `shows_writers` is true, an update that does not change the cursor. Only `loader
            reconcile` finds these.
        widened: tables in which a new column changed all rows in this way since the last quiet
            point.
        refused: the number of statements that failed.
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
        """Creates the tables with their first rows."""
        for table in tables:
            for statement in self.shapes[table].create:
                self.execute(AUTOCOMMIT, statement)
            for _ in range(rows):
                self.insert(AUTOCOMMIT, table)

    # The operations that a schedule calls by name, with the arguments of the operation.

    def begin(self, session: int) -> None:
        """Begins a transaction unless the session already has one."""
        if session not in self._within:
            self._began[session] = time.time()
            self.execute(session, "begin")
            self._within.add(session)

    def commit(self, session: int) -> None:
        """Commits a transaction."""
        self._end(session, "commit")

    def rollback(self, session: int) -> None:
        """Rolls a transaction back."""
        self._end(session, "rollback")

    def savepoint(self, session: int) -> None:
        """Begins a subtransaction for the following writes."""
        if session in self._within:
            self.execute(session, "savepoint s")

    def undo(self, session: int) -> None:
        """Rolls back to the last savepoint, if there is one."""
        if session in self._within:
            self.execute(session, "rollback to savepoint s")

    def insert(self, session: int, table: str, at: float = 0) -> None:
        """Inserts a row whose cursor the database writes."""
        self._insert(session, table, self.shapes[table].clock)

    def insert_by_application(self, session: int, table: str, at: float) -> None:
        """Inserts a row whose cursor an application computed before the transaction began."""
        if self.shapes[table].clock:
            for row in self._insert(session, table, self._read_clock(session, at)) or ():
                self._unseen(table, tuple(row))

    def update(self, session: int, table: str, at: float) -> None:
        """Updates a row and its cursor."""
        shape = self.shapes[table]
        if shape.updates:
            self._update(session, table, at, shape.touch)

    def update_by_application(self, session: int, table: str, at: float) -> None:
        """Updates a row, and sets its cursor to a time that an application computed earlier."""
        if self.shapes[table].clock:
            cursor = self._read_clock(session, at)
            self._update(session, table, at, f"at = {cursor}", unseen=True)

    def quiet_update(self, session: int, table: str, at: float) -> None:
        """Updates a row but not its cursor: unseen, unless every write changes the cursor."""
        shape = self.shapes[table]
        self._update(session, table, at, "", unseen=bool(shape.touch) or not shape.updates)

    def delete(self, session: int, table: str, at: float) -> None:
        """Deletes a row, which no sync sees."""
        key = self._key(session, table, at)
        if key is not None:
            self.unseen[table].add(key)
            self.execute(session, f"delete from {table} where {self._is(table)}", key)

    def rekey(self, session: int, table: str, at: float) -> None:
        """Changes a row's key. No sync sees that the old key is gone."""
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

    # Methods for other modules.

    def execute(self, session: int, statement: str, values: Any = None) -> list[Any] | None:
        """Runs a statement in a session. Returns its rows, or None if it failed."""
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
        """Commits all open and prepared transactions."""
        for session in SESSIONS:
            self.commit(session)

    def abandon(self) -> None:
        """Forgets all sessions, as after a restart of the server."""
        for connection in self._open.values():
            with contextlib.suppress(Exception):
                connection.close()
        self._open.clear()
        self._within.clear()

    def rows(self, table: str) -> dict[Key, str]:
        """Returns the note of each row that the source has now, keyed by the row's key."""
        shape = self.shapes[table]
        listed = ", ".join(shape.key)
        found = self.execute(AUTOCOMMIT, f"select {listed}, note from {table}")
        if found is None:
            raise AssertionError(f"the source cannot be read: {table}")
        return {tuple(row[:-1]): row[-1] for row in found}

    def all_unseen(self, table: str) -> None:
        """Marks every row that the source has or had as unseen."""
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
