"""Turns a table's spooled changes into rows, in the order of the log.

An update is the row as it was afterwards; if it changed the key, also a tombstone of the old key.
A delete is a tombstone, which holds only the key: deleted values are not written again. A TRUNCATE
is a tombstone of every key that lived. Large values that an update did not change are not in the
log, and come from the row's version before it. After a read of all rows, keys that are in raw and
gone from the source get tombstones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import and_, or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.window import Window as Over

from loader.cdc.debezium.spool import ChangeSpool
from loader.cdc.position import Key, VisibleTransactions, is_visible, is_visible_to_chunk
from loader.cdc.table_definition import LoggedColumn
from loader.cdc.values import build_json_schema, convert_to_text, convert_value, is_left_out
from loader.names import literal_path
from loader.rows.bookkeeping import DELETED
from loader.rows.exact_cast import cast_exactly
from loader.rows.version_order import BATCH, GENERATION, SEQUENCE, quote_name
from loader.rows.window import Window
from loader.sources.interface import SourceTable

_NUMBER = "_cq_number"
_TRANSACTION = "_cq_transaction"
_PART = "_cq_part"
_MISSING = "_cq_missing"
_INSERT = "_cq_insert"
_LIFE = "_cq_life"
_NEWEST = "_cq_newest"
_JSON = {"mode": "FAILFAST", "maxStringLen": str(2**31 - 1)}
"""How changes are parsed: values may be as long as PostgreSQL's, which end at 1 GB."""


