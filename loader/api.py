"""The Python API. Programs use it to load tables, as users do with the command line.

Load a spec, or build it in code. Then run it, and read typed results::

    from loader.api import Loader, load_spec

    with Loader(load_spec("loader.yml")) as loader:
        result = loader.run(["shop.orders"], on_event=print)
        for table in result.tables:
            print(table.table, table.status, table.rows_appended, table.error)
        result.raise_if_failed()

The module prints nothing, installs no signal handlers and does not end the process. The logger
``loader`` receives phases (DEBUG), results (INFO), warnings and errors. Strings contain no secrets.

Errors are subclasses of :class:`LoaderError` with the attributes `what`, `where` and `remedy`:

- :class:`SpecError`: the spec, profile, installation or an argument is invalid. Methods raise it
  before they sync any table.
- :class:`TableError`: a table cannot be synced. :meth:`Loader.run` does not raise it: the other
  tables are synced, and the result contains the error. Its subclasses are :class:`LockedError`
  (another run has locked the table), :class:`DamagedError` (a file in the lake is corrupt),
  :class:`StateError` (a stored cursor cannot be used) and :class:`JavaEndedError` (Spark's process
  has exited).

Programs may also import the interfaces for plug-ins: :mod:`loader.sources.interface` (connectors),
:mod:`loader.state` (``StateBackend``) and :mod:`loader.testing` (tests of a backend). Commands that
push batches to a lake use :mod:`loader.sync.ingest` and :mod:`loader.cli.ingest_command`. All other
modules may change without notice.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from loader.cli.console import Event, EventOutput
from loader.cli.dbt_build import Build
from loader.cli.results import (
    BuildResult,
    CheckedTable,
    CheckResult,
    ReconciledTable,
    ReconcileResult,
    RunResult,
    TableResult,
    TableStatus,
    list_errors,
    list_table_results,
)
from loader.cli.run_once import (
    RestartingRun,
    RunRequest,
    build_in_pipeline,
    report_outcomes,
    sync_tables,
)
from loader.cli.settings import Settings, open_pipeline, profile_of, refuse_two_readers
from loader.errors import (
    DamagedError,
    JavaEndedError,
    LoaderError,
    LockedError,
    SpecError,
    StateError,
    TableError,
)
from loader.names import is_wildcard
from loader.spec.redaction import redact_foreign
from loader.spec.spec import Spec, build_spec, load_spec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from loader.sync.runner import Outcome

__all__ = [
    "BuildResult",
    "CheckResult",
    "CheckedTable",
    "DamagedError",
    "Event",
    "JavaEndedError",
    "Loader",
    "LoaderError",
    "LockedError",
    "ReconcileResult",
    "ReconciledTable",
    "RunResult",
    "Spec",
    "SpecError",
    "StateError",
    "TableError",
    "TableResult",
    "TableStatus",
    "build_spec",
    "load_spec",
]

_ARGUMENTS = {"--select": "select", "loader preview": "table", "--build": "dbt_build"}
"""Maps locations in errors, which name command-line options, to the arguments of this API."""

_log = logging.getLogger("loader")
P = ParamSpec("P")
R = TypeVar("R")


def _without_causes(method: Callable[P, R]) -> Callable[P, R]:
    """Strips the chained exceptions from a method's errors, because they may contain secrets."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except LoaderError as error:
            caught = error
        # Raised after the `except` block, because a raise inside it would set `__context__` again.
        raise _hide_causes(caught)

    return call


