"""Compares a source's table with a copy: first checksums of buckets, then keys."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.audit.copied_table import CopiedTable, CopyRows, convert
from loader.audit.findings import DOUBLED, EXTRA, LOST, STALE
from loader.audit.presets import DELETED_WORDS
from loader.reconcile.comparison import (
    KIND,
    SOURCE_CHECKSUM,
    compare_sums,
    find_smallest_share,
    parts_per_bucket,
)
from loader.rows.version_order import quote_name
from loader.sources.contents import CHECKSUM, KEY, WANTED, Contents, KeySelection, sum_buckets
from loader.sources.interface import SourceTable
from loader.sources.jdbc.contents import JdbcContents
from loader.spark.error_translation import DatabaseError

COPIES = "_cq_copies"
"""The column with the number of rows that the copy has for a key."""

VALUES = "_cq_copied"
"""The column with the values of the copy's newest row, as a struct."""

_ORDER = "_cq_order"
_LOSSLESS = "_cq_lossless"
_IS_GONE = "_cq_is_gone"


@dataclass(frozen=True)
class CopyComparison:
    """The source and the copy at one moment.

    Attributes:
        contents: the source's rows.
        rows: the copy's rows.
        table: the columns that are compared.
        cursor: the source's column that dates rows; None if there is none.
    """

    contents: Contents
    rows: CopyRows
    copy: CopiedTable
    table: SourceTable
    cursor: str | None

    @cached_property
    def computed(self) -> JdbcContents | None:
        """The copy's rows, if its database computes checksums; None if Spark computes them."""
        try:
            found = self.copy.find_contents(self.rows, self.contents)
            if found is not None:
                found.sums(KeySelection(1), 1)  # the database parses the query
        except DatabaseError as error:
            if error.is_locked_out:
                raise
            return None  # a product with PostgreSQL's protocol that lacks some of its functions
        return found

    def compare_buckets(
        self, selected: KeySelection
    ) -> tuple[tuple[int, int], KeySelection | None]:
        """Compares counts and checksums of buckets.

        Returns:
            The row counts of the source and the copy, and the smallest set of keys that contains
            all differences. The set is None if nothing differs.
        """
        of = selected.of
        if self.computed is not None:
            parts = parts_per_bucket(self.computed.count(), of)
            copied = self.computed.sums(selected, parts)
        else:
            parts = parts_per_bucket(self.rows.frame.count(), of)
            copied = sum_buckets(self._hash_copy(selected), of * parts)
        source = self.contents.sums(selected, parts)
        buckets = compare_sums(source, copied, of)
        counts = sum(b.rows_source for b in buckets), sum(b.rows_snapshot for b in buckets)
        share = find_smallest_share(buckets, of, parts)
        if share is not None and share.buckets is None:
            share = selected
        return counts, share

    def copied_rows(self, share: KeySelection) -> DataFrame:
        """Returns KEY, CHECKSUM, COPIES and VALUES of each selected key that is not deleted.

        The checksum is -1 if a value does not fit the source's type.
        """
        if self.computed is not None:
            self.computed.check_storable(KeySelection(1))
            rows = self.computed.hashed_rows(share)
        else:
            rows = self.rows.frame
        rows = self._select(rows, share)
        if not self.copy.keeps_versions:
            rows = rows.where(~f.col(_IS_GONE))
        newest = f.max_by(f.struct(CHECKSUM, VALUES, _IS_GONE), f.col(_ORDER)).alias("newest")
        copies = f.lit(1) if self.copy.keeps_versions else f.count(f.lit(1))
        grouped = rows.groupBy(KEY).agg(newest, copies.cast("bigint").alias(COPIES))
        return grouped.where(~f.col(f"newest.{_IS_GONE}")).select(
            KEY, f"newest.{CHECKSUM}", COPIES, f"newest.{VALUES}"
        )

    def compare_keys(self, share: KeySelection) -> DataFrame:
        """Returns KEY, KIND and SOURCE_CHECKSUM of the keys that differ."""
        source = self.contents.hashes(share).where(WANTED)
        counted = (f.max(CHECKSUM).alias(CHECKSUM), f.count(f.lit(1)).alias(COPIES))
        copied = self._hash_copy(share).groupBy(KEY).agg(*counted)
        joined = source.select(KEY, f.col(CHECKSUM).alias(SOURCE_CHECKSUM)).join(
            copied, KEY, "full_outer"
        )
        kind = find_kind(f.col(SOURCE_CHECKSUM))
        return joined.select(KEY, kind.alias(KIND), SOURCE_CHECKSUM).where(f.col(KIND).isNotNull())

    def _hash_copy(self, share: KeySelection) -> DataFrame:
        """Returns KEY and CHECKSUM of the copy's rows to compare.

        If the copy should have one row for each key, all of its rows are returned, so that a key
        with two rows makes its bucket differ.
        """
        if self.computed is not None:
            return self.computed.hashes(share)
        if self.copy.keeps_versions:
            return self.copied_rows(share).select(KEY, CHECKSUM)
        rows = self._select(self.rows.frame, share)
        return rows.where(~f.col(_IS_GONE)).select(KEY, CHECKSUM)

    def _select(self, rows: DataFrame, share: KeySelection) -> DataFrame:
        """Returns KEY, CHECKSUM, VALUES, _ORDER and _IS_GONE of rows that are not superseded.

        If the rows contain KEY and CHECKSUM, these are used.
        """
        copy, preset, contents = self.copy, self.copy.preset, self.contents
        spelling = {name.lower(): name for name in copy.schema.names}

        def flagged(names: Collection[str]) -> Column:
            return _is_flagged(copy.schema, [spelling[n] for n in names if n in spelling])

        rows = rows.where(~flagged(preset.superseded))
        if set(preset.current) & set(spelling):
            rows = rows.where(flagged(preset.current))
        order = copy.options.newest_by or preset.newest_by
        versions = [f.col(quote_name(spelling[n.lower()])) for n in order if n.lower() in spelling]
        if self.cursor is not None:
            versions.append(f.col(quote_name(copy.columns[self.cursor])))
        fields = self.table.schema.fields
        originals = [f.col(quote_name(copy.columns[field.name])) for field in fields]
        values = [convert(copy.schema[copy.columns[c.name]], c.dataType) for c in fields]
        lost = reduce(
            or_,
            (old.isNotNull() & new.isNull() for old, new in zip(originals, values, strict=True)),
        )
        computed = [name for name in (KEY, CHECKSUM) if name in rows.columns]
        rows = rows.select(
            *(value.alias(field.name) for value, field in zip(values, fields, strict=True)),
            (~lost).alias(_LOSSLESS),
            f.struct(*(versions or [f.lit(1)])).alias(_ORDER),
            flagged(copy.deleted).alias(_IS_GONE),
            *computed,
        )
        checksum = f.when(f.col(_LOSSLESS), contents.row_checksum()).otherwise(f.lit(-1))
        hashes = (contents.key_hash().alias(KEY), checksum.alias(CHECKSUM))
        return rows.select(
            *(computed or hashes),
            f.struct(*(f.col(quote_name(field.name)) for field in fields)).alias(VALUES),
            _ORDER,
            _IS_GONE,
        ).where(share.contains(f.col(KEY)))

    def find_highest(self) -> str | None:
        """Returns the highest cursor in the copy, as text; None if the copy has none.

        Times more than a day in the future are ignored, because they do not show how far the tool
        has loaded. Within a day, clocks and time zones may differ.
        """
        if self.cursor is None:
            return None
        data_type = self.table.schema[self.cursor].dataType
        until = dt.datetime.now(dt.timezone.utc).replace(tzinfo=None) + dt.timedelta(days=1)
        found = None if self.computed is None else self.computed.highest(self.cursor, until)
        if found is None:
            found = self.copy.highest(self.rows.frame, self.cursor, data_type, until)
        text = f.col("highest").cast(data_type).cast("string")
        [row] = found.toDF("highest").select(text).collect()
        highest: str | None = row[0]
        return highest


