"""If long syncs are killed, a backfill resumes, and a full refresh starts over."""

from __future__ import annotations

import signal

import pytest

from tests.crash import shop
from tests.crash.workers import Workers
from tests.services import Database
from tests.sync.project import Project

CHUNKS = 5
KILLED_AFTER = 2


@pytest.mark.slow
def test_a_backfill_resumes_after_its_last_complete_chunk(
    project: Project, postgres_database: Database, workers: Workers
) -> None:
    postgres_database.execute(
        "create table orders (id int primary key, note text)",
        "insert into orders select n, 'first' from generate_series(1, 50) n",
    )
    project.jdbc(postgres_database, ["orders"], table_options={"orders": {"cursor_field": "id"}})
    project.run()
    postgres_database.execute("update orders set note = 'changed'")
    command = ("run", "--from", "1", "--chunk", "10")
    worker = workers.take()
    worker.start(project, *command, crash_at=f"ledger-recorded:shop.orders#{KILLED_AFTER}")
    assert worker.died() == signal.SIGKILL
    begun = {"from": "1", "to": "50", "to_cursor": True, "done_to": "20"}
    assert project.state("shop.orders")["backfill"] == begun
    # Without --to, the backfill ends at the cursor, which this sync moves.
    postgres_database.execute("insert into orders values (51, 'changed')")
    project.run()

    again = project.run(*command[1:])
    assert any("resuming at 21" in text for text in again.warnings)
    ledger = project.rows("select cursor_low from raw._cq_syncs where mode = 'backfill'")
    assert sorted(int(low) for (low,) in ledger) == [1 + 10 * n for n in range(CHUNKS + 1)]
    assert "backfill" not in project.state("shop.orders")
    assert project.rows("select count(*) from raw.orders where note = 'changed'") == [(51,)]


@pytest.mark.slow
def test_a_full_refresh_starts_over(
    project: Project, postgres_database: Database, workers: Workers
) -> None:
    """A reader sees the previous rows until the whole refresh is published."""
    worker = workers.take()
    tables = ["extracted", "staged"]
    shop.create(postgres_database, tables)
    shop.configure(project, postgres_database, tables)
    project.run()
    for table in tables:
        postgres_database.execute(f"delete from {table} where id <= 10")
    places = ",".join(f"{step}:shop.{step}" for step in tables)
    worker.start(project, "run", "--full-refresh", "--concurrency", "2", crash_at=places)
    assert worker.died() == signal.SIGKILL
    assert shop.batches_seen(project, tables) == {table: [(1, shop.FIRST)] for table in tables}
    assert project.rows("select count(*) from raw._cq_syncs where mode = 'full_refresh'") == [(0,)]

    project.run("--full-refresh")
    refreshed = [(1, shop.FIRST), (2, shop.FIRST - 10)]
    assert shop.batches_seen(project, tables) == dict.fromkeys(tables, refreshed)
    complete = project.rows(
        "select batch, generation, status from raw._cq_syncs where mode = 'full_refresh'"
    )
    assert complete == [(2, 2, "synced")] * 2
