"""Examines tables and destinations for `loader check`, and tables for `loader discover`."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from pyspark.sql import functions as f

from loader.errors import LoaderError, TableError
from loader.lake.commits import newest_commit
from loader.lake.lake import Lake
from loader.lake.raw_table import plan_drift
from loader.lake.system_tables import PREFIX
from loader.rows.bookkeeping import HASH
from loader.rows.cursor import CursorType
from loader.rows.version_order import GENERATION, quote_name
from loader.sources.candidates import candidates, marks_of_deletion
from loader.sources.interface import Snapshot, SourceTable, Window
from loader.spark.error_translation import DatabaseError, clear
from loader.spark.named_steps import step
from loader.sync.ownership import check_origin, check_ownership, own_rows
from loader.sync.pipeline import Pipeline, PlannedSource
from loader.sync.table_plan import INCREMENTAL, TablePlan
from loader.sync.table_selection import describe_tables

# Every sync reads the rows at the highest cursor again; more than this many are worth a note.
_CROWD = 1000


def check_tables(
    pipeline: Pipeline, part: PlannedSource
) -> Iterator[tuple[TablePlan, list[str]] | LoaderError]:
    """Yields each table of a source that can be synced, with notes for the user.

    Reads from the source, the lake and the state store; writes nothing.
    """
    if not part.plans:
        return
    where = f"source {part.spec.name}"
    try:
        # reading one table's state shows whether the store can be read at all
        pipeline.stores(part.spec).state.latest(part.plans[0].name)
    except Exception as error:
        yield pipeline.redact_error(error, where)
    try:
        with part.source.snapshot([plan.table for plan in part.plans]) as snapshot:
            with step(f"{where}: checking"):
                snapshot.probe()
            for plan in part.plans:
                try:
                    lake = pipeline.stores(part.spec).lake
                    _check_ownership(plan, lake)
                    with step(f"{plan.name}: checking"):
                        notes = [
                            *describe_drift(plan, lake),
                            *findings(plan),
                            *describe_rows(plan, snapshot),
                        ]
                        notes += [
                            *snapshot.list_unmet_requirements(plan.table),
                            *describe_unmoved_cursor(plan, lake),
                        ]
                    yield plan, notes
                except Exception as error:
                    yield pipeline.redact_error(error, f"table {plan.name}")
    except Exception as error:
        yield pipeline.redact_error(error, where)


def _check_ownership(plan: TablePlan, lake: Lake) -> None:
    if lake.exists(plan.lake_table):
        check_ownership(plan, lake, newest_commit(lake, plan.lake_table))
        check_origin(plan, lake)


def describe_drift(plan: TablePlan, lake: Lake) -> list[str]:
    """Notes the schema changes that the next batch will make in raw.

    Raises:
        TableError: if raw cannot follow the source, or may not.
    """
    found = plan_drift(lake, plan.lake_table, plan.table.schema, plan.policy)
    return [f"with the next batch: {'; '.join(found.notes)}"] if found.notes else []


def findings(plan: TablePlan) -> list[str]:
    """Notes problems that a table's metadata alone shows, likeliest first."""
    notes = []
    if not plan.key:
        why = f" ({plan.table.keyless})" if plan.table.keyless else ""
        notes.append(f"no primary key: syncs and appends, but a snapshot needs a key{why}")
    marks = marks_of_deletion(plan.table)
    if plan.deleted is None and marks:
        notes.append(f"{marks[0]} may mark deleted rows: deleted_field makes tombstones of them")
    cursor = plan.cursor
    if cursor is None or plan.mode != INCREMENTAL:
        return notes
    # PostgreSQL's xmin cannot be indexed
    if plan.table.indexed and cursor.name not in {*plan.table.indexed, "xmin"}:
        notes.append(f"{cursor.name} has no index: every sync scans the whole table")
    if cursor.type is CursorType.DATE:
        notes.append("a date cursor is coarse: each sync reads the whole last day again")
    if cursor.collated:
        notes.append(
            "the database's collation orders this string cursor: each sync compares its rows with "
            "all of raw"
        )
    if cursor.name in plan.key:
        notes.append("the cursor is part of the key: updates of a row are not seen")
    return notes


def describe_rows(plan: TablePlan, snapshot: Snapshot) -> list[str]:
    """Notes problems in the source's rows: null or future cursors, many rows at the highest."""
    if plan.cursor is None or plan.mode != INCREMENTAL:
        return []
    name = plan.cursor.name
    whole = snapshot.bounds(plan.table, Window(plan.cursor))
    notes = list(whole.notes)
    if whole.nulls:
        shown = {
            "include": "they are read at every sync",
            "exclude": "they are never read",
            "fail": "the sync will fail",
        }[plan.options.null_cursor]
        notes.append(f"{whole.nulls:,} of {whole.rows:,} rows have no {name}: {shown}")
    if whole.future:
        notes.append(f"{whole.future:,} rows are dated in the future")
    if whole.high is not None:
        at_top = Window(plan.cursor, low=whole.high, nulls=False)
        top = snapshot.bounds(plan.table, at_top)
        crowded = top.rows is not None and top.rows > _CROWD
        if crowded and snapshot.digest(plan.table, at_top, top.rows) is None:
            notes.append(f"{top.rows:,} rows share the highest {name}: every sync reads them again")
    return notes


