"""Masks values in a stream's records before the records are written to the spool."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from pyspark.sql import types as t

from loader.connectors.subprocess.json_schema import Column
from loader.connectors.subprocess.json_values import EPOCH, FIRST_DAY
from loader.rows.mask_values import REDACTED, find_mask, make_mask
from loader.sources.interface import SourceTable
from loader.sources.masked_table import MaskedTable


@dataclass(frozen=True)
class RecordMasks:
    """The masks of a stream.

    Attributes:
        schema: the table's columns, with the types of the masked values.
        columns: maps each masked column to its mask.
        patterns: maps names and wildcards to masks. They may also match undeclared fields.
        key: the key of the `hash` mask.
    """

    schema: t.StructType = field(default_factory=t.StructType)
    columns: Mapping[str, str] = field(default_factory=dict)
    patterns: Mapping[str, str] = field(default_factory=dict)
    key: bytes | None = field(default=None, repr=False)

    @classmethod
    def of_table(cls, table: SourceTable) -> RecordMasks:
        if not isinstance(table, MaskedTable):
            return cls()
        return cls(table.schema, table.masks, table.patterns, table.key)

    def mask_column(self, column: Column) -> Column:
        """Returns a copy of a column whose converter also masks the value."""
        if column.name not in self.columns:
            return column
        mask = make_mask(self.columns[column.name], self.key)
        convert, decode = column.convert, _DECODERS.get(type(column.type), _keep)
        return replace(
            column,
            type=self.schema[column.name].dataType,
            convert=lambda value: mask(decode(convert(value))),
        )

    def mask_text(self, column: str, text: str) -> Any:
        """Masks a string in a column. Returns it unchanged if the column has no mask."""
        mask = self.columns.get(column)
        return text if mask is None else make_mask(mask, self.key)(text)

    def hide(self, name: str, value: Any) -> Any:
        """Masks a value that no column can store: returns `***`, or None for the `null` mask.

        Returns the value unchanged if its field has no mask.
        """
        mask = find_mask(name, self.patterns)
        if mask is None:
            return value
        return None if mask == "null" else REDACTED


NO_MASKS = RecordMasks()


def _keep(value: Any) -> Any:
    return value


def _to_time(microseconds: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=microseconds)


_DECODERS: Mapping[type[t.DataType], Callable[[Any], Any]] = {
    t.DateType: lambda days: dt.date.fromordinal(days + FIRST_DAY),
    t.TimestampType: _to_time,
    t.TimestampNTZType: _to_time,
    t.DecimalType: Decimal,
}
"""Maps column types to functions that decode a value from the spool's format."""
