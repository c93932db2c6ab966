"""A proxy to a database server that misbehaves once a client sends a certain text."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

Lie = Callable[[socket.socket], None]


class LyingServer:
    """Forwards everything to a real server until a client sends a certain text.

    Args:
        real: the port of the real server, on 127.0.0.1.
        lie: sends a wrong answer to the client; after that, the server is silent.
        asked: the text; if empty, the first bytes that a client sends.

    Attributes:
        port: where it listens, on 127.0.0.1.
        lied: set once it has misbehaved.
    """

    def __init__(self, real: int, lie: Lie, asked: bytes = b"") -> None:
        self.lied = threading.Event()
        self._real = real
        self._lie = lie
        self._asked = asked
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, name="lying server", daemon=True).start()

    def close(self) -> None:
        """Stops listening and ends all connections."""
        for one in [self._listener, *self._open]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._real))
        self._open += [client, server]
        threading.Thread(target=self._pass_on, args=(server, client), daemon=True).start()
        with suppress(OSError):
            while sent := client.recv(1 << 16):
                if self._asked in sent:
                    self.lied.set()
                    self._lie(client)
                    while client.recv(1 << 16):
                        pass
                    return
                server.sendall(sent)
            server.close()

    @staticmethod
    def _pass_on(server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while sent := server.recv(1 << 16):
                client.sendall(sent)
            client.close()


def stay_silent(client: socket.socket) -> None:
    """Sends nothing."""


def send_garbage(client: socket.socket) -> None:
    """Sends bytes that are invalid in any protocol."""
    client.sendall(bytes(range(256)) * 16)


def send_error(text: bytes) -> Lie:
    """Returns a lie that answers with a PostgreSQL error and keeps the session open."""
    fields = b"SERROR\0VERROR\0C42000\0M" + text + b"\0\0"
    return lambda client: client.sendall(_message(b"E", fields) + _message(b"Z", b"I"))


def send_rows(client: socket.socket) -> None:
    """Answers with PostgreSQL rows without end."""
    column = b"c\0" + struct.pack("!IHIHIH", 0, 0, 25, 0xFFFF, 0xFFFFFFFF, 0)
    columns = _message(b"T", struct.pack("!H", 1) + column)
    client.sendall(_message(b"1", b"") + _message(b"2", b"") + columns)
    while True:
        client.sendall(_message(b"D", struct.pack("!HI", 1, 1) + b"x"))
        time.sleep(0.1)


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body
