"""Gives `loader reconcile` a source table's rows by key, so that it can compare them with the lake.

There are three levels of detail: a checksum per bucket (a group of keys), hashes of keys and rows,
and the rows themselves. A database that has an md5 function computes checksums and hashes itself
(:mod:`loader.sources.jdbc.checksum_sql`). For other sources, Spark reads and hashes the rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loader.rows.cursor import CursorType
from loader.rows.literal import cursor_literal
from loader.rows.version_order import SEQUENCE, quote_name
from loader.rows.window import Window
from loader.sources.checksum import (
    DIGITS,
    HashedColumn,
    spark_hash,
    spark_number,
    spark_total,
    text_format,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.types import StructType

KEY = "_cq_key"
"""The column that contains a key's hash in hexadecimal (:mod:`loader.sources.checksum`)."""

CHECKSUM = "_cq_checksum"
"""The column that contains the checksum of a row (a bigint) or of a bucket (a string)."""

BUCKET = "_cq_bucket"
COUNT = "_cq_count"
WANTED = "_cq_wanted"


@dataclass(frozen=True)
class KeySelection:
    """A subset of a table's keys: either all keys in some buckets, or a list of keys.

    Attributes:
        of: the number of buckets. A key's bucket is its hash modulo this number.
        buckets: the selected buckets; None selects all.
        keys: the hashes of the selected keys; None if `buckets` selects the keys.
    """

    of: int
    buckets: tuple[int, ...] | None = None
    keys: tuple[str, ...] | None = None

    def contains(self, key: Column) -> Column:
        """Returns whether the key with this hash is selected."""
        if self.keys is not None:
            return key.isin(*self.keys)
        if self.buckets is None:
            return f.lit(True)
        return self.bucket(key).isin(*self.buckets)

    def bucket(self, key: Column) -> Column:
        """Returns the bucket (a bigint) of the key with this hash."""
        return f.pmod(spark_number(key), f.lit(self.of)).cast("bigint")

    def number_of(self, key: str) -> int:
        """Like :meth:`bucket`, but for a Python string."""
        return int(key[:DIGITS], 16) % self.of


@dataclass(eq=False)
class Contents(ABC):
    """The current rows of one source table, identified by key.

    Attributes:
        key: the columns of the key.
        checksum_columns: the columns that a row's checksum includes.
        left_out: the columns that the checksum excludes, as ``name (type)``.
    """

    key: tuple[HashedColumn, ...]
    checksum_columns: tuple[HashedColumn, ...]
    left_out: tuple[str, ...]

    @abstractmethod
    def sums(self, share: KeySelection, parts: int) -> DataFrame:
        """Splits each bucket into parts. Returns one row per part.

        Each row contains the part's number (in the column BUCKET), its row count (COUNT) and its
        checksum (CHECKSUM). Only rows that the spec selects are counted; parts without any are
        omitted.

        Args:
            parts: the number of parts in each bucket. A key's part number is its hash modulo
                `share.of` * `parts`.
        """

    @abstractmethod
    def hashes(self, share: KeySelection) -> DataFrame:
        """Returns KEY, CHECKSUM and WANTED (whether the spec selects the row) for each row."""

    @abstractmethod
    def rows(self, share: KeySelection) -> DataFrame:
        """Reads at least the selected rows, and adds the column KEY."""

    def hashed_rows(self, share: KeySelection) -> DataFrame:
        """Reads the selected rows, and possibly others. Adds the columns KEY and CHECKSUM."""
        return self.rows(share).withColumn(CHECKSUM, self.row_checksum())

    def check_storable(self, share: KeySelection) -> None:
        """Raises a TableError if the lake cannot store a value in the selected rows."""
        del share  # the values are checked when the rows are read

    def key_hash(self) -> Column:
        """Returns the hash of a row's key. Columns must be named and typed as in the source."""
        return spark_hash(self.key)

    def row_checksum(self) -> Column:
        """Returns the checksum of a row. Columns must be named and typed as in the source."""
        return spark_number(spark_hash(self.checksum_columns))


