"""After a kill between altering and publishing, the ledger lists each schema change once."""

from __future__ import annotations

import signal

import pytest

from tests.crash.workers import Workers
from tests.services import Database
from tests.sync.project import Project

CHANGED = "changed note string to int, in note__int; added extra string; dropped gone string"


STEPS = ["extracted", "prepared", "staged", "published", "state-recorded"]


def _create(database: Database, project: Project, tables: list[str]) -> None:
    """Creates and syncs tables, and then changes their columns."""
    for t in tables:
        database.execute(
            f"create table {t} (id int primary key, c int, note text, gone text)",
            f"insert into {t} select n, n, n, 'g' from generate_series(1, 3) n",
        )
    # No sweep: otherwise the rows that an ALTER rewrote would be read again, too.
    options = {t: {"cursor_field": "c", "sweep": "never"} for t in tables}
    project.jdbc(database, tables, table_options=options)
    project.run("--concurrency", "4")
    for t in tables:
        database.execute(
            f"alter table {t} drop gone",
            f"alter table {t} add extra text",
            f"alter table {t} alter note type int using note::int",
            f"insert into {t} values (4, 4, 44, 'x')",
        )


def _read_schema_changes(project: Project, table: str) -> list[tuple[object, ...]]:
    return project.rows(
        f"select batch, schema_changes from raw._cq_syncs where table_name = '{table}' "
        "order by started_at"
    )


@pytest.mark.slow
def test_killed_while_columns_change(
    project: Project, postgres_database: Database, workers: Workers
) -> None:
    """Six tables, each at its own step; one source table is altered again after the kill."""
    worker = workers.take()
    places = {step.replace("-", "_"): step for step in STEPS} | {"changed_again": "prepared"}
    _create(postgres_database, project, list(places))
    crash_at = ",".join(f"{step}:shop.{table}" for table, step in places.items())
    worker.start(project, "run", "--concurrency", str(len(places)), crash_at=crash_at)
    assert worker.died() == signal.SIGKILL
    postgres_database.execute(
        "alter table changed_again alter note type text", "alter table changed_again drop extra"
    )
    ran = project.run("--concurrency", "4")
    rows = {table: _read_schema_changes(project, table) for table in places}
    again = project.run("--concurrency", "4")
    for table, step in places.items():
        published = step in ("published", "state-recorded")
        assert ran.table(f"shop.{table}")["status"] == ("nothing new" if published else "synced")
        assert again.table(f"shop.{table}")["status"] == "nothing new"
        assert _read_schema_changes(project, table)[:-1] == rows[table]
        if table == "changed_again":
            continue
        assert [row for row in rows[table] if row[1]] == [(2, CHANGED)]
        columns = "note, note__int, extra, gone"
        assert project.rows(f"select {columns} from raw.{table} order by _cq_batch, _cq_seq") == [
            ("1", None, None, "g"),
            ("2", None, None, "g"),
            ("3", None, None, "g"),
            (None, 3, None, None),
            (None, 44, "x", None),
        ]
    assert [row for row in rows["changed_again"] if row[1]] == [(2, "dropped gone string")]
    assert project.rows(
        "select note, note__int, extra, gone from raw.changed_again where id = 4"
    ) == [("44", None, None, None)]
