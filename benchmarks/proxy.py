"""A TCP proxy that counts bytes, which is a measure of reading that suits every tool."""

from __future__ import annotations

import socket
import threading


class Proxy:
    """A proxy between one tool and the server, on a separate port.

    Attributes:
        port: the port on 127.0.0.1 to which the tool connects.
        sent: the number of bytes that the server has sent to the tool: rows and everything else.
    """

    def __init__(self, server_port: int) -> None:
        self.sent = 0
        self._server_port = server_port
        self._counting = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, name="proxy", daemon=True).start()

    def close(self) -> None:
        """Stops accepting connections."""
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            for source, target, counted in ((client, server, False), (server, client, True)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                arguments = (source, target, counted)
                threading.Thread(target=self._pump, args=arguments, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
                if counted:
                    with self._counting:
                        self.sent += len(data)
        except OSError:  # one side closed the connection; the other side is closed below
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                end.close()
