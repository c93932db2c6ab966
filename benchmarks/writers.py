"""Writers that make life hard for a cursor: a seeded workload against one table.

Each writer is a connection with a random generator of its own, so that a seed repeats every
writer's transactions, step by step. When they meet, and so what a sync sees, is the machine's.

What they do, and whom it catches:

- transactions of a few milliseconds up to several seconds, longer than a sync's interval, whose
  rows carry `now()`, the transaction's start: rows that appear below a cursor already stored;
- savepoints, kept and rolled back: rows with the ids of subtransactions;
- rollbacks and sequences: gaps in the keys that are not losses;
- rows that take the newest cursor there is, and the newest row changed again at its cursor:
  changes on the boundary, neither above it nor another key;
- hot rows that all writers update, in whatever order their locks come free.

On PostgreSQL; `mariadb_writers.py` says the same to MariaDB.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import psycopg
from psycopg import errors

from tests.services import Database

TABLE = "orders"
SEEDED = 200
HOT = 10

_CREATE = (
    f"""
    create table {TABLE} (
        id bigserial primary key,
        amount int not null,
        note text not null,
        updated_at timestamptz not null default now()
    )
    """,
    f"create index on {TABLE} (updated_at)",
    f"""
    insert into {TABLE} (amount, note, updated_at)
    select g, 'seeded', now() - g * interval '1 second' from generate_series(1, {SEEDED}) as g
    """,
)
_ANY = f"""(
    select id from {TABLE}
    where id >= %(at)s * (select max(id) from {TABLE})
    order by id
    limit 1
)"""
_NEWEST = f"(select id from {TABLE} order by updated_at desc limit 1)"
_STATEMENTS = {
    "insert": f"insert into {TABLE} (amount, note) values (%(amount)s, %(note)s)",
    "hot": f"1 + floor(%(at)s * {HOT})",
    "any": _ANY,
    "to the boundary": _ANY,
    "at the boundary": _NEWEST,
    "savepoint": "savepoint s",
    "release": "release savepoint s",
    "undo": "rollback to savepoint s",
}
_CURSORS = {
    "to the boundary": f"greatest(now(), (select max(updated_at) from {TABLE}))",
    "at the boundary": "greatest(now(), updated_at)",
}


@dataclass(frozen=True)
class Step:
    """One statement of a transaction.

    Attributes:
        does: a key of the statements above.
        at: which row, as a share of all.
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
        length, most = rng.choices(((0.02, 4), (1.0, 6), (6.0, 8)), weights=(6, 3, 1))[0]
        steps: list[Step] = []
        count = rng.randint(1, most)
        for _ in range(count):
            does = rng.choices(
                ("insert", "hot", "any", "to the boundary", "at the boundary", "nested"),
                weights=(8, 3, 3, 1, 3, 3),
            )[0]
            wait = rng.uniform(0, length / count)
            if does == "nested":
                inner = [Step(rng.choice(("insert", "any")), rng.random(), 0) for _ in range(2)]
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
        backwards: whether an update sets `now()` whatever the row has, as most applications do:
            a transaction that began earlier and writes later then takes a row's cursor back.
            Otherwise a row's cursor never falls: `greatest(now(), updated_at)`.

    Attributes:
        done: how many of each step, commit, rollback and lock conflict there were.
    """

    conflicts: ClassVar[tuple[type[Exception], ...]] = (
        errors.LockNotAvailable,
        errors.DeadlockDetected,
    )

    def __init__(
        self, database: Database, seed: int, count: int = 8, backwards: bool = True
    ) -> None:
        self.database = database
        self.seed = seed
        self.done: Counter[str] = Counter()
        self._touched = "now()" if backwards else "greatest(now(), updated_at)"
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._live, args=(n,), name=f"writer {n}", daemon=True)
            for n in range(1, count + 1)
        ]

    def create(self) -> None:
        """Makes the table with its first rows."""
        self.database.execute(*_CREATE)

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
                self._transact(connection, transaction, f"{writer}.{number}")
            connection.close()
        except Exception as failure:  # stop() reports it: a thread's own traceback is lost
            self._failures.append(failure)

    def _transact(self, connection: Any, transaction: Transaction, name: str) -> None:
        done: Counter[str] = Counter()
        try:
            connection.execute("begin")
            for number, step in enumerate(transaction.steps, 1):
                values = {"amount": number, "note": f"{name}.{number}", "at": step.at}
                self._step(connection, step, values)
                done[step.does] += 1
            self._stopping.wait(transaction.idle)
            connection.execute("commit" if transaction.commits else "rollback")
            done["commit" if transaction.commits else "rollback"] += 1
        except self.conflicts:
            connection.execute("rollback")
            done["conflict"] += 1
        self.done.update(done)

    def _connect(self) -> Any:
        connection = self.database.connect()
        connection.execute("set lock_timeout = '250ms'")
        return connection

    def _step(self, connection: Any, step: Step, values: dict[str, Any]) -> None:
        self._stopping.wait(step.wait)
        self._execute(connection, step.does, values)

    def _execute(self, connection: psycopg.Connection[Any], does: str, values: Any) -> None:
        statement = _STATEMENTS[does]
        if does in ("hot", "any", "to the boundary", "at the boundary"):
            cursor = _CURSORS.get(does, self._touched)
            statement = (
                f"update {TABLE} set amount = %(amount)s, note = %(note)s, updated_at = {cursor} "
                f"where id = {statement}"
            )
        connection.execute(statement, values if "%(" in statement else None)
