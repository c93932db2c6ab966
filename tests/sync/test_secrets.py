"""A secret is nowhere: not in a log line, an error, a trace, the ledger, or the state."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services import Database
from tests.sync.project import Project

ROOT = Path(__file__).resolve().parents[2]
LISTENING = """\
import logging
from loader.cli import main
logging.basicConfig(format="heard %(levelname)s %(message)s")
logging.getLogger("loader").setLevel("DEBUG")
main()
"""
SECRETS = {
    "password": "s3cr3t-p4ss/w:ord@1",
    "user": "s3cr3t_user",
    "url": "s3cr3t-t0ken-in-the-url",
}


@pytest.fixture
def leaky(project: Project, postgres_database: Database) -> Database:
    """A database whose own error text contains the password, for a role named like a secret."""
    user, password = SECRETS["user"], SECRETS["password"]
    with contextlib.suppress(Exception):
        postgres_database.execute(f"drop owned by {user}", f"drop role {user}")
    postgres_database.execute(
        f"create role {user} login password '{password}'",
        "create function tell() returns int language plpgsql as "
        f"$$ begin raise exception 'the password is {password}'; end $$",
        "create table fine (id int primary key)",
        "insert into fine values (1)",
        "create view leaks as select id, tell() as told from fine",
        f"grant select on all tables in schema public to {user}",
    )
    return postgres_database


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
@pytest.mark.parametrize("wrong", [False, True], ids=["right password", "wrong password"])
def test_nothing_that_is_printed_or_kept_holds_a_secret(
    project: Project, leaky: Database, form: str, debug: bool, wrong: bool
) -> None:
    own = {
        "url": f"{leaky.url}?sslpassword={SECRETS['url']}&password=${{SECRET_PASSWORD}}",
        "user": "${SECRET_USER}",
        "password": "${SECRET_PASSWORD}",
        "table_options": {
            "fine": {"cursor_field": "id"},
            "leaks": {"cursor_field": "told", "primary_key": "id"},
        },
    }
    project.add("shop", "jdbc", ["fine", "leaks"], own)
    password = SECRETS["password"] + ("-wrong" if wrong else "")
    options = ["--log-format", form, *(["--debug"] if debug else [])]
    program = ["-c", LISTENING] if debug else ["-m", "loader"]
    done = subprocess.run(
        [sys.executable, *program, *options, "run"],
        cwd=project.folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SECRET_PASSWORD": password,
            "SECRET_USER": SECRETS["user"],
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    told = done.stdout + done.stderr
    assert ("password authentication failed" if wrong else "the password is") in told
    assert ("Traceback" in told) == debug
    assert ("heard ERROR shop.leaks: " in told) == debug
    kept = [
        str(row)
        for table in ("_cq_syncs", "_cq_state")
        if project.lake().exists(table)
        for row in project.rows(f"select * from raw.{table}")
    ]
    assert any("password" in row for row in kept)
    for text in (told, *kept):
        for secret in (*SECRETS.values(), password):
            assert secret not in text
    for file in (file for file in project.folder.rglob("*.*") if file.name != "loader.yml"):
        assert SECRETS["password"] not in file.read_text(errors="replace"), file
