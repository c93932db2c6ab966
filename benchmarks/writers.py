"""Writers that make life hard for a cursor: a seeded workload against one table.

Each writer is a connection with a random generator of its own, so that a seed repeats every
writer's transactions, step by step. When they meet, and so what a sync sees, is the machine's.

What they do, and whom it catches:

- some rows carry `now()`, the transaction's start, and others a time that the application read
  before its transaction began, from a clock that is up to ten minutes behind the database's or two
  minutes ahead, and may cut times to the second, minute, hour or day (`CLOCKS`);
- transactions of a few milliseconds up to a minute: rows that appear below a cursor already stored;
- imports of old dates, and updates that leave the cursor as it is;
- savepoints, kept and rolled back: rows with the ids of subtransactions;
- rollbacks and sequences: gaps in the keys that are not losses;
- rows that take the newest cursor there is, and the newest row changed again at its cursor:
  changes on the boundary, neither above it nor another key;
- hot rows that all writers update, in whatever order their locks come free.

On PostgreSQL; `mariadb_writers.py` says the same to MariaDB.
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
        ahead: seconds by which the application's clock is ahead of the database's; None if the
            database computes the cursors, by `now()`.
        cut: a key of `CUTS`, to which times are cut; empty if they keep all digits.
    """

    ahead: float | None = None
    cut: str = ""

    @property
    def name(self) -> str:
        """The clock, for reports."""
        if self.ahead is None:
            return "database"
        return f"{self.ahead:+.0f} s" + (f" cut to the {self.cut}" if self.cut else "")

    def read(self, days_ago: int = 0) -> float:
        """Seconds since 1970."""
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
"""The clocks of the writers, in turn."""


@dataclass(frozen=True)
class Step:
    """One statement of a transaction.

    Attributes:
        does: a key of `Writers.statements` or `Writers.rows`.
        at: which row, as a share of all; of an import, how long ago.
        wait: seconds of idling before it.
    """

    does: str
    at: float
    wait: float


@dataclass(frozen=True)
class Transaction:
    """What a writer does as one: `pause` seconds after the last, `idle` seconds before its end."""

    steps: tuple[Step, ...]
    commits: bool
    pause: float
    idle: float


def transactions(seed: int, writer: int) -> Iterator[Transaction]:
    """A writer's transactions, the same for the same seed."""
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
        cut: a key of `CUTS`: applications write all cursors, cut to it. Empty for `CLOCKS`.

    Attributes:
        statements: SQL of the steps that are no updates.
        rows: SQL of the id of the row that an update changes.
        cursors: SQL of the cursor that an update sets, if it is not the clock's.
        moment: SQL of a time, from seconds since 1970.
        done: how many of each step, commit, rollback and lock conflict there were.
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
        """Makes the table with its first rows."""
        self.database.execute(*self.setup)

    def touch(self) -> None:
        """Updates a few rows."""
        cursor = self._cursor(self._clocks[0])
        self.database.execute(f"update {TABLE} set updated_at = {cursor} where id <= 20")

    def start(self) -> None:
        """Lets them write."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends them: open transactions do what is left of them at once, and end.

        Raises:
            RuntimeError: where a writer failed, as its workload is then not the seed's.
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
