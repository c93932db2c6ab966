"""With `where`, a full read writes tombstones only for rows that were deleted or do not match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import run_tables
from tests.crash.steps import Hook
from tests.services import Database
from tests.sync.project import Project

OPEN = "state = 'open'"
MASS = "more than a tenth"


def fill(database: Database, count: int = 20, table: str = "orders") -> None:
    """Creates a table with `count` open orders and one paid order."""
    rows = [f"({i}, 'open', '2026-01-01 00:00:{i:02}')" for i in range(1, count + 1)]
    database.execute(
        f"create table {table} (id int primary key, state varchar(9), at timestamp not null)",
        f"insert into {table} values {', '.join(rows)}, (99, 'paid', '2026-01-01')",
    )


def configure(project: Project, database: Database, where: str = OPEN, **options: Any) -> None:
    table = {"cursor_field": "at", "where": where, **options}
    project.jdbc(database, ["orders"], table_options={"orders": table})


def ids(project: Project) -> list[int]:
    """Returns the ids in the latest table, by the order of versions that all models use."""
    newest = project.rows(
        "select newest.* from (select id, max_by(_cq_deleted, "
        "struct(_cq_generation, at, _cq_batch, _cq_seq)) as deleted from raw.orders group by id) "
        "as newest order by id"
    )
    return [key for key, deleted in newest if not deleted]


def run_while(project: Project, act: Callable[[], None], full_refresh: bool) -> str:
    """Runs, calling `act` between counting and reading the rows; returns the error, or ""."""
    pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)

    def report(step: str, table: str) -> None:
        if step == "windowed":
            act()

    [outcome] = run_tables(pipeline, Watch(steps=Hook(report)), (), full_refresh)
    return "" if outcome.error is None else str(outcome.error)


@pytest.mark.parametrize("reads_all_because", ["full refresh", "other condition", "reset"])
def test_a_source_that_is_emptied_while_it_is_read(
    project: Project, mariadb_database: Database, reads_all_because: str
) -> None:
    """No tombstones are written, and the stored cursor does not change."""
    fill(mariadb_database)
    configure(project, mariadb_database)
    project.run()
    if reads_all_because == "other condition":
        configure(project, mariadb_database, where="id < 100 and state = 'open'")
    if reads_all_because == "reset":
        assert project.loader("state", "reset", "shop.orders").code == 0
    before = project.state("shop.orders")
    is_refresh = reads_all_because == "full refresh"
    error = run_while(
        project, lambda: mariadb_database.execute("delete from orders"), full_refresh=is_refresh
    )
    assert "returned no row, although it had counted 20" in error
    assert project.state("shop.orders") == before
    assert ids(project) == [*range(1, 21)]
    # If the source is still empty in the next run, a warning contains the command for deletes.
    ran = project.run(*(["--full-refresh"] if is_refresh else []))
    [warning] = [w for w in ran.warnings if "the source is empty" in w]
    assert "`loader reconcile --repair --allow-deletes --select shop.orders`" in warning
    assert ids(project) == [*range(1, 21)]
    repaired = project.loader("reconcile", "--repair", "--allow-deletes")
    assert repaired.code == 0, repaired.text
    assert ids(project) == []


def test_a_source_that_is_replaced_while_it_is_read(
    project: Project, mariadb_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """The new row is loaded; tombstones for the 19 missing keys need the user's confirmation."""
    fill(mariadb_database)
    configure(project, mariadb_database)
    project.run()
    swap = "create table orders (id int primary key, state varchar(9), at timestamp not null)"
    error = run_while(
        project,
        lambda: mariadb_database.execute(
            "drop table orders", swap, "insert into orders values (7, 'open', '2026-02-01')"
        ),
        full_refresh=True,
    )
    assert error == ""
    [warning] = [record.getMessage() for record in caplog.records if MASS in record.getMessage()]
    assert "19 of the 20 keys in the raw table (more than a tenth) are missing from" in warning
    assert "`loader reconcile --repair --allow-deletes --select shop.orders`" in warning
    assert ids(project) == [*range(1, 21)]
    refused = project.loader("reconcile", "--repair")
    assert refused.code == 1
    repaired = project.loader("reconcile", "--repair", "--allow-deletes")
    assert repaired.code == 0, repaired.text
    assert ids(project) == [7]


@pytest.mark.parametrize("server", ["postgres_database", "mariadb_database"])
def test_how_many_tombstones_a_full_read_may_write(
    project: Project, server: str, request: pytest.FixtureRequest
) -> None:
    """Except on PostgreSQL, one full read writes tombstones for at most a tenth of the keys."""
    database: Database = request.getfixturevalue(server)
    fill(database)
    configure(project, database, sweep="never") if "post" in server else configure(
        project, database
    )
    project.run()
    database.execute("update orders set state = 'gone' where id <= 2")
    ran = project.run("--full-refresh")
    assert not [w for w in ran.warnings if MASS in w]
    assert ids(project) == [*range(3, 21)]
    database.execute("update orders set state = 'gone' where id <= 4")
    ran = project.run("--full-refresh")
    is_steady = server == "postgres_database"
    assert len([w for w in ran.warnings if MASS in w]) == (0 if is_steady else 1)
    assert ids(project) == [*range(5 if is_steady else 3, 21)]
    assert project.loader("state", "reset", "shop.orders").code == 0
    assert len([w for w in project.run().warnings if MASS in w]) == (0 if is_steady else 1)
    # A changed `where` has no limit, because the user expects many rows to leave.
    configure(project, database, where="id > 15")
    assert not [w for w in project.run().warnings if MASS in w]
    assert ids(project) == [*range(16, 21), 99]


KEYS = {
    "declared": (True, "code"),
    "declared_pair": (True, "id, code"),
    "of_spec": (False, "code"),
    "of_spec_pair": (False, "id, code"),
}
"""By table: whether the database (or else the spec) declares the new key, and the key."""


def test_a_changed_key(project: Project, postgres_database: Database) -> None:
    """Rows from before the change have null in the new key, and get no tombstone (except below)."""
    options: dict[str, dict[str, Any]] = {
        table: {"cursor_field": "at", "where": OPEN} for table in KEYS
    }
    for table in KEYS:
        fill(postgres_database, table=table)
        postgres_database.execute(f"alter table {table} add code int")
    project.jdbc(postgres_database, [*KEYS], table_options=options)
    project.run()
    for table, (is_declared, key) in KEYS.items():
        postgres_database.execute(
            f"update {table} set code = id + 100",
            f"alter table {table} drop constraint {table}_pkey",
            *([f"alter table {table} add primary key ({key})"] if is_declared else []),
        )
        options[table] |= {} if is_declared else {"primary_key": key.split(", ")}
    project.jdbc(postgres_database, [*KEYS], table_options=options)
    project.run("--full-refresh")
    for table, (is_declared, key) in KEYS.items():
        found = f"select count(*), count(code), count_if(_cq_deleted) from raw.{table}"
        # If only the spec declares the key, (id, null) is a key as well, and gets a tombstone.
        old = 0 if is_declared or key == "code" else 20
        assert project.rows(found) == [(40 + old, 20, old)], table
        postgres_database.execute(f"update {table} set state = 'gone' where id = 7")
    project.run("--full-refresh")
    for table in KEYS:
        newest = f"select code from raw.{table} where _cq_deleted and code is not null"
        assert project.rows(newest) == [(107,)], table
