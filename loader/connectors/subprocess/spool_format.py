"""Writes one stream's records and deletions to the spool, and reads them with Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Any

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.connectors.subprocess.json_schema import REST, Column, is_skipped
from loader.connectors.subprocess.json_values import (
    Misfit,
    make_key_converter,
    read_as,
    spool_type,
    to_text,
)
from loader.errors import TableError
from loader.names import literal_path
from loader.rows.bookkeeping import DELETED
from loader.rows.version_order import quote_name
from loader.spec.redaction import excerpt

_LONGEST_TEXT = 16_000_000  # Spark's JSON parser refuses a text of 20 million characters
_MOST_NAMES = 1000
"""So many undeclared fields are counted, and remembered: a connector may send new ones forever."""
_SPLIT = 32 << 20
_encode = json.JSONEncoder(separators=(",", ":")).encode


AFTER = "_cq_after"
"""A column: how often rows were deleted before a record came; of a deletion, its number."""


@dataclass(frozen=True)
class Condition:
    """A deletion of all rows that have some values.

    Attributes:
        number: of the deletion, in its piece.
        columns: those that it names; none for all rows.
        line: of the spool.
    """

    number: int
    columns: tuple[str, ...]
    line: bytes


def _name_columns(columns: Sequence[str]) -> str:
    return to_text(list(columns))


class RecordLayout:
    """A stream's columns.

    Args:
        name: the table's name, for messages.
        columns: of the stream.
        key: the columns that must hold their values as they are.
        skipped: names or wildcards of fields that the spec leaves out.
    """

    def __init__(
        self, name: str, columns: Sequence[Column], key: Sequence[str], skipped: Sequence[str]
    ) -> None:
        self.name = name
        self.columns = tuple(columns)
        self.misfits: Counter[str] = Counter()
        """How often each field held what its column cannot take."""
        self.undeclared: Counter[str] = Counter()
        """How often each field came that the stream's schema does not declare."""
        self._key = frozenset(key)
        self._places = {
            c.name: (
                f"c{n}",
                make_key_converter(c.type, c.convert) if c.name in self._key else c.convert,
            )
            for n, c in enumerate(self.columns)
        }
        self._skipped = tuple(skipped)
        self._left_out: dict[str, bool] = {}

    @property
    def _options(self) -> str:
        """The place of the table's options in the spec."""
        return f"table_options.{self.name.partition('.')[2]}"

    @property
    def schema(self) -> t.StructType:
        """The table's columns, as Spark reads them."""
        fields = [t.StructField(column.name, column.type) for column in self.columns]
        return t.StructType([*fields, t.StructField(REST, t.StringType())])

    def encode_record(
        self, record: Mapping[str, Any], after: int = 0
    ) -> tuple[bytes, dict[str, Any]]:
        """Returns a record as a line of the spool, and its values by place.

        Args:
            after: how often rows were deleted before it came.

        Raises:
            TableError: if a key does not fit its column, or a text is too long for Spark.
        """
        wire: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for name, value in record.items():
            if value is None:
                continue
            place = self._places.get(name)
            if place is None:
                if not self._leaves_out(name):
                    if name in self.undeclared or len(self.undeclared) < _MOST_NAMES:
                        self.undeclared[name] += 1
                    rest[name] = value
                continue
            try:
                wire[place[0]] = place[1](value)
            except Misfit:
                if name in self._key:
                    raise self._unfit_key(name, value) from None
                self.misfits[name] += 1
                rest[name] = value
        if rest:
            wire["r"] = to_text(rest)
        if after:
            wire["d"] = after
        line = _encode(wire).encode("ascii") + b"\n"
        if len(line) > _LONGEST_TEXT:
            self._refuse_long_text(wire)
        return line, wire

    def encode_deletion(self, values: Mapping[str, Any], number: int) -> Condition:
        """Returns a deletion of all rows that have some values, as a line of the spool.

        Args:
            number: of the deletion.

        Raises:
            TableError: if such rows cannot be found.
        """
        if not self._key:
            raise TableError(
                "rows are deleted at the source, and the table has no primary key: a tombstone "
                "needs one",
                where=f"table {self.name}",
                remedy=f"Set {self._options}.primary_key; a `cloudquery sync` sends the keys with "
                "write_mode overwrite",
            )
        wire: dict[str, Any] = {"d": number, "r": _name_columns(tuple(sorted(values)))}
        for name, value in values.items():
            try:
                place, convert = self._places[name]
                wire[place] = convert(value)
            except (KeyError, Misfit) as problem:
                shown = excerpt(to_text(value), 80)
                raise TableError(
                    f"rows are deleted at the source whose {name} is {shown!r}, and "
                    + (
                        "raw has no such column"
                        if isinstance(problem, KeyError)
                        else "the column cannot hold that"
                    ),
                    where=f"table {self.name}",
                    remedy="Correct `skip_columns` or `column_types`, or read everything again: "
                    "--full-refresh",
                ) from None
        return Condition(number, tuple(sorted(values)), _encode(wire).encode("ascii") + b"\n")

    def place(self, name: str) -> str:
        """Returns the position of a column's value in :meth:`line`'s values."""
        return self._places[name][0]

    def read_deletions(self, spark: SparkSession, path: Path, by: Sequence[str]) -> DataFrame:
        """Reads the deletions that name some columns: these, and each one's number."""
        lines = self.read_rows(spark, path, numbered=True)
        lines = lines.where(f.col(REST) == _name_columns(by))
        return lines.select(*(f.col(quote_name(name)) for name in by), AFTER)

    def read_rows(self, spark: SparkSession, path: Path, numbered: bool = False) -> DataFrame:
        """Reads a file of the spool, lazily, in the order in which it was written.

        Args:
            numbered: adds, as :data:`AFTER`, how often rows were deleted before each.
        """
        session: Any = spark
        held = [(f"c{n}", column.type) for n, column in enumerate(self.columns)]
        wire = t.StructType(
            [t.StructField(place, spool_type(type_)) for place, type_ in held]
            + [t.StructField("r", t.StringType()), t.StructField("d", t.IntegerType())]
        )
        jvm = session._jvm
        lines = session.sparkContext._jsc.textFile(
            f"file:{literal_path(str(path))}", max(1, path.stat().st_size // _SPLIT)
        )
        reader = session._jsparkSession.read().option("mode", "FAILFAST")
        reader = reader.schema(jvm.org.apache.spark.sql.types.DataType.fromJson(wire.json()))
        rows = DataFrame(reader.json(lines), spark)
        return rows.select(
            *(
                read_as(f.col(place), column.type).alias(column.name)
                for (place, _), column in zip(held, self.columns, strict=True)
            ),
            f.col("r").alias(REST),
            *([f.coalesce("d", f.lit(0)).alias(AFTER)] if numbered else []),
        )

    def _leaves_out(self, name: str) -> bool:
        found = self._left_out.get(name)
        if found is None:
            found = is_skipped(name, self._skipped)
            if len(self._left_out) < _MOST_NAMES:
                self._left_out[name] = found
        return found

    def _unfit_key(self, name: str, value: Any) -> TableError:
        return TableError(
            f"a record's {name} is {excerpt(to_text(value), 80)!r}, which does not fit its type, "
            f"{next(c.type.simpleString() for c in self.columns if c.name == name)}, exactly: "
            "with another key, the record would be taken for another one",
            where=f"table {self.name}",
            remedy=f"Set {self._options}.column_types: {{{name}: string}}, and read everything "
            "again: --full-refresh",
        )

    def _refuse_long_text(self, wire: Mapping[str, Any]) -> None:
        places = {place: name for name, (place, _) in self._places.items()}
        for place, value in wire.items():
            if isinstance(value, str) and len(value) > _LONGEST_TEXT:
                name = places.get(place, REST)
                raise TableError(
                    f"a record's {name} has {len(value):,} characters: Spark reads at most "
                    f"{_LONGEST_TEXT:,}",
                    where=f"table {self.name}",
                    remedy=f"Leave it out: {self._options}.skip_columns: [{name}]",
                )


def flag_deleted(rows: DataFrame, deletions: Sequence[DataFrame]) -> DataFrame:
    """Adds whether a row was deleted after it came; keeps the rows' order.

    Args:
        rows: with the number of deletions before each (:data:`AFTER`), which is dropped.
        deletions: by the columns that they name; each with its number.
    """
    names = rows.drop(AFTER).columns
    gone: list[SparkColumn] = []
    for number, deletion in enumerate(deletions):
        by, last = deletion.drop(AFTER).columns, f"_cq_last_{number}"
        values = [f"_cq_{number}_{i}" for i in range(len(by))]
        newest = deletion.groupBy(
            *(f.col(quote_name(name)).alias(value) for name, value in zip(by, values, strict=True))
        ).agg(f.max(AFTER).alias(last))
        same = [
            f.col(quote_name(name)) == f.col(value) for name, value in zip(by, values, strict=True)
        ]
        # Broadcast: a shuffle would lose the order.
        rows = rows.join(f.broadcast(newest), reduce(and_, same, f.lit(True)), "left")
        gone.append(f.coalesce(f.col(last) > f.col(AFTER), f.lit(False)))
    return rows.select(
        *(f.col(quote_name(name)) for name in names), reduce(or_, gone).alias(DELETED)
    )
