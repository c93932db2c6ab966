"""``loader compact``: removes what raw tables, state and ledger no longer need."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from loader.cli.console import Output
from loader.cli.options import complete_tables
from loader.cli.settings import Settings, open_pipeline_with_pushed_tables
from loader.cli.system_table_upkeep import (
    VERSIONS,
    list_backends,
    list_system_tables,
)
from loader.errors import LoaderError, SpecError
from loader.names import match_selection
from loader.spark.named_steps import step

if TYPE_CHECKING:
    from loader.lake.lake import Lake
    from loader.maintenance.compaction import CompactionResult, Raw, Upkeep
    from loader.sync.pipeline import Pipeline


@click.command(short_help="Frees space in raw tables, state and ledger.")
@click.option(
    "-s",
    "--select",
    multiple=True,
    help="source.table or a wildcard; repeatable. Without it, the loader's own tables are "
    "also compacted.",
    shell_complete=complete_tables,
)
@click.option(
    "--keep-versions",
    type=click.IntRange(1),
    metavar="N",
    help="Remove all but the newest N versions of each key. Latest tables do not change.",
)
@click.option(
    "--keep-days",
    type=click.IntRange(1),
    metavar="N",
    help="Remove superseded versions that arrived more than N days ago.",
)
@click.option(
    "--expire-days",
    type=click.IntRange(0),
    default=5,
    show_default=True,
    metavar="N",
    help="Expire Iceberg snapshots older than N days, which frees disk space. With 0, running "
    "queries may fail.",
)
@click.option("--dry-run", is_flag=True, help="Show the rows and files to remove, change nothing.")
@click.pass_obj
def compact(
    settings: Settings,
    select: tuple[str, ...],
    keep_versions: int | None,
    keep_days: int | None,
    expire_days: int,
    dry_run: bool,
) -> None:
    """Frees space in raw tables, state and ledger; loaders may run at the same time.

    By default it removes no rows: it merges small files, and removes old Iceberg snapshots, old
    versions of cursors, and files that killed runs left. --keep-versions and --keep-days also
    remove old row versions; with both, a version is kept if either option keeps it. Latest tables
    and histories do not change.
    """
    from loader.lake.ledger import now
    from loader.maintenance.compaction import Upkeep
    from loader.maintenance.superseded_versions import Keep

    output = settings.output
    keep = None
    if keep_versions or keep_days:
        keep = Keep(keep_versions or 1, keep_days)
    upkeep = Upkeep(keep, expire_days, now(), dry_run)
    with open_pipeline_with_pushed_tables(settings) as pipeline:
        done: list[CompactionResult] = []
        failed = False
        for result in _compact_tables(pipeline, select, upkeep):
            if isinstance(result, LoaderError):
                output.error(result)
                failed = True
            else:
                done.append(result)
        if not done and not failed:
            raise SpecError(
                "there is no such raw table" if select else "there is no raw table yet",
                where="loader compact",
                remedy="`loader run` creates them",
            )
        _report(output, done, upkeep)
        if failed:
            sys.exit(LoaderError.exit_code)


def _report(output: Output, done: Sequence[CompactionResult], upkeep: Upkeep) -> None:
    lines = [_preview(each) if upkeep.dry_run else _count_freed(each) for each in done]
    if lines:
        kind = "preview" if upkeep.dry_run else "compacted"
        rows = [tuple(line.values()) for line in lines]
        output.table(kind, tuple(lines[0]), rows, below="note")
    if upkeep.keep is None:
        output.say("No row versions were removed: use --keep-versions or --keep-days for that.")


def _count_freed(result: CompactionResult) -> dict[str, object]:
    line: dict[str, object] = {"table": result.table}
    for measure in ("rows", "files", "bytes", "stored"):
        line[f"{measure}_before"] = getattr(result.before, measure)
        line[f"{measure}_after"] = getattr(result.after, measure)
    return {**line, "note": result.note}


def _preview(result: CompactionResult) -> dict[str, object]:
    return {
        "table": result.table,
        "rows": result.before.rows,
        "rows_to_remove": result.removed,
        "files": result.before.files,
        "bytes": result.before.bytes,
        "stored": result.before.stored,
        "snapshots": result.before.snapshots,
        "snapshots_to_expire": result.expired,
        "note": result.note,
    }


def _compact_tables(
    pipeline: Pipeline, select: Sequence[str], upkeep: Upkeep
) -> Iterator[CompactionResult | LoaderError]:
    from loader.lake.locks import delete_old_records, retry_locked_tables
    from loader.lake.system_tables import STATES, report_damage
    from loader.maintenance.compaction import compact_raw, compact_system_table
    from loader.maintenance.dependents import Dependent, UnreadableTableError, find_dependents
    from loader.maintenance.snapshot_expiry import ORPHAN_AGE
    from loader.reconcile.history import TABLE as RECONCILED
    from loader.reconcile.history import VerificationHistory
    from loader.sync.ingest import prune_states

    planned, errors, failed = _plan_raw_tables(pipeline, select) if upkeep.keep else ({}, [], set())
    yield from errors
    tables, damaged = _list_raw_tables(pipeline, select, planned, failed)
    yield from damaged.values()
    # No model builds a raw table or a system table, so the search for models skips these tables.
    known_raw = {
        f"{pipeline.open_stores(pipeline.spec.source(source)).lake.schema}.{table}".lower()
        for source, table in planned
    } | {f"{own.lake.schema}.{own.name}".lower() for own in list_system_tables(pipeline)}

    listed: list[Dependent] | None = None
    unreadable: dict[str, UnreadableTableError] = {}
    numbers: dict[str, int] = {}  # a locked table is retried under the same number

    def compact_table(table: tuple[Lake, Raw]) -> CompactionResult:
        lake, raw = table

        def list_readers() -> list[Dependent]:
            nonlocal listed
            # Other processes may build models during compaction, so the list of models is read
            # again for each table, except in a dry run.
            if listed is None or not upkeep.dry_run:
                try:
                    listed = find_dependents(lake, known_raw)
                except UnreadableTableError as error:
                    unreadable[error.where] = error
                    raise
            return listed

        numbers.setdefault(raw.name, len(numbers) + 1)
        with step(f"{raw.name}: compacting, table {numbers[raw.name]} of {len(tables)}"):
            return compact_raw(lake, raw, upkeep, list_readers)

    for (_, raw), outcome in retry_locked_tables(tables, compact_table):
        if isinstance(outcome, Exception):
            yield pipeline.redact_error(outcome, f"table {raw.name}")
        else:
            yield outcome
    for error in unreadable.values():
        yield pipeline.redact_error(error, error.where)
    if select:
        return
    if not upkeep.dry_run:
        for lake in {lake.schema: lake for lake, _ in tables}.values():
            delete_old_records(lake, ORPHAN_AGE.total_seconds())
        for shared in list_backends(pipeline):
            try:
                shared.prune(VERSIONS)
            except Exception as error:
                yield pipeline.redact_error(error, f"state of {', '.join(shared.sources)}")
    for own in list_system_tables(pipeline):
        lake, where = own.lake, f"table {own.lake.schema}.{own.name}"
        if where in damaged:
            continue
        try:
            with (
                step(f"{lake.schema}.{own.name}: compacting"),
                report_damage(lake, own.name, own.remedy),
            ):
                if not lake.exists(own.name):
                    continue
                if own.name == RECONCILED and not upkeep.dry_run:
                    VerificationHistory(lake).prune(VERSIONS)
                if own.name == STATES and not upkeep.dry_run:
                    prune_states(lake, VERSIONS)
                done = compact_system_table(lake, own.name, upkeep, own.order)
            yield done
        except Exception as error:
            yield pipeline.redact_error(error, where)


def _plan_raw_tables(
    pipeline: Pipeline, select: Sequence[str]
) -> tuple[dict[tuple[str, str], Raw], list[LoaderError], set[str]]:
    """Plans the spec's tables to find their keys.

    Returns the raw tables, keyed by source and lake table, the errors, and the names of the sources
    for which nothing could be planned.
    """
    from loader.maintenance.compaction import Raw

    planned, errors, failed = {}, [], set()
    for part in pipeline.plan_tables(select):
        errors += part.problems
        if part.problems and not part.plans:
            failed.add(part.spec.name)
        for plan in part.plans:
            cursor = plan.cursor.name if plan.cursor else None
            raw = Raw(plan.lake_table, plan.name, plan.key, cursor, known=True)
            planned[plan.source, plan.lake_table] = raw
    return planned, errors, failed


def _list_raw_tables(
    pipeline: Pipeline,
    select: Sequence[str],
    planned: dict[tuple[str, str], Raw],
    failed: set[str],
) -> tuple[list[tuple[Lake, Raw]], dict[str, LoaderError]]:
    from loader.lake.raw_table import list_raw_tables
    from loader.maintenance.compaction import Raw
    from loader.sync.ownership import is_loaded_by

    by_name: dict[tuple[str, str], tuple[Lake, Raw]] = {}
    errors: dict[str, LoaderError] = {}
    for source, _ in pipeline.sources:
        lake = pipeline.open_stores(source).lake
        tables, unreadable = list_raw_tables(lake)
        for table in (*tables, *unreadable):
            name = f"{source.name}.{table}"
            if select and not match_selection(name, select):
                continue
            try:
                if table in unreadable:
                    raise unreadable[table]
                # A table that several sources share is compacted only once.
                if is_loaded_by(lake, table, (source.name, *source.formerly)):
                    why = "its source cannot be read" if source.name in failed else Raw.why
                    raw = planned.get((source.name, table)) or Raw(table, name, why=why)
                    by_name.setdefault((lake.schema, table), (lake, raw))
            except Exception as error:
                where = f"table {lake.schema}.{table}"
                errors.setdefault(where, pipeline.redact_error(error, where))
    return list(by_name.values()), errors
