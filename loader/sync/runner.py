"""One run: syncs the tables of all sources in parallel; one that fails stops no other.

Sources of a run that share a raw table take turns: only one may write it at a time. The run takes
its lease once, before it opens any of their snapshots, and releases it after the last turn.
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
from loader.lake.lease import Heartbeat, Lease, acquire_all
from loader.lake.ledger import FAILED, LOCKED, SyncRecord, now
from loader.lake.locks import create_lease
from loader.sources.interface import Bounds, Window
from loader.spec.plugins import SourceSpec
from loader.sync.engine import sync_table
from loader.sync.pipeline import Pipeline, PlannedSource
from loader.sync.plan_window import preview_table
from loader.sync.progress_writer import ProgressWriter
from loader.sync.recover import build_request
from loader.sync.run_context import Watch
from loader.sync.stores import load_progress
from loader.sync.table_plan import INCREMENTAL, TablePlan
from loader.sync.table_sync import TableSync

Work = Callable[[TableSync], SyncRecord | None]

RECORD_SECONDS = 60.0
"""A table that is done waits so long, still locked, for others whose state is written with its."""


_log = logging.getLogger("loader")


@dataclass(frozen=True)
class Outcome:
    """The result of one table's attempt; `error` is None on success."""

    table: str
    record: SyncRecord | None = None
    error: LoaderError | None = None
    source: str = ""


@dataclass(frozen=True)
class Preview:
    """A dry run's result: the window that a sync would read, and its bounds."""

    plan: TablePlan
    window: Window
    bounds: Bounds


_warmed_up = threading.Event()
"""Set once a run of this process has warmed the JVM."""


def run_tables(
    pipeline: Pipeline,
    watch: Watch,
    select: Sequence[str] = (),
    full_refresh: bool = False,
    concurrency: int | None = None,
    work: Work = sync_table,
) -> Iterator[Outcome]:
    """Syncs the selected tables; yields each table's outcome as it ends.

    Args:
        concurrency: how many tables at the same time; None leaves it to the spec.
        work: called for each table, once it is locked and its source is open.

    Raises:
        SpecError: if a selection matches nothing.
    """
    watch.redact = pipeline.spec.redactor.redact
    if not _warmed_up.is_set():
        _warmed_up.set()
        threading.Thread(target=_warm_up, args=(pipeline,), daemon=True).start()
    with pipeline.reuse_connections():
        workers = count_workers(pipeline, concurrency)
        for source, bound in pipeline.sources:
            bound.use_marks(partial(pipeline.find_marks, source))
        parts = pipeline.plan_tables(select, full_refresh, keep=workers)
        yield from _Run(pipeline, watch, work, workers).run(parts)


def preview_tables(
    pipeline: Pipeline, select: Sequence[str], full_refresh: bool
) -> Iterator[Preview | Outcome]:
    """Yields the windows that :func:`run_tables` would read; writes nothing."""
    for part in pipeline.plan_tables(select, full_refresh):
        yield from (Outcome(error.where, error=error) for error in part.problems)
        if not part.plans:
            continue
        try:
            tables = [planned.table for planned in part.plans]
            with part.source.snapshot(tables) as snapshot:
                stores = pipeline.stores(part.spec)
                for planned in part.plans:
                    try:
                        yield Preview(planned, *preview_table(planned, snapshot, stores))
                    except Exception as error:
                        found = pipeline.redact_error(error, f"table {planned.name}")
                        yield Outcome(planned.name, error=found)
        except Exception as error:
            where = f"source {part.spec.name}"
            yield Outcome(where, error=pipeline.redact_error(error, where))


