"""A PostgreSQL server with events that ordinary operation causes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.nemesis.schedule import AUTOCOMMIT, SESSIONS, Vocabulary
from benchmarks.nemesis.tables import POSTGRESQL
from benchmarks.nemesis.writers import Writers
from tests.services import Database, Postgres

STEPS = ("locked", "windowed", "extracted", "prepared", "staged", "published", "state-recorded")
VOCABULARY = Vocabulary(
    tables=tuple(POSTGRESQL),
    writes={
        "insert": 10,
        "update": 10,
        "begin": 6,
        "commit": 4,
        "rollback": 1,
        "savepoint": 2,
        "undo": 1,
        "prepare": 1,
        "finish_prepared": 1,
        "quiet_update": 2,
        "insert_by_application": 3,
        "update_by_application": 3,
        "delete": 2,
        "rekey": 1,
    },
    events={
        "truncate": 2,
        "add_column": 2,
        "rewrite": 2,
        "vacuum_full": 1,
        "cluster": 1,
        "copy_in": 2,
        "attach": 2,
        "detach": 1,
        "restart": 1,
        "kill_sessions": 2,
        "impatient": 1,
        "fail_over": 1,
        "restore": 1,
    },
    commands={
        "run": 10,
        "run_amid": 10,
        "run_killed": 4,
        "race": 1,
        "full_refresh": 1,
        "backfill": 1,
        "set_back": 1,
        "rebuild_state": 1,
        "compact": 2,
        "repair": 1,
        "build": 2,
        "build_killed": 1,
    },
    steps=STEPS,
)


class PostgresWriters(Writers):
    """Writers with a feature that only PostgreSQL has: prepared transactions."""

    conflicts = (psycopg.Error,)
    shows_writers = True
    moment = "to_timestamp({:.6f})"

    def prepare(self, session: int) -> None:
        """Prepares a session's transaction, and leaves it prepared."""
        if session in self._within:
            name = self._note("prepared").replace(" ", "_")
            if self.execute(session, f"prepare transaction '{name}'") is not None:
                self.prepared.append(name)
            self._within.discard(session)

    def finish_prepared(self, commits: bool) -> None:
        """Ends the oldest prepared transaction."""
        if self.prepared:
            how = "commit" if commits else "rollback"
            self.execute(AUTOCOMMIT, f"{how} prepared '{self.prepared.pop(0)}'")

    def settle(self) -> None:
        super().settle()
        while self.prepared:
            self.finish_prepared(commits=True)