class Loader:
    """Runs, checks, previews and reconciles the tables of one spec in a Spark session.

    Spark starts on first use, with the profile of the spec's destination, and stops at the end of
    the `with` block. If you pass a session, or if this process already has a session with the
    profile's catalogs, the loader uses that Spark and does not stop it. It then works in a separate
    session, and does not change your settings or temporary views.

    A loader runs one call at a time, in any thread.

    Args:
        spec: the result of :func:`load_spec` or :func:`build_spec`.
        spark: the session to use. If you pass one, a profile is needed only for `dbt_build`.

    Example:
        >>> with Loader(load_spec("loader.yml")) as loader:  # doctest: +SKIP
        ...     loader.run().raise_if_failed()
    """

    def __init__(self, spec: Spec, *, spark: SparkSession | None = None) -> None:
        from loader.reconcile.rotation import Rotation

        self.spec = spec
        self._given = spark
        self._adopted: SparkSession | None = None
        self._runs: RestartingRun | None = None
        self._settings = Settings(spec.file or spec.folder)
        self._rotation = Rotation()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._stopping = threading.Lock()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops Spark if this loader started it. A later call starts it again."""
        runs, self._runs = self._runs, None
        if runs is not None and self._adopted is None:
            from loader.spark.jvm import forget_ended
            from loader.spark.jvm_exit import has_java_ended

            with suppress(Exception):  # the JVM has exited
                runs.pipeline.spark.stop()
            if has_java_ended():
                forget_ended()
        self._adopted = self._settings.profile = None

    @property
    def spark(self) -> SparkSession:
        """The Spark session, with which you can query the raw tables. Starts Spark if necessary."""
        with self._work():
            return self._open().pipeline.spark

    @_without_causes
    def run(
        self,
        select: str | Sequence[str] = (),
        *,
        full_refresh: bool = False,
        concurrency: int | None = None,
        accept_key_change: bool = False,
        dbt_build: bool = False,
        dbt_arguments: Sequence[str] = (),
        on_event: Callable[[Event], object] | None = None,
    ) -> RunResult:
        """Syncs tables, as `loader run` does. If one table fails, the others are still synced.

        Args:
            select: names or wildcards of tables. If empty, all tables are synced.
            full_refresh: whether to reload all rows into a new generation.
            concurrency: the number of tables to sync in parallel. The default is the spec's
                setting.
            accept_key_change: whether the types of key and cursor columns may be widened.
            dbt_build: whether to run `dbt build` after the sync, in this process and on its Spark.
            dbt_arguments: the arguments for `dbt build`.
            on_event: called for each event. The calls come from threads of the run, but never
                concurrently. If it raises an exception, the exception is only logged.

        Raises:
            SpecError: if the spec, an argument or the installation is invalid.
        """
        with self._work(on_event) as output:
            build = None
            if dbt_build:
                build = Build.create(self.spec.folder, dbt_arguments)
            elif dbt_arguments:
                raise SpecError(
                    "there is no build", where="dbt_arguments", remedy="Set dbt_build=True"
                )
            self._open()
            if build is not None:
                self._check_build(build)
            request = RunRequest(
                _list_names(select),
                full_refresh,
                concurrency,
                accept_key_change,
                choose_work=self._rotation,
            )
            outcomes, ended = self._sync(request, output)
            report_outcomes(output, outcomes, ended)
            errors = _list_errors(outcomes, ended)
            built = None
            if build is not None and ended is None and not self._stopped.is_set():
                built = self._build(build)
            return RunResult(tuple(list_table_results(outcomes)), tuple(errors), built)

    @_without_causes
    def check(self, select: str | Sequence[str] = ()) -> CheckResult:
        """Checks the lake, connections and cursors, as `loader check` does. Appends no rows."""
        from loader.sync.check import check_spec

        tables, errors = [], []
        with self._work():
            for result in check_spec(self._open().pipeline, _list_names(select)):
                if isinstance(result, LoaderError):
                    errors.append(_hide_causes(result))
                    continue
                plan, notes = result
                cursor = plan.cursor.name if plan.cursor else None
                tables.append(
                    CheckedTable(plan.name, plan.mode, cursor, tuple(plan.key), tuple(notes))
                )
        return CheckResult(tuple(tables), tuple(errors))

    @_without_causes
    def preview(self, table: str, limit: int = 10) -> DataFrame:
        """Returns the first rows of a table, as its first load would write them. Writes nothing.

        Raises:
            LoaderError: if there is no such table, or if it cannot be read.
        """
        from loader.sync.preview import read_first_rows

        with self._work():
            if is_wildcard(table):
                raise SpecError(
                    f"{table!r} is a pattern", where="table", remedy="Pass the name of one table"
                )
            if limit < 1:
                raise SpecError(f"{limit} is too small", where="limit", remedy="Pass 1 or more")
            for result in read_first_rows(self._open().pipeline, table, limit):
                if isinstance(result, LoaderError):
                    raise result
                return result.rows.localCheckpoint()  # the source is closed afterwards
            raise SpecError("it selects no table", where="table", remedy="Pass a table's name")

    @_without_causes
    def reconcile(
        self,
        select: str | Sequence[str] = (),
        *,
        repair: bool = False,
        allow_deletes: bool = False,
        concurrency: int | None = None,
        on_event: Callable[[Event], object] | None = None,
    ) -> ReconcileResult:
        """Syncs tables and compares them with their sources, as `loader reconcile` does.

        Args:
            repair: whether to append the changes that were missed.
            allow_deletes: whether missing rows count as deleted, even if there are many of them.
        """
        from loader.cli.reconcile import report_findings, to_row
        from loader.reconcile.reconciliation import Reconciliation

        work = Reconciliation(repair, allow_deletes)
        with self._work(on_event) as output:
            request = RunRequest(_list_names(select), concurrency=concurrency, work=work)
            outcomes, ended = self._sync(request, output)
            report_findings(output, outcomes, work, ended)
            errors = _list_errors(outcomes, ended)
            ordered = sorted(work.findings, key=lambda finding: finding.table)
            rows = [(*to_row(each), each.sample, each.skipped) for each in ordered]
            return ReconcileResult(tuple(ReconciledTable(*row) for row in rows), tuple(errors))

    @_without_causes
    def status(self) -> tuple[TableStatus, ...]:
        """Returns the last sync attempt of each table, as `loader status` does."""
        from loader.cli.status import list_last_attempts
        from loader.sync.status_readers import list_readers_by_spark

        with self._work():
            rows = list_last_attempts(list_readers_by_spark(self._open().pipeline))
            return tuple(TableStatus(*row) for row in rows)

    def stop(self) -> None:
        """Stops the current call, if any. Can be called from any thread.

        Tables whose rows have not yet been published fail.

        Also interrupts what other loaders in this process are doing in connectors and databases. If
        this loader did not start Spark, Spark's jobs are not cancelled, so the current call waits
        for them.
        """
        from loader.spark.interruption import interrupt

        with self._stopping:
            if not self._lock.locked():
                return
            self._stopped.set()
            interrupt()
            if self._runs is not None and self._adopted is None:
                self._runs.cancel()

    @contextmanager
    def _work(self, on_event: Callable[[Event], object] | None = None) -> Iterator[EventOutput]:
        """Rejects concurrent calls, and removes secrets from errors."""
        from loader.spark.interruption import resume

        if not self._lock.acquire(blocking=False):
            raise LoaderError(
                "another call is still running",
                where="Loader",
                remedy="Wait until it finishes, or create a second Loader",
            )
        try:
            self._settings.output = output = EventOutput(self.spec.redactor.redact, on_event)
            yield output
        except Exception as error:
            from loader.sync.pipeline import redact_error

            redacted = redact_error(self.spec, error, "")
            for option, argument in _ARGUMENTS.items():
                redacted.where = redacted.where.replace(option, argument)
            raise redacted from error
        finally:
            with self._stopping:
                if self._stopped.is_set():
                    self._stopped.clear()
                    resume()
                self._lock.release()

    def _open(self) -> RestartingRun:
        """Opens the pipeline. Starts Spark unless this process already has a session."""
        from loader.spark.session import adopt_session, check_same_lake, find_session, is_stopped

        if self._runs is not None and is_stopped(self._runs.pipeline.spark):
            self.close()  # the program, or another loader, has stopped the session
        if self._runs is not None:
            return self._runs
        spark = self._given
        if spark is None:
            spark = find_session()
            if spark is not None:
                check_same_lake(spark, profile_of(self._settings, self.spec))
        if spark is None:
            with open_pipeline(self._settings, self.spec) as pipeline:
                self._runs = RestartingRun(self._settings, pipeline)
            return self._runs
        from loader.sync.pipeline import Pipeline

        refuse_two_readers(self.spec)
        pipeline = Pipeline(self.spec, adopt_session(spark))
        self._adopted = spark
        self._runs = RestartingRun(self._settings, pipeline, can_restart=False)
        return self._runs

    def _sync(
        self, request: RunRequest, output: EventOutput
    ) -> tuple[list[Outcome], LoaderError | None]:
        """Runs a request in another thread, so that Ctrl-C stops it instead of waiting for it."""
        from loader.cli.progress import Progress
        from loader.spark.session import rows_written
        from loader.sync.fault_injection import load_fault_injection
        from loader.sync.run_context import Watch

        runs = self._open()
        progress = Progress(output, lambda table: rows_written(runs.pipeline.spark, table))
        watch = Watch(progress, load_fault_injection(os.environ, runs.pipeline.spark))
        watch.stopped = self._stopped
        with output.slow_steps.report(), progress, ThreadPoolExecutor(1, "loader-run") as thread:
            job = thread.submit(sync_tables, runs, request, watch, progress)
            try:
                return job.result()
            except BaseException:
                if not job.done():
                    self.stop()
                raise

    def _check_build(self, build: Build) -> None:
        from loader.spark.session import check_same_lake

        profile = self._settings.profile or profile_of(self._settings, self.spec)
        if self._adopted is not None:
            check_same_lake(self._adopted, profile)
        build.check(profile)
        self._settings.profile = profile

    def _build(self, build: Build) -> BuildResult:
        from loader.spark.session import restore_settings

        pipeline = self._open().pipeline
        with restore_settings(self._adopted or pipeline.spark):  # dbt uses the process's session
            built = build_in_pipeline(self._settings, pipeline, build)
        if built.error is not None and isinstance(built.error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt
        if built.error is not None:
            _hide_causes(built.error)
        return built


def _list_names(select: str | Sequence[str]) -> tuple[str, ...]:
    return (select,) if isinstance(select, str) else tuple(select)


def _list_errors(outcomes: Sequence[Outcome], ended: LoaderError | None) -> list[LoaderError]:
    """Returns each error once. Also strips the chained exceptions from the outcomes' errors."""
    for outcome in outcomes:
        if outcome.error is not None:
            _hide_causes(outcome.error)
    return [_hide_causes(error) for error in list_errors(outcomes, ended)]


def _hide_causes(error: LoaderError) -> LoaderError:
    """Strips the chained exceptions from an error, because their messages may contain secrets.

    Logs the stripped exceptions, redacted, at DEBUG level.
    """
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s", redact_foreign("".join(traceback.format_exception(error))))
    error.__cause__ = error.__context__ = None
    return error
