"""A PostgreSQL that things befall: what ordinary operation does to tables, sessions and servers."""

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
    """Writers with what only PostgreSQL has: prepared transactions."""

    conflicts = (psycopg.Error,)
    shows_writers = True
    moment = "to_timestamp({:.6f})"

    def prepare(self, session: int) -> None:
        """A transaction is left prepared, its session goes on."""
        if session in self._within:
            name = self._note("prepared").replace(" ", "_")
            if self.execute(session, f"prepare transaction '{name}'") is not None:
                self.prepared.append(name)
            self._within.discard(session)

    def finish_prepared(self, commits: bool) -> None:
        """The oldest of them ends."""
        if self.prepared:
            how = "commit" if commits else "rollback"
            self.execute(AUTOCOMMIT, f"{how} prepared '{self.prepared.pop(0)}'")

    def settle(self) -> None:
        super().settle()
        while self.prepared:
            self.finish_prepared(commits=True)


class PostgresArena:
    """One database on a server of its own, the writers on it, and what befalls both.

    Attributes:
        database: where the loader reads now; another server's after a failover.
        moved: whether the loader's URL must follow.
        refusable: something happened after which a run may refuse a table until it is read anew.
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
        """A fresh database with these tables."""
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
        """Gives the database up; a server that failed over is not used again."""
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

    # What a schedule calls, by name; all take the name of a table.

    def truncate(self, table: str) -> None:
        """All rows go and some come again, in one transaction: not MVCC-safe."""
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
        """A column with a constant default: no rewrite."""
        self._ddl(f"alter table {table} add column {self._fresh('plain')} int default 7")

    def rewrite(self, table: str) -> None:
        """A column with a volatile default: the table is rewritten, which is not MVCC-safe."""
        self._ddl(
            f"alter table {table} add column {self._fresh('volatile')} "
            "double precision default random()"
        )

    def vacuum_full(self, table: str) -> None:
        """Rewrites the table, MVCC-safely."""
        self._ddl(f"vacuum full {table}")

    def cluster(self, table: str) -> None:
        """Rewrites the table in another order."""
        if table != "parts":
            self._ddl(f"cluster {table} using {table}_pkey")

    def copy_in(self, table: str) -> None:
        """Rows by COPY, in one transaction."""
        connection = self._connect()
        target = f"{table} (region, note)" if table == "parts" else f"{table} (note)"
        with contextlib.closing(connection), contextlib.suppress(psycopg.Error):
            connection.execute("set lock_timeout = '150ms'")
            with connection.cursor() as cursor, cursor.copy(f"copy {target} from stdin") as copy:
                for n in range(5):
                    note = self.writers._note("copied")
                    copy.write_row((1 + n % 2, note) if table == "parts" else (note,))

    def attach(self, table: str) -> None:
        """Rows with old clocks and old transactions appear, with a partition."""
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
        """Rows vanish with their partition."""
        if "parts" in self.tables:
            self.writers.all_unseen("parts")
            self._ddl("alter table parts detach partition parts_2")
            self._ddl("drop table if exists parts_2")
            self._ddl("create table parts_2 partition of parts for values in (2)")
            self.refusable.add("parts")

    def restart(self, table: str) -> None:
        """The server crashes and recovers; prepared transactions stay."""
        server = self.database.server
        server.stop()
        self.writers.abandon()
        server.start()

    def kill_sessions(self, table: str) -> None:
        """An administrator ends all sessions, the loader's among them."""
        connection = self._connect()
        with contextlib.closing(connection):
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid()"
            )
        self.writers.abandon()

    def impatient(self, table: str) -> None:
        """From now on idle transactions are ended after a short time."""
        self._ddl(
            f"alter database {self.database.name} set idle_in_transaction_session_timeout = '400ms'"
        )

    def fail_over(self, table: str) -> None:
        """A replica that lags takes over: what it had not yet got is lost."""
        if self._standby is not None:
            return
        if any(session in self.writers._within for session in SESSIONS):
            self.writers.settle()  # replicas have no two-phase state of open sessions to show
        standby = self.server.replica()
        self.servers.append(standby)
        with contextlib.closing(standby.connect(self.database.name)) as connection:
            connection.execute("select pg_wal_replay_pause()")
        for each in self.tables:  # what the replica does not get
            self.writers.insert(AUTOCOMMIT, each)
            self.writers.all_unseen(each)
        standby.promote()
        self._move_to(standby)

    def restore(self, table: str) -> None:
        """The database goes back to a copy that was made a moment ago; what came since is lost."""
        if self._standby is not None or self.writers.prepared:
            return
        copy = self.server.replica()  # promoted at once, it is what a restored backup is
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
        # What was committed survives a crash: a source that loses rows is a failover's matter.
        server._execute("alter system set synchronous_commit = on")
        server._execute("checkpoint")
        server.stop()
        server.start()