def record_failure(
    pipeline: Pipeline,
    source: SourceSpec,
    table: str,
    error: BaseException,
    run_id: str = "",
    planned: TablePlan | None = None,
    started: dt.datetime | None = None,
) -> Outcome:
    """Writes into the ledger why a table was not synced.

    Args:
        table: its name in the lake.
        run_id: the run's; by default, a new one.
        planned: None if the table was not planned.
        started: by default, now.
    """
    name = f"{source.name}.{table}"
    found = pipeline.redact_error(error, f"table {name}")
    _log.error("%s: %s", name, found)
    record = SyncRecord(
        run_id=run_id or create_run_id(),
        source_name=source.name,
        table_name=table,
        mode=planned.mode if planned else INCREMENTAL,
        cursor_field=planned.cursor.name if planned and planned.cursor else None,
        started_at=started or now(),
        error=str(found)[:2000],
    ).finish(status=LOCKED if isinstance(found, LockedError) else FAILED)
    pipeline.idle_since.pop(record.table, None)
    try:
        pipeline.stores(source).ledger.append(record)
    except Exception as second:
        # The lake itself may have failed. Then the ledger cannot say so; the first error does.
        found.__context__ = second
    return Outcome(name, record, found, source.name)


def create_run_id() -> str:
    """Returns the id of a new run in the ledger."""
    return uuid.uuid4().hex[:12]


def count_workers(pipeline: Pipeline, concurrency: int | None) -> int:
    """Returns how many tables a run syncs at the same time."""
    configured = [source.concurrency for source in pipeline.spec.sources if source.concurrency]
    if concurrency or configured:
        return concurrency or max(configured)
    # A table waits for its database, and for files, about half the time.
    return max(1, min(4, 2 * int(pipeline.spark.sparkContext.defaultParallelism)))


def _warm_up(pipeline: Pipeline) -> None:
    """Warms the JVM in the background during discovery."""
    with suppress(Exception):  # there is no ledger yet, or the error is reported later
        pipeline.stores(pipeline.sources[0][0]).ledger.rehearse()


