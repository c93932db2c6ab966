"""What a source's table holds, key by key: what `loader reconcile` compares the lake with.

Three questions, each finer than the one before, and each about a share of the keys: checksums of
buckets, a hash for each key and its row, the rows themselves. A database that has md5 answers the
first two itself (:mod:`loader.sources.jdbc.contents`); of any other source the rows are read, and
hashed by Spark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from loader.rows.cursor import CursorType
from loader.rows.literal import literal
from loader.rows.order import quoted
from loader.rows.window import Window
from loader.sources.checksum import (
    DIGITS,
    Part,
    spark_form,
    spark_hash,
    spark_number,
    spark_total,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from loader.sources.table import SourceTable

KEY = "_cq_key"
"""A key's hash: the md5 of its texts, 32 hexadecimal digits."""

CHECKSUM = "_cq_checksum"
"""Of a row: the first 60 bits of the md5 of its texts, a bigint. Of a bucket: their sum, a text."""

BUCKET = "_cq_bucket"
COUNT = "_cq_count"
WANTED = "_cq_wanted"


@dataclass(frozen=True)
class Share:
    """A share of a table's keys: those in some buckets, or those that are named.

    Attributes:
        of: the number of buckets; a key's bucket is its hash modulo this.
        buckets: which of them; None is all.
        keys: the hashes of single keys; then the buckets do not matter.
    """

    of: int
    buckets: tuple[int, ...] | None = None
    keys: tuple[str, ...] | None = None

    def holds(self, key: Column) -> Column:
        """Whether a key is of this share, by its hash."""
        if self.keys is not None:
            return key.isin(*self.keys)
        if self.buckets is None:
            return f.lit(True)
        return self.bucket(key).isin(*self.buckets)

    def bucket(self, key: Column) -> Column:
        """The bucket of a key, by its hash; a bigint."""
        return f.pmod(spark_number(key), f.lit(self.of)).cast("bigint")

    def number_of(self, key: str) -> int:
        """The same of one key."""
        return int(key[:DIGITS], 16) % self.of


class Contents(ABC):
    """The rows of one table by key, as the source has them now.

    Attributes:
        key: the key's columns.
        parts: the columns that a row's checksum covers.
        left_out: the others, as ``name (type)``.
    """

    def __init__(self, key: Sequence[Part], parts: Sequence[Part], left_out: Sequence[str]) -> None:
        self.key = tuple(key)
        self.parts = tuple(parts)
        self.left_out = tuple(left_out)

    @abstractmethod
    def sums(self, share: Share, parts: int) -> DataFrame:
        """Per part of a bucket its number, its rows and their checksum: BUCKET, COUNT, CHECKSUM.

        Only rows that the spec means to load; a part without any has no row.

        Args:
            parts: of each bucket. A part's number is a key's hash modulo `share.of` * `parts`.
        """

    @abstractmethod
    def hashes(self, share: Share) -> DataFrame:
        """Per row KEY, CHECKSUM, and WANTED: whether the spec means to load it."""

    @abstractmethod
    def rows(self, share: Share) -> DataFrame:
        """The rows themselves, in the table's columns: at least those of the share.

        With them KEY, as :meth:`hashes` has it.
        """

    def key_hash(self) -> Column:
        """The hash of a key, of rows whose columns have the source's names and types."""
        return spark_hash(self.key)

    def row_checksum(self) -> Column:
        """The checksum of a row, of rows whose columns have the source's names and types."""
        return spark_number(spark_hash(self.parts))


class ReadContents(Contents):
    """Of any source: the rows are read, whatever the question, and hashed by Spark.

    Args:
        read: the rows of a window.
        key: the primary key.
        window: the rows that the spec means to load; by its cursor, or all.
        unique: whether the source has each key once. Else the newest row counts, by the cursor,
            then by the order of emission.
    """

    def __init__(
        self,
        read: Callable[[Window], DataFrame],
        table: SourceTable,
        key: Sequence[str],
        window: Window,
        unique: bool,
    ) -> None:
        parts = [Part(c.name, c.dataType, spark_form(c.dataType)) for c in table.schema.fields]
        super().__init__([p for name in key for p in parts if p.name == name], parts, ())
        self._read = read
        self._table = table
        self._window = window
        self._unique = unique

    def sums(self, share: Share, parts: int) -> DataFrame:
        return totals(self.hashes(share).where(WANTED), share.of * parts)

    def hashes(self, share: Share) -> DataFrame:
        low, cursor = self._window.low, self._window.cursor
        hashes = self._newest(share).select(
            self.key_hash().alias(KEY),
            self.row_checksum().alias(CHECKSUM),
            within(self._table, self._window).alias(WANTED),
        )
        if low is None or cursor is None or cursor.type is not CursorType.STRING:
            return hashes
        # The order of texts is the source's, which Spark does not know: so it is asked.
        wanted = self._read(self._window).select(self.key_hash().alias(KEY)).distinct()
        return (
            hashes.drop(WANTED)
            .join(wanted.withColumn(WANTED, f.lit(True)), KEY, "left")
            .select(KEY, CHECKSUM, f.coalesce(WANTED, f.lit(False)).alias(WANTED))
        )

    def rows(self, share: Share) -> DataFrame:
        return self._newest(share).withColumn(KEY, self.key_hash())

    def _newest(self, share: Share) -> DataFrame:
        rows = self._read(Window())
        names = rows.columns
        if not self._unique:
            cursor = self._window.cursor
            # Among rows that share the newest cursor the last one counts, as it does in raw.
            at = f.col(quoted(cursor.name)) if cursor else f.lit(None).cast("string")
            newest = f.max_by(
                f.struct(*(f.col(quoted(name)).alias(f"c{i}") for i, name in enumerate(names))),
                f.struct(at.alias("at"), f.col("_cq_position").alias("position")),
            ).alias("_cq_row")
            rows = (
                rows.withColumn("_cq_position", f.monotonically_increasing_id())
                .groupBy(*(f.col(quoted(part.name)) for part in self.key))
                .agg(newest)
                .select(*(f.col(f"_cq_row.c{i}").alias(name) for i, name in enumerate(names)))
            )
        return rows.where(share.holds(self.key_hash()))


def totals(hashes: DataFrame, of: int) -> DataFrame:
    """Sums by bucket of what has KEY and CHECKSUM; see :meth:`Contents.sums`."""
    return (
        hashes.groupBy(Share(of).bucket(f.col(KEY)).alias(BUCKET))
        .agg(f.count(f.lit(1)).alias(COUNT), spark_total(f.col(CHECKSUM)).alias(CHECKSUM))
        .select(BUCKET, COUNT, CHECKSUM)
    )


def within(table: SourceTable, window: Window) -> Column:
    """Whether a row is one that the spec means to load: at or above the window's lower bound.

    Of text cursors every row counts as such: their order is the database's.
    """
    cursor = window.cursor
    if cursor is None:
        return f.lit(True)
    column = f.col(quoted(cursor.name))
    inside = column.isNotNull()
    if window.low is not None and cursor.type is not CursorType.STRING:
        inside = column >= literal(window.low, table.schema[cursor.name].dataType)
        inside = f.coalesce(inside, f.lit(False))
    return inside | column.isNull() if window.nulls else inside