class PostgresArena:
    """One database on its own server, with its writers and the events that affect both.

    Attributes:
        database: the database that the loader currently reads; after a failover, it is on another
            server.
        moved: whether the loader's URL must follow.
        refusable: whether a run may now refuse a table until a full refresh.
    """

    vocabulary = VOCABULARY

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = Postgres()
        self.servers = [self.server]
        self.moved = False
        self.refusable: set[str] = set()
        self._configure(self.server)
        self._standby: Postgres | None = None
        self._number = 0

    def open(self, tables: tuple[str, ...]) -> None:
        """Creates a database with these tables."""
        self._number += 1
        self.tables = tables
        self.refusable = set()
        self.moved = False
        name = f"nemesis_{self._number}"
        self.server._execute(f"create database {name}")
        self.database = Database(self.server, name)
        self.writers = PostgresWriters(
            POSTGRESQL, self._connect, "set lock_timeout = '150ms'; set statement_timeout = '20s'"
        )
        self.writers.create(tables, rows=12)

    def close(self) -> None:
        """Closes the database. A server that has failed over is not used again."""
        for name in list(self.writers.prepared):
            self.writers.execute(AUTOCOMMIT, f"rollback prepared '{name}'")
        self.writers.abandon()
        if self._standby is not None:
            self._standby.remove()
            self.servers.remove(self._standby)
            self._standby = None
        with contextlib.suppress(Exception):
            self.server._drop(self.database.name)

    def remove(self) -> None:
        """Stops all servers and deletes their folders."""
        for server in self.servers:
            server.remove()

    # The events that a schedule calls by name. Each takes the name of a table.

    def truncate(self, table: str) -> None:
        """Truncates and partly refills the table in one transaction, which is not MVCC-safe."""
        self.writers.all_unseen(table)
        connection = self._connect()
        with contextlib.closing(connection):
            connection.execute("set lock_timeout = '150ms'")
            kept = POSTGRESQL[table].key
            with contextlib.suppress(psycopg.Error), connection.transaction():
                listed = ", ".join((*kept, "note"))
                connection.execute(f"create temp table kept as select {listed} from {table}")
                connection.execute(f"truncate {table}")
                connection.execute(
                    f"insert into {table} ({listed}) select {listed} from kept order by 1 limit 8"
                )
        self.writers.all_unseen(table)

    def add_column(self, table: str) -> None:
        """Adds a column with a constant default, without a rewrite."""
        self._ddl(f"alter table {table} add column {self._fresh('plain')} int default 7")

    def rewrite(self, table: str) -> None:
        """Adds a column with a volatile default, which rewrites the table and is not MVCC-safe."""
        self._ddl(
            f"alter table {table} add column {self._fresh('volatile')} "
            "double precision default random()"
        )

    def vacuum_full(self, table: str) -> None:
        """Rewrites the table, which is MVCC-safe."""
        self._ddl(f"vacuum full {table}")

    def cluster(self, table: str) -> None:
        """Rewrites the table in a different order."""
        if table != "parts":
            self._ddl(f"cluster {table} using {table}_pkey")

    def copy_in(self, table: str) -> None:
        """Inserts rows with COPY, in one transaction."""
        connection = self._connect()
        target = f"{table} (region, note)" if table == "parts" else f"{table} (note)"
        with contextlib.closing(connection), contextlib.suppress(psycopg.Error):
            connection.execute("set lock_timeout = '150ms'")
            with connection.cursor() as cursor, cursor.copy(f"copy {target} from stdin") as copy:
                for n in range(5):
                    note = self.writers._note("copied")
                    copy.write_row((1 + n % 2, note) if table == "parts" else (note,))

    def attach(self, table: str) -> None:
        """Attaches a partition with rows that have old times and old transactions."""
        if "parts" not in self.tables:
            return
        region, name = self._number_of("region"), self._fresh("parts_more")
        self._ddl(f"create table {name} (like parts including all)")
        for _ in range(3):
            note = self.writers._note("attached")
            self._ddl(
                f"insert into {name} (region, note, at) "
                f"values ({region}, '{note}', localtimestamp - interval '2 days')"
            )
        self._ddl(f"alter table parts attach partition {name} for values in ({region})")
        self.writers.all_unseen("parts")
        self.refusable.add("parts")

    def detach(self, table: str) -> None:
        """Detaches a partition with its rows."""
        if "parts" in self.tables:
            self.writers.all_unseen("parts")
            self._ddl("alter table parts detach partition parts_2")
            self._ddl("drop table if exists parts_2")
            self._ddl("create table parts_2 partition of parts for values in (2)")
            self.refusable.add("parts")

    def restart(self, table: str) -> None:
        """Crashes and restarts the server. Prepared transactions survive."""
        server = self.database.server
        server.stop()
        self.writers.abandon()
        server.start()

    def kill_sessions(self, table: str) -> None:
        """Ends all sessions, including the loader's, as an administrator would."""
        connection = self._connect()
        with contextlib.closing(connection):
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
        self.writers.abandon()

    def impatient(self, table: str) -> None:
        """Sets a short timeout for idle transactions."""
        self._ddl(
            f"alter database {self.database.name} set idle_in_transaction_session_timeout = '400ms'"
        )

    def fail_over(self, table: str) -> None:
        """Fails over to a lagging replica. Everything that it has not yet received is lost."""
        if self._standby is not None:
            return
        if any(session in self.writers._within for session in SESSIONS):
            self.writers.settle()  # open sessions cannot continue their transactions on a replica
        standby = self.server.replica()
        self.servers.append(standby)
        with contextlib.closing(standby.connect(self.database.name)) as connection:
            connection.execute("select pg_wal_replay_pause()")
        for each in self.tables:  # the replica does not receive this
            self.writers.insert(AUTOCOMMIT, each)
            self.writers.all_unseen(each)
        standby.promote()
        self._move_to(standby)

    def restore(self, table: str) -> None:
        """Restores a copy of the database from a moment ago. Later changes are lost."""
        if self._standby is not None or self.writers.prepared:
            return
        copy = self.server.replica()  # promoted immediately, it is equivalent to a restored backup
        copy.promote()
        self.servers.append(copy)
        for each in self.tables:
            self.writers.insert(AUTOCOMMIT, each)
            self.writers.all_unseen(each)
        self._move_to(copy)

    def _move_to(self, server: Postgres) -> None:
        self.writers.abandon()
        self.writers.prepared.clear()
        self._standby = server
        self.database = Database(server, self.database.name)
        self.moved = True
        self.refusable |= set(self.tables)
        for each in self.tables:
            self.writers.all_unseen(each)

    def _connect(self) -> psycopg.Connection[Any]:
        return self.database.connect()

    def _ddl(self, statement: str) -> None:
        self.writers.execute(AUTOCOMMIT, statement)

    def _fresh(self, stem: str) -> str:
        return f"{stem}_{self._number_of('name')}"

    def _number_of(self, what: str) -> int:
        return next(self.writers._numbers) + 10

    @staticmethod
    def _configure(server: Postgres) -> None:
        server._execute("alter system set max_prepared_transactions = 20")
        server._execute("alter system set wal_level = 'logical'")
        # Commits survive a crash. Only failovers make the source lose rows.
        server._execute("alter system set synchronous_commit = on")
        server._execute("checkpoint")
        server.stop()
        server.start()
