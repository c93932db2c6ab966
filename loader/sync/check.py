"""Checks tables for `loader check` and lists tables for `loader discover`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

from pyspark.sql import functions as f
from pyspark.sql.window import Window as Over

from loader.errors import LoaderError, TableError
from loader.formatting import format_count, format_duration
from loader.lake.lake import Lake
from loader.lake.ledger import NOTHING_NEW, RECONCILE, RECOVERED, SYNCED
from loader.lake.ledger import TABLE as LEDGER
from loader.lake.raw_table import plan_drift
from loader.rows.bookkeeping import HASH
from loader.rows.clock_slack import UNITS
from loader.rows.cursor import CursorType
from loader.rows.version_order import BATCH, GENERATION, quote_name
from loader.sources.candidates import suggest_cursors, suggest_deletion_columns
from loader.sources.interface import Snapshot, SourceTable, Window
from loader.sources.masked_table import MaskedTable
from loader.spark.error_translation import DatabaseError
from loader.spark.executors import runs_on_cluster
from loader.spark.named_steps import step
from loader.sync.destination_check import check_destinations
from loader.sync.mask_changes import check_masks
from loader.sync.ownership import select_own_rows
from loader.sync.pipeline import Pipeline, PlannedSource
from loader.sync.plan_window import find_clock_slack
from loader.sync.preview import read_rows
from loader.sync.recover import reconcile_state
from loader.sync.run_context import Watch
from loader.sync.stores import Stores
from loader.sync.table_plan import INCREMENTAL, TablePlan
from loader.sync.table_selection import describe_tables

_MANY_ROWS = 1000
"""If more rows than this share the highest cursor, a note warns that every sync rereads them."""
_MANY_CUT = 0.1
"""A note warns if at least this fraction of the times is truncated, for example to whole hours."""


def check_spec(
    pipeline: Pipeline,
    select: Sequence[str] = (),
    reopen: Callable[[Pipeline], Pipeline] | None = None,
) -> Iterator[tuple[TablePlan, list[str]] | LoaderError]:
    """Checks the destinations and the selected tables (:func:`check_tables`).

    An error that several tables share is yielded only once.

    Args:
        reopen: reopens a pipeline with a local Spark session. If Spark runs on a cluster and a
            destination has an error, the tables are checked with this session, because the
            cluster might never run their queries.
    """

    def iterate_results() -> Iterator[tuple[TablePlan, list[str]] | LoaderError]:
        errors = list(check_destinations(pipeline))
        yield from errors
        usable = pipeline
        if errors and reopen is not None and runs_on_cluster(pipeline.spark):
            usable = reopen(pipeline)
        for part in usable.plan_tables(select):
            yield from part.problems
            yield from check_tables(usable, part)

    reported: set[str] = set()
    for result in iterate_results():
        if isinstance(result, LoaderError):
            if str(result) in reported:
                continue
            reported.add(str(result))
        yield result


def check_tables(
    pipeline: Pipeline, part: PlannedSource
) -> Iterator[tuple[TablePlan, list[str]] | LoaderError]:
    """Yields each table with notes for the user, or an error if the table cannot be synced.

    Writes nothing.
    """
    if not part.plans:
        return
    where = f"source {part.spec.name}"
    try:
        # Reads the state of one table to check that the store is readable.
        pipeline.open_stores(part.spec).state.latest(part.plans[0].name)
    except Exception as error:
        yield pipeline.redact_error(error, where)
    try:
        with part.source.snapshot([plan.table for plan in part.plans]) as snapshot:
            with step(f"{where}: checking"):
                snapshot.probe()
            if runs_on_cluster(pipeline.spark) and not snapshot.delivers:
                yield from _check_executors(pipeline, part, snapshot)
            for plan in part.plans:
                try:
                    stores = pipeline.open_stores(part.spec)
                    lake = stores.lake
                    with step(f"{plan.name}: checking"):
                        notes = [
                            *describe_masks(plan, stores),
                            *describe_drift(plan, lake),
                            *describe_metadata(plan),
                            *describe_rows(plan, snapshot),
                        ]
                        notes += [
                            *snapshot.list_unmet_requirements(plan.table),
                            *describe_unmoved_cursor(plan, lake),
                            *describe_options(plan, snapshot),
                            *describe_late_rows(plan, snapshot, lake),
                        ]
                    yield plan, notes
                except Exception as error:
                    yield pipeline.redact_error(error, f"table {plan.name}")
    except Exception as error:
        yield pipeline.redact_error(error, where)


def _check_executors(
    pipeline: Pipeline, part: PlannedSource, snapshot: Snapshot
) -> Iterator[LoaderError]:
    """Yields an error if an executor cannot read the source, for example without a JDBC driver."""
    plan = part.plans[0]
    try:
        with step(f"{plan.name}: reading a row in an executor"):
            read_rows(plan, snapshot, pipeline.open_stores(part.spec).lake, 1).collect()
    except Exception as error:
        yield pipeline.redact_error(error, f"table {plan.name}")


def describe_drift(plan: TablePlan, lake: Lake) -> list[str]:
    """Returns a note about the schema changes that the next batch will make in the raw table.

    Raises:
        TableError: if the raw table cannot represent the source's columns, or if the spec forbids
            the change.
    """
    drift = plan_drift(lake, plan.lake_table, plan.table.schema, plan.policy)
    return [f"with the next batch: {'; '.join(drift.notes)}"] if drift.notes else []


def describe_masks(plan: TablePlan, stores: Stores) -> list[str]:
    """Returns a note that lists the masked columns, if any, and warnings about changed masks.

    Raises a TableError if the next sync would fail because masks were changed.
    """
    notes = []
    if isinstance(plan.table, MaskedTable) and plan.table.masks:
        masked = (f"{name} ({mask})" for name, mask in plan.table.masks.items())
        notes.append(f"masked columns: {', '.join(masked)}")
    _, _, state = reconcile_state(plan, stores, Watch())
    check_masks(plan, stores.lake, state, notes.append)
    return notes


def describe_metadata(plan: TablePlan) -> Iterator[str]:
    """Yields notes about likely problems in a table's metadata."""
    if not plan.key:
        why = f" ({plan.table.no_key_reason})" if plan.table.no_key_reason else ""
        yield f"no primary key: rows are appended, but a deduped_latest model needs a key{why}"
        if plan.options.rotation is not None:
            yield "the `reconcile` option has no effect: without a key no rows are compared"
    if plan.follows_log and plan.options.rotation is not None:
        yield "the `reconcile` option has no effect: cdc reads all changes from the log"
    marks = suggest_deletion_columns(plan.table)
    if plan.deleted is None and marks:
        yield f"{marks[0]} may flag deleted rows: set deleted_field to load them as tombstones"
    cursor = plan.cursor
    if cursor is None or plan.mode != INCREMENTAL:
        return
    # PostgreSQL's system column xmin cannot be indexed.
    if plan.table.indexed and cursor.name not in {*plan.table.indexed, "xmin"}:
        yield f"{cursor.name} has no index: every sync scans the whole table"
    if cursor.type is CursorType.DATE:
        yield "a date cursor is coarse: each sync rereads the last day"
    if cursor.collated:
        yield (
            "the database orders this string cursor by a collation: each sync compares its rows "
            "with the whole raw table"
        )
    if cursor.name in plan.key:
        yield "the cursor is part of the key: updates of a row are not detected"


