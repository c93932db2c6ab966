"""Syncs many tables in parallel. If one table fails, the other tables are still synced.

Sources that share a raw table are synced one after the other, because only one source at a time may
write to the table. The run acquires the table's lease before it opens the snapshot of the first
source, and releases it after the last source.
"""

from __future__ import annotations

import datetime as dt
import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial

from loader.errors import LoaderError, LockedError
from loader.lake.lake import Lake
from loader.lake.ledger import FAILED, LOCKED, SyncRecord, now
from loader.lake.locks import Heartbeat, Lease, acquire_all, create_lease
from loader.sources.interface import Bounds, Window
from loader.spark.error_translation import CatalogLostError, DatabaseError
from loader.spec.plugins import SourceSpec
from loader.sync.pipeline import Pipeline, PlannedSource
from loader.sync.plan_window import preview_table
from loader.sync.progress_writer import ProgressWriter
from loader.sync.protocol import sync_table
from loader.sync.recover import build_request
from loader.sync.run_context import Watch
from loader.sync.stores import Stores, load_progress
from loader.sync.sync_context import SyncContext
from loader.sync.table_plan import INCREMENTAL, TablePlan

Work = Callable[[SyncContext], SyncRecord | None]
ChooseWork = Callable[[SyncContext], Work | None]
"""A function that returns the work for a table, or None to do the run's usual work."""

RECORD_SECONDS = 60.0
"""The maximum time in seconds before the progress of finished tables is written."""


_log = logging.getLogger("loader")


@dataclass(frozen=True)
class Outcome:
    """The result of one table's sync. On success, `error` is None."""

    table: str
    record: SyncRecord | None = None
    error: LoaderError | None = None
    source: str = ""


@dataclass(frozen=True)
class Preview:
    """The result of a dry run: the window that a sync would read, and its bounds."""

    plan: TablePlan
    window: Window
    bounds: Bounds


def run_tables(
    pipeline: Pipeline,
    watch: Watch,
    select: Sequence[str] = (),
    full_refresh: bool = False,
    concurrency: int | None = None,
    work: Work = sync_table,
    choose_work: ChooseWork | None = None,
) -> Iterator[Outcome]:
    """Syncs the selected tables, and yields the outcome of each table when its sync has finished.

    Args:
        concurrency: the number of tables to sync in parallel. The default is the spec's setting.
        work: called for each table after it is locked and its source is open.
        choose_work: returns a function to call instead of `work`, or None. For example,
            :class:`loader.reconcile.rotation.Rotation` reconciles some buckets after the sync.

    Raises:
        SpecError: if a selection matches nothing.
    """
    watch.redact = pipeline.spec.redactor.redact
    with pipeline.reuse_connections():
        workers = count_workers(pipeline, concurrency)
        for source, bound in pipeline.sources:
            bound.use_marks(partial(pipeline.find_marks, source))
        parts = pipeline.plan_tables(select, full_refresh, keep=workers)
        yield from _Run(pipeline, watch, work, workers, choose_work).run(parts)


def preview_tables(
    pipeline: Pipeline, select: Sequence[str], full_refresh: bool
) -> Iterator[Preview | Outcome]:
    """Yields the windows that :func:`run_tables` would read. Writes nothing."""
    for part in pipeline.plan_tables(select, full_refresh):
        yield from (Outcome(error.where, error=error) for error in part.problems)
        if not part.plans:
            continue
        try:
            tables = [plan.table for plan in part.plans]
            with part.source.snapshot(tables) as snapshot:
                stores = pipeline.open_stores(part.spec)
                for plan in part.plans:
                    try:
                        yield Preview(plan, *preview_table(plan, snapshot, stores))
                    except Exception as error:
                        redacted = pipeline.redact_error(error, f"table {plan.name}")
                        yield Outcome(plan.name, error=redacted)
        except Exception as error:
            where = f"source {part.spec.name}"
            yield Outcome(where, error=pipeline.redact_error(error, where))


