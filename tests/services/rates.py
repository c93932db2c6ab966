"""An HTTP API of exchange rates on loopback that behaves like real APIs.

It has pages, an inclusive `since`, a rate limit (429), and failures in the middle, which a seed
determines.
"""

from __future__ import annotations

import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

PAGE = 5


class Rates:
    """The API; `rates` holds its data by currency.

    Args:
        seed: determines which requests fail.
    """

    def __init__(self, seed: int = 0) -> None:
        self.rates: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.limited = 0.0
        """The share of requests that are answered with 429."""
        self.failing = 0.0
        """The share of requests that are answered with 400, which ends a read."""
        self.token = "s3cret-token"
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def set(self, currency: str, rate: float, at: str) -> None:
        """Sets a rate."""
        with self._lock:
            self.rates[currency] = {"currency": currency, "rate": rate, "updated_at": at}

    def answer(self, path: str, token: str) -> tuple[int, Any]:
        """Returns the status and the body for a request."""
        with self._lock:
            self.asked.append(path)
            asked = parse_qs(urlparse(path).query)
            if token != f"Bearer {self.token}":
                return 401, {"error": f"wrong token {token}"}
            mood = self._random.random()
            if mood < self.limited:
                return 429, {"error": "slow down"}
            if mood < self.limited + self.failing:
                return 400, {"error": "the database is away"}
            since, page = asked["since"][0], int(asked.get("page", ["1"])[0])
            found = [r for r in self.rates.values() if r["updated_at"] >= since]
            found.sort(key=lambda r: (r["updated_at"], r["currency"]))
            return 200, {"base": "EUR", "rates": found[(page - 1) * PAGE : page * PAGE]}

    def close(self) -> None:
        """Stops the server."""
        self._server.shutdown()
        self._server.server_close()


def _handler(rates: Rates) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = rates.answer(self.path, self.headers.get("Authorization", ""))
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if status == 429:
                self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Suppresses the server's log."""

    return Handler
