"""Tables that are synced while somebody pulls the plug, and what must hold of them afterwards."""

from __future__ import annotations

from tests.services import Database
from tests.sync.project import Project

FIRST = 40
ADDED = 5
UPDATED = 3


def names(count: int) -> list[str]:
    """The names of that many tables."""
    return [f"orders_{i}" for i in range(1, count + 1)]


def create(database: Database, tables: list[str]) -> None:
    """Makes the tables with their first rows; three of them share the highest cursor."""
    for table in tables:
        database.execute(
            f"create table {table} (id int primary key, note text, at timestamptz)",
            f"insert into {table} select n, 'n' || n, "
            f"timestamptz '2025-01-01 00:00:00Z' + least(n, {FIRST - 2}) * interval '1 second' "
            f"from generate_series(1, {FIRST}) n",
        )


def change(database: Database, tables: list[str]) -> None:
    """Adds and updates rows, one update at the very cursor that was stored."""
    for table in tables:
        database.execute(
            f"insert into {table} select n, 'late', "
            f"timestamptz '2025-01-02 00:00:00Z' + n * interval '1 second' "
            f"from generate_series({FIRST + 1}, {FIRST + ADDED}) n",
            f"update {table} set note = 'updated', at = '2025-01-03 00:00:00Z' "
            f"where id < {UPDATED}",
            f"update {table} set note = 'at the boundary' where id = {FIRST}",
        )


def configure(project: Project, database: Database, tables: list[str]) -> None:
    """A spec of these tables."""
    options = {table: {"cursor_field": "at"} for table in tables}
    project.jdbc(database, tables, table_options=options)


def batches_seen(project: Project, tables: list[str]) -> dict[str, list[tuple[int, int]]]:
    """What a reader sees now: per table its batches and their rows."""
    seen = {}
    for table in tables:
        present = project.lake().exists(table)
        query = f"select _cq_batch, count(*) from raw.{table} group by all order by 1"
        seen[table] = [(b, n) for b, n in project.rows(query)] if present else []
    return seen


def assert_whole(
    project: Project, database: Database, tables: list[str], batches: list[int]
) -> None:
    """No gap, no torn batch, no double; state and ledger agree with the data.

    Args:
        batches: rows of each batch, the same for every table.
    """
    expected = list(enumerate(batches, start=1))
    assert batches_seen(project, tables) == dict.fromkeys(tables, expected)
    for table in tables:
        newest = project.rows(
            "select id, max_by(note, struct(at, _cq_batch, _cq_seq)) "
            f"from raw.{table} group by id order by id"
        )
        assert newest == database.query(f"select id, note from {table} order by id")
        ledger = project.rows(
            "select batch, rows_appended from raw._cq_syncs "
            f"where table_name = '{table}' and batch is not null order by batch"
        )
        assert ledger == expected
        versions = project.rows(
            f"select version from raw._cq_state where key = 'shop.{table}' order by version"
        )
        assert versions == [(n,) for n in range(1, len(versions) + 1)]
        assert project.state(f"shop.{table}")["batch"] == len(batches)
        assert project.snapshots(table) == len(batches), "a staged batch was left behind"
