"""One run: all sources of a spec, their tables side by side, none stopping another."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

from loader.errors import LoaderError, LockedError, SpecError, TableError
from loader.lake.lake import Lake
from loader.lake.lease import Heartbeat, Lease
from loader.lake.ledger import FAILED, LOCKED, Ledger, SyncRecord, now
from loader.problems import did_you_mean
from loader.runtime.failures import clear
from loader.runtime.spark import warm_up
from loader.sources import Bounds, Snapshot, Source, TableRef, Window, connector
from loader.spec.options import TableOptions
from loader.spec.plugins import DestinationSpec, SourceSpec
from loader.spec.spec import Spec
from loader.state import StateBackend
from loader.state.lake_table import LakeState
from loader.state.opening import open_state
from loader.sync.attempt import Attempt
from loader.sync.plan import (
    INCREMENTAL,
    Plan,
    chosen,
    is_wildcard,
    options_for_nothing,
    plan,
)
from loader.sync.protocol import lock_all, preview_table, sync_table
from loader.sync.sharing import Claim, granted, same_shape
from loader.sync.stores import Stores
from loader.sync.turn import Turn, Turns
from loader.sync.watch import Watch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Work = Callable[[Attempt], SyncRecord | None]


_log = logging.getLogger("loader")


@dataclass(frozen=True)
class Outcome:
    """How one table's attempt ended; `error` is None where it did what it should."""

    table: str
    record: SyncRecord | None = None
    error: LoaderError | None = None


@dataclass(frozen=True)
class Preview:
    """What a dry run found: the window that a sync would read, and its rows."""

    plan: Plan
    window: Window
    bounds: Bounds


@dataclass(frozen=True)
class Planned:
    """One source's part of a run.

    Attributes:
        errors: what is wrong with the source as such.
        refused: tables that cannot be synced, by their names in the lake.
    """

    source: Source
    spec: SourceSpec
    plans: list[Plan] = field(default_factory=list)
    errors: list[LoaderError] = field(default_factory=list)
    refused: dict[str, LoaderError] = field(default_factory=dict)

    @property
    def problems(self) -> list[LoaderError]:
        """All errors, each once: tables of one source that is down share theirs."""
        return list({id(e): e for e in (*self.errors, *self.refused.values())}.values())


