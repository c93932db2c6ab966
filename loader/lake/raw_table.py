"""Creates raw tables, adapts them to their sources, and looks up their file statistics.

:mod:`loader.lake.staging` appends batches to raw tables.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from pyspark.sql.types import StructField, StructType

from loader.errors import TableError
from loader.lake.lake import Lake
from loader.lake.schema_evolution import Drift, EvolutionPolicy, derive_drift, plan_creation
from loader.lake.source_schema import PROPERTY, SourceSchema, property_of, read_source_schema
from loader.lake.system_tables import PREFIX
from loader.lake.type_widening import raw_type
from loader.rows.bookkeeping import COLUMNS
from loader.rows.cursor import Cursor, CursorType
from loader.rows.version_order import BATCH, GENERATION

IDENTITY = "strandline.table-id"
"""The property that distinguishes a raw table from a dropped table of the same name.

Iceberg's UUID is unsuitable, because SQL cannot read it.
"""
FIRST_BATCH = "strandline.first-batch"
"""The property that contains a raw table's first batch number.

Ledger rows with lower batch numbers belong to a dropped table of the same name.
"""

# A quarter of Parquet's default, to save memory: each writing task buffers a row group, and a large
# load runs one task per core.
_ROW_GROUP_BYTES = 32 * 1024 * 1024


def find_table_id(lake: Lake, table: str) -> str | None:
    """Returns the id of a raw table, or None if the table does not exist or has no id."""
    if not lake.exists(table):
        return None
    table_id: str | None = lake.handle(table).properties().get(IDENTITY)
    return table_id


def create_raw_table(
    lake: Lake,
    table: str,
    schema: StructType,
    cursor_field: str | None,
    first_batch: int,
    more: Mapping[str, str],
    excluded: Sequence[str] = (),
) -> None:
    """Creates a raw table with the source's columns followed by the ``_cq_`` columns.

    Args:
        first_batch: the first batch number. It must be higher than all batch numbers of a dropped
            table of the same name.
        more: additional table properties.
        excluded: the source's columns that the spec excludes.
    """
    # By default, Iceberg collects statistics only for the first 100 columns, but the `_cq_` columns
    # are last.
    measured = [*COLUMNS, *([cursor_field] if cursor_field else [])]
    properties = {
        "write.wap.enabled": "true",
        "write.parquet.row-group-size-bytes": str(_ROW_GROUP_BYTES),
        IDENTITY: uuid.uuid4().hex,
        FIRST_BATCH: str(first_batch),
        **{f"write.metadata.metrics.column.{name}": "full" for name in measured},
        PROPERTY: SourceSchema.of(schema, excluded=excluded).text,
        **more,
    }
    fields = [StructField(field.name, raw_type(field.dataType)) for field in schema.fields]
    for name, data_type in COLUMNS.items():
        fields.append(StructField(name, data_type))
    lake.create(table, StructType(fields), properties)


def drop_outdated_table(
    lake: Lake, table: str, schema: StructType, excluded: Sequence[str] = ()
) -> None:
    """Drops a raw table without batches if the source's columns have changed.

    The table can then be recreated with the new columns.
    """
    if lake.exists(table) and _is_outdated(lake, table, schema, excluded):
        lake.drop(table)


def _is_outdated(lake: Lake, table: str, schema: StructType, excluded: Sequence[str]) -> bool:
    """Returns whether a raw table has no batches and its columns differ from the source's."""
    handle = lake.handle(table)
    before = handle.properties().get(PROPERTY)  # only the loader's raw tables have this property
    current = SourceSchema.of(schema, excluded=excluded).text
    return before not in (None, current) and not list(handle.snapshots())


def plan_drift(lake: Lake, table: str, schema: StructType, policy: EvolutionPolicy) -> Drift:
    """Plans the changes that adapt a raw table to the source's current columns.

    Raises a TableError if the raw table cannot be adapted, or the spec forbids a change.
    """
    is_shared = bool(policy.source)
    if not lake.exists(table) or (
        not is_shared and _is_outdated(lake, table, schema, policy.excluded)
    ):
        return plan_creation(schema, policy.excluded)
    properties = lake.properties(table)
    if properties.get("write.wap.enabled") != "true":
        raise TableError(
            "its property write.wap.enabled is missing, so readers could see incomplete "
            "batches: another program has created or replaced this table",
            where=f"table {lake.schema}.{table}",
            remedy="If the loader wrote its rows (for example before a restore), set it: "
            f"alter table {lake.name(table)} set tblproperties ('write.wap.enabled' = 'true')",
        )
    remembered = read_source_schema(properties, policy.source, f"table {table}")
    return derive_drift(lake.schema_of(table), remembered, schema, policy)


