"""Goes on with a run after Spark's JVM has ended: in a new one, without the table that ended it.

The JVM may end for lack of memory: a value or a line may be larger than it. Tables on which no work
had begun are then synced in a new JVM. Of those that were in work, each is tried by itself, and one
with which the JVM ends again fails.
"""

from __future__ import annotations

import glob
from collections.abc import Callable
from dataclasses import dataclass

from loader.cli.settings import Settings, restart_pipeline
from loader.errors import JavaEndedError, LoaderError, TableError
from loader.spark.error_translation import may_precede_java_end
from loader.spark.jvm_exit import is_restart_wanted
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import Outcome, record_failure

Sync = Callable[[Pipeline, tuple[str, ...], Callable[[Outcome], None]], None]

_REMEDY = (
    "Nothing of its batch is visible. Look for what is unusual in the table, such as a huge value; "
    "give Spark more memory (spark.driver.memory in the profile's target), or leave the table out "
    "with skip_tables"
)
_SOURCE_REMEDY = (
    "Look at what the server sends: an endless answer ends Java. If the source has very many "
    "tables, give Spark more memory (spark.driver.memory in the profile's target)"
)


@dataclass(frozen=True)
class _RunEnd:
    """The remaining work of a run when the JVM ends.

    Attributes:
        why: the error of the tables that were in work, or of the run itself.
        in_work: the tables of which one may have ended it.
        others: the tables on which no work had begun, or whose rows are published already.
        source: the source that ended it when it was asked for its tables; empty if none did.
    """

    why: LoaderError
    in_work: list[str]
    others: list[str]
    source: str = ""


@dataclass
class RestartingRun:
    """Runs of a spec, each of which survives the end of Spark's JVM.

    Attributes:
        pipeline: the spec, on the JVM that runs now.
    """

    settings: Settings
    pipeline: Pipeline

    def run(
        self, select: tuple[str, ...], sync: Sync, watch: Watch, done: Callable[[Outcome], None]
    ) -> None:
        """Syncs the tables; calls `done` for each as it ends.

        Args:
            select: tables, by name or wildcard; empty means all.
            sync: syncs such tables in a JVM that may end.

        Raises:
            JavaEndedError: if the JVM ended while no table was in work, or was stopped.
        """
        runs = [select]
        while runs:
            chosen = runs.pop()
            ended = self._run(chosen, sync, watch, done)
            if ended is None:
                continue
            self._restart(ended)
            if ended.source:
                what = f"{ended.why.what}, while this source was asked for its tables"
                error = TableError(what, where=f"source {ended.source}", remedy=_SOURCE_REMEDY)
                done(Outcome(error.where, error=error, source=ended.source))
                self.pipeline.resting |= {ended.source}
                runs.append(chosen)
                continue
            if len(ended.in_work) == 1:
                what = f"{ended.why.what}, while this table alone was in work"
                [table] = ended.in_work
                error = TableError(what, where=f"table {table}", remedy=_REMEDY)
                source, _, name = table.partition(".")
                spec = self.pipeline.spec.source(source)
                done(record_failure(self.pipeline, spec, name, error))
            else:
                runs += [(glob.escape(table),) for table in ended.in_work]
            if ended.others:
                runs.append(tuple(map(glob.escape, ended.others)))

    def cancel(self) -> None:
        """Cancels Spark's jobs."""
        self.pipeline.spark.sparkContext.cancelAllJobs()

    def _run(
        self, select: tuple[str, ...], sync: Sync, watch: Watch, done: Callable[[Outcome], None]
    ) -> _RunEnd | None:
        """Returns the remaining work if the JVM ended, and a new one may go on; otherwise None."""
        unfinished: dict[str, Outcome] = {}
        finished: set[str] = set()
        why: LoaderError | None = None

        def sort(outcome: Outcome) -> None:
            if outcome.error is not None and may_precede_java_end(outcome.error):
                unfinished[outcome.table] = outcome
            else:
                finished.add(outcome.table)
                done(outcome)

        pipeline = self.pipeline
        pipeline.planned_names.clear()
        pipeline.in_work.clear()
        pipeline.fatal_source = ""
        try:
            sync(pipeline, select, sort)
        except Exception as error:
            why = pipeline.redact_error(error, "")
            if not isinstance(why, JavaEndedError):
                raise
        errors = [outcome.error for outcome in unfinished.values()]
        ended = why or next((one for one in errors if isinstance(one, JavaEndedError)), None)
        left = (pipeline.planned_names | unfinished.keys()) - finished
        in_work = sorted(left & pipeline.in_work)
        stopped = watch.stopped.is_set() or watch.steps is not None
        known = in_work or pipeline.fatal_source
        if ended is not None and known and not stopped and is_restart_wanted():
            return _RunEnd(ended, in_work, sorted(left - set(in_work)), pipeline.fatal_source)
        for outcome in unfinished.values():
            done(outcome)
        if why is not None:
            raise why
        return None

    def _restart(self, ended: _RunEnd) -> None:
        if ended.source:
            self.settings.output.warning(
                f"{ended.why.what}: in a new one, the run goes on without source {ended.source}"
            )
            self.pipeline = restart_pipeline(self.settings, self.pipeline)
            return
        tables = ", ".join(ended.in_work)
        then = f"then each of these alone: {tables}" if ended.in_work[1:] else f"and {tables} fails"
        self.settings.output.warning(
            f"{ended.why.what}: in a new one, the run goes on with the other tables, {then}"
        )
        self.pipeline = restart_pipeline(self.settings, self.pipeline)
