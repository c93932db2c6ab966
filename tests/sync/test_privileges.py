"""The privileges in docs/privileges.md suffice: the tests run the statements of the page."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from tests.services import Database, Redis
from tests.state.test_state_stores import keep_in
from tests.sync.project import Project

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "least-privileges"


def _pasted(mark: str) -> list[str]:
    """Returns the statements of the page's code block that contains this text."""
    blocks = re.findall(
        r"```(?:sql)?\n(.*?)```", (ROOT / "docs/privileges.md").read_text(), re.DOTALL
    )
    [block] = [block for block in blocks if mark in block]
    block = re.sub(r"--.*", "", block).replace("…", PASSWORD)
    return [statement.strip() for statement in block.split(";") if statement.strip()]


def _create(database: Database) -> None:
    for table in ("orders", "customers"):
        database.execute(
            f"create table {table} (id int primary key, at timestamp)",
            f"insert into {table} values (1, timestamp '2025-01-01 00:00:00')",
        )


def _sync_and_check(project: Project, database: Database, user: str) -> None:
    options = {table: {"cursor_field": "at"} for table in ("orders", "customers")}
    project.jdbc(
        database,
        list(options),
        user=user,
        password=PASSWORD,
        table_options=options,
    )
    ran = project.run()
    assert [ran.table(f"shop.{table}")["appended"] for table in options] == [1, 1]
    assert ran.warnings == []
    database.execute("insert into orders values (2, timestamp '2025-01-02 00:00:00')")
    assert project.run().table("shop.orders")["appended"] == 1
    checked = project.loader("check")
    assert (checked.code, checked.errors) == (0, [])
    assert project.loader("reconcile").code == 0


def test_postgresql(project: Project, postgres_database: Database) -> None:
    database = postgres_database
    with contextlib.suppress(Exception):
        database.execute("drop owned by loader", "drop role loader")
    _create(database)
    [(name,)] = database.query("select current_database()")
    shop = [re.sub(r"database shop\b", f'database "{name}"', one) for one in _pasted("pg_read_all")]
    try:
        database.execute(*shop)
        _sync_and_check(project, database, "loader")
    finally:
        database.execute("drop owned by loader", "drop role loader")


def test_mariadb(project: Project, mariadb_database: Database) -> None:
    database = mariadb_database
    _create(database)
    [(name,)] = database.query("select database()")
    shop = [
        one.replace("shop.", f"`{name}`.").replace("10.0.0.%", "%").replace(" require ssl", "")
        for one in _pasted("slave monitor")
    ]
    try:
        database.execute(*shop)
        _sync_and_check(project, database, "loader")
    finally:
        database.execute("drop user if exists loader@'%'")


def _use_state(project: Project, database: Database, path: str, connection: str) -> None:
    """Syncs, and runs commands on the state, with a state backend that is reached by a role."""
    _create(database)
    options = {"orders": {"cursor_field": "at"}}
    project.jdbc(database, ["orders"], table_options=options)
    keep_in(project, path, connection)
    assert project.run().table("shop.orders")["appended"] == 1
    for command in (
        ("state", "set", "shop.orders", "2024-01-01 00:00:00"),
        ("run",),
        ("state", "prune", "--keep", "1"),
        ("state", "list"),
        ("compact",),
    ):
        ran = project.loader(*command)
        assert (ran.code, ran.errors) == (0, []), command


def test_state_in_postgresql(project: Project, postgres_database: Database) -> None:
    database = postgres_database
    try:
        database.execute(*_pasted("create schema loader_state"))
        place = f"127.0.0.1:{database.server.port}/{database.name}"
        _use_state(project, database, "postgresql", f"postgresql://loader_state:{PASSWORD}@{place}")
        held = "select table_schema from information_schema.tables where table_name = '_cq_state'"
        assert database.query(held) == [("loader_state",)]
    finally:
        database.execute("drop owned by loader_state", "drop role loader_state")


def test_state_in_redis(project: Project, postgres_database: Database, redis_server: Redis) -> None:
    [acl] = _pasted("acl setuser")
    redis_server.client().execute_command(*acl.split())
    place = f"loader:{PASSWORD}@127.0.0.1:{redis_server.port}/0"
    _use_state(project, postgres_database, "redis", f"redis://{place}")
    redis_server.client().acl_deluser("loader")
    redis_server.client().flushall()
