"""Reads the first rows of tables as a first load would append them. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame

from loader.errors import LoaderError, SpecError, TableError
from loader.lake.lake import Lake
from loader.lake.ledger import now
from loader.rows.bookkeeping import COLUMNS, Stamp, stamp_rows
from loader.sources.interface import Snapshot
from loader.state import TableState
from loader.sync.pipeline import Pipeline
from loader.sync.plan_window import build_window
from loader.sync.recover import PriorState
from loader.sync.table_plan import TablePlan


@dataclass(frozen=True)
class FirstRows:
    """The first rows of a table (`source.table`), as a lazy DataFrame with the source's columns."""

    table: str
    rows: DataFrame


def read_first_rows(
    pipeline: Pipeline, table: str, limit: int
) -> Iterator[FirstRows | LoaderError]:
    """Yields the first rows, or the error, of each table that a name or pattern selects.

    Read a table's rows before you request the next table: the request may close the source.
    Raises a SpecError if no table has this name.
    """
    try:
        parts = pipeline.plan_tables([table], full_refresh=True)
    except SpecError as error:
        if error.where != "--select":
            raise
        raise SpecError(error.what, where="loader preview", remedy=error.remedy) from None
    for part in parts:
        yield from part.problems
        if not part.plans:
            continue
        try:
            with part.source.snapshot([plan.table for plan in part.plans]) as snapshot:
                lake = pipeline.open_stores(part.spec).lake
                for plan in part.plans:
                    try:
                        yield FirstRows(plan.name, read_rows(plan, snapshot, lake, limit))
                    except Exception as error:
                        yield pipeline.redact_error(error, f"table {plan.name}")
        except Exception as error:
            yield pipeline.redact_error(error, f"source {part.spec.name}")


def read_rows(plan: TablePlan, snapshot: Snapshot, lake: Lake, limit: int) -> DataFrame:
    """Returns the first rows of a table as a lazy DataFrame.

    Raises a TableError if a connector pushes the table's rows, which then cannot be queried.
    """
    if snapshot.delivers:
        raise TableError(
            "a connector sends its records only to a sync, which stores its state",
            where=f"table {plan.name}",
            remedy=f"Load the table, `loader run --select {plan.name}`, and query the raw table; "
            "`loader discover --columns` lists the columns",
        )
    window = build_window(plan, snapshot, PriorState(TableState(), 1), lake)
    rows = snapshot.read_first(lake.spark, plan.table, window, limit)
    stamp = Stamp(plan.source, now(), batch=1, generation=0, deleted=plan.deleted)
    return stamp_rows(rows, stamp).drop(*COLUMNS)
