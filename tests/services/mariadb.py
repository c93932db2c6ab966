"""A MariaDB server."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pymysql

from tests.services.server import PASSWORD, USER, Server, ServerMissing, tail

_START_SECONDS = 60


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
            reported = connection.get_server_info()
        numbers = re.search(r"(\d+\.\d+\.\d+)-MariaDB", reported)
        self.version = f"MariaDB {numbers[1] if numbers else reported}"

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
            ssl_disabled=True,  # or each connection reads the machine's certificates: 10 ms
        )

    def jdbc_url(self, database: str) -> str:
        return f"jdbc:mariadb://127.0.0.1:{self.port}/{database}"

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _execute(self, *statements: str) -> None:
        with contextlib.closing(self.connect("mysql")) as connection:
            for statement in statements:
                connection.cursor().execute(statement)

    def _command(self, *arguments: str) -> list[str]:
        command = [self._program, "--no-defaults", f"--datadir={self._data}", *arguments]
        return [*command, "--user=root"] if os.geteuid() == 0 else command

    def _bootstrap(self) -> None:
        """Creates the system tables like mariadb-install-db, which needs more programs."""
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
        # A bootstrapping server takes one statement per line, which is how the scripts are written.
        done = subprocess.run(
            self._command("--bootstrap", "--skip-networking"),
            input="\n".join(statements).encode(),
            capture_output=True,
            check=False,
        )
        self._log.write_bytes(done.stderr)
        if done.returncode != 0:
            raise ServerMissing(f"mariadbd --bootstrap failed: {tail(self._log)}")

    def _await(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.connect("mysql").close()
                return
            except pymysql.err.OperationalError as error:
                gone = self._process is None or self._process.poll() is not None
                if gone or time.monotonic() > deadline:
                    raise ServerMissing(f"mariadbd does not start: {tail(self._log)}") from error
                time.sleep(0.05)


def _program(name: str, install: str) -> str:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        raise ServerMissing(f"no {name} on PATH: {install}")
    return found
