"""What `loader check` and `loader discover` say of tables."""

from __future__ import annotations

from collections.abc import Sequence

from loader.cursor import CursorType
from loader.errors import LoaderError
from loader.pipeline import Pipeline
from loader.plan import INCREMENTAL, Plan, candidates
from loader.sources import SourceTable


def findings(plan: Plan) -> list[str]:
    """What a user should know of a table that can be synced, likeliest trouble first."""
    notes = []
    if not plan.key:
        notes.append("no primary key: syncs and appends, but a snapshot needs a key")
    cursor = plan.cursor
    if cursor is None or plan.mode != INCREMENTAL:
        return notes
    if plan.table.indexed and cursor.name not in plan.table.indexed:
        notes.append(f"{cursor.name} has no index: every sync scans the whole table")
    if cursor.type is CursorType.DATE:
        notes.append("a day is coarse: each sync reads the whole last day again")
    if cursor.type is CursorType.STRING:
        notes.append("a string cursor is ordered by the database's collation")
    if cursor.name in plan.key:
        notes.append("the cursor is part of the key: updates of a row are not seen")
    return notes


def discovered(
    pipeline: Pipeline, names: Sequence[str]
) -> tuple[list[tuple[str, SourceTable, list[str]]], list[LoaderError]]:
    """Per source its tables with cursor candidates, and what could not be looked at."""
    found: list[tuple[str, SourceTable, list[str]]] = []
    errors: list[LoaderError] = []
    for source, bound in pipeline.sources:
        if names and source.name not in names:
            continue
        where = f"source {source.name}"
        try:
            refs = bound.tables()
        except Exception as error:
            errors.append(pipeline.cleared(error, where))
            continue
        for ref in refs:
            try:
                table = bound.describe(ref)
                found.append((source.name, table, candidates(table)))
            except Exception as error:
                errors.append(pipeline.cleared(error, f"{where}, table {ref.name}"))
    return found, errors
