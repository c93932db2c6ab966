"""Appends batches that another program pushes into a lake: the interface for plug-ins that serve.

A batch takes the protocol of every sync: it is a source of its own, which a connector replays. It
is in no spec, so each raw table records that it was pushed (:mod:`loader.sync.pushed_tables`). The
program's own state counts once the batch is appended; see :meth:`Ingest.store_states`::

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
from loader.sync.pushed_tables import SERVER, PushedTable, record_pushed
from loader.sync.run_context import Watch
from loader.sync.runner import Outcome, run_tables
from loader.sync.table_plan import FOREIGN_COLUMNS, RESERVED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Ingest", "PushedTable", "list_reserved", "prune_states"]

PATIENCE = 300.0
"""Seconds to wait for tables of a batch that another run holds, such as `loader compact`."""

PAUSE = (1.0, 30.0)
"""Seconds between two attempts: the first, which is doubled each time, and the most."""

_SCHEMA = "table_name string, key string, value string, version bigint, updated_at timestamp"
_WAITS = f"the sync waits for up to {PATIENCE / 60:.0f} minutes"
_log = logging.getLogger("loader")


class _AttemptWatch(Watch):
    """A watch for one attempt to append a batch, without the warnings that are to be expected."""

    def __init__(self, watch: Watch, expected: str) -> None:
        super().__init__(watch.listener, watch.steps)
        self.redact, self.stopped = watch.redact, watch.stopped
        self._expected = expected

    def warn(self, table: str, text: str) -> None:
        if not self._expected or self._expected not in text:
            super().warn(table, text)


class Ingest:
    """A lake that another program pushes batches to.

    Args:
        spec: names the destination.
        destination: its name there.
        watch: reports progress, and stops the work on request.
        report: gets the outcome of each table.
        tidy: is called after each batch that was appended.

    Attributes:
        lost: the error if Spark's Java process has ended: every further batch would fail.
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
        self.lost: JavaEndedError | None = None
        self.watch = watch
        self.watch.redact = spec.redactor.redact
        self._spec = spec
        self._spark = spark
        self._destination = destination
        self._report = report
        self._tidy = tidy
        self._lake = Lake(spark, spec.destination(destination).lake.schema_)

    def prepare(self) -> None:
        """Creates the table of states, by which other commands know that tables may be pushed."""
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
        """Appends a batch; returns why that failed, None if it did not.

        Args:
            source: the name of its source, which owns the tables and their cursors.
            path: the connector that replays it.
            options: of the connector.
            tables: all that it may bring.
            is_waiting: whether the batch is still there; if another run holds a table, it waits.
            expected: text of warnings that are not shown.

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
        document._where = SERVER
        document._redactor = self._spec.redactor
        self._refuse_namesakes(document)
        pipeline = Pipeline(self._spec.model_copy(update={"sources": (document,)}), self._spark)
        wrong, failed = [], set()
        for outcome in self._append_tables(pipeline, is_waiting, expected):
            self._report(outcome)
            if outcome.error is not None:
                wrong.append(str(outcome.error))
                failed.add(outcome.table)
            if isinstance(outcome.error, JavaEndedError):
                self.lost = outcome.error
        if self.lost is None:
            for table in tables:
                if f"{source}.{in_the_lake(table.name)}" not in failed:
                    self._record_pushed(pipeline, source, table)
            self._tidy(pipeline)
        return "; ".join(wrong) or None

    def explain(self, error: Exception) -> str:
        """Returns what the program that pushed a batch is to read of an error."""
        self.lost = self.lost or explain_java_end(error, SERVER)
        if isinstance(error, LoaderError):
            return str(error)
        if self.lost is not None:
            return str(self.lost)
        _log.error("a sync could not be appended", exc_info=error)
        return redact_foreign(f"{type(error).__name__}: {error}")

    def find_owner(self, tables: Iterable[str]) -> str | None:
        """Returns the source that raw tables are loaded from; None if there is none yet."""
        for table in map(in_the_lake, tables):
            found = newest_commit(self._lake, table).source if self._lake.exists(table) else None
            if found is not None:
                return found
        return None

    def read_states(self) -> dict[str, dict[str, list[Any]]]:
        """Returns the stored states: by table and key, the value and its version."""
        newest = f.max_by(f.struct("value", "version"), f.struct("version", "updated_at"))
        rows = self._lake.frame(STATES).groupBy("table_name", "key").agg(newest.alias("newest"))
        found: dict[str, dict[str, list[Any]]] = {}
        for row in rows.collect():
            found.setdefault(row["table_name"], {})[row["key"]] = list(row["newest"])
        return found

    def store_states(self, table: str, rows: Mapping[str, Sequence[Any]]) -> None:
        """Stores states that cover what was appended: by key, the value and its version."""
        now = dt.datetime.now(dt.timezone.utc)
        append_rows(
            self._lake,
            STATES,
            [
                {"table_name": table, "key": key, "value": value, "version": n, "updated_at": now}
                for key, (value, n) in rows.items()
            ],
        )

    def _append_tables(
        self, pipeline: Pipeline, is_waiting: Callable[[], bool], expected: str
    ) -> Iterator[Outcome]:
        """Appends a batch's tables, and waits for those that another run holds.

        If the batch failed for one of them, its retry would bring the rows of all others again, and
        tables without a key would have them twice.
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
                    self.watch.warn(outcome.table, f"another run holds it: {_WAITS}")
            if self.watch.stopped.wait(pause) or not is_waiting():
                break
            pause = min(2 * pause, longest)
            select = tuple(escape(outcome.table) for outcome in locked)
        yield from locked

    def _record_pushed(self, pipeline: Pipeline, source: str, table: PushedTable) -> None:
        """Records that a table is pushed; its rows are safe, so what goes wrong only warns."""
        name = f"{source}.{in_the_lake(table.name)}"
        try:
            record_pushed(self._lake, table)
        except Exception as problem:
            self.lost = self.lost or explain_java_end(problem, SERVER)
            why = pipeline.redact_error(problem, f"table {name}")
            self.watch.warn(name, f"its next sync records that it is served, and its key: {why}")

    def _refuse_namesakes(self, source: SourceSpec) -> None:
        """Refuses a source that would share tables or cursors with one of the spec.

        Raises:
            TableError: if the spec's has the same name, and loads into the same schema or keeps its
                cursors in the same table.
        """
        for one in self._spec.sources:
            if source.name not in (one.name, *one.formerly):
                continue
            if self._spec.schema_of(one) == self._lake.schema:
                what = "and loads into the same schema"
            elif self._state_place(one) == self._state_place(source):
                what = "and keeps its cursors in the same table"
            else:
                continue
            raise TableError(
                f"a source of the spec is called {source.name}, too, {what}",
                where=one.where,
                remedy="Rename one of them: otherwise they would share tables or cursors",
            )

    def _state_place(self, source: SourceSpec) -> tuple[str, str] | None:
        """Returns the schema and name of a source's state table; None if it is in no lake."""
        schema = self._spec.state_schema_of(source)
        return None if schema is None else (schema, source.state_table.lower())


def list_reserved(columns: Iterable[str]) -> list[str]:
    """Returns the columns that only the loader may write, so that a batch must leave them out."""
    return [n for n in columns if n.lower().startswith(RESERVED) and n not in FOREIGN_COLUMNS]


def prune_states(lake: Lake, keep: int) -> None:
    """Deletes all but the newest versions of each key of the stored states."""
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
        found = lake.spark.sql(
            f"select 1 from {name} as states inner join ({floors}) as floors on {older} limit 1"
        )
        if found.take(1):
            lake.spark.sql(
                f"merge into {name} as states using ({floors}) as floors on {older} "
                "when matched then delete"
            )
