"""pgbouncer in front of a PostgreSQL server."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.services.postgres import Postgres
from tests.services.server import PASSWORD, USER, ServerMissing, free_port, tail

_SETTINGS = """\
[databases]
* = host=127.0.0.1 port={server} user={user} password={password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
ignore_startup_parameters = extra_float_digits, options
"""


@contextlib.contextmanager
def pooled(server: Postgres) -> Iterator[int]:
    """Yields the port of a transaction pooler that silently drops startup options."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise ServerMissing("no pgbouncer on PATH: apt-get install pgbouncer")
    folder, port = Path(tempfile.mkdtemp(prefix="strandline-")), free_port()
    settings = folder / "pgbouncer.ini"
    given = {"server": server.port, "user": USER, "password": PASSWORD, "port": port}
    settings.write_text(_SETTINGS.format(**given))
    folder.chmod(0o755)
    as_user = ["-u", "nobody"] if os.geteuid() == 0 else []
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen([program, *as_user, str(settings)], stdout=log, stderr=log)
    try:
        _await(process, port, folder / "log")
        yield port
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise ServerMissing(f"pgbouncer does not start: {tail(log)}")
        time.sleep(0.05)