class Pipeline:
    """A spec bound to a Spark session.

    Attributes:
        accepts_key_change: types of keys and cursors may change as far as raw's columns follow.

    Raises:
        SpecError: where a connector is unknown or its options are wrong.
    """

    def __init__(self, spec: Spec, spark: SparkSession) -> None:
        self.spec = spec
        self.spark = spark
        self.accepts_key_change = False
        self.sources: list[tuple[SourceSpec, Source]] = []
        for source in spec.sources:
            kind = connector(source.path, f"{source.where}.path")
            options = source.options(kind.options_model)
            self.sources.append((source, kind(source.name, options, spark, spec.folder)))
            self.stores(source)  # a missing package or a wrong option is told before all else

    def stores(self, source: SourceSpec, own_session: bool = False) -> Stores:
        """Where a source's tables are written; a thread of its own needs a session of its own.

        Raises:
            SpecError: where the state backend's package is missing, or its options are wrong.
        """
        lake = Lake(self.spark, self.spec.destination(source.destinations[0]).lake.schema_)
        lake = lake.for_thread() if own_session else lake
        return Stores(lake, self._state(source, lake), Ledger(lake))

    def _state(self, source: SourceSpec, lake: Lake) -> StateBackend:
        tables = self.spec.destination(source.destinations[0]).lake

        def kept_in(destination: DestinationSpec) -> Lake:
            state = destination.lake
            if (state.profile, state.target) != (tables.profile, tables.target):
                raise SpecError(
                    f"{destination.name} is of another profile or target than the tables",
                    where=f"{source.where}.backend_options.connection",
                    remedy="One process has one Spark: name a destination of the same target",
                )
            return lake if state.schema_ == lake.schema else Lake(lake.spark, state.schema_)

        return open_state(self.spec, source, kept_in)

    def prepare(self, source: SourceSpec) -> None:
        """Makes a source's namespace, ledger and state where they are not there yet.

        Raises:
            StateError: where the state backend is down, or not to be written.
        """
        stores = self.stores(source)
        stores.lake.prepare()
        stores.ledger.prepare()
        stores.state.prepare()

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
            work: what is done to each table, once it is locked and its source is open.

        Raises:
            SpecError: where a selection matches nothing.
        """
        run_id = uuid.uuid4().hex[:12]
        watch.redact = self.spec.redactor.redact
        warm_up(self.spark)
        parts = self.planned(select, full_refresh)
        leases: list[Lease] = []
        sharing = Counter(self._raw(part.spec, p) for part in parts for p in part.plans)
        turns: dict[str, Turns] = {}
        with (
            ExitStack() as opened,
            Heartbeat(leases),
            ThreadPoolExecutor(self._workers(concurrency)) as pool,
        ):
            jobs = []
            for part in parts:
                unready = self._unready(part.spec)
                yield from (Outcome(error.where, error=error) for error in part.errors)
                for table, error in part.refused.items():
                    yield self._failed(part.spec, table, error, run_id)
                locks: list[tuple[Plan, Lease]] = []
                if unready is not None:
                    for planned in part.plans:
                        yield self._failed(part.spec, planned.lake_table, unready, run_id, planned)
                    continue
                refused: list[tuple[Plan, Exception]] = []
                for planned, held in self._locked(part, turns, watch, run_id):
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
                    yield self._failed(part.spec, planned.lake_table, problem, run_id, planned)
                if not locks:
                    continue
                try:
                    tables = [planned.table for planned, _ in locks]
                    snapshot = opened.enter_context(part.source.snapshot(tables))
                except Exception as problem:
                    shared = self.cleared(problem, f"source {part.spec.name}")
                    for planned, held in locks:
                        held.release()
                        yield self._failed(part.spec, planned.lake_table, shared, run_id, planned)
                    continue
                for planned, held in locks:
                    if not planned.key:
                        watch.warn(planned.name, "no primary key: a snapshot needs one")
                    jobs.append(
                        pool.submit(
                            self._attempt, work, part.spec, planned, held, snapshot, watch, run_id
                        )
                    )
            for job in as_completed(jobs):
                yield job.result()

    def _locked(
        self, part: Planned, turns: Mapping[str, Turns], watch: Watch, run_id: str
    ) -> list[tuple[Plan, Lease | Exception]]:
        """Takes a source's tables, all at once; those that this run holds already, by turns."""
        own = {id(p): turns.get(self._raw(part.spec, p)) for p in part.plans}
        free = [planned for planned in part.plans if own[id(planned)] is None]
        taken = lock_all(free, self.stores(part.spec).lake, watch, run_id)
        ended = {id(planned): held for planned, held in zip(free, taken, strict=True)}
        found: list[tuple[Plan, Lease | Exception]] = []
        for planned in part.plans:
            turn = own[id(planned)]
            found.append((planned, ended[id(planned)] if turn is None else Turn(turn)))
        return found

    def _raw(self, source: SourceSpec, planned: Plan) -> str:
        """The raw table that a plan loads, in lower case."""
        return f"{self._schema(source)}.{planned.lake_table}".lower()

    def _schema(self, source: SourceSpec) -> str:
        return self.spec.destination(source.destinations[0]).lake.schema_

    def _unready(self, source: SourceSpec) -> LoaderError | None:
        """Why nothing of a source can be written; its tables fail, other sources go on."""
        try:
            self.prepare(source)
        except Exception as problem:
            return self.cleared(problem, f"source {source.name}")
        return None

    def _attempt(
        self,
        work: Work,
        source: SourceSpec,
        planned: Plan,
        held: Lease,
        snapshot: Snapshot,
        watch: Watch,
        run_id: str,
    ) -> Outcome:
        started = now()
        try:
            if isinstance(held, Turn):
                held.acquire()
            stores = replace(self.stores(source, own_session=True), confirm=held.confirm)
            record = work(Attempt(planned, held, snapshot, stores, watch, run_id))
            if record is not None:
                rows = record.rows_appended or 0
                _log.info("%s: %s, %s rows appended", planned.name, record.status, rows)
            return Outcome(planned.name, record)
        except Exception as error:
            return self._failed(source, planned.lake_table, error, run_id, planned, started)
        finally:
            held.release()

    def _failed(
        self,
        source: SourceSpec,
        table: str,
        error: BaseException,
        run_id: str,
        planned: Plan | None = None,
        started: dt.datetime | None = None,
    ) -> Outcome:
        name = f"{source.name}.{table}"
        found = self.cleared(error, f"table {name}")
        _log.error("%s: %s", name, found)
        record = SyncRecord(
            run_id=run_id,
            source_name=source.name,
            table_name=table,
            mode=planned.mode if planned else INCREMENTAL,
            cursor_field=planned.cursor.name if planned and planned.cursor else None,
            started_at=started or now(),
            error=str(found)[:2000],
        ).finished(status=LOCKED if isinstance(found, LockedError) else FAILED)
        try:
            self.stores(source).ledger.append(record)
        except Exception as second:
            # The lake itself may be what failed: then the first error says it, and the ledger
            # cannot.
            found.__context__ = second
        return Outcome(name, record, found)

    def preview(self, select: Sequence[str], full_refresh: bool) -> Iterator[Preview | Outcome]:
        """What :meth:`run` would read, without writing anything."""
        for part in self.planned(select, full_refresh):
            yield from (Outcome(error.where, error=error) for error in part.problems)
            if not part.plans:
                continue
            try:
                tables = [planned.table for planned in part.plans]
                with part.source.snapshot(tables) as snapshot:
                    for planned in part.plans:
                        yield self._previewed(part.spec, planned, snapshot)
            except Exception as error:
                where = f"source {part.spec.name}"
                yield Outcome(where, error=self.cleared(error, where))

    def _previewed(
        self, source: SourceSpec, planned: Plan, snapshot: Snapshot
    ) -> Preview | Outcome:
        try:
            window, bounds = preview_table(planned, snapshot, self.stores(source))
            return Preview(planned, window, bounds)
        except Exception as error:
            return Outcome(planned.name, error=self.cleared(error, f"table {planned.name}"))

    def planned(self, select: Sequence[str] = (), full_refresh: bool = False) -> list[Planned]:
        """Every source's tables as its patterns and `select` choose them, and what is wrong.

        Raises:
            SpecError: where a selection matches nothing.
        """
        parts: list[Planned] = []
        seen: list[str] = []
        matched: set[str] = set()
        listed = [self._listed(source, bound) for source, bound in self.sources]
        claims = self._claims(listed)
        for (source, bound), refs in zip(self.sources, listed, strict=True):
            if isinstance(refs, LoaderError):
                down = refs
                named = [n for n in source.tables if not is_wildcard(n)]
                named = [n for n in named if not select or _patterns(f"{source.name}.{n}", select)]
                refused: dict[str, LoaderError] = {TableRef(n).lake_name: down for n in named}
                errors = [] if refused else [down]
                parts.append(Planned(bound, source, errors=errors, refused=refused))
                matched.update(select)  # nobody can say whether it would have matched
                continue
            wanted, missing = chosen(source, refs)
            if select:
                names = {n: f"{source.name}.{n}" for n in (*(r.name for r in wanted), *missing)}
                seen += names.values()
                picked = {n: _patterns(full, select) for n, full in names.items()}
                matched.update(*picked.values())
                wanted = [ref for ref in wanted if picked[ref.name]]
                missing = {n: error for n, error in missing.items() if picked[n]}
            else:
                missing |= options_for_nothing(source, bound.table_options, refs)
            parts.append(self._planned(source, bound, wanted, missing, full_refresh, claims))
        for pattern in select:
            if pattern not in matched:
                raise SpecError(
                    f"no table of the spec is called {pattern!r}",
                    where="--select",
                    remedy=f"{did_you_mean(pattern, seen)} Choose from: "
                    f"{', '.join(sorted(seen)[:20])}".strip(),
                )
        return parts

    def _listed(self, source: SourceSpec, bound: Source) -> list[TableRef] | LoaderError:
        try:
            return bound.tables()
        except Exception as error:
            return self.cleared(error, f"source {source.name}")

    def _claims(
        self, listed: Sequence[list[TableRef] | LoaderError]
    ) -> dict[str, list[tuple[Claim, Source, TableRef]]]:
        """All tables of the spec by the raw table that they are loaded into, in lower case.

        Of a source that is down, the tables that it names.
        """
        found: dict[str, list[tuple[Claim, Source, TableRef]]] = {}
        for (source, bound), refs in zip(self.sources, listed, strict=True):
            if isinstance(refs, LoaderError):
                wanted = [TableRef(name) for name in source.tables if not is_wildcard(name)]
            else:
                wanted, _ = chosen(source, refs)
            for ref in wanted:
                claim = self._claim(source, bound, ref)
                found.setdefault(claim.raw.lower(), []).append((claim, bound, ref))
        return found

    def _claim(self, source: SourceSpec, bound: Source, ref: TableRef) -> Claim:
        shared = options_of(bound, ref).shared
        return Claim(source.name, ref.name, f"{self._schema(source)}.{ref.lake_name}", shared)

    def _planned(
        self,
        source: SourceSpec,
        bound: Source,
        wanted: Sequence[TableRef],
        missing: Mapping[str, TableError],
        full_refresh: bool,
        claims: Mapping[str, Sequence[tuple[Claim, Source, TableRef]]],
    ) -> Planned:
        plans: list[Plan] = []
        errors: list[LoaderError] = []
        refused: dict[str, LoaderError] = {}
        for name, error in missing.items():
            if name in source.tables and not is_wildcard(name):
                refused[TableRef(name).lake_name] = error
            else:
                errors.append(error)
        for ref in wanted:
            where = f"table {source.name}.{ref.name}"
            try:
                planned = plan(
                    source.name, bound.describe(ref), options_of(bound, ref), full_refresh
                )
                self._beside_state(planned, self._schema(source))
                mine = self._claim(source, bound, ref)
                same = claims[mine.raw.lower()]
                planned = replace(
                    planned,
                    accepts_key_change=self.accepts_key_change,
                    formerly=source.formerly,
                    sharers=granted(mine, [claim for claim, _, _ in same]),
                )
                first, other, its_ref = same[0]
                if first.source != source.name:
                    same_shape(planned, _shape_of(first, other, its_ref) or planned)
                plans.append(planned)
            except Exception as problem:
                refused[ref.lake_name] = self.cleared(problem, where)
        return Planned(bound, source, plans, errors, refused)

    @cached_property
    def _state_tables(self) -> dict[tuple[str, str], str]:
        """The tables of the lake that cursors live in, in lower case, each with a source."""
        found: dict[tuple[str, str], str] = {}
        for source, _ in self.sources:
            state = self.stores(source).state
            if isinstance(state, LakeState):
                found.setdefault((state.lake.schema.lower(), state.table.lower()), source.name)
        return found

    def _beside_state(self, planned: Plan, schema: str) -> None:
        """Refuses a raw table that some source's cursors live in.

        Raises:
            TableError: names the source.
        """
        keeper = self._state_tables.get((schema.lower(), planned.lake_table.lower()))
        if keeper is not None:
            raise TableError(
                f"the raw table would be called {planned.lake_table}, as the state table of "
                f"source {keeper}",
                where=f"table {planned.name}",
                remedy=f"Give backend_options.table_name of {keeper} another name",
            )

    def cleared(self, error: BaseException, where: str) -> LoaderError:
        """An error as a user should read it, without secrets."""
        found = clear(error, where)
        hide = self.spec.redactor.redact
        clean = type(found)(hide(found.what), where=hide(found.where), remedy=hide(found.remedy))
        clean.__cause__ = error if found is not error else error.__cause__
        return clean.with_traceback(error.__traceback__)

    def _workers(self, concurrency: int | None) -> int:
        configured = [source.concurrency for source in self.spec.sources if source.concurrency]
        cores = int(self.spark.sparkContext.defaultParallelism)
        return concurrency or max(configured, default=max(1, min(4, cores)))


def options_of(source: Source, ref: TableRef) -> TableOptions:
    """The options of one table; names compare without case, as tables' do."""
    for name, options in source.table_options.items():
        if name.lower() == ref.name.lower():
            return options
    return TableOptions()


def _shape_of(claim: Claim, source: Source, ref: TableRef) -> Plan | None:
    """Another source's table as it would be planned; None where that fails: it says so itself."""
    try:
        return plan(claim.source, source.describe(ref), options_of(source, ref))
    except Exception:
        return None


def _patterns(name: str, select: Sequence[str]) -> set[str]:
    return {p for p in select if fnmatchcase(name.lower(), p.lower())}
