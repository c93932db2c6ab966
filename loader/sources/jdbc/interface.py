"""The interface between `jdbc` and plug-ins that read a database's log (`sync_mode: cdc`).

A plug-in is a class that extends :class:`LogCapture`. It is registered in the entry-point group
``strandline.capture``, under the word that follows `jdbc:` in the URL::

    [project.entry-points."strandline.capture"]
    postgresql = "loader.cdc.capture:PostgresCapture"

From the `jdbc` package, a plug-in may import only the names that this module exports.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from loader.errors import SpecError
from loader.sources.interface import ExclusiveResource, Snapshot, SourceTable
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.database import Database
from loader.sources.jdbc.dialect import Dialect
from loader.sources.jdbc.lossy_values import EARLIEST_TIME, LATEST_TIME
from loader.sources.jdbc.options import JdbcOptions, JdbcTableOptions
from loader.sources.jdbc.partitions import choose_partition_count
from loader.sources.jdbc.postgresql.continuity import read_activity
from loader.sources.jdbc.postgresql.exported_snapshot import (
    disable_timeouts,
    open_exported_snapshot,
)
from loader.sources.jdbc.snapshot import JdbcSnapshot
from loader.spec.entry_points import list_plugins, load_plugin

GROUP = "strandline.capture"

OpenQueries = Callable[[Sequence[SourceTable]], AbstractContextManager[JdbcSnapshot]]
"""Opens a snapshot that queries tables."""


class LogCapture(ABC):
    """A reader of a database's log."""

    @abstractmethod
    def check_installed(self, where: str) -> None:
        """Raises a TableError if one of the plug-in's libraries is not installed."""

    @abstractmethod
    def list_setup_sql(self, source: str, options: JdbcOptions, tables: Sequence[str]) -> list[str]:
        """Returns the SQL statements that an administrator must run to prepare the database."""

    @abstractmethod
    def find_single_reader(self, source: str, options: JdbcOptions) -> ExclusiveResource:
        """Returns the resource that only this source may read, such as a replication slot."""

    @abstractmethod
    def open_snapshot(
        self,
        database: Database,
        followed: Sequence[SourceTable],
        queried: Sequence[SourceTable],
        open_queries: OpenQueries,
    ) -> AbstractContextManager[Snapshot]:
        """Opens the source for the tables of one run.

        Args:
            followed: the tables that are read from the log.
            queried: the tables that are queried.
            open_queries: opens a snapshot for queries. Called only if needed.
        """


def load_capture(url: str, where: str) -> LogCapture:
    """Returns the plug-in that reads a database's log.

    Raises:
        SpecError: if no installed package provides a plug-in, or if it cannot be loaded.
    """
    match = re.match(r"(?i)jdbc:(\w+)", url)
    kind = match[1].lower() if match else ""
    plugins = list_plugins(GROUP)
    if kind not in plugins:
        raise SpecError(
            f"no installed plug-in reads the log of {kind or 'this database'}",
            where=where,
            remedy="Reinstall strandline (`pip install --force-reinstall strandline`), or "
            "read the tables with a cursor (sync_mode: incremental)",
        )
    return load_plugin(plugins[kind], LogCapture, where)()  # type: ignore[type-abstract]


__all__ = [
    "EARLIEST_TIME",
    "LATEST_TIME",
    "Connection",
    "Database",
    "Dialect",
    "JdbcOptions",
    "JdbcSnapshot",
    "JdbcTableOptions",
    "LogCapture",
    "OpenQueries",
    "choose_partition_count",
    "disable_timeouts",
    "load_capture",
    "open_exported_snapshot",
    "read_activity",
]
