"""What a connector answers: which tables, which rows are there, a lazy DataFrame of them.

A connector is one class that extends :class:`Source`, found by its name in the entry-point group
``strandline.sources`` (a source document's ``path``). It knows nothing of state, batches or
Iceberg. See ``docs/architecture.md``, "Add a connector".
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel

from loader.errors import SpecError, TableError
from loader.rows.cursor import Cursor, CursorType
from loader.rows.window import Bounds, CursorField, Window
from loader.sources.table import SourceTable, TableRef
from loader.spec.options import TableOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from loader.sources.contents import Contents

GROUP = "strandline.sources"


class Snapshot(ABC):
    """One look at a source: everything asked of it sees the same rows where the source can."""

    @abstractmethod
    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        """Counts the rows at or above ``window.low`` and finds their highest cursor."""

    @abstractmethod
    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        """The rows between ``window.floor(bounds)`` and ``window.end(bounds)``, lazily.

        Partitions and their rows come in the order of emission.
        """

    tells_deletes: ClassVar[bool] = True
    """Whether a row that is no longer there was deleted. Files may be archived once read."""

    def steady(self, table: SourceTable) -> bool:
        """Whether all that is asked of a table is answered of one moment.

        Then as many rows must be read as were counted; else the batch is not published.
        """
        return False

    def living(self, spark: SparkSession, table: SourceTable, keys: DataFrame) -> DataFrame:
        """Rows as they are now, lazily: at least all that have one of these keys.

        Asked before a row is taken for deleted, by value and, where the source can, in a new
        look: later than this snapshot, and whatever a hash of the key says.

        Args:
            keys: the key's columns, by their names, as :meth:`read` has them.
        """
        window = Window()
        return self.read(spark, table, window, self.bounds(table, window))

    def contents(
        self,
        spark: SparkSession,
        table: SourceTable,
        key: Sequence[str],
        window: Window,
        unique: bool,
    ) -> Contents:
        """The table's rows by key, for `loader reconcile`; by default they are read and hashed.

        Worth overriding where the source can sum up its rows itself.

        Args:
            key: the primary key.
            window: the cursor, and the rows that the spec means to load.
            unique: whether the source has each key once.
        """
        from loader.sources.contents import ReadContents

        def read(wanted: Window) -> DataFrame:
            return self.read(spark, table, wanted, self.bounds(table, wanted))

        return ReadContents(read, table, key, window, unique)


class Source(ABC):
    """A connector bound to one source document.

    Args:
        name: the source's name.
        options: the document's inner ``spec``, validated by :attr:`options_model`.
        spark: the session to read with.
        folder: the folder of the spec; relative paths are relative to it.
    """

    options_model: ClassVar[type[BaseModel]]

    def __init__(self, name: str, options: Any, spark: SparkSession, folder: Path) -> None:
        self.name = name
        self.options = options
        self.spark = spark
        self.folder = folder

    @abstractmethod
    def tables(self) -> list[TableRef]:
        """All tables that can be read.

        Raises:
            TableError: where the source cannot be reached; the text says why and what to do.
        """

    @abstractmethod
    def describe(self, ref: TableRef) -> SourceTable:
        """Columns, key and cursor of one table; raises TableError where it is gone."""

    @abstractmethod
    @contextmanager
    def snapshot(self, tables: Sequence[SourceTable]) -> Iterator[Snapshot]:
        """Opens the source for the tables of one run, and of each of them.

        A table that cannot be opened fails when it is asked for: the others go on.
        """
        yield  # type: ignore[misc]  # pragma: no cover

    @property
    def table_options(self) -> Mapping[str, TableOptions]:
        """The document's ``table_options``; every connector's model has them."""
        options: Mapping[str, TableOptions] = self.options.table_options
        return options


def edge(text: str | None, type_: CursorType, table: SourceTable, window: Window) -> Cursor | None:
    """The lowest or highest cursor of a window, as the source writes it; None where it has none.

    Raises:
        TableError: where it has no place in an order: NaN, infinity, a date beyond all calendars.
    """
    if text is None:
        return None
    try:
        return Cursor.parse(text, type_)
    except ValueError as problem:
        column = window.cursor.name if window.cursor else "?"
        raise TableError(
            f"a value of the cursor column cannot be used: {problem}",
            where=f"table {table.ref.name}, column {column}",
            remedy="Mend the value in the source, or choose another cursor_field",
        ) from None


def connector(path: str, where: str) -> type[Source]:
    """The connector class of a source document's ``path``.

    Raises:
        SpecError: where no installed package provides it; names those that are there.
    """
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if path not in found:
        near = difflib.get_close_matches(path, found, 1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise SpecError(
            f"there is no connector {path!r}",
            where=where,
            remedy=f"{hint}Installed connectors: {', '.join(sorted(found)) or 'none'}",
        )
    loaded: type[Source] = found[path].load()
    return loaded


__all__ = [
    "Bounds",
    "CursorField",
    "Snapshot",
    "Source",
    "SourceTable",
    "TableRef",
    "Window",
    "connector",
    "edge",
]
