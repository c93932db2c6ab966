"""The writers of `writers.py` on MariaDB, where `now()` is the start of a statement.

Idle transactions leave little behind that is older than they are, so part of the inserts take the
time that others idle within the statement: they wait first, and InnoDB begins their transaction
when they are nearly over. Rows wait for each other's locks for up to a second.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pymysql

from benchmarks.writers import HOT, SEEDED, TABLE, Step, Writers

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
    select seq, 'seeded', now(6) - interval seq second from seq_1_to_{SEEDED}
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
_ROWS = {
    "hot": f"1 + floor(%(at)s * {HOT})",
    "any": _ANY,
    "to the boundary": _ANY,
    "at the boundary": _NEWEST,
}
_CURSORS = {
    "to the boundary": f"greatest(now(6), {_TOP})",
    "at the boundary": "greatest(now(6), updated_at)",
}
_OTHERS = {
    "insert": f"insert into {TABLE} (amount, note) values (%(amount)s, %(note)s)",
    "slow insert": f"""
        insert into {TABLE} (amount, note)
        select %(amount)s, %(note)s from (select sleep(%(wait)s)) as slow
    """,
    "savepoint": "savepoint s",
    "release": "release savepoint s",
    "undo": "rollback to savepoint s",
}
_CONFLICTS = (1205, 1213)


class _Conflict(Exception):
    """A deadlock, or a lock that was not had in time."""


class _Connection:
    """A connection of pymysql with the one method of psycopg's that the writers use."""

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
    """Several writers on one database of MariaDB, from `start` to `stop`."""

    conflicts: ClassVar[tuple[type[Exception], ...]] = (_Conflict,)

    def create(self) -> None:
        self.database.execute(*_CREATE)

    def _connect(self) -> Any:
        connection = _Connection(self.database.connect())
        connection.execute("set innodb_lock_wait_timeout = 1")
        # Otherwise an update that looks for its row locks all that it looks at.
        connection.execute("set session transaction isolation level read committed")
        return connection

    def _step(self, connection: Any, step: Step, values: dict[str, Any]) -> None:
        if step.does == "insert" and step.at < _SLOW:
            self._execute(connection, "slow insert", {**values, "wait": min(step.wait, 2.0)})
        else:
            super()._step(connection, step, values)

    def _execute(self, connection: Any, does: str, values: Any) -> None:
        statement = _OTHERS.get(does)
        if statement is None:
            cursor = _CURSORS.get(does, self._touched.replace("now()", "now(6)"))
            statement = (
                f"update {TABLE} set amount = %(amount)s, note = %(note)s, updated_at = {cursor} "
                f"where id = {_ROWS[does]}"
            )
        connection.execute(statement, values if "%(" in statement else None)
