"""Encodes the records and deletions of a stream for the spool, and reads them with Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.connectors.subprocess.json_schema import Column, is_skipped
from loader.connectors.subprocess.json_values import (
    ConversionError,
    cast_from_spool,
    get_spool_type,
    make_key_converter,
    to_text,
)
from loader.connectors.subprocess.record_masks import NO_MASKS, RecordMasks
from loader.errors import TableError
from loader.names import literal_path
from loader.rows.bookkeeping import DELETED
from loader.rows.mask_values import HASH, REDACTED
from loader.rows.version_order import quote_name
from loader.sources.interface import REST_COLUMN
from loader.spec.options import ColumnSelection
from loader.spec.redaction import excerpt

_MAX_TEXT_LENGTH = 16_000_000  # Spark's JSON parser rejects strings above 20 million characters
_MOST_NAMES = 1000
"""The maximum number of undeclared fields that are counted."""
_SPLIT = 32 << 20
_encode = json.JSONEncoder(separators=(",", ":")).encode


DELETIONS_BEFORE = "_cq_after"
"""The column that contains a deletion's number, or the number of deletions before a record."""


@dataclass(frozen=True)
class EncodedDeletion:
    """A deletion of all rows that have certain values.

    Attributes:
        number: the number of the deletion within its batch.
        columns: the columns that contain the values; empty if the deletion removes all rows.
    """

    number: int
    columns: tuple[str, ...]
    line: bytes


def _format_columns(columns: Sequence[str]) -> str:
    return to_text(list(columns))


