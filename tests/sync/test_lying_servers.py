"""Servers with malicious, malformed or no responses get no file and stop no other source."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from loader.sources.jdbc import database as database_module
from loader.sources.jdbc.postgresql_dialect import PostgreSQL
from tests.services import Database
from tests.services.lying import LyingMariaDb
from tests.services.lying_proxy import (
    Lie,
    LyingServer,
    send_error,
    send_garbage,
    send_rows,
    stay_silent,
)
from tests.sync.project import Project

SECRET = "hunter2-of-the-loader"

_ANSWERED = 2
"""Statements that start a session and are answered correctly; the next one queries rows."""


@pytest.mark.parametrize("form", ["path", "url"])
def test_a_server_that_asks_for_a_file_gets_none(
    project: Project, tmp_path: Path, form: str
) -> None:
    """With `allowLocalInfile`, the driver would send any file that the server names."""
    file = tmp_path / "credentials"
    file.write_text(SECRET)
    server = LyingMariaDb(str(file) if form == "path" else file.as_uri(), _ANSWERED)
    url = f"jdbc:mariadb://127.0.0.1:{server.port}/shop"
    project.add("liar", "jdbc", ["*"], {"url": url, "user": "u", "password": "p"})
    ran = project.loader("run")
    server.close()
    assert SECRET.encode() not in server.stolen
    [error] = ran.errors
    assert error.startswith("source liar")
    assert "`allowLocalInfile` is disabled" in error  # the request has reached the driver


_LISTING = b"relispartition"
"""Part of a query with which the loader lists PostgreSQL's tables."""
_LOUD = b"\x1b]0;title\x07 ${env:HOME} {{ 1 }} [red]"

_LIES: dict[str, tuple[bytes, Lie, str]] = {
    "mute": (b"", stay_silent, "Connection attempt timed out"),
    "asleep": (_LISTING, stay_silent, "the database has not answered in time"),
    "noise": (b"user\0", send_garbage, "Session setup failed"),
    "static": (_LISTING, send_garbage, "An I/O error occurred"),
    "loud": (_LISTING, send_error(_LOUD), _LOUD.decode()),
    "long": (_LISTING, send_error(b"x" * 3_000_000), "x" * 1000),
    "endless": (_LISTING, send_rows, "the database has not answered in time"),
}
"""For each server: the bytes that it waits for, its response, and the loader's error."""


def test_servers_that_lie_or_are_silent_stop_no_other_source(
    project: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "loginTimeout" in dict(PostgreSQL.network)
    monkeypatch.setattr(PostgreSQL, "network", (("loginTimeout", "2"),))
    monkeypatch.setattr(database_module, "_CATALOG_TIMEOUT", 1)
    database = postgres_database
    database.execute("create table orders (id int primary key)", "insert into orders values (1)")
    port = f":{database.server.port}/"
    servers = {
        n: LyingServer(database.server.port, lie, asked) for n, (asked, lie, _) in _LIES.items()
    }
    for name, server in servers.items():
        own = {"url": database.url.replace(port, f":{server.port}/"), "lock_timeout": "1 second"}
        project.jdbc(database, ["*"], name, **own)
    project.jdbc(database, ["orders"], table_options={"orders": {"sync_mode": "full_refresh"}})
    began = time.monotonic()
    ran = project.loader("run")
    took = time.monotonic() - began
    for server in servers.values():
        server.close()
    assert all(server.lied.is_set() for server in servers.values())
    assert ran.table("shop.orders")["appended"] == 1, ran.text[:5000]
    errors = dict(error.split(" (", 1) for error in ran.errors)
    assert set(errors) == {f"source {name}" for name in _LIES}, ran.text[:5000]
    for name, (_, _, what) in _LIES.items():
        assert what in errors[f"source {name}"], errors[f"source {name}"][:500]
        assert len(errors[f"source {name}"]) < 3000
    assert "\x1b" not in ran.text
    assert took < 60
