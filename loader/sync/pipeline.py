"""Binds a spec to a Spark session, and selects and plans the tables of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from loader.errors import JavaEndedError, LoaderError, SpecError, TableError, did_you_mean
from loader.lake.lake import Lake
from loader.lake.ledger import Ledger
from loader.names import in_the_lake, is_wildcard, match_selection, qualify
from loader.sources.entry_points import find_connector
from loader.sources.interface import Source, TableRef
from loader.sources.masked_source import mask_source
from loader.spark.error_translation import translate_error
from loader.spark.jvm_exit import has_java_ended
from loader.spark.named_steps import step
from loader.spec.options import TableOptions, options_for
from loader.spec.plugins import DestinationSpec, SourceSpec
from loader.spec.signing_keys import parse_private_key
from loader.spec.spec import Spec
from loader.state import StateBackend
from loader.state.lake_table import LakeState
from loader.state.opening import open_state
from loader.sync.ownership import Claim, check_same_shape, find_takeovers, list_sharers
from loader.sync.stores import Stores
from loader.sync.table_plan import NoCursorError, TablePlan, plan_table
from loader.sync.table_selection import describe_tables, find_unused_options, match_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class PlannedSource:
    """A source with the plans for its tables in one run.

    Attributes:
        errors: the source's other errors, such as for a pattern that matches no table.
        refused: maps the lake name of each table that cannot be synced to its error.
    """

    source: Source
    spec: SourceSpec
    plans: list[TablePlan] = field(default_factory=list)
    errors: list[LoaderError] = field(default_factory=list)
    refused: dict[str, LoaderError] = field(default_factory=dict)

    @property
    def problems(self) -> list[LoaderError]:
        """All errors without duplicates. The tables of an unreachable source share one error."""
        return list({id(e): e for e in (*self.errors, *self.refused.values())}.values())


class Pipeline:
    """A spec bound to a Spark session, with the sources, their stores and their tables.

    Attributes:
        accepts_key_change: whether the types of key and cursor columns may be widened.
        accepts_other_origins: whether a full refresh of selected tables may load raw tables that
            were loaded from other tables of their source.
        paused_sources: the names of sources that this run skips.
        idle_since: maps each source and table to the time at which this process last recorded a
            sync without new rows.
        unreadable: the errors of unreadable tables that may have been pushed by another program.
        planned_names: the names of the selected tables, as `source.table`.
        tables_in_progress: the tables whose work has not finished. If the JVM has exited, one of
            these tables may have caused it.
        fatal_source: the source whose tables were being listed when the JVM exited; empty if none.

    Raises:
        SpecError: if a connector is unknown or its options are wrong.
    """

    def __init__(self, spec: Spec, spark: SparkSession) -> None:
        self.spec = spec
        self.spark = spark
        self.accepts_key_change = False
        self.accepts_other_origins = True
        self.paused_sources: frozenset[str] = frozenset()
        self.idle_since: dict[tuple[str, str], float] = {}
        self.unreadable: list[LoaderError] = []
        self.planned_names: set[str] = set()
        self.tables_in_progress: set[str] = set()
        self.fatal_source = ""
        self._lakes: dict[str, Lake] = {}  # maps the schema to its lake; each thread gets a copy
        self._idle_sessions: list[SparkSession] = []
        self.sources: list[tuple[SourceSpec, Source]] = []
        for source in spec.sources:
            kind = find_connector(source.path, f"{source.where}.path")
            options = source.options(kind.options_model)
            bound = kind(source.name, options, spark, spec.folder)
            bound.hide = spec.redactor.add
            self.sources.append((source, mask_source(bound, source.mask_key)))
            self.open_stores(source)  # raises an error now for a missing package or a wrong option

    def open_stores(self, source: SourceSpec) -> Stores:
        """Opens the lake, state store and ledger of a source.

        Raises a SpecError if the state backend's package is missing, or its options are wrong.
        """
        lake = Lake(self.spark, self.spec.schema_of(source))
        return self._open_stores(source, lake)

    @contextmanager
    def lend_stores(self, source: SourceSpec) -> Iterator[Stores]:
        """Yields a source's stores with a Spark session for the calling thread."""
        lake = Lake(self.spark, self.spec.schema_of(source))
        with self._lakes.setdefault(lake.schema, lake).lend(self._idle_sessions) as own:
            yield self._open_stores(source, own)

    def _open_stores(self, source: SourceSpec, lake: Lake) -> Stores:
        key = self.spec.destination(source.destinations[0]).lake.receipt_signing_key
        signing_key = None if key is None else parse_private_key(key.get_secret_value())
        state = self._open_state(source, lake)
        return Stores(lake, state, Ledger(lake), signing_key=signing_key)

    def _open_state(self, source: SourceSpec, lake: Lake) -> StateBackend:
        tables = self.spec.destination(source.destinations[0]).lake

        def open_lake(destination: DestinationSpec) -> Lake:
            state = destination.lake
            if (state.profile, state.target) != (tables.profile, tables.target):
                raise SpecError(
                    f"{destination.name} has a different profile or target than the tables",
                    where=f"{source.where}.backend_options.connection",
                    remedy="A run has one Spark session: choose a destination with the same target",
                )
            schema = self.spec.state_schema_of(source) or lake.schema
            return lake if schema == lake.schema else Lake(lake.spark, schema)

        return open_state(self.spec, source, open_lake)

    def prepare(self, source: SourceSpec) -> None:
        """Creates the schema, the ledger and the state store of a source if they are missing.

        Raises a StateError if the state backend is unreachable or not writable.
        """
        stores = self.open_stores(source)
        stores.ledger.prepare()
        stores.state.prepare()

    def plan_tables(
        self, select: Sequence[str] = (), full_refresh: bool = False, keep: int = 1
    ) -> list[PlannedSource]:
        """Plans the tables that the spec and `select` choose, and collects errors.

        Args:
            keep: the number of connections to each source that stay open for reuse.

        Raises:
            SpecError: if a selection matches nothing.
        """
        with self.reuse_connections(keep):
            return self._plan_sources(select, full_refresh)

    @contextmanager
    def reuse_connections(self, keep: int = 1) -> Iterator[None]:
        """Keeps up to `keep` connections to each source open for reuse within the block."""
        with ExitStack() as stack:
            for source, bound in self.sources:
                stack.enter_context(bound.reuse_connections(min(keep, source.concurrency or keep)))
            yield

    def _plan_sources(self, select: Sequence[str], full_refresh: bool) -> list[PlannedSource]:
        parts: list[PlannedSource] = []
        table_names: list[str] = []
        matched: set[str] = set()
        listings = [self._list_tables(source, bound) for source, bound in self.sources]
        claims = self._group_claims(listings)
        listing = (claim for group in claims.values() for claim, _, _ in group)
        select = qualify(select, (f"{claim.source}.{claim.table}" for claim in listing))
        for (source, bound), refs in zip(self.sources, listings, strict=True):
            if source.name in self.paused_sources:
                matched.update(select)
                continue
            if isinstance(refs, LoaderError):
                source_error = refs
                listed = [n for n in source.tables if not is_wildcard(n)]
                listed = [
                    n for n in listed if not select or match_selection(f"{source.name}.{n}", select)
                ]
                refused: dict[str, LoaderError] = {
                    TableRef(n).lake_name: source_error for n in listed
                }
                errors = [] if refused else [source_error]
                parts.append(PlannedSource(bound, source, errors=errors, refused=refused))
                matched.update(select)  # each pattern might match one of the source's tables
                continue
            chosen, missing = match_tables(source, refs)
            source_names = (source.name, *source.formerly)
            is_explicit_refresh = full_refresh and bool(select) and self.accepts_other_origins
            try:
                lake = self.open_stores(source).lake
                takeovers = find_takeovers(lake, source_names, chosen, refs, is_explicit_refresh)
            except Exception as error:
                source_error = self.redact_error(error, f"source {source.name}")
                parts.append(PlannedSource(bound, source, errors=[source_error]))
                matched.update(select)
                continue
            if select:
                names = {n: f"{source.name}.{n}" for n in (*(r.name for r in chosen), *missing)}
                table_names += names.values()
                matches = {n: match_selection(full_name, select) for n, full_name in names.items()}
                matched.update(*matches.values())
                chosen = [ref for ref in chosen if matches[ref.name]]
                missing = {n: error for n, error in missing.items() if matches[n]}
            else:
                missing |= find_unused_options(source, bound.table_options, refs)
            parts.append(
                self._plan_source(
                    source,
                    bound,
                    chosen,
                    missing,
                    full_refresh,
                    is_explicit_refresh,
                    claims,
                    takeovers,
                )
            )
        for pattern in select:
            if pattern not in matched:
                raise SpecError(
                    f"no table of the spec matches {pattern!r}",
                    where="--select",
                    remedy=f"{did_you_mean(pattern, table_names)} Choose from: "
                    f"{', '.join(sorted(table_names)[:20])}".strip(),
                )
        return parts

    def _list_tables(self, source: SourceSpec, bound: Source) -> list[TableRef] | LoaderError:
        if source.name in self.paused_sources:
            return TableError("this run skips it", where=f"source {source.name}")
        java_ran = not has_java_ended()
        try:
            with step(f"source {source.name}: listing its tables"):
                return bound.tables()
        except Exception as error:
            redacted = self.redact_error(error, f"source {source.name}")
            if java_ran and isinstance(redacted, JavaEndedError):
                self.fatal_source = source.name
            return redacted

    def _group_claims(
        self, listings: Sequence[list[TableRef] | LoaderError]
    ) -> dict[str, list[tuple[Claim, Source, TableRef]]]:
        """Groups the spec's tables by the lower-case name of their raw table.

        For an unreachable source, only tables that the spec lists by name are included.
        """
        claims: dict[str, list[tuple[Claim, Source, TableRef]]] = {}
        for (source, bound), refs in zip(self.sources, listings, strict=True):
            if isinstance(refs, LoaderError):
                chosen = [TableRef(name) for name in source.tables if not is_wildcard(name)]
            else:
                chosen, _ = match_tables(source, refs)
            for ref in chosen:
                claim = self._build_claim(source, bound, ref)
                claims.setdefault(claim.raw.lower(), []).append((claim, bound, ref))
        return claims

    def _build_claim(self, source: SourceSpec, bound: Source, ref: TableRef) -> Claim:
        shared = find_table_options(bound, ref).shared
        return Claim(
            source.name, ref.name, f"{self.spec.schema_of(source)}.{ref.lake_name}", shared
        )

    def _plan_source(
        self,
        source: SourceSpec,
        bound: Source,
        chosen: Sequence[TableRef],
        missing: Mapping[str, TableError],
        full_refresh: bool,
        accepts_other_origin: bool,
        claims: Mapping[str, Sequence[tuple[Claim, Source, TableRef]]],
        takeovers: Mapping[tuple[str, str], TableError],
    ) -> PlannedSource:
        plans: list[TablePlan] = []
        errors: list[LoaderError] = []
        refused: dict[str, LoaderError] = {}
        for name, error in missing.items():
            if name in source.tables and not is_wildcard(name):
                refused[TableRef(name).lake_name] = error
            else:
                errors.append(error)
        self.planned_names.update(f"{source.name}.{ref.lake_name}" for ref in chosen)
        allowed = [ref for ref in chosen if ref.key not in takeovers]
        synced_names = {ref.lake_name.lower() for ref in allowed}
        for ref in chosen:
            if ref.key in takeovers and ref.lake_name.lower() in synced_names:
                errors.append(takeovers[ref.key])  # the other table with this name is synced
            elif ref.key in takeovers:
                refused[ref.lake_name] = takeovers[ref.key]
        chosen = allowed
        no_cursor_errors: dict[str, NoCursorError] = {}
        tables = describe_tables(bound, chosen, source.concurrency, self.track_table)
        for ref, table in zip(chosen, tables, strict=True):
            where = f"table {source.name}.{ref.name}"
            try:
                if isinstance(table, Exception):
                    raise table
                options = find_table_options(bound, ref)
                if options.columns is not None and not bound.selects_columns:
                    raise TableError(
                        f"tables with `path: {source.path}` are loaded with all columns",
                        where=f"{where}, columns",
                        remedy="Remove the option; or exclude columns with an option of the "
                        "connector, if it has one",
                    )
                planned = plan_table(source.name, table, options, full_refresh)
                self._check_state_table_name(planned, self.spec.schema_of(source))
                claim = self._build_claim(source, bound, ref)
                group = claims[claim.raw.lower()]
                planned = replace(
                    planned,
                    accepts_key_change=self.accepts_key_change,
                    accepts_other_origin=accepts_other_origin,
                    formerly=source.formerly,
                    sharers=list_sharers(claim, [claim for claim, _, _ in group]),
                )
                first_claim, other_source, other_ref = group[0]
                if (
                    first_claim.source != source.name
                    and first_claim.source not in self.paused_sources
                ):
                    check_same_shape(
                        planned, _try_plan(first_claim, other_source, other_ref) or planned
                    )
                names = (planned.name, planned.lake_table, *planned.name.split("."))
                self.spec.redactor.keep_readable(*names)
                plans.append(planned)
            except NoCursorError as problem:
                no_cursor_errors[ref.name] = problem
            except Exception as problem:
                refused[ref.lake_name] = self.redact_error(problem, where)
        if len(no_cursor_errors) > 1:
            combined = NoCursorError.of_all(no_cursor_errors, source.name, bound.any_cursor)
            no_cursor_errors = dict.fromkeys(no_cursor_errors, combined)
        redacted = {
            id(error): self.redact_error(error, error.where) for error in no_cursor_errors.values()
        }
        refused |= {
            TableRef(name).lake_name: redacted[id(e)] for name, e in no_cursor_errors.items()
        }
        return PlannedSource(bound, source, plans, errors, refused)

    def find_marks(self, source: SourceSpec, table: str) -> list[Mapping[str, Any]]:
        """Returns the stored checkpoints of a table. The table's name is case-insensitive.

        If there is no state under the source's current name, its former names are searched.
        """
        state = self.open_stores(source).state
        key = f"{source.name}.{in_the_lake(table)}"
        states = [state.read(key)]
        if states == [None]:
            stored_keys = sorted({row.key for row in state.rows()})
            for name in (source.name, *source.formerly):
                lower_key = f"{name}.{in_the_lake(table)}".lower()
                states = [state.read(key) for key in stored_keys if key.lower() == lower_key]
                if states:
                    break
        return [each.mark for each in states if each is not None and each.mark is not None]

    @contextmanager
    def track_table(self, name: str) -> Iterator[None]:
        """Adds a table to `tables_in_progress`, and removes it when the block ends without error.

        Does not add it if the JVM has already exited.
        """
        if not has_java_ended():
            self.tables_in_progress.add(name)
        yield
        self.tables_in_progress.discard(name)

    @cached_property
    def _state_tables(self) -> dict[tuple[str, str], str]:
        """Maps each state table in the lake (lower-case schema and name) to its source."""
        tables: dict[tuple[str, str], str] = {}
        for source, _ in self.sources:
            state = self.open_stores(source).state
            if isinstance(state, LakeState):
                tables.setdefault((state.lake.schema.lower(), state.table.lower()), source.name)
        return tables

    def _check_state_table_name(self, planned: TablePlan, schema: str) -> None:
        owner = self._state_tables.get((schema.lower(), planned.lake_table.lower()))
        if owner is not None:
            raise TableError(
                f"the raw table would be called {planned.lake_table}, which is the name of the "
                f"state table of source {owner}",
                where=f"table {planned.name}",
                remedy=f"Set backend_options.table_name of {owner} to another name",
            )

    def redact_error(self, error: BaseException, where: str) -> LoaderError:
        """Converts any exception to a readable error that contains no secrets."""
        return redact_error(self.spec, error, where)

    def name_raw_table(self, source: SourceSpec, planned: TablePlan) -> str:
        """Returns the name of a plan's raw table as ``schema.table``, in lower case."""
        return f"{self.spec.schema_of(source)}.{planned.lake_table}".lower()


def redact_error(spec: Spec, error: BaseException, where: str) -> LoaderError:
    """Converts any exception to a readable error that contains none of the spec's secrets."""
    readable = translate_error(error, where)
    hide = spec.redactor.redact
    redacted = type(readable)(
        hide(readable.what), where=hide(readable.where), remedy=hide(readable.remedy)
    )
    redacted.__cause__ = error if readable is not error else error.__cause__
    return redacted.with_traceback(error.__traceback__)


def find_table_options(source: Source, ref: TableRef) -> TableOptions:
    return options_for(source.table_options, ref.name, TableOptions())


def _try_plan(claim: Claim, source: Source, ref: TableRef) -> TablePlan | None:
    """Plans another source's table. Returns None on an error, which the other source reports."""
    try:
        return plan_table(claim.source, source.describe(ref), find_table_options(source, ref))
    except Exception:
        return None
