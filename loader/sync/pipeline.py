"""Selects and plans the tables that a run syncs, by the spec and ``--select``; collects errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from loader.error_report import did_you_mean
from loader.errors import JavaEndedError, LoaderError, SpecError, TableError
from loader.lake.lake import Lake
from loader.lake.ledger import Ledger
from loader.names import in_the_lake, is_wildcard, match_selection, qualify
from loader.sources.entry_points import find_connector
from loader.sources.interface import Source, TableRef
from loader.spark.error_translation import clear
from loader.spark.jvm_exit import has_java_ended
from loader.spark.named_steps import step
from loader.spec.options import TableOptions, options_for
from loader.spec.plugins import DestinationSpec, SourceSpec
from loader.spec.spec import Spec
from loader.state import StateBackend
from loader.state.lake_table import LakeState
from loader.state.opening import open_state
from loader.sync.ownership import Claim, check_same_shape, find_takeovers, list_sharers
from loader.sync.stores import Stores
from loader.sync.table_plan import NoCursorError, TablePlan, plan_table
from loader.sync.table_selection import describe_tables, match_tables, options_for_nothing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class PlannedSource:
    """One source's part of a run.

    Attributes:
        errors: the errors of the source itself.
        refused: why tables cannot be synced, by their names in the lake.
    """

    source: Source
    spec: SourceSpec
    plans: list[TablePlan] = field(default_factory=list)
    errors: list[LoaderError] = field(default_factory=list)
    refused: dict[str, LoaderError] = field(default_factory=dict)

    @property
    def problems(self) -> list[LoaderError]:
        """All errors, each once: the tables of a source that is down share one."""
        return list({id(e): e for e in (*self.errors, *self.refused.values())}.values())


class Pipeline:
    """A spec bound to a Spark session: its sources, their destinations and tables.

    Attributes:
        accepts_key_change: key and cursor columns may change their type if raw can follow.
        paused_sources: names of sources that this run skips.
        idle_since: for each source and table, when this process last recorded that it found
            nothing new.
        unreadable: errors of tables that cannot be read and that `loader serve` may have written.
        planned_names: the tables that this run selected, as `source.table`.
        tables_in_progress: the tables on which this run has begun and not finished work. If the
            JVM has exited, one of them may be the cause.
        fatal_source: the source whose tables were being listed when the JVM exited, or empty.

    Raises:
        SpecError: if a connector is unknown or its options are wrong.
    """

    def __init__(self, spec: Spec, spark: SparkSession) -> None:
        self.spec = spec
        self.spark = spark
        self.accepts_key_change = False
        self.paused_sources: frozenset[str] = frozenset()
        self.idle_since: dict[tuple[str, str], float] = {}
        self.unreadable: list[LoaderError] = []
        self.planned_names: set[str] = set()
        self.tables_in_progress: set[str] = set()
        self.fatal_source = ""
        self._lakes: dict[str, Lake] = {}  # by schema: what those of the threads are made from
        self.sources: list[tuple[SourceSpec, Source]] = []
        for source in spec.sources:
            kind = find_connector(source.path, f"{source.where}.path")
            options = source.options(kind.options_model)
            bound = kind(source.name, options, spark, spec.folder)
            bound.hide = spec.redactor.add
            self.sources.append((source, bound))
            self.stores(source)  # reports a missing package or a wrong option before anything else

    def stores(self, source: SourceSpec, own_session: bool = False) -> Stores:
        """Opens a source's stores; a worker thread needs its own session.

        Raises:
            SpecError: if the state backend's package is missing, or its options are wrong.
        """
        lake = Lake(self.spark, self.spec.schema_of(source))
        if own_session:
            lake = self._lakes.setdefault(lake.schema, lake).for_thread()
        return Stores(lake, self._state(source, lake), Ledger(lake))

    def _state(self, source: SourceSpec, lake: Lake) -> StateBackend:
        tables = self.spec.destination(source.destinations[0]).lake

        def kept_in(destination: DestinationSpec) -> Lake:
            state = destination.lake
            if (state.profile, state.target) != (tables.profile, tables.target):
                raise SpecError(
                    f"{destination.name} has another profile or target than the tables",
                    where=f"{source.where}.backend_options.connection",
                    remedy="One process has one Spark: name a destination with the same target",
                )
            schema = self.spec.state_schema_of(source) or lake.schema
            return lake if schema == lake.schema else Lake(lake.spark, schema)

        return open_state(self.spec, source, kept_in)

    def prepare(self, source: SourceSpec) -> None:
        """Creates a source's namespace, ledger and state if they do not exist yet.

        Raises:
            StateError: if the state backend is down, or cannot be written to.
        """
        stores = self.stores(source)
        stores.ledger.prepare()
        stores.state.prepare()

    def plan_tables(
        self, select: Sequence[str] = (), full_refresh: bool = False, keep: int = 1
    ) -> list[PlannedSource]:
        """Plans every source's tables that its patterns and `select` choose; collects errors.

        Args:
            keep: how many connections to each source stay open, if the run needs them again.

        Raises:
            SpecError: if a selection matches nothing.
        """
        with self.reuse_connections(keep):
            return self._plan_sources(select, full_refresh)

    @contextmanager
    def reuse_connections(self, keep: int = 1) -> Iterator[None]:
        """Reuses the sources' connections for all queries within the block.

        Args:
            keep: how many of each stay open within such a block.
        """
        with ExitStack() as asked:
            for source, bound in self.sources:
                asked.enter_context(bound.reuse_connections(min(keep, source.concurrency or keep)))
            yield

    def _plan_sources(self, select: Sequence[str], full_refresh: bool) -> list[PlannedSource]:
        parts: list[PlannedSource] = []
        seen: list[str] = []
        matched: set[str] = set()
        listed = [self._list_tables(source, bound) for source, bound in self.sources]
        claims = self._claims(listed)
        listing = (claim for same in claims.values() for claim, _, _ in same)
        select = qualify(select, (f"{claim.source}.{claim.table}" for claim in listing))
        for (source, bound), refs in zip(self.sources, listed, strict=True):
            if source.name in self.paused_sources:
                matched.update(select)
                continue
            if isinstance(refs, LoaderError):
                down = refs
                named = [n for n in source.tables if not is_wildcard(n)]
                named = [
                    n for n in named if not select or match_selection(f"{source.name}.{n}", select)
                ]
                refused: dict[str, LoaderError] = {TableRef(n).lake_name: down for n in named}
                errors = [] if refused else [down]
                parts.append(PlannedSource(bound, source, errors=errors, refused=refused))
                matched.update(select)  # they might have matched its tables
                continue
            wanted, missing = match_tables(source, refs)
            names_of, other = (source.name, *source.formerly), full_refresh and bool(select)
            try:
                lake = self.stores(source).lake
                taken = find_takeovers(lake, names_of, wanted, refs, other)
            except Exception as error:
                down = self.redact_error(error, f"source {source.name}")
                parts.append(PlannedSource(bound, source, errors=[down]))
                matched.update(select)
                continue
            if select:
                names = {n: f"{source.name}.{n}" for n in (*(r.name for r in wanted), *missing)}
                seen += names.values()
                picked = {n: match_selection(full, select) for n, full in names.items()}
                matched.update(*picked.values())
                wanted = [ref for ref in wanted if picked[ref.name]]
                missing = {n: error for n, error in missing.items() if picked[n]}
            else:
                missing |= options_for_nothing(source, bound.table_options, refs)
            parts.append(
                self._plan_table(source, bound, wanted, missing, full_refresh, other, claims, taken)
            )
        for pattern in select:
            if pattern not in matched:
                raise SpecError(
                    f"no table of the spec is called {pattern!r}",
                    where="--select",
                    remedy=f"{did_you_mean(pattern, seen)} Choose from: "
                    f"{', '.join(sorted(seen)[:20])}".strip(),
                )
        return parts

    def _list_tables(self, source: SourceSpec, bound: Source) -> list[TableRef] | LoaderError:
        if source.name in self.paused_sources:
            return TableError("this run leaves it out", where=f"source {source.name}")
        java_ran = not has_java_ended()
        try:
            with step(f"source {source.name}: listing its tables"):
                return bound.tables()
        except Exception as error:
            found = self.redact_error(error, f"source {source.name}")
            if java_ran and isinstance(found, JavaEndedError):
                self.fatal_source = source.name
            return found

    def _claims(
        self, listed: Sequence[list[TableRef] | LoaderError]
    ) -> dict[str, list[tuple[Claim, Source, TableRef]]]:
        """Groups the spec's tables by the raw table that they are loaded into, in lower case.

        For a source that is down, only the tables that the spec names.
        """
        found: dict[str, list[tuple[Claim, Source, TableRef]]] = {}
        for (source, bound), refs in zip(self.sources, listed, strict=True):
            if isinstance(refs, LoaderError):
                wanted = [TableRef(name) for name in source.tables if not is_wildcard(name)]
            else:
                wanted, _ = match_tables(source, refs)
            for ref in wanted:
                claim = self._claim(source, bound, ref)
                found.setdefault(claim.raw.lower(), []).append((claim, bound, ref))
        return found

    def _claim(self, source: SourceSpec, bound: Source, ref: TableRef) -> Claim:
        shared = options_of(bound, ref).shared
        return Claim(
            source.name, ref.name, f"{self.spec.schema_of(source)}.{ref.lake_name}", shared
        )

    def _plan_table(
        self,
        source: SourceSpec,
        bound: Source,
        wanted: Sequence[TableRef],
        missing: Mapping[str, TableError],
        full_refresh: bool,
        accepts_other_origin: bool,
        claims: Mapping[str, Sequence[tuple[Claim, Source, TableRef]]],
        taken: Mapping[tuple[str, str], TableError],
    ) -> PlannedSource:
        plans: list[TablePlan] = []
        errors: list[LoaderError] = []
        refused: dict[str, LoaderError] = {}
        for name, error in missing.items():
            if name in source.tables and not is_wildcard(name):
                refused[TableRef(name).lake_name] = error
            else:
                errors.append(error)
        self.planned_names.update(f"{source.name}.{ref.lake_name}" for ref in wanted)
        free = [ref for ref in wanted if ref.key not in taken]
        synced = {ref.lake_name.lower() for ref in free}
        for ref in wanted:
            if ref.key in taken and ref.lake_name.lower() in synced:
                errors.append(taken[ref.key])  # the other one is synced
            elif ref.key in taken:
                refused[ref.lake_name] = taken[ref.key]
        wanted = free
        lacking: dict[str, NoCursorError] = {}
        tables = describe_tables(bound, wanted, source.concurrency, self.track_table)
        for ref, table in zip(wanted, tables, strict=True):
            where = f"table {source.name}.{ref.name}"
            try:
                if isinstance(table, Exception):
                    raise table
                planned = plan_table(source.name, table, options_of(bound, ref), full_refresh)
                self._beside_state(planned, self.spec.schema_of(source))
                mine = self._claim(source, bound, ref)
                same = claims[mine.raw.lower()]
                planned = replace(
                    planned,
                    accepts_key_change=self.accepts_key_change,
                    accepts_other_origin=accepts_other_origin,
                    formerly=source.formerly,
                    sharers=list_sharers(mine, [claim for claim, _, _ in same]),
                )
                first, other, its_ref = same[0]
                if first.source != source.name and first.source not in self.paused_sources:
                    check_same_shape(planned, _shape_of(first, other, its_ref) or planned)
                names = (planned.name, planned.lake_table, *planned.name.split("."))
                self.spec.redactor.keep_readable(*names)
                plans.append(planned)
            except NoCursorError as problem:
                lacking[ref.name] = problem
            except Exception as problem:
                refused[ref.lake_name] = self.redact_error(problem, where)
        if len(lacking) > 1:
            together = NoCursorError.of_all(lacking, source.name, bound.any_cursor)
            lacking = dict.fromkeys(lacking, together)
        cleared = {id(error): self.redact_error(error, error.where) for error in lacking.values()}
        refused |= {TableRef(name).lake_name: cleared[id(e)] for name, e in lacking.items()}
        return PlannedSource(bound, source, plans, errors, refused)

    def find_marks(self, source: SourceSpec, table: str) -> list[Mapping[str, Any]]:
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

    @contextmanager
    def track_table(self, name: str) -> Iterator[None]:
        """Notes that a table is being worked on; after an error, it stays noted."""
        if not has_java_ended():
            self.tables_in_progress.add(name)
        yield
        self.tables_in_progress.discard(name)

    @cached_property
    def _state_tables(self) -> dict[tuple[str, str], str]:
        """The lake's state tables: schema and name in lower case, each with a source."""
        found: dict[tuple[str, str], str] = {}
        for source, _ in self.sources:
            state = self.stores(source).state
            if isinstance(state, LakeState):
                found.setdefault((state.lake.schema.lower(), state.table.lower()), source.name)
        return found

    def _beside_state(self, planned: TablePlan, schema: str) -> None:
        """Refuses a raw table that has the name of some source's state table.

        Raises:
            TableError: if it has; names the source.
        """
        keeper = self._state_tables.get((schema.lower(), planned.lake_table.lower()))
        if keeper is not None:
            raise TableError(
                f"the raw table would be called {planned.lake_table}, like the state table of "
                f"source {keeper}",
                where=f"table {planned.name}",
                remedy=f"Give backend_options.table_name of {keeper} another name",
            )

    def redact_error(self, error: BaseException, where: str) -> LoaderError:
        """Returns an error as a user should read it, without secrets."""
        found = clear(error, where)
        hide = self.spec.redactor.redact
        clean = type(found)(hide(found.what), where=hide(found.where), remedy=hide(found.remedy))
        clean.__cause__ = error if found is not error else error.__cause__
        return clean.with_traceback(error.__traceback__)

    def raw_table(self, source: SourceSpec, planned: TablePlan) -> str:
        """Returns the raw table that a plan loads, in lower case."""
        return f"{self.spec.schema_of(source)}.{planned.lake_table}".lower()


def options_of(source: Source, ref: TableRef) -> TableOptions:
    """Returns the options of one table."""
    return options_for(source.table_options, ref.name, TableOptions())


def _shape_of(claim: Claim, source: Source, ref: TableRef) -> TablePlan | None:
    """Plans another source's table; None if that fails: that source reports its own error."""
    try:
        return plan_table(claim.source, source.describe(ref), options_of(source, ref))
    except Exception:
        return None