class ReadContents(Contents):
    """The contents of a source of any kind, which Spark reads and hashes.

    Args:
        read: reads the rows of a window.
        window: the cursor and the rows that the spec selects.
        unique: whether the source has only one row per key. Otherwise the row with the highest
            cursor is used; if several rows share it, the last of them that the source returns.
    """

    def __init__(
        self,
        read: Callable[[Window], DataFrame],
        schema: StructType,
        key: Sequence[str],
        window: Window,
        unique: bool,
    ) -> None:
        columns = tuple(
            HashedColumn(c.name, c.dataType, text_format(c.dataType)) for c in schema.fields
        )
        super().__init__(tuple(c for name in key for c in columns if c.name == name), columns, ())
        self._read = read
        self._schema = schema
        self._window = window
        self._unique = unique

    def sums(self, share: KeySelection, parts: int) -> DataFrame:
        return sum_buckets(self.hashes(share).where(WANTED), share.of * parts)

    def hashes(self, share: KeySelection) -> DataFrame:
        low, cursor = self._window.low, self._window.cursor
        hashes = self._newest(share).select(
            self.key_hash().alias(KEY),
            self.row_checksum().alias(CHECKSUM),
            is_wanted(self._schema, self._window).alias(WANTED),
        )
        if low is None or cursor is None or cursor.type is not CursorType.STRING:
            return hashes
        # Only the source can compare strings by its collation.
        wanted = self._read(self._window).select(self.key_hash().alias(KEY)).distinct()
        return (
            hashes.drop(WANTED)
            .join(wanted.withColumn(WANTED, f.lit(True)), KEY, "left")
            .select(KEY, CHECKSUM, f.coalesce(WANTED, f.lit(False)).alias(WANTED))
        )

    def rows(self, share: KeySelection) -> DataFrame:
        return self._newest(share).withColumn(KEY, self.key_hash())

    def _newest(self, share: KeySelection) -> DataFrame:
        read = self._read(Window())
        rows = read.drop(SEQUENCE)
        names = rows.columns
        if not self._unique:
            cursor = self._window.cursor
            # Like the raw table, this keeps the last row if several rows have the highest cursor.
            at = f.col(quote_name(cursor.name)) if cursor else f.lit(None).cast("string")
            newest = f.max_by(
                f.struct(*(f.col(quote_name(name)).alias(f"c{i}") for i, name in enumerate(names))),
                f.struct(at.alias("at"), f.col("_cq_position").alias("position")),
            ).alias("_cq_row")
            numbered = SEQUENCE in read.columns
            position = f.col(SEQUENCE) if numbered else f.monotonically_increasing_id()
            rows = (
                read.withColumn("_cq_position", position)
                .groupBy(*(f.col(quote_name(part.name)) for part in self.key))
                .agg(newest)
                .select(*(f.col(f"_cq_row.c{i}").alias(name) for i, name in enumerate(names)))
            )
        return rows.where(share.contains(self.key_hash()))


def sum_buckets(hashes: DataFrame, of: int) -> DataFrame:
    """Returns the number of rows and the checksum of each bucket; see :meth:`Contents.sums`."""
    return (
        hashes.groupBy(KeySelection(of).bucket(f.col(KEY)).alias(BUCKET))
        .agg(f.count(f.lit(1)).alias(COUNT), spark_total(f.col(CHECKSUM)).alias(CHECKSUM))
        .select(BUCKET, COUNT, CHECKSUM)
    )


def is_wanted(schema: StructType, window: Window) -> Column:
    """Returns whether a row is at or above the window's lower bound.

    A string cursor is not compared, because only the database can apply its collation.
    """
    cursor = window.cursor
    if cursor is None:
        return f.lit(True)
    column = f.col(quote_name(cursor.name))
    inside = column.isNotNull()
    if window.low is not None and cursor.type is not CursorType.STRING:
        inside = column >= cursor_literal(window.low, schema[cursor.name].dataType)
        inside = f.coalesce(inside, f.lit(False))
    return inside | column.isNull() if window.nulls else inside