@dataclass(frozen=True)
class Changes:
    """A table's changes in a spool.

    Attributes:
        logged: the table's name in the log.
        columns: its columns, in the order of the table's schema.
        key: the primary key's columns.
        first: the ordinal of the first transaction that counts.
        seen: what the first load has seen already; None if nothing.
        earlier: what its chunks had seen that end with these keys
            (:class:`loader.cdc.position.Mark`).
        placeholder: Debezium's text for a value that the log leaves out.
        cached: keeps rows that are read more than once, until the run ends.
    """

    table: SourceTable
    spool: ChangeSpool
    logged: str
    columns: Sequence[LoggedColumn]
    key: Sequence[str]
    first: int
    seen: VisibleTransactions | None
    earlier: Sequence[tuple[Key, VisibleTransactions]]
    placeholder: str
    cached: Callable[[DataFrame], DataFrame]

    def select_rows(self, spark: SparkSession, window: Window) -> DataFrame:
        """Returns the rows, lazily: the table's columns and ``_cq_deleted``, in the log's order."""
        found = self._split_versions(self._parse_changes(spark))
        if self.spool.count_left_out(self.logged):
            found = self._fill_values(found, window)
        if self.spool.count_truncates(self.logged):
            found = self._expand_truncates(found, window)
        return found.orderBy(_NUMBER, _PART).select(
            *(f.col(quote_name(name)) for name in self.table.schema.names), f.col(DELETED)
        )

    def list_column_names(self, spark: SparkSession) -> set[str]:
        """Returns the names that columns have in the changes."""
        change = f.from_json("text", "after map<string, string>", _JSON)
        names = f.map_keys(change.getField("after"))
        found = self._read_lines(spark).select(f.explode(names).alias("name"))
        return {name for (name,) in found.distinct().collect()}

    def has_moved_rows(self, spark: SparkSession) -> bool:
        """Returns whether an update gave a row another key and left out a large value.

        Debezium makes a delete and an insert of it; no other insert lacks a value.
        """
        change = f.col("change")
        after = change.getField("after")
        left_out = reduce(or_, [is_left_out(after, c, self.placeholder) for c in self.columns])
        came = self._has_new_key(change) | (change.getField("op") == "c")
        rows = self._parse_changes(spark).where(came & left_out)
        return not rows.isEmpty()

    def _has_new_key(self, change: Column) -> Column:
        """Returns whether a change gives a row another key."""
        before, after = change.getField("before"), change.getField("after")
        at = {name: i for i, name in enumerate(self.table.schema.names)}
        names = [self.columns[at[name]].name for name in self.key]
        same = [before.getField(name).eqNullSafe(after.getField(name)) for name in names]
        return (change.getField("op") == "u") & before.isNotNull() & ~reduce(and_, same)

    def _parse_changes(self, spark: SparkSession) -> DataFrame:
        """Returns number, transaction and change of the transactions that count."""
        schema = build_json_schema(self.columns)
        change = f.from_json("text", schema, _JSON)
        return self._read_lines(spark).select(_NUMBER, _TRANSACTION, change.alias("change"))

    def _read_lines(self, spark: SparkSession) -> DataFrame:
        """Returns the spool's lines of the transactions that count."""
        parts = f.split("value", "\t", 4)
        lines = (
            spark.read.option("lineSep", "\n")
            .text(f"file:{literal_path(str(self.spool.folder_of(self.logged)))}")
            .select(
                parts[0].cast("bigint").alias(_NUMBER),
                parts[1].cast("bigint").alias("ordinal"),
                parts[2].cast("bigint").alias(_TRANSACTION),
                parts[3].alias("text"),
            )
            .where((f.col("ordinal") >= self.first) & (f.col("ordinal") < len(self.spool)))
        )
        # What the first of a load's snapshots sees, all of them do.
        first = self.earlier[0][1] if self.earlier else self.seen
        return lines if first is None else lines.where(~is_visible(first, f.col(_TRANSACTION)))

    def _split_versions(self, lines: DataFrame) -> DataFrame:
        """Returns a row for each version and tombstone; a TRUNCATE has no key and is deleted."""
        change = f.col("change")
        before, after, op = (change.getField(name) for name in ("before", "after", "op"))
        at = {name: i for i, name in enumerate(self.table.schema.names)}
        keys = [self.columns[at[name]] for name in self.key]
        moved = self._has_new_key(change)
        keyless = reduce(and_, [before.getField(k.name).isNull() for k in keys])
        refusal = f.raise_error(
            f.lit(
                "the log has a change without the row's old key: it was null, or the table's "
                "REPLICA IDENTITY did not hold it then. Read the table again (--full-refresh)"
            )
        )
        has_key = f.when((op != "t") & keyless, refusal.cast("boolean")).otherwise(f.lit(True))
        gone = self._build_row(before, True, f.lit(False)).withField(DELETED, has_key)
        there = self._build_row(after, False, op == "c")
        parts = (
            f.when(op.isin("d", "t"), f.array(gone))
            .when(moved, f.array(gone, there))
            .otherwise(f.array(there))
        )
        rows = lines.select(_NUMBER, _TRANSACTION, f.posexplode(parts).alias(_PART, "row"))
        if self.earlier:
            key = {name: self.table.schema[name].dataType for name in self.key}
            of, row = f.col(_TRANSACTION), f.col("row")
            rows = rows.where(~is_visible_to_chunk(self.earlier, self.seen, of, key, row))
        return rows.select(_NUMBER, _PART, "row.*")

    def _build_row(self, row: Column, deleted: bool, insert: Column) -> Column:
        keys = {name.lower() for name in self.key}
        fields = []
        missing: list[Column] = []
        as_texts = self.table.ref.native.as_texts
        for i, (column, field) in enumerate(
            zip(self.columns, self.table.schema.fields, strict=True)
        ):
            held = not deleted or field.name.lower() in keys
            doubted = self.spool.replaced.has_replaced_elements(column.name)
            if not held:
                made = f.lit(None)
            elif i in as_texts:
                made = cast_exactly(convert_to_text(row, column), field.dataType, field.name)
            else:
                made = convert_value(row, column, field.dataType, doubted)
            lacks = f.lit(False) if deleted else is_left_out(row, column, self.placeholder)
            missing.append(lacks)
            made = f.when(~lacks, made) if column.toastable and not deleted else made
            fields.append(made.cast(field.dataType).alias(field.name))
        return f.struct(
            *fields,
            f.lit(deleted).alias(DELETED),
            f.array(*missing).alias(_MISSING),
            insert.alias(_INSERT),
        )

    def _fill_values(self, rows: DataFrame, window: Window) -> DataFrame:
        """Fills the values that the log leaves out from each row's version before."""
        rows = self.cached(rows)
        versions = self._add_lives(
            self._add_raw_versions(rows, window), self._list_moved_keys(rows)
        )
        by_life = Over.partitionBy(_LIFE).orderBy(_NUMBER, _PART)
        columns = []
        for place, field in enumerate(self.table.schema.fields):
            name = f.col(quote_name(field.name))
            if not self.columns[place].toastable:
                columns.append(name)
                continue
            lacks = f.col(_MISSING).getItem(place)
            known = f.when(~lacks & ~f.col(DELETED), f.struct(name.alias("value")))
            before = f.last(known, ignorenulls=True).over(by_life)
            unknown = f.raise_error(
                f.lit(
                    f"neither the log nor raw has the value of {field.name} in a changed row: set "
                    "the table's REPLICA IDENTITY to FULL, then read it again (--full-refresh)"
                )
            )
            filled = f.when(before.isNotNull(), before.getField("value")).otherwise(
                unknown.cast(field.dataType)
            )
            columns.append(f.when(lacks, filled).otherwise(name).alias(field.name))
        return versions.select(_NUMBER, _PART, *columns, DELETED, _MISSING, _INSERT).where(
            f.col(_NUMBER) > 0
        )

    def _list_moved_keys(self, rows: DataFrame) -> list[tuple[int, str, str]]:
        """Returns the rows whose key has changed and which lack a value: number, old and new key.

        Such an update is a tombstone and then a row, in one change, or (Debezium) in two that
        follow each other, the second being an insert. No other insert lacks a value.
        """
        gone = rows.where(f.col(DELETED)).select(
            f.col(_NUMBER).alias("gone"), self._key.alias("old")
        )
        moved = rows.where(
            f.array_contains(_MISSING, True) & ((f.col(_PART) == 1) | f.col(_INSERT))
        ).select(
            f.col(_NUMBER).alias("number"),
            (f.col(_NUMBER) - f.when(f.col(_PART) == 1, 0).otherwise(1)).alias("place"),
            self._key.alias("new"),
        )
        found = moved.join(gone, f.col("gone") == f.col("place")).select("number", "old", "new")
        # A key that is written with other digits, as 1.0 and 1.00, is the same key.
        found = found.where(f.col("old") != f.col("new"))
        return sorted((row["number"], row["old"], row["new"]) for row in found.collect())

    def _add_lives(self, versions: DataFrame, moves: Sequence[tuple[int, str, str]]) -> DataFrame:
        """Adds what identifies a row while its key changes: the key that it had at first."""
        own = self._key
        if not moves:
            return versions.withColumn(_LIFE, own)
        lives: dict[str, str] = {}
        begun = []
        for number, old, new in moves:
            lives[new] = lives.get(old, old)
            lives[old] = f"{old} {number}"  # a row that gets the old key now is another one
            begun += [(key, number, lives[key]) for key in (old, new)]
        columns = {"_cq_key": "string", "_cq_since": "bigint", "_cq_then": "string"}
        spans = _make_rows(versions.sparkSession, columns, begun)
        till = f.lead("_cq_since").over(Over.partitionBy("_cq_key").orderBy("_cq_since"))
        spans = spans.select("*", till.alias("_cq_till"))
        within = (
            (own == f.col("_cq_key"))
            & (f.col(_NUMBER) >= f.col("_cq_since"))
            & (f.col("_cq_till").isNull() | (f.col(_NUMBER) < f.col("_cq_till")))
        )
        return (
            versions.join(f.broadcast(spans), within, "left")
            .withColumn(_LIFE, f.coalesce("_cq_then", own))
            .drop("_cq_key", "_cq_since", "_cq_till", "_cq_then")
        )

    @property
    def _key(self) -> Column:
        return f.to_json(f.struct(*(f.col(quote_name(name)) for name in self.key)))

    def _expand_truncates(self, rows: DataFrame, window: Window) -> DataFrame:
        """Replaces each TRUNCATE by tombstones of the keys that lived when it came."""
        no_key = reduce(and_, [f.col(quote_name(name)).isNull() for name in self.key])
        is_truncate = f.col(DELETED) & no_key
        rows = self.cached(rows)
        points = [r[0] for r in rows.where(is_truncate).select(_NUMBER).orderBy(_NUMBER).collect()]
        rest = rows.where(~is_truncate)
        keys = [f.col(quote_name(name)) for name in self.key]
        types = {field.name: field.dataType for field in self.table.schema.fields}
        # Of each time between two TRUNCATEs, what lived at its end; the rest of what came before
        # has its tombstone.
        columns = {"_cq_since": "bigint", "_cq_till": "bigint"}
        spans = _make_rows(rows.sparkSession, columns, list(pairwise([0, *points])))
        within = (f.col(_NUMBER) >= f.col("_cq_since")) & (f.col(_NUMBER) < f.col("_cq_till"))
        alive = (
            self._add_raw_versions(rest, window)
            .select(*keys, DELETED, _NUMBER, _PART)
            .join(f.broadcast(spans), within)
            .groupBy(*keys, "_cq_till")
            .agg(f.max_by(DELETED, f.struct(_NUMBER, _PART)).alias(_NEWEST))
            .where(~f.col(_NEWEST))
        )
        tombstones = alive.select(
            f.col("_cq_till").alias(_NUMBER),
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
        return rest.unionByName(tombstones)

    def _add_raw_versions(self, rows: DataFrame, window: Window) -> DataFrame:
        """Returns the rows and, numbered 0, the newest version in raw of every key."""
        if window.read_raw is None:
            return rows
        names = [*self.table.schema.names, DELETED, GENERATION, BATCH, SEQUENCE]
        raw = window.read_raw(names)
        order = f.struct(GENERATION, BATCH, SEQUENCE)
        newest = raw.groupBy(*(f.col(quote_name(name)) for name in self.key)).agg(
            f.max_by(f.struct("*"), order).alias(_NEWEST)
        )
        keys = {name.lower() for name in self.key}
        there = newest.select(
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
        return there.unionByName(rows)


def _make_rows(
    spark: SparkSession, columns: Mapping[str, str], values: Sequence[tuple[object, ...]]
) -> DataFrame:
    """Returns a few rows. PySpark's own way takes a second to start a process for them."""
    text = json.dumps([dict(zip(columns, row, strict=True)) for row in values])
    fields = ", ".join(f"{name}: {kind}" for name, kind in columns.items())
    return spark.range(1).select(f.inline(f.from_json(f.lit(text), f"array<struct<{fields}>>")))


def find_missing_keys(
    rows: DataFrame,
    table: SourceTable,
    key: Sequence[str],
    held: Callable[[Sequence[str]], DataFrame],
) -> DataFrame:
    """Returns tombstones of the keys that live in raw and are not among the rows.

    Args:
        rows: all rows that the source has.
        held: reads columns of raw (:attr:`Window.read_raw`).
    """
    raw = held([*key, DELETED, GENERATION, BATCH, SEQUENCE])
    newest = f.max_by(DELETED, f.struct(GENERATION, BATCH, SEQUENCE))
    alive = (
        raw.groupBy(*(f.col(quote_name(name)) for name in key))
        .agg(newest.alias(DELETED))
        .where(~f.coalesce(f.col(DELETED), f.lit(False)))
        .select(*(f.col(quote_name(name)).alias(f"_cq_key_{i}") for i, name in enumerate(key)))
    )
    condition = f.lit(True)
    for i, name in enumerate(key):
        condition = condition & f.col(f"_cq_key_{i}").eqNullSafe(f.col(quote_name(name)))
    gone = alive.join(
        rows.select(*(f.col(quote_name(name)) for name in key)), condition, "left_anti"
    )
    places = {name: f"_cq_key_{i}" for i, name in enumerate(key)}
    return gone.select(
        *(
            (f.col(places[field.name]) if field.name in places else f.lit(None))
            .cast(field.dataType)
            .alias(field.name)
            for field in table.schema.fields
        ),
        f.lit(True).alias(DELETED),
    )
