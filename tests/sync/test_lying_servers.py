"""Servers that lie to the drivers: the machine's files are not theirs, and a run ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.lying import LyingMariaDb
from tests.sync.project import Project

SECRET = "hunter2-of-the-loader"


@pytest.mark.parametrize("form", ["path", "url"])
@pytest.mark.parametrize("patience", [2, 3])
def test_a_server_that_asks_for_a_file_gets_none(
    project: Project, tmp_path: Path, form: str, patience: int
) -> None:
    """A driver that may load local files sends whichever file the server names."""
    file = tmp_path / "credentials"
    file.write_text(SECRET)
    server = LyingMariaDb(str(file) if form == "path" else file.as_uri(), patience)
    url = f"jdbc:mariadb://127.0.0.1:{server.port}/shop"
    project.add("liar", "jdbc", ["*"], {"url": url, "user": "u", "password": "p"})
    ran = project.loader("run")
    server.close()
    print(ran.text, server.statements)
    assert SECRET.encode() not in server.stolen
    assert server.statements
    assert ran.code != 0
    assert len(ran.errors) == 1, ran.text
    assert "liar" in ran.errors[0]
