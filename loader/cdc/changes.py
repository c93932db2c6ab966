"""Converts a table's changes in the spool to rows, ordered as in the log.

- An insert or update becomes a row with the new values. If an update changes the key, a tombstone
  for the old key precedes this row.
- A delete becomes a tombstone, which contains only the key.
- A TRUNCATE becomes a tombstone for every existing key.
- The log omits large values that an update does not change. Such a value is taken from the previous
  version of the row.

After a full read, each key that exists only in the raw table gets a tombstone
(`find_missing_keys`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import reduce
from itertools import pairwise
from operator import and_, or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.window import Window as Over

from loader.cdc.debezium.spool import ChangeSpool
from loader.cdc.position import Key, VisibleTransactions, is_visible, is_visible_to_chunk
from loader.cdc.table_definition import LoggedColumn
from loader.cdc.values import build_json_schema, convert_to_text, convert_value, is_omitted
from loader.names import literal_path
from loader.rows.bookkeeping import DELETED
from loader.rows.exact_cast import cast_exactly
from loader.rows.mask_columns import add_secrets, derive_secrets, mask_column
from loader.rows.version_order import BATCH, GENERATION, SEQUENCE, quote_name
from loader.rows.window import Window
from loader.sources.interface import SourceTable
from loader.sources.masked_table import MaskedTable, get_original

_NUMBER = "_cq_number"
_TRANSACTION = "_cq_transaction"
_PART = "_cq_part"
_MISSING = "_cq_missing"
_INSERT = "_cq_insert"
_ROW_ID = "_cq_row_id"
_NEWEST = "_cq_newest"
_CORRUPT = "_cq_corrupt"
_SPOOL_KEY = "_cq_spool_key"
_JSON = {"mode": "FAILFAST", "maxStringLen": str(2**31 - 1)}
"""Spark's default limit for the length of a string is lower than PostgreSQL's."""


@dataclass(frozen=True)
class Changes:
    """The changes to one table in a spool.

    Attributes:
        columns: the table's columns, ordered as in its schema.
        first: the ordinal of the first transaction in the spool that is not yet in the raw table.
        snapshot: the snapshot of the first load. Changes that are visible in it are already in the
            raw table. None if it is no longer needed (:class:`loader.cdc.position.Mark`).
        earlier_chunks: the last key and the snapshot of each interrupted run of the first load.
        placeholder: the string that Debezium writes for a value that the log omits.
        spool_key: encrypts the changes if the table has masked columns.
    """

    table: SourceTable
    spool: ChangeSpool
    log_name: str
    columns: Sequence[LoggedColumn]
    key: Sequence[str]
    first: int
    snapshot: VisibleTransactions | None
    earlier_chunks: Sequence[tuple[Key, VisibleTransactions]]
    placeholder: str
    spool_key: bytes = dataclass_field(repr=False)
    cache: Callable[[DataFrame], DataFrame]

    def select_rows(self, spark: SparkSession, window: Window) -> DataFrame:
        """Returns the changes as rows with the table's columns and `_cq_deleted`, in log order."""
        rows = self._split_versions(self._parse_changes(spark))
        if self.spool.count_omitted(self.log_name):
            rows = self._fill_values(rows, window)
        if self.spool.count_truncates(self.log_name):
            rows = self._expand_truncates(rows, window)
        return rows.orderBy(_NUMBER, _PART).select(
            *(f.col(quote_name(name)) for name in self.table.schema.names), f.col(DELETED)
        )

    def list_column_names(self, spark: SparkSession) -> set[str]:
        texts = t.MapType(t.StringType(), t.StringType())
        change = self._parse(t.StructType([t.StructField("after", texts)]))
        names = f.map_keys(change.getField("after"))
        rows = self._read_lines(spark).select(f.explode(names).alias("name"))
        return {name for (name,) in rows.distinct().collect()}

    def has_incomplete_key_changes(self, spark: SparkSession) -> bool:
        """Returns whether the log omits a large value from an update that changed the key.

        Debezium writes such an update as a delete and an insert. An ordinary insert has all values,
        so an insert that lacks a value is part of such an update.
        """
        change = f.col("change")
        after = change.getField("after")
        omitted = reduce(or_, [is_omitted(after, c, self.placeholder) for c in self.columns])
        is_new_key = self._has_new_key(change) | (change.getField("op") == "c")
        rows = self._parse_changes(spark).where(is_new_key & omitted)
        return not rows.isEmpty()

    def _has_new_key(self, change: Column) -> Column:
        """Returns whether a change is an update that changed the key."""
        before, after = change.getField("before"), change.getField("after")
        indexes = {name: i for i, name in enumerate(self.table.schema.names)}
        names = [self.columns[indexes[name]].name for name in self.key]
        same = [before.getField(name).eqNullSafe(after.getField(name)) for name in names]
        return (change.getField("op") == "u") & before.isNotNull() & ~reduce(and_, same)

    def _parse_changes(self, spark: SparkSession) -> DataFrame:
        change = self._parse(build_json_schema(self.columns))
        lines = add_secrets(self._read_lines(spark), self._secrets)
        return lines.select(_NUMBER, _TRANSACTION, *self._secrets, change.alias("change"))

    def _parse(self, schema: t.StructType) -> Column:
        """Parses a change. The query fails if the JSON is invalid."""
        if not self._masks:
            return f.from_json("text", schema, _JSON)
        # In FAILFAST mode, Spark would write the values of masked columns to its log and event log.
        options = {**_JSON, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        schema = t.StructType([*schema.fields, t.StructField(_CORRUPT, t.StringType())])
        change = f.from_json("text", schema, options)
        refusal = f.raise_error(
            f.lit(
                "a change in the log cannot be parsed (not shown, because the table has masked "
                "columns): reload the table (--full-refresh)"
            )
        )
        is_corrupt = change.getField(_CORRUPT).isNotNull()
        return f.when(is_corrupt, refusal.cast(schema)).otherwise(change)

    @property
    def _masks(self) -> Mapping[str, str]:
        return self.table.masks if isinstance(self.table, MaskedTable) else {}

    @property
    def _secrets(self) -> Mapping[str, bytes]:
        if not isinstance(self.table, MaskedTable):
            return {}
        return derive_secrets(self.table.masks, self.table.key)

    def _read_lines(self, spark: SparkSession) -> DataFrame:
        """Returns the lines of complete transactions that are not yet in the raw table."""
        parts = f.split("value", "\t", 4)
        lines = (
            self._decrypt(
                spark.read.option("lineSep", "\n").text(
                    f"file:{literal_path(str(self.spool.get_folder(self.log_name)))}"
                )
            )
            .select(
                parts[0].cast("bigint").alias(_NUMBER),
                parts[1].cast("bigint").alias("ordinal"),
                parts[2].cast("bigint").alias(_TRANSACTION),
                parts[3].alias("text"),
            )
            .where((f.col("ordinal") >= self.first) & (f.col("ordinal") < len(self.spool)))
        )
        # A transaction that is visible in the load's first snapshot is visible in all later
        # snapshots.
        first_snapshot = self.earlier_chunks[0][1] if self.earlier_chunks else self.snapshot
        return (
            lines
            if first_snapshot is None
            else lines.where(~is_visible(first_snapshot, f.col(_TRANSACTION)))
        )

    def _decrypt(self, lines: DataFrame) -> DataFrame:
        if not isinstance(self.table, MaskedTable):
            return lines
        lines = add_secrets(lines, {_SPOOL_KEY: self.spool_key})
        block = f.aes_decrypt(f.unbase64("value"), f.col(_SPOOL_KEY)).cast("string")
        lines = lines.select(f.explode(f.split(block, "\n")).alias("value"))
        return lines.where(f.col("value") != "")

    def _split_versions(self, lines: DataFrame) -> DataFrame:
        """Returns one row per version or tombstone. A TRUNCATE is a tombstone without a key."""
        change = f.col("change")
        before, after, op = (change.getField(name) for name in ("before", "after", "op"))
        indexes = {name: i for i, name in enumerate(self.table.schema.names)}
        keys = [self.columns[indexes[name]] for name in self.key]
        has_new_key = self._has_new_key(change)
        lacks_key = reduce(and_, [before.getField(k.name).isNull() for k in keys])
        refusal = f.raise_error(
            f.lit(
                "the log has a change without the row's old key: the key was null, or the table's "
                "REPLICA IDENTITY did not contain it. Reload the table (--full-refresh)"
            )
        )
        has_key = f.when((op != "t") & lacks_key, refusal.cast("boolean")).otherwise(f.lit(True))
        tombstone = self._build_row(before, True, f.lit(False)).withField(DELETED, has_key)
        version = self._build_row(after, False, op == "c")
        parts = (
            f.when(op.isin("d", "t"), f.array(tombstone))
            .when(has_new_key, f.array(tombstone, version))
            .otherwise(f.array(version))
        )
        rows = lines.select(_NUMBER, _TRANSACTION, f.posexplode(parts).alias(_PART, "row"))
        if self.earlier_chunks:
            key = {name: self.table.schema[name].dataType for name in self.key}
            transaction, row = f.col(_TRANSACTION), f.col("row")
            rows = rows.where(
                ~is_visible_to_chunk(self.earlier_chunks, self.snapshot, transaction, key, row)
            )
        return rows.select(_NUMBER, _PART, "row.*")

    def _build_row(self, row: Column, is_deleted: bool, is_insert: Column) -> Column:
        keys = {name.lower() for name in self.key}
        fields = []
        missing: list[Column] = []
        as_texts = self.table.ref.native.as_texts
        for i, (column, field) in enumerate(
            zip(self.columns, get_original(self.table).schema.fields, strict=True)
        ):
            mask = self._masks.get(field.name)
            is_written = not is_deleted or field.name.lower() in keys
            has_replaced = self.spool.log.has_replaced_elements(column.name)
            if not is_written:
                value = f.lit(None)
            elif i in as_texts:
                text = convert_to_text(row, column)
                value = cast_exactly(text, field.dataType, field.name, mask is not None)
            else:
                value = convert_value(
                    row, column, field.dataType, has_replaced, hides_value=mask is not None
                )
            if mask is not None and is_written:
                value = mask_column(value, field.dataType, mask)
            is_missing = f.lit(False) if is_deleted else is_omitted(row, column, self.placeholder)
            missing.append(is_missing)
            value = f.when(~is_missing, value) if column.is_toastable and not is_deleted else value
            data_type = self.table.schema[field.name].dataType
            fields.append(value.cast(data_type).alias(field.name))
        return f.struct(
            *fields,
            f.lit(is_deleted).alias(DELETED),
            f.array(*missing).alias(_MISSING),
            is_insert.alias(_INSERT),
        )

    def _fill_values(self, rows: DataFrame, window: Window) -> DataFrame:
        rows = self.cache(rows)
        versions = self._add_row_ids(
            self._add_raw_versions(rows, window), self._list_key_changes(rows)
        )
        by_row_id = Over.partitionBy(_ROW_ID).orderBy(_NUMBER, _PART)
        columns = []
        for i, field in enumerate(self.table.schema.fields):
            column = f.col(quote_name(field.name))
            if not self.columns[i].is_toastable:
                columns.append(column)
                continue
            is_missing = f.col(_MISSING).getItem(i)
            value = f.when(~is_missing & ~f.col(DELETED), f.struct(column.alias("value")))
            previous = f.last(value, ignorenulls=True).over(by_row_id)
            refusal = f.raise_error(
                f.lit(
                    f"the value of {field.name} in a changed row is in neither the log nor the raw "
                    "table: set the table's REPLICA IDENTITY to FULL, then reload it "
                    "(--full-refresh)"
                )
            )
            # If an update makes a row match the filter, PostgreSQL logs it as an insert. The raw
            # table has no version of such a row, or an outdated one, so it cannot supply an omitted
            # value.
            is_known = previous.isNotNull()
            if self.table.ref.native.where:
                is_known = is_known & ~f.col(_INSERT)
            filled = f.when(is_known, previous.getField("value")).otherwise(
                refusal.cast(field.dataType)
            )
            columns.append(f.when(is_missing, filled).otherwise(column).alias(field.name))
        return versions.select(_NUMBER, _PART, *columns, DELETED, _MISSING, _INSERT).where(
            f.col(_NUMBER) > 0
        )

    def _list_key_changes(self, rows: DataFrame) -> list[tuple[int, str, str]]:
        """Lists the updates that changed a key and lack a value, as (number, old key, new key).

        In `rows`, such an update is a tombstone followed by a row. In the log, it is one change or,
        if Debezium split it, a delete and an insert. All other inserts have all values.
        """
        tombstones = rows.where(f.col(DELETED)).select(
            f.col(_NUMBER).alias("deleted"), self._key_text.alias("old")
        )
        versions = rows.where(
            f.array_contains(_MISSING, True) & ((f.col(_PART) == 1) | f.col(_INSERT))
        ).select(
            f.col(_NUMBER).alias("number"),
            (f.col(_NUMBER) - f.when(f.col(_PART) == 1, 0).otherwise(1)).alias("previous"),
            self._key_text.alias("new"),
        )
        key_changes = versions.join(tombstones, f.col("deleted") == f.col("previous")).select(
            "number", "old", "new"
        )
        # Keys that differ only in trailing zeros, such as 1.0 and 1.00, are equal.
        key_changes = key_changes.where(f.col("old") != f.col("new"))
        return sorted((row["number"], row["old"], row["new"]) for row in key_changes.collect())

    def _add_row_ids(
        self, versions: DataFrame, key_changes: Sequence[tuple[int, str, str]]
    ) -> DataFrame:
        """Adds a row id that stays the same if the key changes: the row's first key."""
        key = self._key_text
        if not key_changes:
            return versions.withColumn(_ROW_ID, key)
        row_ids: dict[str, str] = {}
        intervals = []
        for number, old, new in key_changes:
            row_ids[new] = row_ids.get(old, old)
            row_ids[old] = f"{old} {number}"  # because another row may get the old key later
            intervals += [(changed_key, number, row_ids[changed_key]) for changed_key in (old, new)]
        columns = {"_cq_key": "string", "_cq_since": "bigint", "_cq_first_key": "string"}
        spans = _create_rows(versions.sparkSession, columns, intervals)
        until = f.lead("_cq_since").over(Over.partitionBy("_cq_key").orderBy("_cq_since"))
        spans = spans.select("*", until.alias("_cq_until"))
        within = (
            (key == f.col("_cq_key"))
            & (f.col(_NUMBER) >= f.col("_cq_since"))
            & (f.col("_cq_until").isNull() | (f.col(_NUMBER) < f.col("_cq_until")))
        )
        return (
            versions.join(f.broadcast(spans), within, "left")
            .withColumn(_ROW_ID, f.coalesce("_cq_first_key", key))
            .drop("_cq_key", "_cq_since", "_cq_until", "_cq_first_key")
        )

    @property
    def _key_text(self) -> Column:
        return f.to_json(f.struct(*(f.col(quote_name(name)) for name in self.key)))

    def _expand_truncates(self, rows: DataFrame, window: Window) -> DataFrame:
        no_key = reduce(and_, [f.col(quote_name(name)).isNull() for name in self.key])
        is_truncate = f.col(DELETED) & no_key
        rows = self.cache(rows)
        truncates = [
            r[0] for r in rows.where(is_truncate).select(_NUMBER).orderBy(_NUMBER).collect()
        ]
        others = rows.where(~is_truncate)
        keys = [f.col(quote_name(name)) for name in self.key]
        types = {field.name: field.dataType for field in self.table.schema.fields}
        # Each interval ends with a TRUNCATE. Keys from before the previous TRUNCATE already have
        # tombstones, so each interval needs only the keys that exist at its end.
        columns = {"_cq_since": "bigint", "_cq_until": "bigint"}
        spans = _create_rows(rows.sparkSession, columns, list(pairwise([0, *truncates])))
        within = (f.col(_NUMBER) >= f.col("_cq_since")) & (f.col(_NUMBER) < f.col("_cq_until"))
        existing = (
            self._add_raw_versions(others, window)
            .select(*keys, DELETED, _NUMBER, _PART)
            .join(f.broadcast(spans), within)
            .groupBy(*keys, "_cq_until")
            .agg(f.max_by(DELETED, f.struct(_NUMBER, _PART)).alias(_NEWEST))
            .where(~f.col(_NEWEST))
        )
        tombstones = existing.select(
            f.col("_cq_until").alias(_NUMBER),
            f.lit(0).alias(_PART),
            *(
                (f.col(quote_name(name)) if name in self.key else f.lit(None))
                .cast(data_type)
                .alias(name)
                for name, data_type in types.items()
            ),
            f.lit(True).alias(DELETED),
            f.array(*[f.lit(False)] * len(types)).alias(_MISSING),
            f.lit(False).alias(_INSERT),
        )
        return others.unionByName(tombstones)

    def _add_raw_versions(self, rows: DataFrame, window: Window) -> DataFrame:
        """Adds the newest version of each key in the raw table, as change number 0."""
        if window.read_raw is None:
            return rows
        names = [*self.table.schema.names, DELETED, GENERATION, BATCH, SEQUENCE]
        raw = window.read_raw(names)
        order = f.struct(GENERATION, BATCH, SEQUENCE)
        newest = raw.groupBy(*(f.col(quote_name(name)) for name in self.key)).agg(
            f.max_by(f.struct("*"), order).alias(_NEWEST)
        )
        keys = {name.lower() for name in self.key}
        stored = newest.select(
            f.lit(0).cast("bigint").alias(_NUMBER),
            f.lit(0).alias(_PART),
            *(
                (
                    f.col(quote_name(field.name))
                    if field.name.lower() in keys
                    else f.col(_NEWEST).getField(field.name)
                )
                .cast(field.dataType)
                .alias(field.name)
                for field in self.table.schema.fields
            ),
            f.coalesce(f.col(_NEWEST).getField(DELETED), f.lit(False)).alias(DELETED),
            f.array(*[f.lit(False)] * len(self.columns)).alias(_MISSING),
            f.lit(False).alias(_INSERT),
        )
        return stored.unionByName(rows)


def _create_rows(
    spark: SparkSession, columns: Mapping[str, str], values: Sequence[tuple[object, ...]]
) -> DataFrame:
    """Creates a small DataFrame. Unlike `createDataFrame`, starts no Python worker."""
    text = json.dumps([dict(zip(columns, row, strict=True)) for row in values])
    fields = ", ".join(f"{name}: {kind}" for name, kind in columns.items())
    return spark.range(1).select(f.inline(f.from_json(f.lit(text), f"array<struct<{fields}>>")))


def find_missing_keys(
    rows: DataFrame,
    table: SourceTable,
    key: Sequence[str],
    read_raw: Callable[[Sequence[str]], DataFrame],
) -> DataFrame:
    """Returns tombstones for the keys that exist in the raw table but not in the source.

    Args:
        rows: all rows in the source table.
        read_raw: reads columns from the raw table (:attr:`Window.read_raw`).
    """
    raw = read_raw([*key, DELETED, GENERATION, BATCH, SEQUENCE])
    newest = f.max_by(DELETED, f.struct(GENERATION, BATCH, SEQUENCE))
    existing = (
        raw.groupBy(*(f.col(quote_name(name)) for name in key))
        .agg(newest.alias(DELETED))
        .where(~f.coalesce(f.col(DELETED), f.lit(False)))
        .select(*(f.col(quote_name(name)).alias(f"_cq_key_{i}") for i, name in enumerate(key)))
    )
    condition = f.lit(True)
    for i, name in enumerate(key):
        condition = condition & f.col(f"_cq_key_{i}").eqNullSafe(f.col(quote_name(name)))
    missing = existing.join(
        rows.select(*(f.col(quote_name(name)) for name in key)), condition, "left_anti"
    )
    aliases = {name: f"_cq_key_{i}" for i, name in enumerate(key)}
    return missing.select(
        *(
            (f.col(aliases[field.name]) if field.name in aliases else f.lit(None))
            .cast(field.dataType)
            .alias(field.name)
            for field in table.schema.fields
        ),
        f.lit(True).alias(DELETED),
    )
