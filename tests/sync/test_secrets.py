"""No log line, error, traceback, file, ledger row or state contains a secret of the spec."""

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
FORMS = ("text", "json")
RUNS = """\
import logging
import sys
from loader.cli import main
options = sys.argv[1:]
if options:
    logging.basicConfig(format="heard %(levelname)s %(message)s")
    logging.getLogger("loader").setLevel("DEBUG")
for form in ("text", "json"):
    print("in this form:", form, flush=True)
    try:
        main(["--log-format", form, *options, "run"])
    except SystemExit as ended:
        print("ended with", ended.code, flush=True)
"""
SECRETS = {
    "password": "s3cr3t-p4ss/w:ord@1",
    "wrong password": "wr0ng-p4ss/w:ord@2",
    "url": "s3cr3t-t0ken-in-the-url",
}
USER = "pl41n_user"
ERRORS = {"shop.leaks": "the password is", "barred.shut": "password authentication failed"}
"""Part of the error of each table that cannot be read."""


@pytest.fixture
def leaky(project: Project, postgres_database: Database) -> Database:
    """A database whose error message contains the password of a role. Its name is not secret."""
    user, password = USER, SECRETS["password"]
    with contextlib.suppress(Exception):
        postgres_database.execute(f"drop owned by {user}", f"drop role {user}")
    postgres_database.execute(
        f"create role {user} login password '{password}'",
        "create function tell() returns int language plpgsql as "
        f"$$ begin raise exception 'the password is {password}'; end $$",
        "create table fine (id int primary key)",
        "insert into fine values (1)",
        "create view leaks as select id, tell() as reported from fine",
        "create table shut (id int primary key)",
        f"grant select on all tables in schema public to {user}",
    )
    return postgres_database


def _configure(project: Project, leaky: Database) -> None:
    """Adds two sources: one whose database reveals the password, one with a wrong password."""
    tables = {
        "fine": {"cursor_field": "id"},
        "leaks": {"cursor_field": "reported", "primary_key": "id"},
        "shut": {"cursor_field": "id"},
    }
    for source, password, names in (
        ("shop", "SECRET_PASSWORD", ["fine", "leaks"]),
        ("barred", "SECRET_WRONG", ["shut"]),
    ):
        own = {
            "url": f"{leaky.url}?sslpassword={SECRETS['url']}&password=${{{password}}}",
            "user": "${SECRET_USER}",
            "password": f"${{{password}}}",
            "table_options": {name: tables[name] for name in names},
        }
        project.add(source, "jdbc", names, own)


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_no_output_or_stored_row_contains_a_secret(
    project: Project, leaky: Database, debug: bool
) -> None:
    """One process runs with both log formats; each run has a right and a wrong password."""
    _configure(project, leaky)
    done = subprocess.run(
        [sys.executable, "-c", RUNS, *(["--debug"] if debug else [])],
        cwd=project.folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SECRET_PASSWORD": SECRETS["password"],
            "SECRET_WRONG": SECRETS["wrong password"],
            "SECRET_USER": USER,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    parts = done.stdout.split("in this form: ")[1:]
    assert [part.partition("\n")[0] for part in parts] == [*FORMS], done.stdout
    for part in parts:
        assert part.endswith("ended with 1\n"), part
        assert ("Traceback" in part) == debug
        for table, text in ERRORS.items():
            assert text in part
            assert (f"heard ERROR {table}: " in part) == debug
    kept = [
        str(row)
        for table in ("_cq_syncs", "_cq_state")
        for row in project.rows(f"select * from raw.{table}")
    ]
    for text in ERRORS.values():
        assert len([row for row in kept if text in row]) == len(FORMS)
    assert f'password authentication failed for user "{USER}"' in done.stdout
    for text in (done.stdout, *kept):
        for secret in SECRETS.values():
            assert secret not in text
    for file in (file for file in project.folder.rglob("*.*") if file.name != "loader.yml"):
        for name in ("password", "wrong password"):
            assert SECRETS[name] not in file.read_text(errors="replace"), file