def describe_rows(plan: TablePlan, snapshot: Snapshot) -> Iterator[str]:
    """Yields notes about null cursors, future cursors, and many rows at the highest cursor."""
    if plan.cursor is None or plan.mode != INCREMENTAL:
        return
    name = plan.cursor.name
    window = Window(
        plan.cursor,
        has_lookback=plan.options.lookback is not None,
        slack=find_clock_slack(plan),
    )
    everything = snapshot.bounds(plan.table, window)
    yield from everything.notes
    if everything.nulls:
        consequence = {
            "include": "they are read at every sync",
            "exclude": "they are never read",
            "fail": "the sync will fail",
        }[plan.options.null_cursor]
        null_rows = f"{everything.nulls:,} of {everything.rows:,} rows"
        yield f"{null_rows} have no {name}: {consequence}"
    if everything.future:
        rows = format_count(everything.future, "row is", "rows are")
        yield f"{rows} dated in the future"
    if everything.high is not None:
        at_top = Window(plan.cursor, low=everything.high, nulls=False)
        top = snapshot.bounds(plan.table, at_top)
        has_many = top.rows is not None and top.rows > _MANY_ROWS
        if has_many and snapshot.digest(plan.table, at_top, top.rows) is None:
            yield f"{top.rows:,} rows share the highest {name}: every sync rereads them"


def describe_unmoved_cursor(plan: TablePlan, lake: Lake) -> list[str]:
    """Returns a note if the raw table shows that rows were updated without changing the cursor."""
    cursor = plan.cursor
    if cursor is None or not plan.key or not lake.exists(plan.lake_table):
        return []
    raw = select_own_rows(plan, lake.frame(plan.lake_table))
    if not {cursor.name, *plan.key} <= set(raw.columns):
        return []
    parts = [f.col(quote_name(name)) for name in (GENERATION, *plan.key, cursor.name)]
    versions = raw.groupBy(*parts).agg(f.count_distinct(f.col(HASH)).alias("versions"))
    keys = versions.where("versions > 1").count()
    if not keys:
        return []
    return [
        f"{format_count(keys, 'row was', 'rows were')} updated, but {cursor.name} stayed the same: "
        "such updates are found only if they are at the cursor or within the lookback"
    ]