class _Run:
    """One run over the tables of all sources.

    Args:
        workers: how many tables to sync at the same time.
    """

    def __init__(self, pipeline: Pipeline, watch: Watch, work: Work, workers: int) -> None:
        self.pipeline = pipeline
        self.watch = watch
        self.work = work
        self.workers = workers
        self.id = create_run_id()
        self.writer = ProgressWriter(pipeline.idle_since)
        # Recorded one by one: chunks of a backfill, tables that a drill keeps apart, and batches of
        # sources that share a table, as a batch is in the ledger before the next one begins.
        self.records_together = work is sync_table and not watch.apart
        self.slots = threading.Semaphore(workers)
        self.turns: dict[str, SharedLease] = {}
        self.leases: list[Lease] = []
        self.jobs: list[Future[Outcome | None]] = []

    def run(self, parts: Sequence[PlannedSource]) -> Iterator[Outcome]:
        """Locks and syncs the tables of all sources; yields the outcomes."""
        raw = self.pipeline.raw_table
        sharing = Counter(raw(part.spec, planned) for part in parts for planned in part.plans)
        with (
            ExitStack() as opened,
            Heartbeat(self.leases),
            self.writer.write_remaining(),
            ExitStack() as waiting,
            ThreadPoolExecutor(self.workers) as pool,
        ):
            for part in parts:
                unready = self._prepare(part)
                yield from (
                    Outcome(error.where, error=error, source=part.spec.name)
                    for error in part.errors
                )
                for table, error in part.refused.items():
                    yield record_failure(self.pipeline, part.spec, table, error, self.id)
                if unready is not None:
                    yield from [self._fail(planned, unready) for planned in part.plans]
                    continue
                locks = yield from self._lock_tables(part, sharing, opened)
                if locks:
                    yield from self._begin(part, locks, opened, waiting, pool)
                if self.writer.waiting() > RECORD_SECONDS:
                    yield from self._write_outcomes()
            pending = set(self.jobs)
            while pending:
                done, pending = wait(pending, timeout=RECORD_SECONDS)
                yield from filter(None, (job.result() for job in done))
                yield from self._write_outcomes()

    def _prepare(self, part: PlannedSource) -> LoaderError | None:
        """Prepares a source's stores; returns the error that fails its tables, and no others."""
        try:
            self.pipeline.prepare(part.spec)
        except Exception as problem:
            return self.pipeline.redact_error(problem, f"source {part.spec.name}")
        return None

    def _lock_tables(
        self, part: PlannedSource, sharing: Mapping[str, int], opened: ExitStack
    ) -> Generator[Outcome, None, list[tuple[TablePlan, Lease]]]:
        """Locks a source's tables, all at once; a table that this run already holds, by turns.

        Yields the outcomes of those that cannot be locked.

        Args:
            sharing: how many tables are loaded into each raw table.
        """
        raws = [self.pipeline.raw_table(part.spec, planned) for planned in part.plans]
        own = [self.turns.get(raw) for raw in raws]
        free = [p for p, turns in zip(part.plans, own, strict=True) if turns is None]
        lake = self.pipeline.stores(part.spec).lake
        taken = iter(lock_all(free, lake, self.watch, self.id))
        locks: list[tuple[TablePlan, Lease]] = []
        refused: list[tuple[TablePlan, Exception]] = []
        for planned, raw, turns in zip(part.plans, raws, own, strict=True):
            if turns is not None:
                locks.append((planned, LeaseTurn(turns)))
                continue
            held = next(taken)
            if isinstance(held, Exception):
                refused.append((planned, held))
                continue
            opened.callback(held.release)
            self.leases.append(held)
            if sharing[raw] > 1:
                self.turns[raw] = SharedLease(held, sharing[raw])
                held = LeaseTurn(self.turns[raw])
            locks.append((planned, held))
        for planned, problem in refused:
            yield self._fail(planned, problem)
        return locks

    def _begin(
        self,
        part: PlannedSource,
        locks: Sequence[tuple[TablePlan, Lease]],
        opened: ExitStack,
        waiting: ExitStack,
        pool: ThreadPoolExecutor,
    ) -> Iterator[Outcome]:
        """Opens a source and hands its locked tables to threads; yields what already failed."""
        stores = self.pipeline.stores(part.spec)
        alone = [planned for planned, held in locks if not isinstance(held, LeaseTurn)]
        progress = None
        if self.records_together:
            with suppress(Exception):  # a failed read is each table's own error
                progress = load_progress(alone, stores)
        try:
            snapshot = opened.enter_context(
                part.source.snapshot([planned.table for planned, _ in locks])
            )
            snapshot.use_marks(partial(self.pipeline.find_marks, part.spec))
            if snapshot.delivers and self.work is sync_table:
                # Its tables wait for what comes, each in a thread of its own.
                pool = waiting.enter_context(ThreadPoolExecutor(len(locks)))
                requests = (build_request(planned, stores) for planned, _ in locks)
                snapshot.begin([one for one in requests if one is not None], self.watch)
        except Exception as problem:
            shared = self.pipeline.redact_error(problem, f"source {part.spec.name}")
            for planned, held in locks:
                _unlock(held)
                yield self._fail(planned, shared)
            return
        for planned, held in locks:
            if not planned.key:
                why = f" ({planned.table.keyless})" if planned.table.keyless else ""
                self.watch.warn(planned.name, f"no primary key: a snapshot needs one{why}")
            sync = TableSync(planned, held, snapshot, stores, self.watch, self.id)
            if snapshot.delivers:
                sync = replace(sync, read_slot=self.slots)
            if self.records_together and not isinstance(held, LeaseTurn):
                sync = replace(sync, defer_progress=self.writer.add, progress=progress)
            self.jobs.append(pool.submit(self._work_on, sync))

    def _work_on(self, sync: TableSync) -> Outcome | None:
        """Does the work to one table; its outcome is None if the journal has it."""
        started, planned, held = now(), sync.plan, sync.lease
        source = self.pipeline.spec.source(planned.source)
        try:
            if isinstance(held, LeaseTurn):
                held.acquire()
            # A session of its own: the id of a staged batch is a setting.
            stores = self.pipeline.stores(source, own_session=True)
            stores = replace(stores, confirm=held.confirm)
            with self.pipeline.track_table(planned.name):
                record = self.work(replace(sync, stores=stores))
        except Exception as error:
            sync.snapshot.abandon(planned.table)
            _unlock(held)
            return self._fail(planned, error, started)
        if sync.defer_progress is not None:
            return None
        _unlock(held)
        return _succeed(planned, record)

    def _write_outcomes(self) -> Iterator[Outcome]:
        """Writes state and ledger of the tables that are done; yields their outcomes."""
        for entry in self.writer.write():
            if entry.error is None:
                yield _succeed(entry.sync.plan, entry.total)
            else:
                yield self._fail(entry.sync.plan, entry.error, entry.total.started_at)

    def _fail(
        self, planned: TablePlan, error: BaseException, started: dt.datetime | None = None
    ) -> Outcome:
        source = self.pipeline.spec.source(planned.source)
        table = planned.lake_table
        return record_failure(self.pipeline, source, table, error, self.id, planned, started)


