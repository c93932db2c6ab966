"""A Redis server."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import redis
from redis.exceptions import RedisError

from tests.services.memory import NAME
from tests.services.server import PASSWORD, ServerMissing, free_port, tail

_START_SECONDS = 30


class Redis:
    """The system's Redis server, with a password and an append-only file.

    Attributes:
        port: its port on 127.0.0.1.
        version: its product and version, as people write it.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="strandline-", dir=os.environ.get(NAME)))
        self.port = free_port()
        self._names = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        self.version = f"Redis {self.client().info('server')['redis_version']}"

    @property
    def url(self) -> str:
        """The URL of its first database, with the password."""
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        """A connection as its administrator."""
        return redis.Redis.from_url(self.url, decode_responses=True)

    def name(self) -> str:
        """Returns a name that no test has used."""
        return f"state_{next(self._names)}"

    def start(self) -> None:
        """Starts the server in its folder: a new one, or again after `stop`."""
        program = shutil.which("redis-server")
        if program is None:
            raise ServerMissing("no redis-server on PATH: apt-get install redis-server")
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder),
            "requirepass": PASSWORD,
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
        }
        command = [program, *(part for k, v in options.items() for part in (f"--{k}", v))]
        with (self.folder / "log").open("ab") as log:
            # Not the system's settings, which differ from machine to machine.
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        self._await()

    def stop(self) -> None:
        """Kills the server; acknowledged writes stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        """Stops the server and deletes its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _await(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(RedisError):
                self.client().ping()
                return
            gone = self._process is None or self._process.poll() is not None
            if gone or time.monotonic() > deadline:
                raise ServerMissing(f"redis-server does not start: {tail(self.folder / 'log')}")
            time.sleep(0.05)