def find_kind(source: Column) -> Column:
    """Returns the kind of difference between the source's row and the copy's; null if they match.

    The copy's row is in the columns CHECKSUM and COPIES. The checksum in `source` and CHECKSUM are
    null if the row is missing there.
    """
    copied = f.col(CHECKSUM)
    return (
        f.when(source.isNull() & copied.isNotNull(), f.lit(EXTRA))
        .when(source.isNotNull() & copied.isNull(), f.lit(LOST))
        .when(f.col(COPIES) > 1, f.lit(DOUBLED))
        .when(source != copied, f.lit(STALE))
    )


def _is_flagged(schema: t.StructType, columns: Sequence[str]) -> Column:
    """Returns a boolean column without nulls: whether one of the columns flags the row."""
    return reduce(or_, (_flags(schema, name) for name in columns), f.lit(False))


def _flags(schema: t.StructType, name: str) -> Column:
    value, data_type = f.col(quote_name(name)), schema[name].dataType
    if isinstance(data_type, (t.DateType, t.TimestampType, t.TimestampNTZType)):
        return value.isNotNull()
    if isinstance(data_type, t.StringType):
        is_time = value.rlike(r"^\d{4}-\d{2}-\d{2}")
        return f.coalesce(f.lower(value).isin(*DELETED_WORDS) | is_time, f.lit(False))
    if not isinstance(data_type, t.BooleanType):
        value = value != 0
    return f.coalesce(value, f.lit(False))