def record_failure(
    pipeline: Pipeline,
    source: SourceSpec,
    table: str,
    error: BaseException,
    run_id: str = "",
    plan: TablePlan | None = None,
    started: dt.datetime | None = None,
) -> Outcome:
    """Logs a table's error and records it in the ledger.

    Args:
        table: the table's name in the lake.
        plan: the table's plan; None if the table could not be planned.
    """
    name = f"{source.name}.{table}"
    redacted = pipeline.redact_error(error, f"table {name}")
    _log.error("%s: %s", name, redacted)
    record = SyncRecord(
        run_id=run_id or create_run_id(),
        source_name=source.name,
        table_name=table,
        mode=plan.mode if plan else INCREMENTAL,
        cursor_field=plan.cursor.name if plan and plan.cursor else None,
        started_at=started or now(),
        error=str(redacted)[:2000],
    ).finish(status=LOCKED if isinstance(redacted, LockedError) else FAILED)
    pipeline.idle_since.pop(record.table, None)
    try:
        pipeline.open_stores(source).ledger.append(record)
    except Exception as ledger_error:
        # If the lake caused the table's error, recording it fails, too. Show the table's error.
        redacted.__context__ = ledger_error
    return Outcome(name, record, redacted, source.name)


def create_run_id() -> str:
    return uuid.uuid4().hex[:12]


def count_workers(pipeline: Pipeline, concurrency: int | None) -> int:
    """Returns the number of tables that a run syncs in parallel."""
    configured = [source.concurrency for source in pipeline.spec.sources if source.concurrency]
    if concurrency or configured:
        return concurrency or max(configured)
    # A sync spends about half of its time waiting for the database and for files.
    return max(1, min(4, 2 * int(pipeline.spark.sparkContext.defaultParallelism)))


