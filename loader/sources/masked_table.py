"""Describes tables that have masked columns (`mask` option)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from pyspark.sql import types as t

from loader.sources.interface import SourceTable


@dataclass(frozen=True)
class MaskedTable(SourceTable):
    """A table whose columns have the types of the masked values.

    Attributes:
        original: the table as the source describes it.
        masks: the mask of each masked column (:func:`loader.rows.mask_values.make_mask`).
        patterns: the `mask` option, whose keys are names or wildcards. It is needed to mask fields
            that have no column. Empty unless :attr:`Source.masks_records` is true.
        key: the key for the `hash` mask; None if the spec has none.
        key_id: identifies `key` without exposing it; empty if no column has the `hash` mask.
    """

    original: SourceTable = field(kw_only=True)
    masks: Mapping[str, str] = field(kw_only=True)
    patterns: Mapping[str, str] = field(kw_only=True)
    key: bytes | None = field(kw_only=True, repr=False)
    key_id: str = field(kw_only=True)


def get_original(table: SourceTable) -> SourceTable:
    return table.original if isinstance(table, MaskedTable) else table


def mask_table(
    table: SourceTable,
    masks: Mapping[str, str],
    patterns: Mapping[str, str],
    key: bytes | None,
    key_id: str = "",
) -> MaskedTable:
    """Returns a table with masks. The arguments are the attributes of :class:`MaskedTable`."""
    described = {each.name: getattr(table, each.name) for each in fields(SourceTable)}
    described["schema"] = t.StructType(
        [
            replace_type(column, masks[column.name]) if column.name in masks else column
            for column in table.schema.fields
        ]
    )
    return MaskedTable(
        **described, original=table, masks=masks, patterns=patterns, key=key, key_id=key_id
    )


def replace_type(column: t.StructField, mask: str) -> t.StructField:
    data_type: t.DataType = t.StringType()
    if mask == "null":
        data_type = column.dataType
    elif mask == "year":
        data_type = t.IntegerType()
    return t.StructField(column.name, data_type, True, column.metadata)
