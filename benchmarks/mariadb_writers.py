"""The writers of `writers.py` on MariaDB, where `now()` is the start of a statement.

Idle transactions rarely leave rows with old times, so some inserts wait within the statement
instead: they wait first, and InnoDB does not begin their transaction until shortly before the
statement ends. Writers wait for each other's row locks for up to a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pymysql

from benchmarks.writers import DAY, SEEDED, STATEMENTS, TABLE, Step, Writers

_SLOW = 0.5
_CREATE = (
    f"""
    create table {TABLE} (
        id bigint auto_increment primary key,
        amount int not null,
        note varchar(100) not null,
        updated_at timestamp(6) not null default now(6),
        index (updated_at)
    )
    """,
    f"""
    insert into {TABLE} (amount, note, updated_at)
    select seq, 'seeded', from_unixtime((floor(unix_timestamp() / {DAY}) - seq) * {DAY})
    from seq_1_to_{SEEDED}
    """,
)
_ANY = f"""(
    select id
    from (
        select id from {TABLE}
        where id >= %(at)s * (select max(id) from {TABLE})
        order by id
        limit 1
    ) as some
)"""
_NEWEST = f"(select id from (select id from {TABLE} order by updated_at desc limit 1) as newest)"
_TOP = f"(select top from (select max(updated_at) as top from {TABLE}) as newest)"
_SLOW_INSERT = f"""
    insert into {TABLE} (amount, note, updated_at)
    select %(amount)s, %(note)s, {{cursor}} from (select sleep(%(wait)s)) as slow
"""
_CONFLICTS = (1205, 1213)


class _Conflict(Exception):
    """A deadlock, or a lock that could not be acquired in time."""


class _Connection:
    """A pymysql connection with the one psycopg method that the writers use."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.close = connection.close

    def execute(self, statement: str, values: Any = None) -> None:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, values)
        except pymysql.err.OperationalError as error:
            raise (_Conflict if error.args[0] in _CONFLICTS else RuntimeError)(error) from error


class MariaDbWriters(Writers):
    """Several writers on one MariaDB database, from `start` to `stop`."""

    setup: ClassVar[tuple[str, ...]] = _CREATE
    statements: ClassVar[Mapping[str, str]] = {**STATEMENTS, "slow insert": _SLOW_INSERT}
    rows: ClassVar[Mapping[str, str]] = {
        **Writers.rows,
        "any": _ANY,
        "unmoved": _ANY,
        "to the boundary": _ANY,
        "at the boundary": _NEWEST,
    }
    cursors: ClassVar[Mapping[str, str]] = {
        **Writers.cursors,
        "to the boundary": f"greatest({{cursor}}, {_TOP})",
    }
    now: ClassVar[str] = "now(6)"
    moment: ClassVar[str] = "from_unixtime({:.6f})"
    conflicts: ClassVar[tuple[type[Exception], ...]] = (_Conflict,)

    def _connect(self) -> Any:
        connection = _Connection(self.database.connect())
        connection.execute("set innodb_lock_wait_timeout = 1")
        # Otherwise, an update that searches for its row locks every row that it reads.
        connection.execute("set session transaction isolation level read committed")
        return connection

    def _step(self, connection: Any, step: Step, values: dict[str, Any], cursor: str) -> None:
        if step.does == "insert" and step.at < _SLOW:
            values = {**values, "wait": min(step.wait, 2.0)}
            self._execute(connection, "slow insert", values, cursor)
        else:
            super()._step(connection, step, values, cursor)
