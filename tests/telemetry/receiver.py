"""A local HTTP server that records the requests it receives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Receiver:
    """The received requests.

    Attributes:
        answers: the status codes of the next responses. Later responses have 200.
    """

    url: str = ""
    paths: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)


@contextmanager
def receive() -> Iterator[Receiver]:
    """Runs the server until the block ends."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.paths.append(self.path)
            receiver.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield receiver
        finally:
            server.shutdown()
