"""A Unix socket that only its owner can use, in front of the server.

gRPC cannot tell the clients of a Unix socket apart, and whose state may count depends on that. So
each connection is passed on through a socket whose name is its own.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import threading
from contextlib import suppress
from pathlib import Path

MOST_CONNECTIONS = 256
_INNER = "grpc.sock"
_CHUNK = 1 << 18


def bind(path: str) -> socket.socket | None:
    """Takes a path; returns the socket, None if another one listens there.

    Raises:
        OSError: if there can be none, such as a path that is too long, or one of a file.
    """
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(path)
        return None
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):  # of a server that was killed
            os.unlink(path)
    found = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)  # mode 0600 from the first moment on
    try:
        found.bind(path)
        found.listen()
    except OSError:
        found.close()
        raise
    finally:
        os.umask(before)
    return found


class Relay:
    """Passes connections on to the server.

    Names in `folder` are relative, as that of a Unix socket may have no more than 107 characters.
    So this process has to run there.

    Args:
        outer: where clients connect.

    Attributes:
        inner: where the server is to listen, which no other user can reach: the folder is private.
    """

    def __init__(self, outer: socket.socket) -> None:
        self.inner = f"unix:{_INNER}"
        self._outer = outer
        self._count = 0
        self._open = 0

    def start(self) -> None:
        """Begins; the server listens already."""
        threading.Thread(target=asyncio.run, args=(self._run(),), name="relay", daemon=True).start()

    async def _run(self) -> None:
        server = await asyncio.start_unix_server(self._pass_on, sock=self._outer, limit=_CHUNK)
        await server.serve_forever()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= MOST_CONNECTIONS:
            writer.close()
            return
        self._open += 1
        self._count += 1
        name = f"client{self._count}"
        try:
            inner = await self._connect(name)
            await asyncio.gather(_pump(reader, inner[1]), _pump(inner[0], writer))
        except OSError:  # the server ends
            writer.close()
        finally:
            self._open -= 1
            Path(name).unlink(missing_ok=True)

    async def _connect(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects under a name, which the server gets to know the client by."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.setblocking(False)
            connection.bind(name)
            await asyncio.get_running_loop().sock_connect(connection, _INNER)
            return await asyncio.open_unix_connection(sock=connection, limit=_CHUNK)
        except OSError:
            connection.close()
            raise


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Passes bytes on until one side ends; the other one ends then, too."""
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # it has gone
    finally:
        writer.close()
