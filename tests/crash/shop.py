"""Tables for crash tests, and checks of the lake after a crash."""

from __future__ import annotations

from collections.abc import Sequence

from tests.services import Database
from tests.sync.project import Project

FIRST = 40
ADDED = 5
UPDATED = 3


def names(count: int) -> list[str]:
    """Returns the names of that many tables."""
    return [f"orders_{i}" for i in range(1, count + 1)]


def create(database: Database, tables: list[str]) -> None:
    """Creates the tables with their first rows; three of them share the highest cursor."""
    for table in tables:
        database.execute(
            f"create table {table} (id int primary key, note text, at timestamptz)",
            f"insert into {table} select n, 'n' || n, "
            f"timestamptz '2025-01-01 00:00:00Z' + least(n, {FIRST - 2}) * interval '1 second' "
            f"from generate_series(1, {FIRST}) n",
        )


def change(database: Database, tables: list[str]) -> None:
    """Adds and updates rows; one update is exactly at the stored cursor."""
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
    """Writes a spec of these tables."""
    options = {table: {"cursor_field": "at"} for table in tables}
    project.jdbc(database, tables, table_options=options)


def batches_seen(project: Project, tables: list[str]) -> dict[str, list[tuple[int, int]]]:
    """Returns the batches that a reader sees now, with their number of rows, for each table."""
    present = {row[1] for row in project.rows(f"show tables in {project.schema}")}
    counted = [
        f"select '{table}', _cq_batch, count(*) from raw.{table} group by all"
        for table in tables
        if table in present
    ]
    seen: dict[str, list[tuple[int, int]]] = {table: [] for table in tables}
    for table, batch, rows in sorted(project.rows(" union all ".join(counted)) if counted else []):
        seen[table].append((batch, rows))
    return seen


def assert_whole(
    project: Project, database: Database, tables: list[str], batches: Sequence[int]
) -> None:
    """Checks for gaps, partial batches and duplicates, and that state and ledger agree with them.

    Args:
        batches: the number of rows of each batch, the same for every table.
    """
    expected = list(enumerate(batches, start=1))
    assert batches_seen(project, tables) == dict.fromkeys(tables, expected)

    def of_each(query: str) -> str:
        return " union all ".join(query.format(table=table) for table in tables)

    newest = project.rows(
        of_each(
            "select '{table}', id, max_by(note, struct(at, _cq_batch, _cq_seq)) "
            "from raw.{table} group by id"
        )
    )
    assert sorted(newest) == sorted(
        database.query(of_each("select '{table}', id, note from {table}"))
    )
    ledger = project.rows(
        "select table_name, batch, rows_appended from raw._cq_syncs where batch is not null"
    )
    assert sorted(row for row in ledger if row[0] in tables) == sorted(
        (table, *batch) for table in tables for batch in expected
    )
    states = project.rows(
        "select key, sort_array(collect_list(version)), "
        "get_json_object(max_by(value, version), '$.batch') from raw._cq_state group by key"
    )
    found = {key: (versions, int(batch)) for key, versions, batch in states}
    for table in tables:
        versions, batch = found[f"shop.{table}"]
        assert versions == list(range(1, len(versions) + 1))
        assert batch == len(batches)
    snapshots = project.rows(of_each("select '{table}', count(*) from raw.{table}.snapshots"))
    left = {table: count for table, count in snapshots if count != len(batches)}
    assert not left, "a staged batch was left behind"