class _Run:
    def __init__(
        self,
        pipeline: Pipeline,
        watch: Watch,
        work: Work,
        workers: int,
        choose_work: ChooseWork | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.watch = watch
        self.work = work
        self.choose_work = choose_work
        self.workers = workers
        self.id = create_run_id()
        self.writer = ProgressWriter(pipeline.idle_since)
        # Backfills, reconciliations and runs with several crash points write their progress
        # immediately. So do sources that share a raw table, because each source reads the previous
        # source's ledger row.
        self.writes_together = work is sync_table and not watch.keeps_tables_apart
        self.slots = threading.Semaphore(workers)
        self.shared_leases: dict[str, SharedLease] = {}
        self.leases: list[Lease] = []
        self.jobs: list[Future[Outcome | None]] = []

    def run(self, parts: Sequence[PlannedSource]) -> Iterator[Outcome]:
        raw = self.pipeline.name_raw_table
        sharing = Counter(raw(part.spec, plan) for part in parts for plan in part.plans)
        with (
            ExitStack() as opened,
            Heartbeat(self.leases),
            self.writer.write_remaining(),
            ExitStack() as waiting,
            ThreadPoolExecutor(self.workers) as pool,
        ):
            for part in parts:
                prepare_error = self._prepare_stores(part)
                yield from (
                    Outcome(error.where, error=error, source=part.spec.name)
                    for error in part.errors
                )
                for table, error in part.refused.items():
                    yield record_failure(self.pipeline, part.spec, table, error, self.id)
                if prepare_error is not None:
                    yield from [self._fail(plan, prepare_error) for plan in part.plans]
                    continue
                locks = yield from self._lock_tables(part, sharing, opened)
                if locks:
                    yield from self._start_source(part, locks, opened, waiting, pool)
                if self.writer.seconds_waiting() > RECORD_SECONDS:
                    yield from self._write_outcomes()
            pending = set(self.jobs)
            while pending:
                done, pending = wait(pending, timeout=RECORD_SECONDS)
                yield from filter(None, (job.result() for job in done))
                yield from self._write_outcomes()

    def _prepare_stores(self, part: PlannedSource) -> LoaderError | None:
        """Prepares a source's stores. Returns None, or an error that applies to all its tables."""
        try:
            self.pipeline.prepare(part.spec)
        except Exception as problem:
            error = self.pipeline.redact_error(problem, f"source {part.spec.name}")
            if isinstance(error, CatalogLostError):
                # This is the first connection to the catalog, so its address may be wrong.
                return DatabaseError(error.what, where=error.where, remedy=error.remedy)
            return error
        return None

    def _lock_tables(
        self, part: PlannedSource, sharing: Mapping[str, int], opened: ExitStack
    ) -> Generator[Outcome, None, list[tuple[TablePlan, Lease]]]:
        """Locks a source's tables in one commit. Reuses the leases of shared tables.

        Yields an outcome for each table that cannot be locked. Returns the locked tables with their
        leases.

        Args:
            sharing: maps each raw table to the number of this run's tables that are loaded into it.
        """
        raws = [self.pipeline.name_raw_table(part.spec, plan) for plan in part.plans]
        shared = [self.shared_leases.get(raw) for raw in raws]
        not_shared = [
            p for p, shared_lease in zip(part.plans, shared, strict=True) if shared_lease is None
        ]
        lake = self.pipeline.open_stores(part.spec).lake
        results = iter(lock_all(not_shared, lake, self.watch, self.id, self.leases))
        locks: list[tuple[TablePlan, Lease]] = []
        refused: list[tuple[TablePlan, Exception]] = []
        for plan, raw, shared_lease in zip(part.plans, raws, shared, strict=True):
            if shared_lease is not None:
                locks.append((plan, LeaseTurn(shared_lease)))
                continue
            lease = next(results)
            if isinstance(lease, Exception):
                refused.append((plan, lease))
                continue
            opened.callback(lease.release)
            if sharing[raw] > 1:
                self.shared_leases[raw] = SharedLease(lease, sharing[raw])
                lease = LeaseTurn(self.shared_leases[raw])
            locks.append((plan, lease))
        for plan, problem in refused:
            yield self._fail(plan, problem)
        return locks

    def _start_source(
        self,
        part: PlannedSource,
        locks: Sequence[tuple[TablePlan, Lease]],
        opened: ExitStack,
        waiting: ExitStack,
        pool: ThreadPoolExecutor,
    ) -> Iterator[Outcome]:
        """Opens a source, and starts syncing its locked tables in threads. Yields only failures."""
        stores = self.pipeline.open_stores(part.spec)
        unshared = [plan for plan, lease in locks if not isinstance(lease, LeaseTurn)]
        progress = None
        if self.writes_together:
            with suppress(Exception):  # each table repeats the read and reports the error
                progress = load_progress(unshared, stores)
        opened_at = now()
        try:
            snapshot = opened.enter_context(part.source.snapshot([plan.table for plan, _ in locks]))
            snapshot.use_marks(partial(self.pipeline.find_marks, part.spec))
            if snapshot.delivers and self.work is sync_table:
                # Each table needs its own thread to wait for the rows that the source pushes.
                pool = waiting.enter_context(ThreadPoolExecutor(len(locks)))
                requests = (build_request(plan, stores) for plan, _ in locks)
                snapshot.begin([request for request in requests if request is not None], self.watch)
        except Exception as problem:
            source_error = self.pipeline.redact_error(problem, f"source {part.spec.name}")
            for plan, lease in locks:
                _unlock(lease)
                yield self._fail(plan, source_error)
            return
        for plan, lease in locks:
            if not plan.key:
                why = f" ({plan.table.no_key_reason})" if plan.table.no_key_reason else ""
                self.watch.warn(
                    plan.name, f"no primary key: a deduped_latest model needs a key{why}"
                )
            sync = SyncContext(plan, lease, snapshot, stores, self.watch, self.id, opened_at)
            if snapshot.delivers:
                sync = replace(sync, read_slot=self.slots)
            if self.writes_together and not isinstance(lease, LeaseTurn):
                sync = replace(sync, defer_progress=self.writer.add, progress=progress)
            self.jobs.append(pool.submit(self._sync_table, sync))

    def _sync_table(self, sync: SyncContext) -> Outcome | None:
        """Syncs one table. Returns None if the outcome depends on progress yet to be written."""
        started, plan, lease = now(), sync.plan, sync.lease
        source = self.pipeline.spec.source(plan.source)
        try:
            if isinstance(lease, LeaseTurn):
                lease.acquire()
            # Uses a separate Spark session, because the id of a staged batch is a session setting.
            with self.pipeline.lend_stores(source) as stores:
                sync = _use_stores(sync, replace(stores, confirm=lease.confirm))
                work = self.choose_work(sync) if self.choose_work is not None else None
                if work is not None:  # may publish several batches, each after a new recovery
                    sync = replace(sync, defer_progress=None, progress=None)
                with self.pipeline.track_table(plan.name):
                    record = (work or self.work)(sync)
        except Exception as error:
            sync.snapshot.abandon(plan.table)
            _unlock(lease)
            return self._fail(plan, error, started)
        if sync.defer_progress is not None:
            return None
        _unlock(lease)
        return _report_success(plan, record)

    def _write_outcomes(self) -> Iterator[Outcome]:
        for entry in self.writer.write():
            if entry.error is None:
                yield _report_success(entry.sync.plan, entry.total)
            else:
                yield self._fail(entry.sync.plan, entry.error, entry.total.started_at)

    def _fail(
        self, plan: TablePlan, error: BaseException, started: dt.datetime | None = None
    ) -> Outcome:
        source = self.pipeline.spec.source(plan.source)
        table = plan.lake_table
        return record_failure(self.pipeline, source, table, error, self.id, plan, started)


class SharedLease:
    """An acquired lease that `count` sources of a run use one after the other."""

    def __init__(self, lease: Lease, count: int) -> None:
        self.lease = lease
        self.busy = threading.Lock()
        self._left = count
        self._count_lock = threading.Lock()

    def end_use(self) -> None:
        """Records that one use has ended, and releases the lease after the last use."""
        with self._count_lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self.lease.release()


class LeaseTurn(Lease):
    """One source's use of a shared lease, with the interface of a lease."""

    def __init__(self, shared: SharedLease) -> None:
        self.table = shared.lease.table
        self.where = shared.lease.where
        self.run_id = shared.lease.run_id
        self._shared = shared
        self._is_released = False
        self._is_acquired = False

    def acquire(self, tell: Callable[[str], None] | None = None) -> str | None:
        """Waits until no other source uses the lease."""
        self._shared.busy.acquire()
        self._is_acquired = True
        return None

    def confirm(self) -> None:
        self._shared.lease.confirm()

    def release(self) -> None:
        """Ends this use. Releases the shared lease after the last use. Idempotent."""
        if self._is_acquired:
            self._is_acquired = False
            self._shared.busy.release()
        if not self._is_released:
            self._is_released = True
            self._shared.end_use()


def lock_all(
    plans: Sequence[TablePlan], lake: Lake, watch: Watch, run_id: str, heartbeat: list[Lease]
) -> list[Lease | Exception]:
    """Locks tables for this run. Returns a lease or an error for each table.

    Acquires all leases in one commit. Call this function before the source's snapshot is opened.

    Args:
        heartbeat: the list of leases for which the run writes heartbeats. The new leases are added
            before this function waits for runs that may be dead. The wait may exceed the heartbeat
            timeout, so without heartbeats, other machines could consider this run dead.
    """
    results: dict[int, Lease | Exception] = {}
    leases: dict[int, Lease] = {}
    for number, plan in enumerate(plans):
        try:
            leases[number] = create_lease(lake, plan.lake_table, f"table {plan.name}", run_id)
        except Exception as problem:
            results[number] = problem
    heartbeat.extend(leases.values())
    label = ", ".join(plan.name for plan in plans[:3]) + (", …" if len(plans) > 3 else "")
    outcomes = acquire_all(list(leases.values()), lambda text: watch.warn(label, text))
    for (number, lease), outcome in zip(leases.items(), outcomes, strict=True):
        results[number] = outcome if isinstance(outcome, Exception) else lease
        if isinstance(outcome, str):
            watch.warn(plans[number].name, outcome)
    return [results[number] for number in range(len(plans))]


def _use_stores(sync: SyncContext, stores: Stores) -> SyncContext:
    """Returns a copy of a sync that uses its thread's stores.

    Deferred progress is written with the whole run's stores, because by then another table may be
    staging rows in this thread's session.
    """
    defer_progress = sync.defer_progress
    if defer_progress is None:
        return replace(sync, stores=stores)
    return replace(
        sync,
        stores=stores,
        defer_progress=lambda _, *progress: defer_progress(sync, *progress),
    )


def _report_success(plan: TablePlan, record: SyncRecord | None) -> Outcome:
    if record is not None:
        rows = record.rows_appended or 0
        _log.info("%s: %s, %s rows appended", plan.name, record.status, rows)
    return Outcome(plan.name, record, source=plan.source)


def _unlock(lease: Lease) -> None:
    """Unlocks a table. Errors, such as an unreachable catalog, are only logged."""
    try:
        lease.release()
    except Exception as error:
        _log.warning("%s could not be unlocked: %s", lease.where, error)
