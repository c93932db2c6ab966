"""Writers whose changes are hard to find with a cursor: a seeded workload on one table.

Each writer is a connection with its own random generator, so that a seed repeats every writer's
transactions step by step. How they overlap, and so what a sync sees, depends on the machine.

What the writers do:

- some rows have `now()`, the start of the transaction, and others a time that the application read
  before its transaction began, from a clock that is up to ten minutes behind the database's or two
  minutes ahead, and that may be truncated to the second, minute, hour or day (`CLOCKS`);
- transactions of a few milliseconds up to a minute: rows appear below a cursor already stored;
- imports of old dates, and updates that do not change the cursor;
- savepoints that are released or rolled back: rows have the ids of subtransactions;
- rollbacks and sequences: gaps in the keys, which are not losses;
- rows with exactly the newest cursor, and further changes to the newest row without a higher
  cursor: changes at the boundary;
- hot rows that all writers update, in the order in which their locks are released.

These writers are for PostgreSQL; `mariadb_writers.py` does the same on MariaDB.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar

from psycopg import errors

from tests.services import Database

TABLE = "orders"
SEEDED = 200
HOT = 10
DAY = 86_400
CUTS = {"second": 1, "minute": 60, "hour": 3600, "day": DAY}

_CREATE = (
    f"""
    create table {TABLE} (
        id bigserial primary key,
        amount int not null,
        note text not null,
        updated_at timestamptz not null
    )
    """,
    f"create index on {TABLE} (updated_at)",
    f"""
    insert into {TABLE} (amount, note, updated_at)
    select g, 'seeded', date_trunc('day', now(), 'UTC') - g * interval '24 hours'
    from generate_series(1, {SEEDED}) as g
    """,
)
_ANY = f"""(
    select id from {TABLE}
    where id >= %(at)s * (select max(id) from {TABLE})
    order by id
    limit 1
)"""
_NEWEST = f"(select id from {TABLE} order by updated_at desc limit 1)"
_INSERT = f"""
    insert into {TABLE} (amount, note, updated_at) values (%(amount)s, %(note)s, {{cursor}})
"""
STATEMENTS = {
    "insert": _INSERT,
    "import": _INSERT,
    "savepoint": "savepoint s",
    "release": "release savepoint s",
    "undo": "rollback to savepoint s",
}


@dataclass(frozen=True)
class Clock:
    """How the cursors of a writer are computed.

    Attributes:
        ahead: by how many seconds the application's clock is ahead of the database's; None if the
            database computes the cursors with `now()`.
        cut: the unit to which times are truncated, a key of `CUTS`; empty if they keep all digits.
    """

    ahead: float | None = None
    cut: str = ""

    @property
    def name(self) -> str:
        """The clock's name in reports."""
        if self.ahead is None:
            return "database"
        return f"{self.ahead:+.0f} s" + (f" cut to the {self.cut}" if self.cut else "")

    def read(self, days_ago: int = 0) -> float:
        """Returns the clock's time in seconds since 1970."""
        moment = time.time() + (self.ahead or 0) - days_ago * DAY
        return moment // CUTS[self.cut] * CUTS[self.cut] if self.cut else moment


CLOCKS = (
    Clock(),
    Clock(-600),
    Clock(0, "day"),
    Clock(120),
    Clock(-90, "hour"),
    Clock(),
    Clock(-20, "minute"),
    Clock(-2, "second"),
)
"""The clocks, which are assigned to the writers in turn."""


@dataclass(frozen=True)
class Step:
    """One statement of a transaction.

    Attributes:
        does: a key of `Writers.statements` or `Writers.rows`.
        at: the position of the row, from 0 to 1; for an import, how long ago the date is.
        wait: how many seconds to wait before the statement.
    """

    does: str
    at: float
    wait: float


@dataclass(frozen=True)
class Transaction:
    """A transaction, `pause` seconds after the previous one, idle for `idle` s before its end."""

    steps: tuple[Step, ...]
    commits: bool
    pause: float
    idle: float


def transactions(seed: int, writer: int) -> Iterator[Transaction]:
    """Yields a writer's transactions, which are the same for the same seed."""
    rng = Random(f"{seed}/{writer}")
    while True:
        lengths = ((0.02, 4), (1.0, 6), (6.0, 8), (40.0, 8))
        length, most = rng.choices(lengths, weights=(120, 60, 20, 3))[0]
        steps: list[Step] = []
        count = rng.randint(1, most)
        for _ in range(count):
            does = rng.choices(
                (
                    *("insert", "import", "hot", "any", "unmoved"),
                    *("to the boundary", "at the boundary", "nested"),
                ),
                weights=(8, 1, 3, 3, 2, 1, 3, 3),
            )[0]
            wait = rng.uniform(0, length / count)
            if does == "nested":
                kinds = ("insert", "any", "unmoved")
                inner = [Step(rng.choice(kinds), rng.random(), 0) for _ in range(2)]
                end = Step(rng.choice(("release", "undo")), 0, wait / 2)
                steps += [Step("savepoint", 0, wait / 2), *inner, end]
            else:
                steps.append(Step(does, rng.random(), wait))
        yield Transaction(
            tuple(steps),
            commits=rng.random() > 0.15,
            pause=rng.uniform(0, 0.3),
            idle=rng.uniform(0, length / 2),
        )


