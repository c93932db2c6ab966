"""Checks that a lake can be written: a table is created, written, read and dropped again."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

from loader.errors import LoaderError, TableError
from loader.lake.lake import Lake
from loader.lake.system_tables import PREFIX
from loader.rows.order import quote_name
from loader.spark.failures import clear
from loader.spark.steps import step
from loader.sync.pipeline import Pipeline

DEADLINE = 60.0
"""Seconds that Spark may take for it: without executors, a job never ends."""


def check_destinations(pipeline: Pipeline) -> Iterator[LoaderError]:
    """Checks each lake that the spec's sources are loaded into; yields the errors."""
    lakes = {pipeline.spec.schema_of(source): source for source, _ in pipeline.sources}
    for source in lakes.values():
        name = source.destinations[0]
        try:
            with step(f"destination {name}: writing a table"):
                check_destination(pipeline.stores(source).lake, name)
        except LoaderError as error:
            yield pipeline.redact_error(error, error.where)


def check_destination(lake: Lake, name: str, deadline: float = DEADLINE) -> None:
    """Writes a row into a table of its own, reads it, and drops the table.

    Args:
        name: the destination's, for messages.
        deadline: in seconds.

    Raises:
        TableError: if the lake cannot be written, or Spark has not answered in time.
    """
    where = f"destination {name}, schema {lake.schema}"
    problems: list[BaseException] = []
    group = uuid.uuid4().hex
    own = lake.for_thread()
    thread = threading.Thread(
        target=_write_and_read, args=(own, group, problems), name="check-destination", daemon=True
    )
    thread.start()
    thread.join(deadline)
    if thread.is_alive():
        lake.spark.sparkContext.cancelJobGroup(group)
        raise TableError(
            f"Spark has not written one row within {deadline:.0f} seconds",
            where=where,
            remedy="Check that its master, in the profile's target, can be reached and has free "
            "cores, and that the catalog answers",
        )
    if problems:
        found = clear(problems[0], where)
        raise TableError(
            f"it cannot be written: {found.what}", where=where, remedy=found.remedy
        ) from problems[0]


def _write_and_read(lake: Lake, group: str, problems: list[BaseException]) -> None:
    table = f"{PREFIX}check_{group[:12]}"
    try:
        lake.spark.sparkContext.setJobGroup(group, "loader check", interruptOnCancel=True)
        there = lake.spark.catalog.databaseExists(quote_name(lake.schema))
        lake.prepare()
        lake.create(table, "n bigint")
        try:
            lake.spark.range(1).toDF("n").writeTo(lake.name(table)).append()
            if lake.frame(table).count() != 1:
                raise LoaderError("a row that was just written is not there")
        finally:
            lake.spark.sql(f"drop table {lake.name(table)} purge")
            if not there:
                lake.spark.sql(f"drop namespace {quote_name(lake.schema)}")
    except Exception as error:
        problems.append(error)
