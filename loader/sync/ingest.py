"""Appends batches that another program pushes.

A batch is synced like any source: a connector reads the received rows, and the sync protocol
appends them. This source is not in the spec, so each raw table records that its rows are pushed
(:mod:`loader.sync.pushed_tables`). After a batch has been appended, :meth:`Ingest.store_states` can
store the other program's state::

    ingest = Ingest(spec, spark, "lake", Watch(), report)
    ingest.prepare()
    orders = PushedTable("orders", primary_key=("id",), is_whole=False)
    error = ingest.append("shop", "airbyte", options, [orders], path.exists)
    ingest.store_states("shop_state", {"orders": ["42", 7]})
"""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from glob import escape
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from loader.errors import JavaEndedError, LoaderError, LockedError, TableError
from loader.lake.commits import newest_commit
from loader.lake.lake import Lake
from loader.lake.locks import lock_table
from loader.lake.system_tables import STATES, append_rows, ensure_table
from loader.names import in_the_lake
from loader.spark.jvm_exit import explain_java_end
from loader.spec.plugins import SourceSpec
from loader.spec.redaction import redact_foreign
from loader.spec.spec import Spec
from loader.sync.pipeline import Pipeline
from loader.sync.pushed_tables import PUSHED, PushedTable, record_pushed
from loader.sync.run_context import Watch
from loader.sync.runner import Outcome, run_tables
from loader.sync.table_plan import FOREIGN_COLUMNS, RESERVED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Ingest", "PushedTable", "list_reserved", "prune_states"]

PATIENCE = 300.0
"""The maximum time in seconds to wait for tables that another command has locked."""

PAUSE = (1.0, 30.0)
"""The first and the longest pause between attempts, in seconds. The pause doubles each time."""

_SCHEMA = "table_name string, key string, value string, version bigint, updated_at timestamp"
_WAITS = f"the sync waits for up to {PATIENCE / 60:.0f} minutes"
_log = logging.getLogger("loader")


class _AttemptWatch(Watch):
    """A :class:`Watch` for one attempt to append a batch. It suppresses expected warnings."""

    def __init__(self, watch: Watch, expected: str) -> None:
        super().__init__(watch.listener, watch.steps)
        self.redact, self.stopped = watch.redact, watch.stopped
        self._expected = expected

    def warn(self, table: str, text: str) -> None:
        if not self._expected or self._expected not in text:
            super().warn(table, text)