class Writers:
    """Several writers on one database, from `start` to `stop`.

    Args:
        cut: a key of `CUTS`; applications then write all cursors, truncated to this unit. Empty
            uses `CLOCKS`.

    Attributes:
        statements: SQL for the steps that are not updates.
        rows: SQL for the id of the row that an update changes.
        cursors: SQL for the cursor that an update sets, if it is not the clock's time.
        moment: SQL for a time, given as seconds since 1970.
        done: the number of steps of each kind, commits, rollbacks and lock conflicts.
    """

    setup: ClassVar[tuple[str, ...]] = _CREATE
    statements: ClassVar[Mapping[str, str]] = STATEMENTS
    rows: ClassVar[Mapping[str, str]] = {
        "hot": f"1 + floor(%(at)s * {HOT})",
        "any": _ANY,
        "unmoved": _ANY,
        "to the boundary": _ANY,
        "at the boundary": _NEWEST,
    }
    cursors: ClassVar[Mapping[str, str]] = {
        "unmoved": "updated_at",
        "to the boundary": f"greatest({{cursor}}, (select max(updated_at) from {TABLE}))",
        "at the boundary": "greatest({cursor}, updated_at)",
    }
    now: ClassVar[str] = "now()"
    moment: ClassVar[str] = "to_timestamp({:.6f})"
    conflicts: ClassVar[tuple[type[Exception], ...]] = (
        errors.LockNotAvailable,
        errors.DeadlockDetected,
    )

    def __init__(self, database: Database, seed: int, count: int = 8, cut: str = "") -> None:
        self.database = database
        self.seed = seed
        self.done: Counter[str] = Counter()
        clocks = [replace(c, ahead=c.ahead or 0, cut=cut) if cut else c for c in CLOCKS]
        self._clocks = [clocks[n % len(clocks)] for n in range(count)]
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._live, args=(n,), name=f"writer {n}", daemon=True)
            for n in range(1, count + 1)
        ]

    def create(self) -> None:
        """Creates the table with its first rows."""
        self.database.execute(*self.setup)

    def touch(self) -> None:
        """Updates a few rows."""
        cursor = self._cursor(self._clocks[0])
        self.database.execute(f"update {TABLE} set updated_at = {cursor} where id <= 20")

    def start(self) -> None:
        """Starts the writers."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stops the writers. Open transactions complete immediately, without further waits.

        Raises:
            RuntimeError: if a writer failed, because its workload then differs from the seed's.
        """
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise RuntimeError(f"a writer failed: {self._failures[0]}") from self._failures[0]

    def _live(self, writer: int) -> None:
        try:
            connection = self._connect()
            for number, transaction in enumerate(transactions(self.seed, writer), 1):
                self._stopping.wait(transaction.pause)
                if self._stopping.is_set():
                    break
                clock = self._clocks[writer - 1]
                self._transact(connection, transaction, clock, f"{writer}.{number}")
            connection.close()
        except Exception as failure:  # stop() reports it: a thread's own traceback is lost
            self._failures.append(failure)

    def _transact(self, connection: Any, transaction: Transaction, clock: Clock, name: str) -> None:
        done: Counter[str] = Counter()
        cursor = self._cursor(clock)  # before the transaction begins
        try:
            connection.execute("begin")
            for number, step in enumerate(transaction.steps, 1):
                note = f"{clock.name}, {step.does} {name}.{number}"
                values = {"amount": number, "note": note, "at": step.at}
                old = self.moment.format(clock.read(days_ago=1 + int(step.at * 1000)))
                self._step(connection, step, values, old if step.does == "import" else cursor)
                done[step.does] += 1
            self._stopping.wait(transaction.idle)
            connection.execute("commit" if transaction.commits else "rollback")
            done["commit" if transaction.commits else "rollback"] += 1
        except self.conflicts:
            connection.execute("rollback")
            done["conflict"] += 1
        self.done.update(done)

    def _cursor(self, clock: Clock) -> str:
        return self.now if clock.ahead is None else self.moment.format(clock.read())

    def _connect(self) -> Any:
        connection = self.database.connect()
        connection.execute("set lock_timeout = '250ms'")
        return connection

    def _step(self, connection: Any, step: Step, values: dict[str, Any], cursor: str) -> None:
        self._stopping.wait(step.wait)
        self._execute(connection, step.does, values, cursor)

    def _execute(self, connection: Any, does: str, values: Any, cursor: str) -> None:
        if does in self.rows:
            statement = (
                f"update {TABLE} set amount = %(amount)s, note = %(note)s, "
                f"updated_at = {self.cursors.get(does, '{cursor}')} where id = {self.rows[does]}"
            )
        else:
            statement = self.statements[does]
        statement = statement.replace("{cursor}", cursor)
        connection.execute(statement, values if "%(" in statement else None)
