"""Opens a lake for a plug-in's command that pushes batches into it: the interface of such commands.

A command is a click command, found by its name in the entry-point group ``strandline.commands``,
and gets the :class:`Settings` by ``@click.pass_obj``::

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

if TYPE_CHECKING:
    from loader.spec.spec import Spec
    from loader.sync.ingest import Ingest
    from loader.sync.runner import Outcome


class _Warnings:
    """Shows warnings only, not the phases of a sync that another program started."""

    def __init__(self, settings: Settings) -> None:
        self._output = settings.output

    def report_phase(self, table: str, phase: str, rows: int | None) -> None:
        """Shows nothing."""

    def warn(self, table: str, text: str) -> None:
        """Shows a warning."""
        self._output.warning(f"{table}: {text}", table=table)


def choose_lake(settings: Settings, destination: str | None) -> tuple[Spec, str]:
    """Reads the spec; returns it and the name of a destination, the first lake by default.

    Raises:
        SpecError: if there is no lake, or the destination is none.
    """
    from loader.spec.plugins import LakeDestination

    spec = settings.spec(needs_source=False)
    lakes = [one.name for one in spec.destinations if isinstance(one, LakeDestination)]
    if not lakes:
        raise SpecError(
            "there is no lake to write to",
            where=str(settings.config),
            remedy="Add a destination with `path: spark`",
        )
    name = destination or lakes[0]
    spec.destination(name).lake  # noqa: B018 - refuses one that holds state only
    return spec, name


@contextmanager
def open_ingest(
    settings: Settings, spec: Spec, destination: str, stop: Callable[[], object]
) -> Iterator[Ingest]:
    """Opens Spark and a lake; a signal stops what is being appended, and calls `stop`."""
    spark = open_session(settings, spec, spec.destination(destination).lake)
    from loader.cli.signals import stopping
    from loader.cli.system_table_upkeep import compact_system_tables
    from loader.sync.fault_injection import load_fault_injection
    from loader.sync.ingest import Ingest
    from loader.sync.run_context import Watch

    def report(outcome: Outcome) -> None:
        if outcome.error is not None:
            settings.output.error(outcome.error)
            return
        rows = outcome.record.rows_appended if outcome.record else 0
        text = f"{outcome.table}: {rows or 0:,} rows appended"
        settings.output.event("table", text, table=outcome.table, appended=rows)

    watch = Watch(_Warnings(settings), load_fault_injection(os.environ, spark))

    def end() -> None:
        watch.stopped.set()
        stop()

    with stopping(end, spark.sparkContext.cancelAllJobs):
        yield Ingest(spec, spark, destination, watch, report, compact_system_tables)
