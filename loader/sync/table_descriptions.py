"""Asks a source for the columns and keys of many tables, several at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from loader.sources import Source, SourceTable, TableRef
from loader.spark.interruption import check_interruption
from loader.spark.steps import step

_AT_ONCE = 4
"""So many tables, unless the source's `concurrency` says how many."""


def describe_tables(
    source: Source,
    refs: Sequence[TableRef],
    concurrency: int | None,
    working: Callable[[str], AbstractContextManager[None]],
) -> list[SourceTable | Exception]:
    """Describes tables, in their order; the error of a table is in its place.

    Args:
        working: entered with a table's name while the table is described.
    """

    def one(ref: TableRef) -> SourceTable | Exception:
        try:
            # the tables before it may have been locked, and this one, too
            check_interruption(f"table {source.name}.{ref.name}")
            name = f"{source.name}.{ref.lake_name}"
            with step(f"{name}: reading its columns and keys"), working(name):
                return source.describe(ref)
        except Exception as problem:
            return problem

    at_once = min(concurrency or _AT_ONCE, len(refs))
    if at_once < 2:
        return [one(ref) for ref in refs]
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, refs))
