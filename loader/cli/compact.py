"""``loader compact``: upkeep of raw tables, state and ledger."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from loader.cli.system_table_upkeep import (
    VERSIONS,
    list_backends,
    list_system_tables,
)
from loader.errors import LoaderError, SpecError
from loader.names import match_selection
from loader.spark.named_steps import step

if TYPE_CHECKING:
    from loader.cli.console import Output
    from loader.cli.settings import Settings
    from loader.lake.lake import Lake
    from loader.maintenance.compaction import CompactionResult, Raw, Upkeep
    from loader.sync.pipeline import Pipeline


@click.command(short_help="Frees what is no longer needed.")
@click.option(
    "-s",
    "--select",
    multiple=True,
    help="source.table or a wildcard; repeatable. The loader's own tables are compacted only "
    "without it.",
)
@click.option(
    "--keep-versions",
    type=click.IntRange(1),
    metavar="N",
    help="Remove all but the newest N versions of each key; snapshots stay the same.",
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
    help="Drop Iceberg snapshots older than N days, which frees disk space. With 0, running "
    "queries may fail.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed, change nothing.")
@click.pass_obj
def compact(
    settings: Settings,
    select: tuple[str, ...],
    keep_versions: int | None,
    keep_days: int | None,
    expire_days: int,
    dry_run: bool,
) -> None:
    """Frees what raw tables, state and ledger no longer need; loaders may run at the same time.

    By default it removes no rows: it merges small files and drops old Iceberg snapshots, old
    versions of cursors, and files that killed runs left behind. --keep-versions and --keep-days
    also remove versions of rows; with both, a version stays if either keeps it. Snapshot tables,
    histories and redelivery checks give the same results afterwards.
    """
    from loader.cli.settings import open_pipeline_with_served
    from loader.lake.ledger import now
    from loader.maintenance.compaction import Upkeep
    from loader.maintenance.retention import Keep

    output = settings.output
    keep = None
    if keep_versions or keep_days:
        keep = Keep(keep_versions or 1, keep_days)
    upkeep = Upkeep(keep, expire_days, now(), dry_run)
    with open_pipeline_with_served(settings) as pipeline:
        done: list[CompactionResult] = []
        failed = False
        for one in _compact_tables(pipeline, select, upkeep):
            if isinstance(one, LoaderError):
                output.error(one)
                failed = True
            else:
                done.append(one)
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
    lines = [_preview(one) if upkeep.dry_run else _count_freed(one) for one in done]
    if lines:
        kind = "preview" if upkeep.dry_run else "compacted"
        output.table(kind, tuple(lines[0]), [tuple(line.values()) for line in lines])
    if upkeep.keep is None:
        output.say("No row versions were removed: that takes --keep-versions or --keep-days.")


def _count_freed(one: CompactionResult) -> dict[str, object]:
    line: dict[str, object] = {"table": one.table}
    for measure in ("rows", "files", "bytes", "stored"):
        line[f"{measure}_before"] = getattr(one.before, measure)
        line[f"{measure}_after"] = getattr(one.after, measure)
    return {**line, "note": one.note}


def _preview(one: CompactionResult) -> dict[str, object]:
    return {
        "table": one.table,
        "rows": one.before.rows,
        "rows_to_remove": one.removed,
        "files": one.before.files,
        "bytes": one.before.bytes,
        "stored": one.before.stored,
        "snapshots": one.before.snapshots,
        "snapshots_to_expire": one.expired,
        "note": one.note,
    }


def _compact_tables(
    pipeline: Pipeline, select: Sequence[str], upkeep: Upkeep
) -> Iterator[CompactionResult | LoaderError]:
    from loader.lake.system_tables import STATES, name_damage
    from loader.maintenance.compaction import compact_raw, compact_shared, retry_locked_tables
    from loader.maintenance.dependents import Dependent, Unreadable, dependents
    from loader.maintenance.snapshot_expiry import AGE
    from loader.reconcile.verified_buckets import TABLE as RECONCILED
    from loader.reconcile.verified_buckets import Reconciled
    from loader.sync.ingest import prune_states

    known, errors, failed = _find_raw_tables(pipeline, select) if upkeep.keep else ({}, [], set())
    yield from errors
    tables, damaged = _choose_raw_tables(pipeline, select, known, failed)
    yield from damaged.values()
    # A table known to be raw or our own is not a snapshot, even if it cannot be read.
    known_raw = {
        f"{pipeline.stores(pipeline.spec.source(source)).lake.schema}.{table}".lower()
        for source, table in known
    } | {f"{own.lake.schema}.{own.name}".lower() for own in list_system_tables(pipeline)}

    listed: list[Dependent] | None = None
    unreadable: dict[str, Unreadable] = {}

    def compacted(table: tuple[Lake, Raw]) -> CompactionResult:
        lake, one = table

        def readers() -> list[Dependent]:
            nonlocal listed
            # Compaction takes time and models may be built in it: only a dry run lists once.
            if listed is None or not upkeep.dry_run:
                try:
                    listed = dependents(lake, known_raw)
                except Unreadable as problem:
                    unreadable[problem.where] = problem
                    raise
            return listed

        with step(f"{one.name}: compacting"):
            return compact_raw(lake, one, upkeep, readers)

    for (_, raw), outcome in retry_locked_tables(tables, compacted):
        if isinstance(outcome, Exception):
            yield pipeline.redact_error(outcome, f"table {raw.name}")
        else:
            yield outcome
    for problem in unreadable.values():
        yield pipeline.redact_error(problem, problem.where)
    if select:
        return
    if not upkeep.dry_run:
        from loader.lake.locks import sweep_owners

        for lake in {lake.schema: lake for lake, _ in tables}.values():
            sweep_owners(lake, AGE.total_seconds())
        for shared in list_backends(pipeline):
            try:
                shared.prune(VERSIONS)
            except Exception as problem:
                yield pipeline.redact_error(problem, f"state of {', '.join(shared.sources)}")
    for own in list_system_tables(pipeline):
        lake, where = own.lake, f"table {own.lake.schema}.{own.name}"
        if where in damaged:
            continue
        try:
            with (
                step(f"{lake.schema}.{own.name}: compacting"),
                name_damage(lake, own.name, own.remedy),
            ):
                if not lake.exists(own.name):
                    continue
                if own.name == RECONCILED and not upkeep.dry_run:
                    Reconciled(lake).prune(VERSIONS)
                if own.name == STATES and not upkeep.dry_run:
                    prune_states(lake, VERSIONS)
                done = compact_shared(lake, own.name, upkeep, own.order)
            yield done
        except Exception as problem:
            yield pipeline.redact_error(problem, where)


def _find_raw_tables(
    pipeline: Pipeline, select: Sequence[str]
) -> tuple[dict[tuple[str, str], Raw], list[LoaderError], set[str]]:
    """Returns the spec's tables, with their keys, by source and lake table; and the errors.

    Also the sources that have described none of their tables, as they are down.
    """
    from loader.maintenance.compaction import Raw

    found, errors, failed = {}, [], set()
    for part in pipeline.plan_tables(select):
        errors += part.problems
        if part.problems and not part.plans:
            failed.add(part.spec.name)
        for plan in part.plans:
            cursor = plan.cursor.name if plan.cursor else None
            raw = Raw(plan.lake_table, plan.name, plan.key, cursor, known=True)
            found[plan.source, plan.lake_table] = raw
    return found, errors, failed


def _choose_raw_tables(
    pipeline: Pipeline,
    select: Sequence[str],
    known: dict[tuple[str, str], Raw],
    failed: set[str],
) -> tuple[list[tuple[Lake, Raw]], dict[str, LoaderError]]:
    """Returns the raw tables of the spec's sources, each once; and errors for unreadable ones."""
    from loader.lake.raw_table import list_raw_tables
    from loader.maintenance.compaction import Raw
    from loader.sync.ownership import is_loaded_by

    found: dict[tuple[str, str], tuple[Lake, Raw]] = {}
    errors: dict[str, LoaderError] = {}
    for source, _ in pipeline.sources:
        lake = pipeline.stores(source).lake
        tables, unreadable = list_raw_tables(lake)
        for table in (*tables, *unreadable):
            name = f"{source.name}.{table}"
            if select and not match_selection(name, select):
                continue
            try:
                if table in unreadable:
                    raise unreadable[table]
                # A table that sources share is compacted once, for all of them.
                if is_loaded_by(lake, table, (source.name, *source.formerly)):
                    why = "its source cannot be read" if source.name in failed else Raw.why
                    raw = known.get((source.name, table)) or Raw(table, name, why=why)
                    found.setdefault((lake.schema, table), (lake, raw))
            except Exception as problem:
                where = f"table {lake.schema}.{table}"
                errors.setdefault(where, pipeline.redact_error(problem, where))
    return list(found.values()), errors
