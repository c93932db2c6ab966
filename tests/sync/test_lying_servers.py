"""Servers that lie to the drivers: the machine's files are not theirs, and a run ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.lying import LyingMariaDb
from tests.sync.project import Project

SECRET = "hunter2-of-the-loader"


_ANSWERED = 2
"""Statements with which the driver and the loader begin a session; the next one asks for rows."""


@pytest.mark.parametrize("form", ["path", "url"])
def test_a_server_that_asks_for_a_file_gets_none(
    project: Project, tmp_path: Path, form: str
) -> None:
    """A driver that may load local files sends whichever file the server names."""
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
