"""Interface for plug-in commands that push batches into a lake.

A plug-in registers a click command in the entry-point group ``strandline.commands``. The command
gets the :class:`Settings` with ``@click.pass_obj``::

    spec, lake = choose_lake(settings, destination)
    with open_ingest(settings, spec, lake, server.end) as ingest:
        ingest.append(...)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from loader.cli.settings import Settings, open_session
from loader.errors import SpecError
from loader.formatting import format_count

if TYPE_CHECKING:
    from loader.spec.spec import Spec
    from loader.sync.ingest import Ingest
    from loader.sync.runner import Outcome


class _Warnings:
    def __init__(self, settings: Settings) -> None:
        self._output = settings.output

    def report_phase(self, table: str, phase: str, rows: int | None) -> None:
        """Does nothing."""

    def warn(self, table: str, text: str) -> None:
        self._output.warning(f"{table}: {text}", table=table)


def choose_lake(settings: Settings, destination: str | None) -> tuple[Spec, str]:
    """Returns the spec and the name of a lake in it, by default the first lake.

    Raises a SpecError if the spec has no lake, or `destination` is not a lake.
    """
    from loader.spec.plugins import LakeDestination

    spec = settings.spec(needs_source=False)
    lakes = [lake.name for lake in spec.destinations if isinstance(lake, LakeDestination)]
    if not lakes:
        raise SpecError(
            "there is no lake to write to",
            where=str(settings.config),
            remedy="Add a destination with `path: spark`",
        )
    name = destination or lakes[0]
    spec.destination(name).lake  # noqa: B018 - raises if it stores only state
    return spec, name


@contextmanager
def open_ingest(
    settings: Settings, spec: Spec, destination: str, stop: Callable[[], object]
) -> Iterator[Ingest]:
    """Opens Spark and a lake. On a signal, cancels running appends and calls `stop`."""
    spark = open_session(settings, spec, spec.destination(destination).lake)
    from loader.cli.signals import stop_on_signal
    from loader.cli.system_table_upkeep import compact_system_tables
    from loader.sync.fault_injection import load_fault_injection
    from loader.sync.ingest import Ingest
    from loader.sync.run_context import Watch

    def report(outcome: Outcome) -> None:
        if outcome.error is not None:
            settings.output.error(outcome.error)
            return
        rows = outcome.record.rows_appended if outcome.record else 0
        text = f"{outcome.table}: {format_count(rows or 0, 'row')} appended"
        settings.output.event("table", text, table=outcome.table, appended=rows)

    watch = Watch(_Warnings(settings), load_fault_injection(os.environ, spark))

    def end() -> None:
        watch.stopped.set()
        stop()

    with stop_on_signal(end, spark.sparkContext.cancelAllJobs):
        yield Ingest(spec, spark, destination, watch, report, compact_system_tables)
