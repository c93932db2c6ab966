"""The connector interface. A connector lists a source's tables and reads them as DataFrames.

A connector is a class that extends :class:`Source`. It is registered in the entry-point group
``strandline.sources``, under the name that source documents use as their ``path``. It does not
handle state, batches or Iceberg. Of the loader's modules, it needs only this one,
:mod:`loader.rows.cursor`, :mod:`loader.rows.window`, :mod:`loader.spec.options` and
:mod:`loader.errors`::

    class RatesOptions(Strict):
        url: Name
        table_options: dict[str, TableOptions] = Field(default_factory=dict)


    class ExchangeRates(Source):
        options_model = RatesOptions

        def tables(self) -> list[TableRef]:
            return [TableRef("rates")]

        def describe(self, ref: TableRef) -> SourceTable:
            return SourceTable(ref, SCHEMA, primary_key=("currency",), cursor_field="day")

        @contextmanager
        def snapshot(self, tables: Sequence[SourceTable]) -> Iterator[Snapshot]:
            yield RatesSnapshot(self.options.url)


    class RatesSnapshot(Snapshot):
        def __init__(self, url: str) -> None:
            self.url = url

        def bounds(self, table: SourceTable, window: Window) -> Bounds:
            self.rows = fetch(self.url, since=window.low.text if window.low else None)
            days = [row["day"].isoformat() for row in self.rows]
            low, high = min(days, default=None), max(days, default=None)
            low, high = (parse_bound(day, CursorType.DATE, table, window) for day in (low, high))
            return Bounds(len(self.rows), low=low, high=high)

        def read(self, spark, table, window, bounds) -> DataFrame:
            return spark.createDataFrame(self.rows, table.schema)

All other methods have defaults. See ``docs/architecture.md``, "Add a connector".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import BaseModel

from loader.errors import TableError
from loader.names import in_the_lake
from loader.rows.cursor import Cursor, CursorType
from loader.rows.version_order import SEQUENCE
from loader.rows.window import Bounds, CursorField, Window
from loader.spec.options import TableOptions, is_set_by_name, options_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from loader.sources.contents import Contents

REST_COLUMN = "_rest"
"""A connector's nullable column that stores values that fit no other column, as a JSON object."""


@dataclass(frozen=True)
class TableRef:
    """A reference to a table in a source.

    Attributes:
        name: the table's name in specs and messages; qualified unless the table is in the default
            schema.
        native: the connector's internal data about the table.
        kind: ``table`` or ``view``. Wildcards match only tables.
        origin: the quoted and qualified name if `name` is ambiguous in the source; else empty.
    """

    name: str
    native: Any = None
    kind: str = "table"
    origin: str = ""

    @property
    def qualified_name(self) -> str:
        return self.origin or self.name

    @property
    def key(self) -> tuple[str, str]:
        """The table's unique key within its source."""
        return self.name, self.origin

    @property
    def lake_name(self) -> str:
        return in_the_lake(self.name)


class Progress(Enum):
    """How a sync continues from where the previous sync ended."""

    CURSOR = "cursor"
    """The loader requests the rows at or above a cursor. The source returns one row per key."""
    MARK = "mark"
    """The connector resumes from its own opaque checkpoint. It may repeat rows."""
    WHOLE = "whole"
    """Every read returns all rows."""


@dataclass(frozen=True)
class SourceTable:
    """A table's columns, key and cursor.

    Attributes:
        schema: the columns of the DataFrame that :meth:`Snapshot.read` returns.
        primary_key: the key that the source declares; empty if it declares none.
        no_key_reason: why the declared key is unusable; empty if the key is usable or not declared.
        cursor_field: the cursor column that the connector prescribes; None if it prescribes none.
        indexed: the first column of each index. A read that is restricted to a range of such a
            column is cheap.
        system_cursors: system columns that can be cursors but are not in `schema`.
        collated: string columns that the source orders by a collation rather than by bytes.
        comment: the source's comment on the table; empty if there is none.
        column_comments: the source's comments on columns, keyed by column name.
        progress: how a sync continues. Only :attr:`Progress.CURSOR` requires a cursor.
        selection: identifies the rows that the connector's options select, for example by the hash
            of a filter; empty if they select all rows. If it changes, the next sync reads all rows.
        excluded: the source's columns that the `columns` option removes from `schema`.
    """

    ref: TableRef
    schema: StructType
    primary_key: tuple[str, ...] = ()
    no_key_reason: str = ""
    cursor_field: str | None = None
    system_cursors: tuple[str, ...] = ()
    indexed: frozenset[str] = frozenset()
    collated: frozenset[str] = frozenset()
    comment: str = ""
    column_comments: Mapping[str, str] = field(default_factory=dict)
    progress: Progress = Progress.CURSOR
    selection: str = ""
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExclusiveResource:
    """A resource that only one source may read, such as a replication slot.

    Attributes:
        identity: identifies the resource uniquely among the connector's resources.
        option: the option that assigns a different resource to a source.
    """

    identity: tuple[str, ...]
    shown: str
    option: str


