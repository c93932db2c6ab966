"""The interface of a connector: it lists tables, bounds a window, and reads it as a DataFrame.

A connector is one class that extends :class:`Source`, found by its name in the entry-point group
``strandline.sources`` (a source document's ``path``). It knows nothing of state, batches or
Iceberg. What it needs is here, in :mod:`loader.rows.cursor` and :mod:`loader.rows.window` (values),
:mod:`loader.spec.options` (the base of its options) and :mod:`loader.errors`::

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
            low, high = (edge(day, CursorType.DATE, table, window) for day in (low, high))
            return Bounds(len(self.rows), low=low, high=high)

        def read(self, spark, table, window, bounds) -> DataFrame:
            return spark.createDataFrame(self.rows, table.schema)

Everything but these five methods has a default. See ``docs/architecture.md``, "Add a connector".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from loader.spec.options import TableOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from loader.sources.contents import Contents


@dataclass(frozen=True)
class TableRef:
    """A table as a source lists it.

    Attributes:
        name: its name in specs and messages: bare in the default schema, else qualified.
        native: the connector's own handle of the table.
        kind: ``table`` or ``view``; wildcards choose tables only.
        origin: its unambiguous name in the source, if `name` may come to mean another table: with
            the schema, quoted. Empty is `name`.
    """

    name: str
    native: Any = None
    kind: str = "table"
    origin: str = ""

    @property
    def place(self) -> str:
        """Its unambiguous name in the source."""
        return self.origin or self.name

    @property
    def key(self) -> tuple[str, str]:
        """Its identity among all tables of its source."""
        return self.name, self.origin

    @property
    def lake_name(self) -> str:
        """The raw table's name; see :mod:`loader.names`."""
        return in_the_lake(self.name)


class Progress(Enum):
    """The way in which a source resumes where the last sync ended."""

    CURSOR = "cursor"
    """The loader asks for the rows at or above a cursor, and each key comes as it is now."""
    MARK = "mark"
    """The connector goes on from its mark, in its own way; rows may come again, also old ones."""
    WHOLE = "whole"
    """Every read delivers all rows."""


@dataclass(frozen=True)
class SourceTable:
    """A table's description.

    Attributes:
        ref: the table.
        schema: its columns as the DataFrame of :meth:`Snapshot.read` has them.
        primary_key: from the source's own metadata; empty if it declares none.
        keyless: why there is none although the source declares one; empty if there is no more to
            say.
        cursor_field: the cursor that the connector itself defines, if any.
        indexed: columns that lead an index, so that a window on them is cheap.
        system_cursors: possible cursors that are not among the columns.
        collated: text columns that may be the cursor and that the source does not order by bytes.
        comment: the source's comment on the table; empty if there is none.
        column_comments: the source's comments on its columns, by column.
        progress: how it goes on; only with :attr:`Progress.CURSOR` it needs a cursor.
    """

    ref: TableRef
    schema: StructType
    primary_key: tuple[str, ...] = ()
    keyless: str = ""
    cursor_field: str | None = None
    system_cursors: tuple[str, ...] = ()
    indexed: frozenset[str] = frozenset()
    collated: frozenset[str] = frozenset()
    comment: str = ""
    column_comments: Mapping[str, str] = field(default_factory=dict)
    progress: Progress = Progress.CURSOR


@dataclass(frozen=True)
class ExclusiveResource:
    """Something that has one reader.

    Attributes:
        identity: its identity among others of this connector.
        shown: how errors call it.
        option: the option of a source that names another one.
    """

    identity: tuple[str, ...]
    shown: str
    option: str