def describe_options(plan: TablePlan, snapshot: Snapshot) -> list[str]:
    """Returns notes about source options that have no effect or that cause late rows to be missed.

    A row is late if it is committed after a sync has already read rows with higher cursors.
    """
    if plan.cursor is None or plan.mode != INCREMENTAL:
        return []
    return snapshot.list_option_notes(plan.table, plan.cursor)


def describe_late_rows(plan: TablePlan, snapshot: Snapshot, lake: Lake) -> list[str]:
    """Returns a note about rows that syncs may miss if an application's clock is far behind."""
    cursor = plan.cursor
    if cursor is None or not cursor.type.is_time or plan.mode != INCREMENTAL:
        return []
    if not snapshot.finds_late_rows_by_time(plan.table):
        return []
    if find_clock_slack(plan) is None:
        return [
            f"rows whose {cursor.name} an application computed may be missed, because "
            "redelivered_rows: append reads no rows again"
        ]
    slack = plan.options.lookback.text if plan.options.lookback else "5 minutes"
    seen = _describe_seen(plan, lake)
    return [
        f"rows whose {cursor.name} is more than {slack} behind the database's clock may be missed"
        f"{seen and f' ({seen})'}: set a longer lookback if an application writes such times"
    ]


def _describe_seen(plan: TablePlan, lake: Lake) -> str:
    """Describes how late rows in the raw table arrived, and how many have truncated times."""
    cursor = plan.cursor
    if cursor is None or not lake.exists(plan.lake_table) or not lake.exists(LEDGER):
        return ""
    raw = select_own_rows(plan, lake.frame(plan.lake_table))
    if cursor.name not in raw.columns:
        return ""
    stored = f.lag("cursor_high").over(
        Over.partitionBy("table_name").orderBy(
            "started_at", f.col("batch").asc_nulls_last(), "finished_at"
        )
    )
    syncs = (
        lake.frame(LEDGER)
        .where((f.col("table_name") == plan.lake_table) & f.col("source_name").isin(*plan.names))
        .where(f.col("status").isin(SYNCED, RECOVERED, NOTHING_NEW))
        .select(f.col("batch").alias(BATCH), "mode", stored.cast("timestamp").alias("stored"))
        .where(f.col("mode").isin(INCREMENTAL, RECONCILE))
    )
    time = f.col(quote_name(cursor.name)).cast("timestamp").alias("time")
    rows = raw.select(BATCH, time)
    if plan.key and {*plan.key} <= {*raw.columns}:
        # A repair may append a new version of a row without a new cursor. This does not make the
        # row late, so only the first batch with each combination of key and cursor counts.
        keys = [f.col(quote_name(n)).alias(f"_cq_key_{i}") for i, n in enumerate(plan.key)]
        rows = raw.groupBy(*keys, time).agg(f.min(BATCH).alias(BATCH))
    rows = rows.where("time is not null").join(syncs, BATCH, "left")
    seconds = f.unix_micros("time") / 1_000_000
    units = {name: f.count_if(seconds % unit == 0) for unit, name in UNITS.items()}
    late = f.col("time") < f.col("stored")
    [row] = rows.agg(
        f.count("*").alias("rows"),
        f.count_if(late).alias("late"),
        f.max(f.when(late, f.expr("stored - time"))).alias("span"),
        *(count.alias(name) for name, count in units.items()),
    ).collect()
    parts = []
    if row["late"]:
        span = format_duration(row["span"].total_seconds())
        rows_were = format_count(row["late"], "row was", "rows were")
        parts.append(f"{rows_were} up to {span} below the last cursor")
    cut = [name for name in units if row[name] >= max(1, row["rows"] * _MANY_CUT)]
    if cut and cursor.type is not CursorType.DATE:
        parts.append(
            f"{row[cut[-1]]:,} of {row['rows']:,} rows have times truncated to whole {cut[-1]}s"
        )
    return ", ".join(parts)


def discover_tables(
    pipeline: Pipeline, names: Sequence[str]
) -> tuple[list[tuple[str, SourceTable, list[str]]], list[LoaderError], list[LoaderError]]:
    """Lists the tables of each source with their cursor candidates.

    Returns:
        The tables, each with the name of its source and its cursor candidates; the errors; and the
        denials. There is at most one denial per source: an error that lists the tables and views
        that the source's account may not read.
    """
    tables_found: list[tuple[str, SourceTable, list[str]]] = []
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
                tables_found.append((source.name, table, suggest_cursors(table)))
        if denied:
            examples = ", ".join(denied[:10]) + (", …" if len(denied) > 10 else "")
            denials.append(
                TableError(
                    f"its account may not read {len(denied)} of {len(refs)} tables: {examples}",
                    where=where,
                    remedy="Grant it select on the tables that you need",
                )
            )
    return tables_found, errors, denials