class Source(ABC):
    """A connector for the source that one source document describes.

    Args:
        options: the document's inner ``spec``, validated by :attr:`options_model`.
        folder: the spec's folder, against which relative paths are resolved.

    Attributes:
        hide: registers a secret that only the connector can recognize, so that it is redacted in
            all output.
        mask_key: the spec's `mask_key`; None if the spec has none. With this key, connectors
            encrypt stored data that may contain values of masked columns.
        can_mask: whether the `mask` option is allowed. True if the connector neither writes values
            of masked columns to disk nor quotes them in errors.
        can_mask_typed_columns: whether a masked column may have a type in `column_types`. True if
            errors do not quote values that do not fit the type.
        masks_records: whether the connector masks the values of all tables itself. True if it
            writes records to disk before :meth:`Snapshot.read`. Its snapshot then receives each
            table as a ``MaskedTable`` (:mod:`loader.sources.masked_table`). Otherwise the loader
            masks the rows after they are read, unless :meth:`Snapshot.masks_rows` is true.
        selects_columns: whether :meth:`describe` applies :meth:`select_columns`. If false, tables
            that have the `columns` option are rejected.
    """

    options_model: ClassVar[type[BaseModel]]
    can_mask: ClassVar[bool] = False
    can_mask_typed_columns: ClassVar[bool] = False
    masks_records: ClassVar[bool] = False
    selects_columns: ClassVar[bool] = False

    def __init__(self, name: str, options: Any, spark: SparkSession, folder: Path) -> None:
        self.name = name
        self.options = options
        self.spark = spark
        self.folder = folder
        self.hide: Callable[..., None] = _nothing
        self.mask_key: bytes | None = None

    def use_marks(self, marks: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:  # noqa: B027
        """Sets a function that takes a table's name and returns its stored checkpoints.

        Called before a run plans its tables, so that :meth:`describe` can use their checkpoints.
        """

    @abstractmethod
    def tables(self) -> list[TableRef]:
        """Lists all tables that can be read.

        Raises:
            TableError: if the source cannot be reached.
        """

    @abstractmethod
    def describe(self, ref: TableRef) -> SourceTable:
        """Returns a table's columns, key and cursor.

        Raises:
            TableError: if the table no longer exists.
        """

    @abstractmethod
    @contextmanager
    def snapshot(self, tables: Sequence[SourceTable]) -> Iterator[Snapshot]:
        """Opens the source for a run. If a table cannot be opened, only calls for it fail."""
        yield  # type: ignore[misc]  # pragma: no cover

    @classmethod
    def find_exclusive_resource(cls, name: str, options: Any) -> ExclusiveResource | None:
        """Returns the resource that only this source may read, or None if there is none."""
        return None

    @contextmanager
    def reuse_connections(self, keep: int = 1) -> Iterator[None]:
        """Lets calls within this block reuse open connections, even for different tables.

        A run enters one block for its whole duration, and a nested block for planning.

        Args:
            keep: the number of connections that stay open after a nested block.
        """
        yield

    @property
    def any_cursor(self) -> str:
        """The name of a cursor that every table except a view has; empty if there is none."""
        return ""

    @property
    def table_options(self) -> Mapping[str, TableOptions]:
        """The spec's ``table_options``. Every `options_model` must have this field."""
        options: Mapping[str, TableOptions] = self.options.table_options
        return options

    def select_columns(
        self, ref: TableRef, names: Sequence[str], required: Collection[str] = ()
    ) -> list[str]:
        """Returns the columns that the `columns` option selects, in the table's order.

        Args:
            required: the columns of the key, the cursor and the `deleted_field`.

        Raises:
            TableError: if a name in the option is not a column, unless the spec sets the option for
                several tables with a wildcard.
        """
        columns = options_for(self.table_options, ref.name, TableOptions()).columns
        if columns is None:
            return list(names)
        where = f"table {self.name}.{ref.name}"
        must_match = is_set_by_name(self.table_options, ref.name, "columns")
        return columns.choose(names, required, where, must_match)


def _nothing(*_: str, whole_word: bool = False) -> None:
    """The default of :attr:`Source.hide`."""


@dataclass(frozen=True)
class Request:
    """A run's request for one table.

    Attributes:
        name: the table's name in messages, ``<source>.<table>``.
        mark: the checkpoint of the last batch; None to start from scratch.
        whole: whether to read all rows in a single batch.
        cursor: the cursor column; None if there is none.
        key: the primary key; empty if there is none.
    """

    table: SourceTable
    name: str
    mark: Mapping[str, Any] | None
    whole: bool
    cursor: str | None
    key: tuple[str, ...]


class RunContext(Protocol):
    """The part of the run's context that sources use."""

    def warn(self, table: str, text: str) -> None:
        """Prints a warning; the run continues."""

    def check_interruption(self, table: str) -> None:
        """Raises a TableError if the run was interrupted."""


@dataclass(frozen=True)
class Digest:
    """The number of rows in a window, and a digest that differs if the rows differ."""

    rows: int
    text: str


class Snapshot(ABC):
    """An open source. If the source supports it, all calls see the same version of the rows."""

    @abstractmethod
    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        """Returns the number of rows at or above ``window.low`` and their highest cursor."""

    @abstractmethod
    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        """Lazily reads the rows between ``window.floor(bounds)`` and ``window.end(bounds)``.

        If the partitions, or the rows within them, are not in the source's order, a column
        `_cq_seq` must contain each row's position. An optional boolean column `_cq_deleted` is true
        for rows that were deleted in the source.
        """

    def preview(self, table: SourceTable, window: Window) -> Bounds:
        """Returns an approximation of :meth:`bounds`. Has no side effects."""
        return self.bounds(table, window)

    def read_first(
        self, spark: SparkSession, table: SourceTable, window: Window, limit: int
    ) -> DataFrame:
        """Lazily reads up to `limit` rows of a window. Has no side effects.

        Override this method if :meth:`bounds`, which counts the rows, is slow.
        """
        return self.read(spark, table, window, self.bounds(table, window)).limit(limit)

    def confirm_stored(self, table: SourceTable, mark: Mapping[str, Any] | None) -> None:  # noqa: B027
        """Notifies the source that a checkpoint and all rows up to it are stored.

        A source that retains changes until they are read may now delete them up to the checkpoint.
        """

    def use_marks(self, marks: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:  # noqa: B027
        """Sets a function that takes a table's name and returns its stored checkpoints."""

    def list_unmet_requirements(self, table: SourceTable) -> list[str]:
        """Lists, for `loader check`, the table's unmet requirements and their remedies."""
        return []

    def list_option_notes(self, table: SourceTable, cursor: CursorField) -> list[str]:
        """Lists, for `loader check`, options that have no effect or miss late rows."""
        return []

    def count_values(
        self, table: SourceTable, columns: Sequence[str], window: Window, bounds: Bounds | None
    ) -> int | None:
        """Counts the rows of a window in which at least one of the columns is not null.

        Returns None if the source sends earlier rows again when a column is added.
        """
        return None

    def masks_rows(self, table: SourceTable) -> bool:
        """Returns whether :meth:`read` masks the table's values itself.

        If so, the snapshot's methods receive a ``MaskedTable`` instead of the original table.
        """
        return False

    def get_query_snapshot(self, table: SourceTable) -> Snapshot:
        """Returns a snapshot that queries the table. Override it if :meth:`read` reads a log."""
        return self

    def deletions(self, spark: SparkSession, table: SourceTable) -> Sequence[DataFrame]:
        """Returns DataFrames that identify the rows that were deleted since the last sync.

        A stored row is deleted if it matches a row of a DataFrame in all of the DataFrame's
        columns, unless this sync reads the stored row's key again. Nulls never match.
        """
        return ()

    missing_means_deleted: ClassVar[bool] = True
    """Whether a row that is missing from the source was deleted.

    False for files, which may have been archived.
    """

    delivers: ClassVar[bool] = False
    """Whether the source decides which rows it sends next.

    Such a source reads all tables concurrently, starting from their checkpoints. Its
    :meth:`bounds` waits for the next batch of a table.
    """

    def lower_window(self, table: SourceTable, window: Window) -> Window:
        """Returns the window to read instead of one that starts at the stored cursor.

        A source lowers the window if it does not know which rows were committed after the last
        sync.
        """
        return window

    def finds_late_rows_by_time(self, table: SourceTable) -> bool:
        """Returns whether late rows are found only if their times are not too old.

        If so, `loader check` warns about times that an application computes, which may be too old.
        """
        return False

    def probe(self) -> None:
        """Raises a TableError if the source cannot be read. Called by `loader check`."""
        return

    def begin(self, requests: Sequence[Request], context: RunContext) -> None:  # noqa: B027
        """Starts reading. Called once, before :meth:`bounds`, if :attr:`delivers` is true."""

    def has_more(self, table: SourceTable) -> bool:
        """Returns whether the table has another batch. Called after each recorded batch."""
        return False

    def abandon(self, table: SourceTable) -> None:
        """Stops reading a table whose sync failed."""
        return

    def check_unaltered(self, table: SourceTable) -> None:  # noqa: B027
        """Raises a TableError if the source's columns have changed since the table was described.

        Called after the rows are read and before they are published. Without this check, the values
        of a newly added column might never be read.
        """

    def is_steady(self, table: SourceTable) -> bool:
        """Returns whether all calls for a table see the same version of its rows.

        If so, a batch is published only if it has as many rows as :meth:`bounds` counted.
        """
        return False

    @contextmanager
    def open_later(self, table: SourceTable) -> Iterator[Snapshot]:
        """Yields a snapshot that reads the table's rows as of now or later.

        Called if a comparison found differences and :meth:`is_steady` is false, because the
        differing rows may have changed after they were synced.
        """
        yield self

    def digest(
        self,
        table: SourceTable,
        window: Window,
        rows: int | None = None,
        until: Cursor | None = None,
    ) -> Digest | None:
        """Computes a digest of the rows that :meth:`read` returns for an open-ended window.

        Returns None if the window has many rows, if the source would have to send them all, or if
        :meth:`is_steady` is false. A source that returns digests must respect
        :attr:`Window.above`.

        Args:
            rows: the number of rows; None if unknown.
            until: the highest cursor to include; None includes all rows.
        """
        return None

    def estimate_bytes(self, table: SourceTable, window: Window, bounds: Bounds) -> int | None:
        """Estimates the size in bytes of a window that has few rows.

        Small windows are read into the memory of Spark's driver. Return None to prevent this if the
        size is unknown or if strings may contain invalid UTF-8.
        """
        return None

    def read_current_rows(
        self, spark: SparkSession, table: SourceTable, keys: DataFrame
    ) -> DataFrame:
        """Lazily reads the current rows with the given keys, and possibly other rows.

        Called before a row is treated as deleted. If possible, the rows are read from the live
        table, not from this snapshot. Keys are compared by value, not by hash.

        Args:
            keys: the key columns, named as in :meth:`read`.
        """
        window = Window()
        return self.read(spark, table, window, self.bounds(table, window)).drop(SEQUENCE)

    def contents(
        self,
        spark: SparkSession,
        table: SourceTable,
        key: Sequence[str],
        window: Window,
        unique: bool,
    ) -> Contents:
        """Returns the object that `loader reconcile` uses to compare the table's rows by key.

        By default, Spark reads and hashes the rows. Override this method if the source can compute
        checksums.

        Args:
            unique: whether each key has only one row in the source.
        """
        from loader.sources.contents import ReadContents

        def read(part: Window) -> DataFrame:
            return self.read(spark, table, part, self._find_contents_bounds(table, part, window))

        return ReadContents(read, table.schema, key, window, unique)

    def _find_contents_bounds(self, table: SourceTable, part: Window, window: Window) -> Bounds:
        """Returns the bounds of `part` (the `window` of :meth:`contents`, or all rows)."""
        return self.bounds(table, part)


def parse_bound(
    text: str | None, type_: CursorType, table: SourceTable, window: Window
) -> Cursor | None:
    """Parses the lowest or highest cursor in a window.

    Args:
        text: the cursor in the source's notation; None if the window has no rows.

    Raises:
        TableError: if the value cannot be a bound (NaN, infinity, a date outside the calendar).
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
            remedy="Correct the value in the source, or choose another cursor_field",
        ) from None


def is_connector_state(mark: Mapping[str, Any] | None) -> bool:
    """Returns whether a checkpoint was written by a connector that runs as a child process."""
    return mark is not None and {"protocol", "kind", "number"} <= mark.keys()


__all__ = [
    "REST_COLUMN",
    "Bounds",
    "CursorField",
    "Digest",
    "ExclusiveResource",
    "Progress",
    "Request",
    "RunContext",
    "Snapshot",
    "Source",
    "SourceTable",
    "TableRef",
    "Window",
    "is_connector_state",
    "parse_bound",
]
