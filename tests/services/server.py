"""The interface of the suite's database servers."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.services.memory import NAME

USER = "strandline"
PASSWORD = "tide-4711-table"


@dataclass(frozen=True)
class Database:
    """A database of a server, empty at first.

    Attributes:
        server: the server that it is on.
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
        time_zone: the zone of its sessions, unless they set another.
    """

    time_zone: str

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="strandline-", dir=os.environ.get(NAME)))
        self.port = free_port()
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
        """Starts the server in its folder: a new one, or again after `stop`."""

    @abstractmethod
    def stop(self) -> None:
        """Stops the server; committed data stays."""

    @abstractmethod
    def connect(self, database: str) -> Any:
        """A DB-API connection that commits each statement."""

    @abstractmethod
    def jdbc_url(self, database: str) -> str:
        """The JDBC URL of a database, without user and password."""

    @abstractmethod
    def _execute(self, *statements: str) -> None:
        """Runs statements as the server's administrator, in one session."""

    @contextlib.contextmanager
    def database(self, name: str | None = None) -> Iterator[Database]:
        """A fresh database, dropped at the end."""
        name = name or f"shop_{next(self._names)}"
        self._create(name)
        try:
            yield Database(self, name)
        finally:
            self._drop(name)

    def _create(self, name: str) -> None:
        self._execute(f"create database {name}")

    def _drop(self, name: str) -> None:
        self._execute(f"drop database {name}")

    def remove(self) -> None:
        """Stops the server and deletes its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class ServerMissing(Exception):
    """A server that the tests need cannot be started; the message says what to do."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tail(log: Path) -> str:
    """The end of a log, for an error message."""
    return log.read_text(errors="replace")[-2000:] if log.exists() else ""