def describe_unmoved_cursor(plan: TablePlan, lake: Lake) -> list[str]:
    """Notes updates in raw that did not change the cursor."""
    cursor = plan.cursor
    if cursor is None or not plan.key or not lake.exists(plan.lake_table):
        return []
    raw = own_rows(plan, lake.frame(plan.lake_table))
    if not {cursor.name, *plan.key} <= set(raw.columns):
        return []
    parts = [f.col(quote_name(name)) for name in (GENERATION, *plan.key, cursor.name)]
    versions = raw.groupBy(*parts).agg(f.count_distinct(f.col(HASH)).alias("versions"))
    keys = versions.where("versions > 1").count()
    if not keys:
        return []
    return [
        f"{keys:,} keys were updated without a new {cursor.name}: such updates are seen only "
        "while they lie at the cursor or within the lookback"
    ]


def discover_tables(
    pipeline: Pipeline, names: Sequence[str]
) -> tuple[list[tuple[str, SourceTable, list[str]]], list[LoaderError], list[LoaderError]]:
    """Lists each source's tables with their cursor candidates, and the errors of the others.

    Tables and views that the account may not read are errors of the second list, one for each
    source: it has others, and mostly need not have those.
    """
    found: list[tuple[str, SourceTable, list[str]]] = []
    errors: list[LoaderError] = []
    denials: list[LoaderError] = []
    for source, bound in pipeline.sources:
        if names and source.name not in names:
            continue
        where = f"source {source.name}"
        try:
            with step(f"{where}: listing its tables"):
                refs = bound.tables()
        except Exception as error:
            errors.append(pipeline.redact_error(error, where))
            continue
        denied: list[str] = []
        tables = describe_tables(bound, refs, source.concurrency, lambda name: nullcontext())
        for ref, table in zip(refs, tables, strict=True):
            if isinstance(table, DatabaseError) and table.is_denied:
                denied.append(ref.name)
            elif isinstance(table, Exception):
                errors.append(pipeline.redact_error(table, f"{where}, table {ref.name}"))
            else:
                found.append((source.name, table, candidates(table)))
        if denied:
            shown = ", ".join(denied[:10]) + (", …" if len(denied) > 10 else "")
            denials.append(
                TableError(
                    f"its account may not read {len(denied)} of {len(refs)} tables: {shown}",
                    where=where,
                    remedy="Grant it select on those that you want",
                )
            )
    return found, errors, denials


DEADLINE = 60.0
"""Seconds that Spark may take for it: without executors, a job never ends."""


def check_destinations(pipeline: Pipeline) -> Iterator[LoaderError]:
    """Checks each lake that the spec's sources are loaded into; yields the errors."""
    lakes = {pipeline.spec.schema_of(source): source for source, _ in pipeline.sources}
    for source in lakes.values():
        name = source.destinations[0]
        try:
            with step(f"destination {name}: writing a table"):
                check_destination(pipeline.stores(source).lake, name)
        except LoaderError as error:
            yield pipeline.redact_error(error, error.where)


def check_destination(lake: Lake, name: str, deadline: float = DEADLINE) -> None:
    """Writes a row into a table of its own, reads it, and drops the table.

    Args:
        name: the destination's, for messages.
        deadline: in seconds.

    Raises:
        TableError: if the lake cannot be written, or Spark has not answered in time.
    """
    where = f"destination {name}, schema {lake.schema}"
    problems: list[BaseException] = []
    group = uuid.uuid4().hex
    own = lake.for_thread()
    thread = threading.Thread(
        target=_write_and_read, args=(own, group, problems), name="check-destination", daemon=True
    )
    thread.start()
    thread.join(deadline)
    if thread.is_alive():
        lake.spark.sparkContext.cancelJobGroup(group)
        raise TableError(
            f"Spark has not written one row within {deadline:.0f} seconds",
            where=where,
            remedy="Check that its master, in the profile's target, can be reached and has free "
            "cores, and that the catalog answers",
        )
    if problems:
        found = clear(problems[0], where)
        raise TableError(
            f"it cannot be written: {found.what}", where=where, remedy=found.remedy
        ) from problems[0]


def _write_and_read(lake: Lake, group: str, problems: list[BaseException]) -> None:
    table = f"{PREFIX}check_{group[:12]}"
    try:
        lake.spark.sparkContext.setJobGroup(group, "loader check", interruptOnCancel=True)
        there = lake.spark.catalog.databaseExists(quote_name(lake.schema))
        lake.prepare()
        lake.create(table, "n bigint")
        try:
            lake.spark.range(1).toDF("n").writeTo(lake.name(table)).append()
            if lake.frame(table).count() != 1:
                raise LoaderError("a row that was just written is not there")
        finally:
            lake.spark.sql(f"drop table {lake.name(table)} purge")
            if not there:
                lake.spark.sql(f"drop namespace {quote_name(lake.schema)}")
    except Exception as error:
        problems.append(error)
