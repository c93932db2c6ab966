"""One run: syncs the tables of all sources in parallel; one that fails stops no other."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

from loader.errors import LoaderError, LockedError
from loader.lake.lease import Heartbeat, Lease
from loader.lake.ledger import FAILED, LOCKED, SyncRecord, now
from loader.names import in_the_lake
from loader.sources import Bounds, Snapshot, Window
from loader.spec.plugins import SourceSpec
from loader.sync.attempt import TableSync
from loader.sync.plan import INCREMENTAL, Plan
from loader.sync.plan_window import preview_table
from loader.sync.prior_progress import StoredProgress, load_progress
from loader.sync.progress_writer import ProgressWriter
from loader.sync.protocol import lock_all, sync_table
from loader.sync.recovery import build_request
from loader.sync.run_context import Watch
from loader.sync.selection import Planned, Selection
from loader.sync.turn import Turn, Turns

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

    plan: Plan
    window: Window
    bounds: Bounds


class Pipeline(Selection):
    """A run of a spec: locks, syncs and reports every table, in parallel."""

    _rehearsed: ClassVar[bool] = False
    """Whether a run of this process has; from then on Java has loaded it."""

    def run(
        self,
        watch: Watch,
        select: Sequence[str],
        full_refresh: bool,
        concurrency: int | None,
        work: Work = sync_table,
    ) -> Iterator[Outcome]:
        """Syncs the selected tables; yields each table's outcome as it ends.

        Args:
            work: called for each table, once it is locked and its source is open.

        Raises:
            SpecError: if a selection matches nothing.
        """
        with self.reuse_connections():
            yield from self._run(watch, select, full_refresh, concurrency, work)

    def _run(
        self,
        watch: Watch,
        select: Sequence[str],
        full_refresh: bool,
        concurrency: int | None,
        work: Work,
    ) -> Iterator[Outcome]:
        run_id = uuid.uuid4().hex[:12]
        watch.redact = self.spec.redactor.redact
        if not Pipeline._rehearsed:
            Pipeline._rehearsed = True
            threading.Thread(target=self._rehearse, daemon=True).start()
        workers = self._workers(concurrency)
        for source, bound in self.sources:
            bound.remembers(partial(self._marks, source))
        parts = self.plan_tables(select, full_refresh, keep=workers)
        leases: list[Lease] = []
        sharing = Counter(self._raw(part.spec, p) for part in parts for p in part.plans)
        turns: dict[str, Turns] = {}
        journal = ProgressWriter(self.quiet)
        # Recorded one by one: chunks of a backfill, tables that a drill keeps apart, and batches of
        # sources that share a table, as a batch is in the ledger before the next one begins.
        together = work is sync_table and not watch.apart
        slots = threading.Semaphore(workers)
        with (
            ExitStack() as opened,
            Heartbeat(leases),
            journal.write_remaining(),
            ExitStack() as waiting,
            ThreadPoolExecutor(workers) as pool,
        ):
            jobs = []
            for part in parts:
                unready = self._unready(part.spec)
                name = part.spec.name
                yield from (Outcome(e.where, error=e, source=name) for e in part.errors)
                for table, error in part.refused.items():
                    yield self._fail(part.spec, table, error, run_id)
                locks: list[tuple[Plan, Lease]] = []
                if unready is not None:
                    for planned in part.plans:
                        yield self._fail(part.spec, planned.lake_table, unready, run_id, planned)
                    continue
                refused: list[tuple[Plan, Exception]] = []
                for planned, held in self._lock_tables(part, turns, watch, run_id):
                    if isinstance(held, Exception):
                        refused.append((planned, held))
                        continue
                    if not isinstance(held, Turn):
                        opened.callback(held.release)
                        leases.append(held)
                        raw = self._raw(part.spec, planned)
                        if sharing[raw] > 1:
                            turns[raw] = Turns(held, sharing[raw])
                            held = Turn(turns[raw])
                    locks.append((planned, held))
                for planned, problem in refused:
                    yield self._fail(part.spec, planned.lake_table, problem, run_id, planned)
                if not locks:
                    continue
                alone = [planned for planned, held in locks if not isinstance(held, Turn)]
                said = self._load_progress(part.spec, alone) if together else None
                try:
                    tables = [planned.table for planned, _ in locks]
                    snapshot = opened.enter_context(part.source.snapshot(tables))
                    snapshot.remembers(partial(self._marks, part.spec))
                    threads = pool
                    if snapshot.delivers and work is sync_table:
                        # Its tables wait for what comes, each in a thread of its own.
                        threads = waiting.enter_context(ThreadPoolExecutor(len(locks)))
                        stores = self.stores(part.spec)
                        wanted = [build_request(planned, stores) for planned, _ in locks]
                        snapshot.begin([one for one in wanted if one is not None], watch)
                except Exception as problem:
                    shared = self.redact_error(problem, f"source {part.spec.name}")
                    for planned, held in locks:
                        _unlock(held)
                        yield self._fail(part.spec, planned.lake_table, shared, run_id, planned)
                    continue
                for planned, held in locks:
                    if not planned.key:
                        why = f" ({planned.table.keyless})" if planned.table.keyless else ""
                        watch.warn(planned.name, f"no primary key: a snapshot needs one{why}")
                    stores = self.stores(part.spec)
                    attempt = TableSync(planned, held, snapshot, stores, watch, run_id)
                    if snapshot.delivers:
                        attempt = replace(attempt, slot=slots)
                    if together and not isinstance(held, Turn):
                        attempt = replace(attempt, journal=journal.add, recorded=said)
                    jobs.append(threads.submit(self._attempt, work, part.spec, attempt))
                if journal.waiting() > RECORD_SECONDS:
                    yield from self._write_outcomes(journal, run_id)
            yield from self._end_jobs(jobs, journal, run_id)

    def _rehearse(self) -> None:
        """Warms the JVM in the background during discovery."""
        with suppress(Exception):  # there is no ledger yet, or the error is reported later
            self.stores(self.sources[0][0]).ledger.rehearse()

    def _end_jobs(
        self, jobs: Iterable[Future[Outcome | None]], journal: ProgressWriter, run_id: str
    ) -> Iterator[Outcome]:
        """The outcome of each table, once its state and its ledger row are written."""
        pending = set(jobs)
        while pending:
            done, pending = wait(pending, timeout=RECORD_SECONDS)
            for job in done:
                outcome = job.result()
                if outcome is not None:
                    yield outcome
            yield from self._write_outcomes(journal, run_id)

    def _write_outcomes(self, journal: ProgressWriter, run_id: str) -> Iterator[Outcome]:
        for entry in journal.write():
            planned, record = entry.attempt.plan, entry.total
            if entry.error is None:
                yield _succeed(planned, record)
                continue
            source = self.spec.source(planned.source)
            began = record.started_at
            yield self._fail(source, planned.lake_table, entry.error, run_id, planned, began)

    def _lock_tables(
        self, part: Planned, turns: Mapping[str, Turns], watch: Watch, run_id: str
    ) -> list[tuple[Plan, Lease | Exception]]:
        """Locks a source's tables, all at once; a table that this run already holds, by turns."""
        own = {id(p): turns.get(self._raw(part.spec, p)) for p in part.plans}
        free = [planned for planned in part.plans if own[id(planned)] is None]
        taken = lock_all(free, self.stores(part.spec).lake, watch, run_id)
        ended = {id(planned): held for planned, held in zip(free, taken, strict=True)}
        found: list[tuple[Plan, Lease | Exception]] = []
        for planned in part.plans:
            turn = own[id(planned)]
            found.append((planned, ended[id(planned)] if turn is None else Turn(turn)))
        return found

    def _marks(self, source: SourceSpec, table: str) -> list[Mapping[str, Any]]:
        """Returns the stored marks of a source's table, whose name may have other capitals.

        If the source has none under its current name, returns those by its earlier names.
        """
        state = self.stores(source).state
        own = f"{source.name}.{in_the_lake(table)}"
        found = [state.read(own)]
        if found == [None]:
            held = sorted({row.key for row in state.rows()})
            for name in (source.name, *source.formerly):
                wanted = f"{name}.{in_the_lake(table)}".lower()
                found = [state.read(key) for key in held if key.lower() == wanted]
                if found:
                    break
        return [one.mark for one in found if one is not None and one.mark is not None]

    def _unready(self, source: SourceSpec) -> LoaderError | None:
        """Prepares a source's stores; returns the error that fails its tables, and no others."""
        try:
            self.prepare(source)
        except Exception as problem:
            return self.redact_error(problem, f"source {source.name}")
        return None

    def _load_progress(self, source: SourceSpec, plans: Sequence[Plan]) -> StoredProgress | None:
        """The stored progress of a source's tables; a failed read is each table's error."""
        try:
            return load_progress(plans, self.stores(source))
        except Exception:
            return None

    def _attempt(self, work: Work, source: SourceSpec, attempt: TableSync) -> Outcome | None:
        """Does the work to one table; its outcome is None if the journal has it."""
        started, planned, held = now(), attempt.plan, attempt.held
        try:
            if isinstance(held, Turn):
                held.acquire()
            # A session of its own: the id of a staged batch is a setting.
            stores = replace(self.stores(source, own_session=True), confirm=held.confirm)
            with self._working(planned.name):
                record = work(replace(attempt, stores=stores))
        except Exception as error:
            attempt.snapshot.abandon(planned.table)
            _unlock(held)
            table, run_id = planned.lake_table, attempt.run_id
            return self._fail(source, table, error, run_id, planned, started)
        if attempt.journal is not None:
            return None
        _unlock(held)
        return _succeed(planned, record)

    def _fail(
        self,
        source: SourceSpec,
        table: str,
        error: BaseException,
        run_id: str,
        planned: Plan | None = None,
        started: dt.datetime | None = None,
    ) -> Outcome:
        name = f"{source.name}.{table}"
        found = self.redact_error(error, f"table {name}")
        _log.error("%s: %s", name, found)
        record = SyncRecord(
            run_id=run_id,
            source_name=source.name,
            table_name=table,
            mode=planned.mode if planned else INCREMENTAL,
            cursor_field=planned.cursor.name if planned and planned.cursor else None,
            started_at=started or now(),
            error=str(found)[:2000],
        ).finish(status=LOCKED if isinstance(found, LockedError) else FAILED)
        self.quiet.pop(record.table, None)
        try:
            self.stores(source).ledger.append(record)
        except Exception as second:
            # The lake itself may have failed. Then the ledger cannot say so; the first error does.
            found.__context__ = second
        return Outcome(name, record, found, source.name)

    def record_failure(self, table: str, error: LoaderError) -> Outcome:
        """Writes into the ledger why a JVM that has ended did not sync a table (`source.table`)."""
        source, _, name = table.partition(".")
        return self._fail(self.spec.source(source), name, error, uuid.uuid4().hex[:12])

    def preview(self, select: Sequence[str], full_refresh: bool) -> Iterator[Preview | Outcome]:
        """Yields the windows that :meth:`run` would read; writes nothing."""
        for part in self.plan_tables(select, full_refresh):
            yield from (Outcome(error.where, error=error) for error in part.problems)
            if not part.plans:
                continue
            try:
                tables = [planned.table for planned in part.plans]
                with part.source.snapshot(tables) as snapshot:
                    for planned in part.plans:
                        yield self._preview(part.spec, planned, snapshot)
            except Exception as error:
                where = f"source {part.spec.name}"
                yield Outcome(where, error=self.redact_error(error, where))

    def _preview(self, source: SourceSpec, planned: Plan, snapshot: Snapshot) -> Preview | Outcome:
        try:
            window, bounds = preview_table(planned, snapshot, self.stores(source))
            return Preview(planned, window, bounds)
        except Exception as error:
            return Outcome(planned.name, error=self.redact_error(error, f"table {planned.name}"))

    def _workers(self, concurrency: int | None) -> int:
        configured = [source.concurrency for source in self.spec.sources if source.concurrency]
        return concurrency or max(configured, default=self._by_cores)

    @cached_property
    def _by_cores(self) -> int:
        # A table waits for its database, and for files, about half the time.
        return max(1, min(4, 2 * int(self.spark.sparkContext.defaultParallelism)))


def _succeed(planned: Plan, record: SyncRecord | None) -> Outcome:
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
