"""Serves the report on the loopback interface, for a browser on the same machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.1"


class ReportServer(ThreadingHTTPServer):
    """A server whose only page is the report.

    Args:
        port: the port; 0 selects a free port.
        render: returns the page. Called at most once every `refresh` seconds.
        refresh: the maximum age of the page in seconds.
    """

    def __init__(self, port: int, render: Callable[[], str], refresh: float) -> None:
        super().__init__((HOST, port), _Handler)
        self._render = render
        self._refresh = refresh
        self._lock = threading.Lock()
        self._page = b""
        self._rendered = float("-inf")
        own = self.server_address[1]
        self.hosts = {f"{name}:{own}" for name in (HOST, "localhost")}
        if own == 80:
            self.hosts |= {HOST, "localhost"}

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def read_page(self) -> bytes:
        """Returns the page. Renders it again if it is too old."""
        with self._lock:
            if time.monotonic() - self._rendered >= self._refresh:
                self._page = self._render().encode()
                self._rendered = time.monotonic()
            return self._page


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    server_version = "strandline"
    sys_version = ""

    def do_GET(self) -> None:
        # A web site can make its host name resolve to 127.0.0.1. Its scripts, in a browser on this
        # machine, could then read the report. But the Host header of their requests contains the
        # site's name.
        if self.headers.get("Host", "") not in self.server.hosts:
            self._send(HTTPStatus.FORBIDDEN, b"Open the address that `loader report` prints.\n")
        elif self.path.partition("?")[0] != "/":
            self._send(HTTPStatus.NOT_FOUND, b"The report is at /.\n")
        else:
            try:
                page = self.server.read_page()
            except Exception as error:
                text = f"The report cannot be read ({type(error).__name__}): see the terminal.\n"
                self._send(HTTPStatus.SERVICE_UNAVAILABLE, text.encode())
                return
            self._send(HTTPStatus.OK, page, "text/html")

    do_HEAD = do_GET

    def _send(self, status: HTTPStatus, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing, because requests are not loader events."""