def alter_table(lake: Lake, table: str, followed: Drift, source: str = "") -> None:
    """Alters a raw table's columns as planned, before rows with the new columns are staged.

    The stored source schema changes only when these rows are published. If a run crashes in
    between, the next run plans the remaining changes.

    Args:
        source: the source that has these columns, if several sources share the table.
    """
    if not followed.alterations:
        return
    lake.set_properties(table, {property_of(source): followed.before.text})
    for alteration in followed.alterations:
        lake.spark.sql(f"alter table {lake.name(table)} {alteration.sql}")
    lake.fresh(table)


def list_raw_tables(lake: Lake) -> tuple[list[str], dict[str, Exception]]:
    """Lists the raw tables, and the error for each unreadable table."""
    tables: list[str] = []
    unreadable: dict[str, Exception] = {}
    for name in lake.tables():
        if name.startswith(PREFIX):
            continue
        try:
            if lake.handle(name).properties().get("write.wap.enabled") == "true":
                tables.append(name)
        except Exception as problem:
            unreadable[name] = problem
    return tables, unreadable


def may_exceed(lake: Lake, table: str, column: str, cursor: Cursor) -> bool:
    """Returns whether, according to the file statistics, a row's cursor may be above this one.

    Returns true if there are no statistics, or if the column and the cursor differ in type.
    """
    return _may_match(lake, table, column, cursor, "greaterThan") is not False


def may_reach(lake: Lake, table: str, column: str, cursor: Cursor, generation: int) -> bool:
    """Returns whether, by the file statistics, a row of a generation may be at or above a cursor.

    Returns false if the column and the cursor differ in type.
    """
    return bool(_may_match(lake, table, column, cursor, "greaterThanOrEqual", generation))


def may_reach_staged(
    lake: Lake, table: str, column: str, cursor: Cursor, snapshot_id: int, batch: int
) -> bool:
    """Returns whether, by the file statistics, a row of a staged batch may be at or above a cursor.

    Strings are compared byte by byte, although the source's collation may order them differently.
    Returns true for decimal and floating-point numbers, and if the column and the cursor differ in
    type.
    """
    found = _may_match(lake, table, column, cursor, "greaterThanOrEqual", batch, snapshot_id)
    return found is not False


def _may_match(
    lake: Lake,
    table: str,
    column: str,
    cursor: Cursor,
    comparison: str,
    number: int | None = None,
    staged: int | None = None,
) -> bool | None:
    """Returns whether a row may match, or None if this is unknown.

    Args:
        number: the generation of the row; if `staged` is given, its batch number.
        staged: the id of a staged snapshot, which is searched instead of the published rows.
    """
    handle, expressions = lake.handle(table), lake.jvm.org.apache.iceberg.expressions.Expressions
    field = handle.schema().caseInsensitiveFindField(column)
    value = _iceberg_value(cursor, field.type().toString()) if field is not None else None
    if value is None and field is not None and staged is not None:
        value = cursor.text if cursor.type is CursorType.STRING else None
    if value is None:
        return None
    condition = getattr(expressions, comparison)(field.name(), value)
    if number is not None:
        numbered = expressions.equal(GENERATION if staged is None else BATCH, number)
        condition = getattr(expressions, "and")(condition, numbered)
    scan = handle.newScan() if staged is None else handle.newScan().useSnapshot(staged)
    files = scan.filter(condition).ignoreResiduals().planFiles()
    try:
        return bool(files.iterator().hasNext())
    finally:
        files.close()


def _iceberg_value(cursor: Cursor, kind: str) -> str | int | None:
    if cursor.type is CursorType.INTEGER and kind in ("int", "long"):
        return int(cursor.text)
    if cursor.type is CursorType.DATE and kind == "date":
        return cursor.text
    if cursor.type is CursorType.TIMESTAMP and kind == "timestamp":
        return cursor.text.replace(" ", "T")
    if cursor.type is CursorType.TIMESTAMPTZ and kind == "timestamptz":
        return cursor.text.replace(" ", "T") + "+00:00"
    return None
