"""Ingests CloudQuery syncs: CloudQuery's command line writes to the bridge, the loader appends.

The bridge spools a sync's rows to a folder (:mod:`loader.sources.cloudquery.bridge`). Once the
sync's stream ends, its tables are appended by the same protocol as all others. Only then is the
sync acknowledged, and the state that its source has written takes effect.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from loader.errors import JavaEndedError, LoaderError, LockedError, TableError
from loader.lake.commits import newest_commit
from loader.lake.lake import Lake
from loader.lake.system_tables import STATES, append_rows, ensure_table
from loader.names import in_the_lake
from loader.sources.cloudquery.serving import Serving
from loader.sources.programs.message_reader import UNASKED
from loader.spark.jvm_exit import explain_java_end
from loader.spec.plugins import SourceSpec
from loader.spec.redaction import redact_foreign
from loader.spec.spec import Spec
from loader.sync.cloudquery_tables import SERVER, remember
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import Outcome, run_tables
from loader.sync.table_plan import FOREIGN_COLUMNS, RESERVED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 300.0
"""Seconds to wait for a sync's tables that another run holds, such as `loader compact`."""

PAUSE = (1.0, 30.0)
"""Seconds between two attempts: the first, which is doubled each time, and the most."""

_CATALOG = "catalog.json"
_MESSAGES = "messages.jsonl"
_SCHEMA = "table_name string, key string, value string, version bigint, updated_at timestamp"
_WAITS = f"the sync waits for up to {PATIENCE / 60:.0f} minutes"
_DROPPED = (
    "a sync broke off, or began before `loader serve` did, and a plugin's state that may cover its "
    "rows was dropped: the next sync of that source goes on from an older state"
)
_ENDED = (
    "a sync ended before its turn, so none of its rows were appended: its next run brings them "
    "again"
)
_log = logging.getLogger("loader")