class Source(ABC):
    """A connector bound to one source document.

    Args:
        name: the source's name.
        options: the document's inner ``spec``, validated by :attr:`options_model`.
        spark: the session to read with.
        folder: the spec's folder, which relative paths start from.

    Attributes:
        hide: registers secrets that only the connector knows as one.
    """

    options_model: ClassVar[type[BaseModel]]

    def __init__(self, name: str, options: Any, spark: SparkSession, folder: Path) -> None:
        self.name = name
        self.options = options
        self.spark = spark
        self.folder = folder
        self.hide: Callable[..., None] = _nothing

    def use_marks(self, marks: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:  # noqa: B027
        """Sets the lookup of its tables' stored marks, by name, before a run plans them.

        :meth:`describe` may use what the last sync has found.
        """

    @abstractmethod
    def tables(self) -> list[TableRef]:
        """Lists all tables that can be read.

        Raises:
            TableError: if the source cannot be reached; the message says why and what to do.
        """

    @abstractmethod
    def describe(self, ref: TableRef) -> SourceTable:
        """Returns a table's columns, key and cursor; raises TableError if the table is gone."""

    @abstractmethod
    @contextmanager
    def snapshot(self, tables: Sequence[SourceTable]) -> Iterator[Snapshot]:
        """Opens the source for the tables of one run.

        If a table cannot be opened, only calls for that table fail: the others go on.
        """
        yield  # type: ignore[misc]  # pragma: no cover

    @classmethod
    def find_exclusive_resource(cls, name: str, options: Any) -> ExclusiveResource | None:
        """Returns the resource that this source reads exclusively; None if there is none.

        Args:
            name: the source's name.
            options: its options, validated.
        """
        return None

    @contextmanager
    def reuse_connections(self, keep: int = 1) -> Iterator[None]:
        """Encloses questions about many tables: a connection that they need may stay open.

        A run encloses its plan and its syncs, and within it the plan itself.

        Args:
            keep: of a block within another one, how many connections stay open after it.
        """
        yield

    @property
    def any_cursor(self) -> str:
        """A cursor that every stored table has, as the spec names it; empty if there is none."""
        return ""

    @property
    def table_options(self) -> Mapping[str, TableOptions]:
        """The document's ``table_options``; every connector's model has them."""
        options: Mapping[str, TableOptions] = self.options.table_options
        return options


def _nothing(*_: str, whole_word: bool = False) -> None:
    """Registers nothing, as nothing is printed."""


@dataclass(frozen=True)
class Request:
    """One table that a run wants.

    Attributes:
        name: the table's name in messages, ``<source>.<table>``.
        mark: the connector's state as of the last batch; None to begin from scratch.
        whole: everything is read again, and must come in one piece.
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
    """The run's watch, as a source sees it."""

    def warn(self, table: str, text: str) -> None:
        """Warns the user; the run goes on."""

    def check_interruption(self, table: str) -> None:
        """Raises a TableError if the run was asked to stop."""


@dataclass(frozen=True)
class Digest:
    """A summary of a window's rows.

    Attributes:
        rows: how many rows.
        text: differs if the rows do.
    """

    rows: int
    text: str


class Snapshot(ABC):
    """One look at a source. If the source supports it, all calls see the same rows."""

    @abstractmethod
    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        """Counts the rows at or above ``window.low`` and finds their highest cursor."""

    @abstractmethod
    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        """Reads the rows between ``window.floor(bounds)`` and ``window.end(bounds)``, lazily.

        Partitions, and the rows in them, are in the order in which the source emits them; if they
        are not, a column `_cq_seq` numbers the rows. A column `_cq_deleted` says of each row
        whether the source has deleted it again.
        """

    def preview(self, table: SourceTable, window: Window) -> Bounds:
        """Returns :meth:`bounds` as far as they are known without changing anything anywhere."""
        return self.bounds(table, window)

    def confirm_stored(self, table: SourceTable, mark: Mapping[str, Any] | None) -> None:  # noqa: B027
        """Confirms that all rows up to a mark are in raw, and that the mark is stored.

        A source that keeps its changes until they are read may delete them now.
        """

    def use_marks(self, marks: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:  # noqa: B027
        """Sets the lookup of the stored marks of any of the source's tables, by name."""

    def list_unmet_requirements(self, table: SourceTable) -> list[str]:
        """Returns notes for `loader check` about a table: unmet requirements, with remedies."""
        return []

    def count_values(
        self, table: SourceTable, columns: Sequence[str], window: Window, bounds: Bounds | None
    ) -> int | None:
        """Returns how many rows of a window have a value in one of some columns, at least.

        None if rows that were read before are read again by themselves if a column is added.
        """
        return None

    def deletions(self, spark: SparkSession, table: SourceTable) -> Sequence[DataFrame]:
        """Returns the source's deletions since the last sync, by the values of columns.

        Rows of earlier syncs that equal a row of one of these frames in all its columns are
        deleted, unless their keys are among the rows that are read. Null equals nothing.
        """
        return ()

    missing_means_deleted: ClassVar[bool] = True
    """Whether a missing row means that it was deleted. (Files may be archived once read.)"""

    delivers: ClassVar[bool] = False
    """Whether the source itself decides what comes next, and when: it reads all tables at once,
    from their marks, and :meth:`bounds` waits for the next piece of a table."""

    def probe(self) -> None:
        """Makes sure that the source can be read, for `loader check`; raises TableError if not."""
        return

    def begin(self, requests: Sequence[Request], attention: RunContext) -> None:  # noqa: B027
        """Begins to read; called once, before any :meth:`bounds`, if the source delivers."""

    def has_more(self, table: SourceTable) -> bool:
        """Returns whether the table has another piece, now that the last one is recorded."""
        return False

    def abandon(self, table: SourceTable) -> None:
        """Cancels the rest of a table, as it has failed."""
        return

    def check_unaltered(self, table: SourceTable) -> None:  # noqa: B027
        """Makes sure that the rows that were read have the table's columns; TableError if not.

        Called before they are published: values of a column that the reader did not know of would
        be permanently lost.
        """

    def is_steady(self, table: SourceTable) -> bool:
        """Returns whether all calls for a table see it at the same moment.

        If so, a batch is published only if as many rows were read as were counted.
        """
        return False

    def digest(
        self,
        table: SourceTable,
        window: Window,
        rows: int | None = None,
        until: Cursor | None = None,
    ) -> Digest | None:
        """Returns a digest of the rows that :meth:`read` delivers of a window without an end.

        None if they are many, if the source would have to send them all, or if the table is not
        :meth:`is_steady`.

        Args:
            rows: how many they are; None if that is not known.
            until: only of rows up to this cursor. A source that gives one obeys
                :attr:`Window.above`.
        """
        return None

    def estimate_bytes(self, table: SourceTable, window: Window, bounds: Bounds) -> int | None:
        """Returns about how many bytes the values of a window with few rows are.

        None if that is not known, or if texts may be no valid UTF-8. Light windows pass through the
        driver's memory.
        """
        return None

    def read_current_rows(
        self, spark: SparkSession, table: SourceTable, keys: DataFrame
    ) -> DataFrame:
        """Reads rows as they are now, lazily: at least all rows that have one of these keys.

        Called before a row is considered deleted. It compares the keys' values, not their hashes,
        and if the source can, it looks again, later than this snapshot.

        Args:
            keys: the key's columns, named as in :meth:`read`.
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
        """Returns the rows by key, for `loader reconcile`; the default reads and hashes them.

        Override it if the source can compute checksums of its rows itself.

        Args:
            key: the primary key.
            window: the cursor, and the rows that the spec asks for.
            unique: whether the source has each key only once.
        """
        from loader.sources.contents import ReadContents

        def read(wanted: Window) -> DataFrame:
            return self.read(spark, table, wanted, self.bounds(table, wanted))

        return ReadContents(read, table.schema, key, window, unique)


def edge(text: str | None, type_: CursorType, table: SourceTable, window: Window) -> Cursor | None:
    """Parses the lowest or highest cursor of a window; None if the window has none.

    Args:
        text: the cursor as the source writes it.

    Raises:
        TableError: if the value cannot be ordered: NaN, infinity, a date beyond the calendar.
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
    """Returns whether a table goes on from a connector's own state, and not from its cursor."""
    return mark is not None and {"protocol", "kind", "number"} <= mark.keys()


__all__ = [
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
    "edge",
    "is_connector_state",
]
