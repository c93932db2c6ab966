"""Raw tables: created like their source, altered as it changes, bounded by their statistics.

What a batch appends is in :mod:`loader.lake.staging`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from loader.errors import TableError
from loader.lake.lake import Lake
from loader.lake.schema_evolution import Drift, EvolutionPolicy, derive_drift, plan_creation
from loader.lake.source_schema import PROPERTY, SourceSchema, property_of, read_source_schema
from loader.lake.system_tables import PREFIX
from loader.lake.type_widening import raw_type
from loader.rows.bookkeeping import COLUMNS
from loader.rows.cursor import Cursor, CursorType

IDENTITY = "strandline.table-id"
"""Identifies a raw table, also against a dropped one of its name: SQL hides Iceberg's own
UUID."""

FIRST_BATCH = "strandline.first-batch"
"""A raw table's first batch number; the ledger may have earlier batches, of a dropped table."""

# A quarter of Parquet's own: a task holds that much while it writes, and a large load has as many
# tasks as there are cores.
_ROW_GROUP_BYTES = 32 * 1024 * 1024


def create_raw_table(
    lake: Lake,
    table: str,
    schema: StructType,
    cursor_field: str | None,
    first_batch: int,
    more: Mapping[str, str],
) -> None:
    """Creates a raw table: the source's columns, then ours, with statistics to prune by.

    Args:
        first_batch: its first batch number: a dropped table of the same name may have had
            batches before.
        more: properties that it has besides.

    Raises:
        TableError: if the source has a column that only the loader may write.
    """
    taken = [name for name in schema.names if name.lower() in COLUMNS]
    if taken:
        raise TableError(
            f"the source has a column {taken[0]!r}, which the loader writes itself",
            where=f"table {table}",
            remedy="Rename it, or read the others through a view in the source",
        )
    # Iceberg keeps statistics of a table's first 100 columns only; ours come last.
    measured = [*COLUMNS, *([cursor_field] if cursor_field else [])]
    properties = {
        "write.wap.enabled": "true",
        "write.parquet.row-group-size-bytes": str(_ROW_GROUP_BYTES),
        IDENTITY: uuid.uuid4().hex,
        FIRST_BATCH: str(first_batch),
        **{f"write.metadata.metrics.column.{name}": "full" for name in measured},
        PROPERTY: SourceSchema.of(schema).text,
        **more,
    }
    fields = [StructField(field.name, raw_type(field.dataType)) for field in schema.fields]
    for name, data_type in COLUMNS.items():
        fields.append(StructField(name, data_type))
    lake.create(table, StructType(fields), properties)


def drop_outdated_table(lake: Lake, table: str, schema: StructType) -> None:
    """Drops a raw table that never had a batch if the source's columns are others by now.

    It has no rows whose columns would have to be kept, so it is created again.
    """
    if not lake.exists(table):
        return
    handle = lake.handle(table)
    before = handle.properties().get(PROPERTY)  # no other table has it
    if before in (None, SourceSchema.of(schema).text) or list(handle.snapshots()):
        return
    lake.drop(table)


def plan_drift(lake: Lake, table: str, schema: StructType, policy: EvolutionPolicy) -> Drift:
    """Plans how a raw table follows the source's current columns; changes nothing.

    Raises:
        TableError: if it cannot, or may not.
    """
    if not lake.exists(table):
        return plan_creation(schema)
    properties = lake.properties(table)
    if properties.get("write.wap.enabled") != "true":
        raise TableError(
            "it has lost the property write.wap.enabled, so a batch would be seen before it "
            "is whole: another program has made or replaced this table",
            where=f"table {lake.schema}.{table}",
            remedy="If its rows are the loader's (a copy that was put back, say), set it: "
            f"alter table {lake.name(table)} set tblproperties ('write.wap.enabled' = 'true')",
        )
    said = read_source_schema(properties, policy.source, f"table {table}")
    return derive_drift(lake.schema_of(table), said, schema, policy)


def alter_table(lake: Lake, table: str, followed: Drift, source: str = "") -> None:
    """Alters a raw table's columns as planned, before rows with the new columns are staged.

    The remembered source schema stays as it was until those rows are published. After a crash
    in between, the next run plans the same change, less what is already done.

    Args:
        source: whose columns these are, if the table is shared.
    """
    if not followed.alterations:
        return
    lake.set_properties(table, {property_of(source): followed.before.text})
    for alteration in followed.alterations:
        lake.spark.sql(f"alter table {lake.name(table)} {alteration.sql}")
    lake.fresh(table)


def list_raw_tables(lake: Lake) -> tuple[list[str], dict[str, Exception]]:
    """Lists the raw tables, with the error of each table that cannot be read."""
    found: list[str] = []
    unreadable: dict[str, Exception] = {}
    for name in lake.tables():
        if name.startswith(PREFIX):
            continue
        try:
            if lake.handle(name).properties().get("write.wap.enabled") == "true":
                found.append(name)
        except Exception as problem:
            unreadable[name] = problem
    return found, unreadable


def may_exceed(lake: Lake, table: str, column: str, cursor: Cursor) -> bool:
    """Returns whether a row may have a higher cursor than this one.

    Also true if there are no statistics, or if the column has another type by now.
    """
    handle = lake.handle(table)
    field = handle.schema().caseInsensitiveFindField(column)
    value = _iceberg_value(cursor, field.type().toString()) if field is not None else None
    if value is None:
        return True
    above = lake.jvm.org.apache.iceberg.expressions.Expressions.greaterThan(field.name(), value)
    files = handle.newScan().filter(above).ignoreResiduals().planFiles()
    try:
        return bool(files.iterator().hasNext())
    finally:
        files.close()


def _iceberg_value(cursor: Cursor, kind: str) -> str | int | None:
    """Returns a cursor as Iceberg reads it for a column of a type; None if it does not fit."""
    if cursor.type is CursorType.INTEGER and kind in ("int", "long"):
        return int(cursor.text)
    if cursor.type is CursorType.DATE and kind == "date":
        return cursor.text
    if cursor.type is CursorType.TIMESTAMP and kind == "timestamp":
        return cursor.text.replace(" ", "T")
    if cursor.type is CursorType.TIMESTAMPTZ and kind == "timestamptz":
        return cursor.text.replace(" ", "T") + "+00:00"
    return None