class _Replay(Watch):
    """A watch for one attempt to append a sync, which replays its other tables' rows, too."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch.listener, watch.steps)
        self.redact, self.stopped = watch.redact, watch.stopped

    def warn(self, table: str, text: str) -> None:
        if UNASKED not in text:
            super().warn(table, text)


class Served:
    """A destination that CloudQuery syncs to.

    Args:
        spec: names the destination.
        destination: its name there.
        bridge: the bridge, listening already.
        watch: reports progress, and stops the work on request.
        tell: gets the outcome of each table.
        tidy: is called after each sync that was appended.
    """

    def __init__(
        self,
        spec: Spec,
        spark: SparkSession,
        destination: str,
        bridge: Serving,
        watch: Watch,
        tell: Callable[[Outcome], None],
        tidy: Callable[[Pipeline], None] = lambda _: None,
    ) -> None:
        self.spec = spec
        self.spark = spark
        self.destination = destination
        self.bridge = bridge
        self.tell = tell
        self.tidy = tidy
        self.watch = watch
        self.watch.redact = spec.redactor.redact
        self._lost: JavaEndedError | None = None
        self.lake = Lake(spark, spec.destination(destination).lake.schema_)

    def run(self) -> None:
        """Appends incoming syncs until :meth:`stop`.

        Raises:
            TableError: if the bridge or Spark's Java process has ended by itself: every further
                sync would fail.
        """
        ensure_table(self.lake, STATES, _SCHEMA)
        self.bridge.answer({"states": self._states()})
        for message in self.bridge.messages():
            if "state" in message:
                self._remember(message["state"], message["rows"])
            elif "dropped" in message:
                self.watch.warn(message["dropped"], _DROPPED)
            elif "ended" in message:
                self.watch.warn("a sync", message["ended"])
            elif "session" in message:
                error = self._append_session(message)
                self.bridge.answer({"session": message["session"], "error": error})
                if self._lost is not None and not self.watch.stopped.is_set():
                    raise self._lost
            elif "settled" in message:  # all the state that came with it is stored
                self.bridge.answer(message)

    def stop(self) -> None:
        """Ends the bridge; a sync that is being appended is not published any more."""
        self.watch.stopped.set()
        self.bridge.end()

    def _append_session(self, session: Mapping[str, Any]) -> str | None:
        """Appends a session's tables; returns why that failed, None if it did not."""
        folder = Path(session["folder"])
        if not session["rows"] and not session["stale"]:
            return None  # it has brought no rows, and deletes none
        if not (folder / _MESSAGES).exists():  # while another sync was appended
            self.watch.warn(session["source"] or "cloudquery", _ENDED)
            return _ENDED
        try:
            streams = _streams(folder)
            source = self._source(session, folder, streams)
            pipeline = Pipeline(self.spec.model_copy(update={"sources": (source,)}), self.spark)
            wrong, failed = [], set()
            for outcome in self._outcomes(pipeline, folder):
                self.tell(outcome)
                if outcome.error is not None:
                    wrong.append(str(outcome.error))
                    failed.add(outcome.table)
                if isinstance(outcome.error, JavaEndedError):
                    self._lost = outcome.error
            if self._lost is None:
                for stream in streams:
                    if f"{source.name}.{in_the_lake(stream['name'])}" not in failed:
                        self._note_served(pipeline, source.name, stream, session["stale"])
                self.tidy(pipeline)
            return "; ".join(wrong) or None
        except LoaderError as error:
            self._lost = explain_java_end(error, "loader serve")
            return str(error)
        except Exception as error:
            self._lost = explain_java_end(error, "loader serve")
            if self._lost is not None:
                return str(self._lost)
            _log.exception("a sync could not be appended")
            return redact_foreign(f"{type(error).__name__}: {error}")
        finally:
            (folder / _MESSAGES).unlink(missing_ok=True)

    def _outcomes(self, pipeline: Pipeline, folder: Path) -> Iterator[Outcome]:
        """Appends a session's tables, and waits for those that another run holds.

        If the sync failed for one of them, its retry would bring the rows of all others again, and
        tables without a key would have them twice.
        """
        until = time.monotonic() + PATIENCE
        select: tuple[str, ...] = ()
        pause, longest = PAUSE
        while True:
            locked: list[Outcome] = []
            for outcome in run_tables(pipeline, _Replay(self.watch), select):
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
            # Without its rows, the sync that brought them has ended.
            if self.watch.stopped.wait(pause) or not (folder / _MESSAGES).exists():
                break
            pause = min(2 * pause, longest)
            select = tuple(escape(outcome.table) for outcome in locked)
        yield from locked

    def _note_served(
        self, pipeline: Pipeline, source: str, stream: Mapping[str, Any], stale: Sequence[str]
    ) -> None:
        """Records that a table is served; its rows are safe, so what goes wrong only warns."""
        name = f"{source}.{in_the_lake(stream['name'])}"
        try:
            remember(self.lake, in_the_lake(stream["name"]), stream, stream["name"] in stale)
        except Exception as problem:
            self._lost = self._lost or explain_java_end(problem, "loader serve")
            why = pipeline.redact_error(problem, f"table {name}")
            self.watch.warn(name, f"its next sync records that it is served, and its key: {why}")

    def _source(
        self, session: Mapping[str, Any], folder: Path, streams: Sequence[Mapping[str, Any]]
    ) -> SourceSpec:
        """Returns a source document that replays what a session has written."""
        named = session["source"] or self._owner(streams) or "cloudquery"
        name = re.sub(r"[^A-Za-z0-9_-]", "_", named)
        source = SourceSpec(
            name=name,
            path="airbyte",
            tables=("*",),
            destinations=(self.destination,),
            spec={
                "command": ["/bin/sh", "-c", 'cat "$0"', str(folder / _MESSAGES)],
                "catalog": str(folder / _CATALOG),
                "table_options": {s["name"]: _options(s, session["stale"]) for s in streams},
            },
        )
        source._where = SERVER
        source._redactor = self.spec.redactor
        self._refuse_namesakes(source)
        return source

    def _refuse_namesakes(self, source: SourceSpec) -> None:
        """Refuses a source that would share tables or cursors with one of the spec.

        Raises:
            TableError: if the spec's has the same name, and loads into the same schema or keeps its
                cursors in the same table.
        """
        for one in self.spec.sources:
            if source.name not in (one.name, *one.formerly):
                continue
            if self.spec.schema_of(one) == self.lake.schema:
                what = "and loads into the same schema"
            elif _state_place(self.spec, one) == _state_place(self.spec, source):
                what = "and keeps its cursors in the same table"
            else:
                continue
            raise TableError(
                f"a source of the spec is called {source.name}, too, {what}",
                where=one.where,
                remedy="Rename one of them: otherwise they would share tables or cursors",
            )

    def _owner(self, streams: Sequence[Mapping[str, Any]]) -> str | None:
        """Returns a source of the tables with raw's columns; deletions do not name their source."""
        for stream in streams:
            table = in_the_lake(stream["name"])
            source = newest_commit(self.lake, table).source if self.lake.exists(table) else None
            if source is not None:
                return source
        return None

    def _states(self) -> dict[str, dict[str, list[Any]]]:
        newest = f.max_by(f.struct("value", "version"), f.struct("version", "updated_at"))
        rows = self.lake.frame(STATES).groupBy("table_name", "key").agg(newest.alias("newest"))
        found: dict[str, dict[str, list[Any]]] = {}
        for row in rows.collect():
            found.setdefault(row["table_name"], {})[row["key"]] = list(row["newest"])
        return found

    def _remember(self, table: str, rows: Mapping[str, Any]) -> None:
        now = dt.datetime.now(dt.timezone.utc)
        append_rows(
            self.lake,
            STATES,
            [
                {"table_name": table, "key": k, "value": v, "version": n, "updated_at": now}
                for k, (v, n) in rows.items()
            ],
        )


def _streams(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / _CATALOG).read_text("utf-8"))["streams"]
    return found


def _state_place(spec: Spec, source: SourceSpec) -> tuple[str, str] | None:
    """Returns the schema and name of a source's state table; None if it is in no lake."""
    schema = spec.state_schema_of(source)
    return None if schema is None else (schema, source.state_table.lower())


def _options(stream: Mapping[str, Any], stale: list[str]) -> dict[str, Any]:
    """Returns the options of a table that a sync writes.

    Where the sync deletes what is stale, its rows are all there are: a new generation.
    """
    names = stream["json_schema"]["properties"]
    own = [n for n in names if n.lower().startswith(RESERVED) and n not in FOREIGN_COLUMNS]
    keyless = not stream["source_defined_primary_key"]
    whole = stream["name"] in stale
    return {
        "skip_columns": own,
        "sync_mode": "full_refresh" if whole else "incremental",
        "redelivered_rows": "append" if keyless else "drop",
    }
