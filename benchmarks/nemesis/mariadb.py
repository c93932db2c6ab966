"""A MariaDB server with events. Fewer promises hold: bounds and rows are read separately."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pymysql

from benchmarks.nemesis.schedule import AUTOCOMMIT, Vocabulary
from benchmarks.nemesis.tables import MARIADB
from benchmarks.nemesis.writers import Writers
from tests.services import Database, MariaDb

VOCABULARY = Vocabulary(
    tables=tuple(MARIADB),
    writes={
        "insert": 10,
        "update": 10,
        "begin": 6,
        "commit": 4,
        "rollback": 1,
        "savepoint": 2,
        "undo": 1,
        "quiet_update": 1,
        "insert_by_application": 1,
        "update_by_application": 1,
        "delete": 2,
        "rekey": 1,
    },
    events={
        "truncate": 1,
        "add_column": 2,
        "rewrite": 1,
        "optimize": 1,
        "restart": 1,
        "kill_sessions": 2,
    },
    commands={
        "run": 10,
        "run_amid": 10,
        "run_killed": 3,
        "race": 1,
        "full_refresh": 1,
        "backfill": 1,
        "set_back": 1,
        "rebuild_state": 1,
        "compact": 2,
        "repair": 1,
        "build": 2,
    },
    steps=("locked", "windowed", "extracted", "prepared", "staged", "published", "state-recorded"),
)


class MariaDbWriters(Writers):
    """Writers that expect MariaDB's lock conflicts."""

    conflicts = (pymysql.Error,)


class MariaDbArena:
    """One database on its own server, with its writers and the events that affect both.

    Attributes:
        moved, refusable: see the PostgreSQL arena; here, no event makes a run refuse a table.
    """

    vocabulary = VOCABULARY
    moved = False

    def __init__(self, folder: Path) -> None:
        self.server = MariaDb()
        self._durable()
        self.refusable: set[str] = set()
        self._number = 0

    def open(self, tables: tuple[str, ...]) -> None:
        """Creates a database with these tables."""
        self._number += 1
        self.tables = tables
        name = f"nemesis_{self._number}"
        self.server._execute(f"create database {name}")
        self.database = Database(self.server, name)
        waits = "set innodb_lock_wait_timeout = 1, lock_wait_timeout = 1"
        self.writers = MariaDbWriters(MARIADB, self.database.connect, waits)
        self.writers.create(tables, rows=12)

    def close(self) -> None:
        """Closes the database."""
        self.writers.abandon()
        with contextlib.suppress(Exception):
            self.server._drop(self.database.name)

    def remove(self) -> None:
        """Stops the server and deletes its folder."""
        self.server.remove()

    # The events that a schedule calls by name. Each takes the name of a table.

    def truncate(self, table: str) -> None:
        """Deletes all rows with TRUNCATE."""
        self.writers.all_unseen(table)
        self._ddl(f"truncate table {table}")

    def add_column(self, table: str) -> None:
        """Adds a column with a constant default, without a rewrite."""
        self.writers.widened.add(table)
        self._ddl(f"alter table {table} add column plain_{self._next()} int default 7")

    def rewrite(self, table: str) -> None:
        """Adds a column with `algorithm=copy`, so that the table is copied."""
        column = f"copied_{self._next()}"
        self._ddl(f"alter table {table} add column {column} int default 7 first, algorithm=copy")

    def optimize(self, table: str) -> None:
        """Rebuilds the table."""
        self._ddl(f"optimize table {table}")

    def restart(self, table: str) -> None:
        """Restarts the server."""
        self.server.stop()
        self.writers.abandon()
        self.server.start()
        self._durable()

    def kill_sessions(self, table: str) -> None:
        """Ends all sessions of this database, including the loader's, as an administrator would."""
        with contextlib.closing(self.database.connect()) as connection:
            cursor: Any = connection.cursor()
            cursor.execute(
                "select id from information_schema.processlist "
                "where db = database() and id <> connection_id()"
            )
            for (number,) in cursor.fetchall():
                with contextlib.suppress(pymysql.Error):
                    cursor.execute(f"kill {number}")
        self.writers.abandon()

    def _durable(self) -> None:
        """Makes commits survive a crash, because no cursor shows that a source has lost rows."""
        self.server._execute("set global innodb_flush_log_at_trx_commit = 1")

    def _ddl(self, statement: str) -> None:
        self.writers.execute(AUTOCOMMIT, statement)

    def _next(self) -> int:
        return next(self.writers._numbers)