class SharedLease:
    """The turns of a lease.

    Args:
        lease: of the table, taken.
        count: how many sources have a turn.
    """

    def __init__(self, lease: Lease, count: int) -> None:
        self.lease = lease
        self.busy = threading.Lock()
        self._left = count
        self._counting = threading.Lock()

    def done(self) -> None:
        """Releases the lease after the last turn."""
        with self._counting:
            self._left -= 1
            last = self._left == 0
        if last:
            self.lease.release()


class LeaseTurn(Lease):
    """One source's turn, used like a lease: its release ends the turn, the last one the lease."""

    def __init__(self, turns: SharedLease) -> None:
        self.table = turns.lease.table
        self.where = turns.lease.where
        self.run_id = turns.lease.run_id
        self._turns = turns
        self._over = False
        self._mine = False

    def acquire(self, tell: Callable[[str], None] | None = None) -> str | None:
        """Waits for its turn."""
        self._turns.busy.acquire()
        self._mine = True
        return None

    def confirm(self) -> None:
        self._turns.lease.confirm()

    def release(self) -> None:
        """Ends the turn; a second time does nothing."""
        if self._mine:
            self._mine = False
            self._turns.busy.release()
        if not self._over:
            self._over = True
            self._turns.done()


def lock_all(
    plans: Sequence[TablePlan], lake: Lake, watch: Watch, run_id: str
) -> list[Lease | Exception]:
    """Locks tables for this run; returns each table's lock, or the error that kept it.

    Takes all locks in one commit, before the source's snapshot is taken.
    """
    ended: dict[int, Lease | Exception] = {}
    leases: dict[int, Lease] = {}
    for number, plan in enumerate(plans):
        try:
            leases[number] = create_lease(lake, plan.lake_table, f"table {plan.name}", run_id)
        except Exception as problem:
            ended[number] = problem
    names = ", ".join(plan.name for plan in plans[:3]) + (", …" if len(plans) > 3 else "")
    taken = acquire_all(list(leases.values()), lambda text: watch.warn(names, text))
    for (number, lease), outcome in zip(leases.items(), taken, strict=True):
        ended[number] = outcome if isinstance(outcome, Exception) else lease
        if isinstance(outcome, str):
            watch.warn(plans[number].name, outcome)
    return [ended[number] for number in range(len(plans))]


def _succeed(planned: TablePlan, record: SyncRecord | None) -> Outcome:
    if record is not None:
        rows = record.rows_appended or 0
        _log.info("%s: %s, %s rows appended", planned.name, record.status, rows)
    return Outcome(planned.name, record, source=planned.source)


def _unlock(held: Lease) -> None:
    """Unlocks a table, if the catalog that its lock is in can be reached."""
    try:
        held.release()
    except Exception as error:
        _log.warning("%s could not be unlocked: %s", held.where, error)
