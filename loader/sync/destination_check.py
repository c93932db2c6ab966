"""Checks the catalog, warehouse and executors of a spec's destinations, for `loader check`."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError

from loader.errors import LoaderError, TableError
from loader.lake.lake import Lake
from loader.lake.system_tables import PREFIX
from loader.package import page
from loader.rows.version_order import quote_name
from loader.spark.error_translation import NO_STORE, translate_error
from loader.spark.executors import count_executors, describe_shortage, runs_on_cluster
from loader.spark.named_steps import step
from loader.sync.pipeline import Pipeline

DEADLINE = 60.0
"""The timeout for a check, in seconds. Without it, Spark would wait for executors forever."""

_EXECUTORS_FACTOR = 3
"""Extends the timeout if executors are running, because their first tasks may be slow."""

_CLEANUP_SECONDS = 10.0

_NOT_FOUND = re.compile(r"NotFoundException|NoSuchFileException|does not exist|No such file")
_LOCAL_FILE = re.compile(r"(?:file:)?/")


def check_destinations(pipeline: Pipeline) -> Iterator[LoaderError]:
    """Checks each lake that a source of the spec loads into, and yields errors."""
    lakes = {pipeline.spec.schema_of(source): source for source, _ in pipeline.sources}
    for source in lakes.values():
        name = source.destinations[0]
        try:
            with step(f"destination {name}: writing a table"):
                check_destination(pipeline.open_stores(source).lake, name, DEADLINE)
        except LoaderError as error:
            yield pipeline.redact_error(error, error.where)


def check_destination(lake: Lake, name: str, deadline: float = DEADLINE) -> None:
    """Creates a table, has an executor write a row, reads the row here, and drops the table.

    Raises a TableError if the lake is not writable, or if the check times out.
    """
    where = f"destination {name}, schema {lake.schema}"
    probe = _Probe(lake.for_thread())
    thread = threading.Thread(target=probe.run, name="check-destination", daemon=True)
    thread.start()
    thread.join(deadline)
    if thread.is_alive() and probe.has_executors():
        thread.join(deadline * (_EXECUTORS_FACTOR - 1))
        deadline *= _EXECUTORS_FACTOR
    if thread.is_alive():
        what, remedy = probe.explain_timeout(deadline)
        lake.spark.sparkContext.cancelJobGroup(probe.group)
        thread.join(_CLEANUP_SECONDS)  # meanwhile, the thread drops the table
        raise TableError(what, where=where, remedy=remedy)
    if isinstance(probe.error, LoaderError):
        raise TableError(probe.error.what, where=where, remedy=probe.error.remedy)
    if probe.error is not None:
        readable = translate_error(probe.error, where)
        remedy = readable.remedy
        if readable.what.startswith(NO_STORE):
            remedy = f"Check that this machine and the workers can reach {probe.describe_store()}"
        raise TableError(
            f"it cannot be written to: {readable.what}", where=where, remedy=remedy
        ) from probe.error


class _Probe:
    """Writes a row to a new table, and reads it back.

    Attributes:
        group: the job group of the probe's Spark jobs.
        error: the error that ended the probe, or None.
    """

    def __init__(self, lake: Lake) -> None:
        self.group = uuid.uuid4().hex
        self.error: BaseException | None = None
        self._lake = lake
        self._is_appending = False

    def run(self) -> None:
        lake = self._lake
        try:
            lake.spark.sparkContext.setJobGroup(self.group, "loader check", interruptOnCancel=True)
            schema_exists = lake.spark.catalog.databaseExists(quote_name(lake.schema))
            table = f"{PREFIX}check_{self.group[:12]}"
            lake.prepare()
            lake.create(table, "n bigint")
            try:
                self._is_appending = True
                self._append(table)
                self._is_appending = False
                self._read(table)
            finally:
                lake.spark.sql(f"drop table {lake.name(table)} purge")
                if not schema_exists:
                    lake.spark.sql(f"drop namespace {quote_name(lake.schema)}")
        except Exception as error:
            self.error = error

    def _append(self, table: str) -> None:
        self._lake.spark.range(1).toDF("n").writeTo(self._lake.name(table)).append()

    def _read(self, table: str) -> None:
        """Reads the row in this process, without an executor."""
        try:
            rows = self._lake.records(table).select(["n"], {}, {})
        except Exception as error:
            location = str(self._lake.handle(table).location())
            on_files = _LOCAL_FILE.match(location) is not None
            if not (on_files and self._on_cluster and _NOT_FOUND.search(str(error))):
                raise
            raise LoaderError(
                f"an executor wrote a file below {location}, but this machine cannot find "
                "the file: the machines do not share the warehouse's folder",
                remedy="Use an object store, HDFS or a folder that all machines share as the "
                f"warehouse ({page('cluster', 'Catalog and warehouse')}). Batches that were "
                "written so far are incomplete here",
            ) from error
        if len(rows) != 1:
            raise LoaderError("a row that was just written cannot be read")

    @property
    def _on_cluster(self) -> bool:
        return runs_on_cluster(self._lake.spark)

    def describe_store(self) -> str:
        endpoint = self._find_setting("s3.endpoint")
        warehouse = f"the warehouse {self._find_setting('warehouse')}"
        return f"{warehouse} at {endpoint}" if endpoint else warehouse

    def _find_setting(self, name: str) -> str | None:
        conf: Any = self._lake.spark.conf
        value: str | None = conf.get(f"spark.sql.catalog.{self._lake.catalog}.{name}", None)
        return value

    def has_executors(self) -> bool:
        return self._is_appending and self._on_cluster and not self._lacks_executors()

    def _lacks_executors(self) -> bool:
        try:
            return not count_executors(self._lake.spark)
        except Py4JError:  # the master has stopped the application
            return True

    def explain_timeout(self, deadline: float) -> tuple[str, str]:
        store = self.describe_store()
        if self._is_appending and self._on_cluster:
            if self._lacks_executors():
                return (
                    f"no executor wrote a row within {deadline:.0f} seconds: "
                    f"{describe_shortage(self._lake.spark)}",
                    "Free cores and memory, or limit the other applications: "
                    f"{page('cluster', 'Cores and memory')}",
                )
            return (
                f"the executors did not write a row within {deadline:.0f} seconds",
                f"Check that the workers can reach {store}; run again if they are busy",
            )
        uri = self._find_setting("uri")
        catalogs = f"the catalog{f' {uri}' if uri else ''} and {store}"
        return (
            f"Spark did not write a row within {deadline:.0f} seconds",
            f"Check that this machine can reach {catalogs}",
        )
