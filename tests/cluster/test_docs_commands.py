"""The commands of docs/cluster.md work with the variables that the page exports."""

from __future__ import annotations

from typing import Any

from tests.cluster.lake import ORDERS, PURCHASES, FilledLake
from tests.sync.project import Project


def _rows(project: Project, table: str) -> list[tuple[Any, ...]]:
    """Returns a table's rows without the time at which they were loaded."""
    frame = project.spark.table(table).drop("_cq_sync_time")
    return sorted((tuple(row) for row in frame.select(sorted(frame.columns)).collect()), key=str)


def test_the_variables_of_the_page_are_enough(filled: FilledLake) -> None:
    """`loader check`, which also runs on an executor, passes; `loader status` lists the tables."""
    names = [f"shop.{table}" for table in (ORDERS, PURCHASES)]
    check, status = filled.ran["check"], filled.ran["status"]
    assert check.errors == []
    assert [e["table"] for e in check.events if e["event"] == "check"] == names
    listed = {e["table"]: e["last_attempt"] for e in status.events if e["event"] == "status"}
    assert listed == dict.fromkeys(names, "synced")


def test_a_cluster_loads_and_builds_what_one_process_does(
    filled: FilledLake, embedded: FilledLake
) -> None:
    """Raw tables, latest tables and the history have the same rows."""
    assert filled.tables == embedded.tables
    for table in filled.tables:
        rows = _rows(filled.project, table)
        assert rows == _rows(embedded.project, table), table
        assert len(rows) >= 45