class RecordLayout:
    """The format of a stream's records in the spool.

    Args:
        key: the key columns, whose values must be stored exactly.
        selection: the fields that the spec selects; None for all fields.
    """

    def __init__(
        self,
        name: str,
        columns: Sequence[Column],
        key: Sequence[str],
        selection: ColumnSelection | None,
        masks: RecordMasks = NO_MASKS,
    ) -> None:
        self.name = name
        self.masks = masks
        self._types = {c.name: c.type for c in columns}
        self._key = frozenset(key)
        self.columns = tuple(
            masks.mask_column(
                replace(c, convert=make_key_converter(c.type, c.convert))
                if c.name in self._key
                else c
            )
            for c in columns
        )
        self.unfit_counts: Counter[str] = Counter()
        """The number of values that a column cannot store, keyed by field."""
        self.undeclared_counts: Counter[str] = Counter()
        """The number of records that have an undeclared field, keyed by field."""
        self._fields = {c.name: (f"c{n}", c.convert) for n, c in enumerate(self.columns)}
        self._selection = selection
        self._skipped_names: dict[str, bool] = {}

    @property
    def _options(self) -> str:
        return f"table_options.{self.name.partition('.')[2]}"

    @property
    def schema(self) -> t.StructType:
        fields = [t.StructField(column.name, column.type) for column in self.columns]
        return t.StructType([*fields, t.StructField(REST_COLUMN, t.StringType())])

    def encode_record(
        self, record: Mapping[str, Any], deletions_before: int = 0
    ) -> tuple[bytes, dict[str, Any]]:
        """Encodes a record. Returns the line for the spool, and its values, keyed by field.

        Raises:
            TableError: if a column cannot store a key value exactly, or if a string is too long for
                Spark.
        """
        encoded: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for name, value in record.items():
            if value is None:
                continue
            field = self._fields.get(name)
            if field is None:
                if not self._is_skipped(name):
                    if name in self.undeclared_counts or len(self.undeclared_counts) < _MOST_NAMES:
                        self.undeclared_counts[name] += 1
                    rest[name] = self.masks.hide(name, value)
                continue
            try:
                encoded[field[0]] = field[1](value)
            except ConversionError:
                if name in self._key:
                    raise self._build_key_error(name, value) from None
                self.unfit_counts[name] += 1
                rest[name] = self.masks.hide(name, value)
        rest = {name: value for name, value in rest.items() if value is not None}
        if rest:
            encoded["r"] = self.masks.mask_text(REST_COLUMN, to_text(rest))
        if deletions_before:
            encoded["d"] = deletions_before
        line = _encode(encoded).encode("ascii") + b"\n"
        if len(line) > _MAX_TEXT_LENGTH:
            self._refuse_long_text(encoded)
        return line, encoded

    def encode_deletion(self, values: Mapping[str, Any], number: int) -> EncodedDeletion:
        """Encodes a deletion of all rows that have certain values.

        Args:
            values: the values, keyed by column.

        Raises:
            TableError: if the table has no primary key, if no column can store one of the values,
                or if the mask of a column maps different values to one value.
        """
        if not self._key:
            raise TableError(
                "the source deleted rows, but the table has no primary key, which a tombstone "
                "needs",
                where=f"table {self.name}",
                remedy=f"Set {self._options}.primary_key; a `cloudquery sync` sends the keys with "
                "write_mode overwrite",
            )
        encoded: dict[str, Any] = {"d": number, "r": _format_columns(tuple(sorted(values)))}
        for name, value in values.items():
            if self.masks.columns.get(name, HASH) != HASH:
                raise TableError(
                    f"the source deletes rows by their {name}, whose mask "
                    f"`{self.masks.columns[name]}` does not distinguish all values",
                    where=f"table {self.name}, mask",
                    remedy="Use `hash`, the only mask that distinguishes all values",
                )
            try:
                field, convert = self._fields[name]
                encoded[field] = convert(value)
            except (KeyError, ConversionError) as problem:
                shown = self._quote(name, value)
                raise TableError(
                    f"the source deleted the rows whose {name} is {shown!r}, but "
                    + (
                        "the raw table has no such column"
                        if isinstance(problem, KeyError)
                        else "the column cannot store this value"
                    ),
                    where=f"table {self.name}",
                    remedy="Correct `columns` or `column_types`, or reload all records: "
                    "--full-refresh",
                ) from None
        return EncodedDeletion(
            number, tuple(sorted(values)), _encode(encoded).encode("ascii") + b"\n"
        )

    def get_field(self, name: str) -> str:
        return self._fields[name][0]

    def read_deletions(self, spark: SparkSession, path: Path, by: Sequence[str]) -> DataFrame:
        """Reads the values and numbers of the deletions that identify rows by the columns `by`."""
        lines = self.read_rows(spark, path, numbered=True)
        lines = lines.where(f.col(REST_COLUMN) == _format_columns(by))
        return lines.select(*(f.col(quote_name(name)) for name in by), DELETIONS_BEFORE)

    def read_rows(self, spark: SparkSession, path: Path, numbered: bool = False) -> DataFrame:
        """Reads a spool file lazily, in the order in which it was written.

        Args:
            numbered: whether to add the :data:`DELETIONS_BEFORE` column.
        """
        session: Any = spark
        fields = [(f"c{n}", column.type) for n, column in enumerate(self.columns)]
        encoded = t.StructType(
            [t.StructField(get_field, get_spool_type(type_)) for get_field, type_ in fields]
            + [t.StructField("r", t.StringType()), t.StructField("d", t.IntegerType())]
        )
        jvm = session._jvm
        lines = session.sparkContext._jsc.textFile(
            f"file:{literal_path(str(path))}", max(1, path.stat().st_size // _SPLIT)
        )
        reader = session._jsparkSession.read().option("mode", "FAILFAST")
        reader = reader.schema(jvm.org.apache.spark.sql.types.DataType.fromJson(encoded.json()))
        rows = DataFrame(reader.json(lines), spark)
        return rows.select(
            *(
                cast_from_spool(f.col(get_field), column.type).alias(column.name)
                for (get_field, _), column in zip(fields, self.columns, strict=True)
            ),
            f.col("r").alias(REST_COLUMN),
            *([f.coalesce("d", f.lit(0)).alias(DELETIONS_BEFORE)] if numbered else []),
        )

    def _is_skipped(self, name: str) -> bool:
        result = self._skipped_names.get(name)
        if result is None:
            result = is_skipped(name, self._selection)
            if len(self._skipped_names) < _MOST_NAMES:
                self._skipped_names[name] = result
        return result

    def _quote(self, name: str, value: Any) -> str:
        """Quotes the start of a value, for an error. Returns `***` if the field has a mask."""
        return excerpt(to_text(REDACTED if self.masks.hide(name, 0) != 0 else value), 80)

    def _build_key_error(self, name: str, value: Any) -> TableError:
        return TableError(
            f"a record's {name} is {self._quote(name, value)!r}, which its type, "
            f"{self._types[name].simpleString()}, cannot store exactly: with a changed key, the "
            "record could replace another record",
            where=f"table {self.name}",
            remedy=f"Set {self._options}.column_types: {{{name}: string}}, and reload all "
            "records: --full-refresh",
        )

    def _refuse_long_text(self, encoded: Mapping[str, Any]) -> None:
        places = {get_field: name for name, (get_field, _) in self._fields.items()}
        for get_field, value in encoded.items():
            if isinstance(value, str) and len(value) > _MAX_TEXT_LENGTH:
                name = places.get(get_field, REST_COLUMN)
                raise TableError(
                    f"a record's {name} has {len(value):,} characters: Spark reads at most "
                    f"{_MAX_TEXT_LENGTH:,}",
                    where=f"table {self.name}",
                    remedy=f"Exclude the field: {self._options}.columns: {{exclude: [{name}]}}",
                )


def flag_deleted(rows: DataFrame, deletions: Sequence[DataFrame]) -> DataFrame:
    """Adds the `_cq_deleted` column, which flags rows that a later deletion deletes.

    Preserves the order of the rows.

    Args:
        rows: rows with the :data:`DELETIONS_BEFORE` column, which the result omits.
        deletions: the values and number of each deletion, in one DataFrame for each set of columns
            that identifies deleted rows.
    """
    names = rows.drop(DELETIONS_BEFORE).columns
    deleted_later: list[SparkColumn] = []
    for number, deletion in enumerate(deletions):
        by, last = deletion.drop(DELETIONS_BEFORE).columns, f"_cq_last_{number}"
        values = [f"_cq_{number}_{i}" for i in range(len(by))]
        newest = deletion.groupBy(
            *(f.col(quote_name(name)).alias(value) for name, value in zip(by, values, strict=True))
        ).agg(f.max(DELETIONS_BEFORE).alias(last))
        same = [
            f.col(quote_name(name)) == f.col(value) for name, value in zip(by, values, strict=True)
        ]
        # Broadcast, because a shuffle would change the order of the rows.
        rows = rows.join(f.broadcast(newest), reduce(and_, same, f.lit(True)), "left")
        deleted_later.append(f.coalesce(f.col(last) > f.col(DELETIONS_BEFORE), f.lit(False)))
    return rows.select(
        *(f.col(quote_name(name)) for name in names), reduce(or_, deleted_later).alias(DELETED)
    )