class Ingest:
    """Appends the batches of another program to a lake.

    Args:
        spec: the spec that defines the destination.
        watch: reports progress, and stops syncs on request.
        report: called with the outcome of each table.
        tidy: called after each batch, for maintenance.

    Attributes:
        java_error: the error if the JVM has exited, after which every batch fails; else None.
    """

    def __init__(
        self,
        spec: Spec,
        spark: SparkSession,
        destination: str,
        watch: Watch,
        report: Callable[[Outcome], None],
        tidy: Callable[[Pipeline], None] = lambda _: None,
    ) -> None:
        self.java_error: JavaEndedError | None = None
        self.watch = watch
        self.watch.redact = spec.redactor.redact
        self._spec = spec
        self._spark = spark
        self._destination = destination
        self._report = report
        self._tidy = tidy
        self._lake = Lake(spark, spec.destination(destination).lake.schema_)

    def prepare(self) -> None:
        """Creates the state table. Commands search for pushed tables only if this table exists."""
        ensure_table(self._lake, STATES, _SCHEMA)

    def append(
        self,
        source: str,
        path: str,
        options: Mapping[str, Any],
        tables: Sequence[PushedTable],
        is_waiting: Callable[[], bool],
        expected: str = "",
    ) -> str | None:
        """Appends a batch. Returns an error message, or None on success.

        Args:
            source: the source that owns the tables and their cursors.
            path: the connector that reads the received rows.
            tables: all tables that the batch may contain.
            is_waiting: returns whether the sender is still waiting. It is called repeatedly while
                another run has locked a table.
            expected: warnings that contain this string are suppressed.

        Raises:
            LoaderError: if a source of the spec has the same name.
        """
        document = SourceSpec(
            name=source,
            path=path,
            tables=("*",),
            destinations=(self._destination,),
            spec=dict(options),
        )
        document._where = PUSHED
        document._redactor = self._spec.redactor
        self._check_source_name(document)
        pipeline = Pipeline(self._spec.model_copy(update={"sources": (document,)}), self._spark)
        messages, failed = [], set()
        for outcome in self._append_tables(pipeline, is_waiting, expected):
            self._report(outcome)
            if outcome.error is not None:
                messages.append(str(outcome.error))
                failed.add(outcome.table)
            if isinstance(outcome.error, JavaEndedError):
                self.java_error = outcome.error
        if self.java_error is None:
            for table in tables:
                if f"{source}.{in_the_lake(table.name)}" not in failed:
                    self._record_pushed(pipeline, source, table)
            self._tidy(pipeline)
        return "; ".join(messages) or None

    def explain(self, error: Exception) -> str:
        """Converts an error to a message for the program that pushed a batch."""
        self.java_error = self.java_error or explain_java_end(error, PUSHED)
        if isinstance(error, LoaderError):
            return str(error)
        if self.java_error is not None:
            return str(self.java_error)
        _log.error("a batch could not be appended", exc_info=error)
        return redact_foreign(f"{type(error).__name__}: {error}")

    def find_owner(self, tables: Iterable[str]) -> str | None:
        """Returns the source that loaded the first of these tables that has a batch, if any."""
        for table in map(in_the_lake, tables):
            source = newest_commit(self._lake, table).source if self._lake.exists(table) else None
            if source is not None:
                return source
        return None

    def read_states(self) -> dict[str, dict[str, list[Any]]]:
        """Returns the newest value and version of each stored state, keyed by table and key."""
        newest = f.max_by(f.struct("value", "version"), f.struct("version", "updated_at"))
        rows = self._lake.frame(STATES).groupBy("table_name", "key").agg(newest.alias("newest"))
        states: dict[str, dict[str, list[Any]]] = {}
        for row in rows.collect():
            states.setdefault(row["table_name"], {})[row["key"]] = list(row["newest"])
        return states

    def store_states(self, table: str, rows: Mapping[str, Sequence[Any]]) -> None:
        """Stores a value and version for each key of a table. Call it after appending the rows."""
        updated_at = dt.datetime.now(dt.timezone.utc)
        append_rows(
            self._lake,
            STATES,
            [
                {
                    "table_name": table,
                    "key": key,
                    "value": value,
                    "version": n,
                    "updated_at": updated_at,
                }
                for key, (value, n) in rows.items()
            ],
        )

    def _append_tables(
        self, pipeline: Pipeline, is_waiting: Callable[[], bool], expected: str
    ) -> Iterator[Outcome]:
        """Appends a batch's tables. Waits for tables that another run has locked.

        If the batch failed because of one locked table, the sender would resend the rows of all
        tables, and tables without a key would get duplicates.
        """
        until = time.monotonic() + PATIENCE
        select: tuple[str, ...] = ()
        pause, longest = PAUSE
        while True:
            locked: list[Outcome] = []
            for outcome in run_tables(pipeline, _AttemptWatch(self.watch, expected), select):
                if isinstance(outcome.error, LockedError):
                    locked.append(outcome)
                else:
                    yield outcome
            if not locked:
                return
            if time.monotonic() > until:
                break
            if not select:
                for outcome in locked:
                    self.watch.warn(outcome.table, f"another run has locked it: {_WAITS}")
            if self.watch.stopped.wait(pause) or not is_waiting():
                break
            pause = min(2 * pause, longest)
            select = tuple(escape(outcome.table) for outcome in locked)
        yield from locked

    def _record_pushed(self, pipeline: Pipeline, source: str, table: PushedTable) -> None:
        """Records that a table is pushed. If this fails, only warns: the rows are published."""
        name = f"{source}.{in_the_lake(table.name)}"
        try:
            record_pushed(self._lake, table)
        except Exception as problem:
            self.java_error = self.java_error or explain_java_end(problem, PUSHED)
            why = pipeline.redact_error(problem, f"table {name}")
            self.watch.warn(name, f"its key was not recorded, and its next sync will retry: {why}")

    def _check_source_name(self, source: SourceSpec) -> None:
        """Raises an error if a source would share tables or cursors with a source of the spec."""
        for other_source in self._spec.sources:
            if source.name not in (other_source.name, *other_source.formerly):
                continue
            if self._spec.schema_of(other_source) == self._lake.schema:
                conflict = "and loads into the same schema"
            elif self._find_state_table(other_source) == self._find_state_table(source):
                conflict = "and stores its cursors in the same table"
            else:
                continue
            raise TableError(
                f"a source of the spec has the same name, {source.name}, {conflict}",
                where=other_source.where,
                remedy="Rename one of them: otherwise they would share tables or cursors",
            )

    def _find_state_table(self, source: SourceSpec) -> tuple[str, str] | None:
        schema = self._spec.state_schema_of(source)
        return None if schema is None else (schema, source.state_table.lower())


def list_reserved(columns: Iterable[str]) -> list[str]:
    """Returns the columns whose names are reserved for the loader."""
    return [n for n in columns if n.lower().startswith(RESERVED) and n not in FOREIGN_COLUMNS]


def prune_states(lake: Lake, keep: int) -> None:
    """Deletes all versions of the stored states except the newest `keep` versions of each key."""
    name = lake.name(STATES)
    floors = f"""
        select table_name, key, min(version) as floor
        from (
            select
                *,
                row_number() over (
                    partition by table_name, key order by version desc, updated_at desc
                ) as age
            from {name}
        )
        where age <= {keep}
        group by table_name, key
    """
    older = (
        "states.table_name = floors.table_name and states.key = floors.key "
        "and states.version < floors.floor"
    )
    with lock_table(lake, STATES):
        rows = lake.spark.sql(
            f"select 1 from {name} as states inner join ({floors}) as floors on {older} limit 1"
        )
        if rows.take(1):
            lake.spark.sql(
                f"merge into {name} as states using ({floors}) as floors on {older} "
                "when matched then delete"
            )
