"""Masks the values of columns as the first step after rows are read from a source.

:class:`MaskedSource` wraps a source. Its tables have the types of the masked values, and its
snapshots return masked rows, so no later step sees other values. The source itself gets the
original tables.

The mask `hash` is HMAC-SHA-256. Spark shows the literals of a query in its plans, its UI, its event
log and in errors. So the key is not a literal. The two blocks that HMAC derives from the key are
columns of a frame with one row, which is joined to the rows. Plans do not show the rows of such a
frame.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql import types as t

from loader.error_report import did_you_mean
from loader.errors import TableError
from loader.names import is_wildcard
from loader.rows.cursor import Cursor
from loader.rows.version_order import quote_name
from loader.rows.window import Bounds, Window
from loader.sources.interface import (
    Digest,
    Request,
    RunContext,
    Snapshot,
    Source,
    SourceTable,
    TableRef,
)
from loader.spec.options import TableOptions, options_for

if TYPE_CHECKING:
    from pydantic import SecretStr
    from pyspark.sql import SparkSession

    from loader.sources.contents import Contents

HASH = "hash"
REDACTED = "***"
"""The text that replaces a value, or the part of a value that is not shown."""

_BLOCK = 64
"""The block size of SHA-256 in bytes."""
_INNER, _OUTER = "_cq_mask_inner", "_cq_mask_outer"
_ADDRESS = r"^\s*[^@\s]+@([^@\s<>,;:()\[\]\"]+\.[^@\s<>,;:()\[\]\".]+)\s*$"


@dataclass(frozen=True)
class MaskedTable(SourceTable):
    """A table whose columns have the types of the masked values.

    Attributes:
        original: the table as the source describes it.
        masks: the masks by column.
        key_id: identifies the key of the mask `hash` without exposing the key; empty if no column
            has this mask.
    """

    original: SourceTable = field(kw_only=True)
    masks: Mapping[str, str] = field(kw_only=True)
    key_id: str = field(kw_only=True)


class MaskedSource(Source):
    """A source whose rows are masked as the option `mask` requires.

    Args:
        source: the source.
        key: the key of the mask `hash`; None if the spec has none.
    """

    def __init__(self, source: Source, key: SecretStr | None) -> None:
        super().__init__(source.name, source.options, source.spark, source.folder)
        self.source = source
        for name in Source.__annotations__:  # the properties of the connector's class
            setattr(self, name, getattr(source, name))
        self._key = key.get_secret_value().encode() if key is not None else None

    def use_marks(self, marks: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:
        self.source.use_marks(marks)

    def tables(self) -> list[TableRef]:
        return self.source.tables()

    def describe(self, ref: TableRef) -> SourceTable:
        table = self.source.describe(ref)
        where = f"table {self.name}.{ref.name}"
        options = options_for(self.table_options, ref.name, TableOptions())
        masks = find_masks(table, options.mask, f"{where}, mask")
        if not masks:
            return table
        if not self.source.can_mask:
            raise TableError(
                "this connector cannot mask columns: it writes rows to disk, or quotes values in "
                "errors, before the loader can mask them",
                where=f"{where}, mask",
                remedy="Remove the mask, and leave the column out or mask it in the source",
            )
        for name, mask in masks.items():
            _check_mask(mask, table.schema[name], options.column_types, where)
        key_id = ""
        if HASH in masks.values():
            if self._key is None:
                raise TableError(
                    "the mask `hash` needs a key",
                    where=f"{where}, mask",
                    remedy="Create one with `openssl rand -hex 32`, and add "
                    "`mask_key: ${STRANDLINE_MASK_KEY}` beside the source's name",
                )
            key_id = hmac.digest(self._key, b"strandline mask_key", "sha256").hex()[:16]
        schema = t.StructType(
            [
                replace_type(column, masks[column.name]) if column.name in masks else column
                for column in table.schema.fields
            ]
        )
        described = {each.name: getattr(table, each.name) for each in fields(SourceTable)}
        described["schema"] = schema
        return MaskedTable(**described, original=table, masks=masks, key_id=key_id)

    @contextmanager
    def snapshot(self, tables: Sequence[SourceTable]) -> Iterator[Snapshot]:
        with self.source.snapshot([_get_original(table) for table in tables]) as snapshot:
            yield MaskedSnapshot(snapshot, self._key)

    @contextmanager
    def reuse_connections(self, keep: int = 1) -> Iterator[None]:
        with self.source.reuse_connections(keep):
            yield

    @property
    def any_cursor(self) -> str:
        return self.source.any_cursor


class MaskedSnapshot(Snapshot):
    """A snapshot whose rows are masked.

    Args:
        snapshot: the snapshot of the source.
        key: the key of the mask `hash`; None if the spec has none.
    """

    def __init__(self, snapshot: Snapshot, key: bytes | None) -> None:
        self._snapshot = snapshot
        self._key = key
        for name in Snapshot.__annotations__:  # the properties of the connector's class
            setattr(self, name, getattr(snapshot, name))

    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        rows = self._snapshot.read(spark, _get_original(table), window, bounds)
        return mask_rows(rows, table, self._key)

    def read_first(
        self, spark: SparkSession, table: SourceTable, window: Window, limit: int
    ) -> DataFrame:
        rows = self._snapshot.read_first(spark, _get_original(table), window, limit)
        return mask_rows(rows, table, self._key)

    def deletions(self, spark: SparkSession, table: SourceTable) -> Sequence[DataFrame]:
        found = self._snapshot.deletions(spark, _get_original(table))
        return [mask_rows(rows, table, self._key) for rows in found]

    def read_current_rows(
        self, spark: SparkSession, table: SourceTable, keys: DataFrame
    ) -> DataFrame:
        if isinstance(table, MaskedTable) and set(table.masks) & set(keys.columns):
            return super().read_current_rows(spark, table, keys)  # no source can search for hashes
        rows = self._snapshot.read_current_rows(spark, _get_original(table), keys)
        return mask_rows(rows, table, self._key)

    def digest(
        self,
        table: SourceTable,
        window: Window,
        rows: int | None = None,
        until: Cursor | None = None,
    ) -> Digest | None:
        if not isinstance(table, MaskedTable):
            return self._snapshot.digest(table, window, rows, until)
        # Digests are stored. With the other columns of a row in raw, an attacker could guess the
        # masked values until the digests are equal. The key prevents this.
        if self._key is None:
            return None
        digest = self._snapshot.digest(table.original, window, rows, until)
        if digest is None:
            return None
        masks = sorted(table.masks.items())
        keyed = hmac.digest(self._key, f"{masks}{digest.text}".encode(), "sha256").hex()
        return Digest(digest.rows, keyed)

    def contents(
        self,
        spark: SparkSession,
        table: SourceTable,
        key: Sequence[str],
        window: Window,
        unique: bool,
    ) -> Contents:
        if isinstance(table, MaskedTable):
            # Spark reads, masks and hashes the rows, because the database's checksums would be
            # those of the original values.
            return super().contents(spark, table, key, window, unique)
        return self._snapshot.contents(spark, table, key, window, unique)

    def _find_contents_bounds(self, table: SourceTable, part: Window, window: Window) -> Bounds:
        return self._snapshot._find_contents_bounds(_get_original(table), part, window)

    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        return self._snapshot.bounds(_get_original(table), window)

    def preview(self, table: SourceTable, window: Window) -> Bounds:
        return self._snapshot.preview(_get_original(table), window)

    def confirm_stored(self, table: SourceTable, mark: Mapping[str, Any] | None) -> None:
        self._snapshot.confirm_stored(_get_original(table), mark)

    def use_marks(self, marks: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:
        self._snapshot.use_marks(marks)

    def list_unmet_requirements(self, table: SourceTable) -> list[str]:
        return self._snapshot.list_unmet_requirements(_get_original(table))

    def count_values(
        self, table: SourceTable, columns: Sequence[str], window: Window, bounds: Bounds | None
    ) -> int | None:
        masks = table.masks if isinstance(table, MaskedTable) else {}
        kept = [name for name in columns if masks.get(name) != "null"]
        if not kept:
            return 0
        return self._snapshot.count_values(_get_original(table), kept, window, bounds)

    def lower_window(self, table: SourceTable, window: Window) -> Window:
        return self._snapshot.lower_window(_get_original(table), window)

    def finds_late_rows_by_time(self, table: SourceTable) -> bool:
        return self._snapshot.finds_late_rows_by_time(_get_original(table))

    def probe(self) -> None:
        self._snapshot.probe()

    def begin(self, requests: Sequence[Request], context: RunContext) -> None:
        self._snapshot.begin(requests, context)

    def has_more(self, table: SourceTable) -> bool:
        return self._snapshot.has_more(_get_original(table))

    def abandon(self, table: SourceTable) -> None:
        self._snapshot.abandon(_get_original(table))

    def check_unaltered(self, table: SourceTable) -> None:
        self._snapshot.check_unaltered(_get_original(table))

    def is_steady(self, table: SourceTable) -> bool:
        return self._snapshot.is_steady(_get_original(table))

    def estimate_bytes(self, table: SourceTable, window: Window, bounds: Bounds) -> int | None:
        return self._snapshot.estimate_bytes(_get_original(table), window, bounds)


def mask_source(source: Source, key: SecretStr | None) -> Source:
    """Returns the source, wrapped if the spec masks a column of one of its tables."""
    if any(options.mask for options in source.table_options.values()):
        return MaskedSource(source, key)
    return source


def check_roles(
    table: SourceTable,
    key: Sequence[str],
    cursor: str | None,
    deleted: str | None,
    follows_log: bool,
    where: str,
) -> None:
    """Checks that the loader can use the masked columns of a table.

    Args:
        key: the primary key.
        cursor: the cursor column.
        deleted: the column that flags deleted rows.
        follows_log: whether changes are read from the database's log.

    Raises:
        TableError: if the cursor or the column that flags deleted rows is masked, if a key column
            has a mask other than `hash`, or if changes are read from the log.
    """
    if not isinstance(table, MaskedTable):
        return
    where = f"{where}, mask"
    if follows_log:
        raise TableError(
            "sync_mode: cdc cannot mask columns: changes from the log are written to disk before "
            "the loader can mask them",
            where=where,
            remedy="Set sync_mode: incremental, or read the table without these columns: "
            f"{', '.join(table.masks)}",
        )
    for name, role in ((cursor, "cursor_field"), (deleted, "deleted_field")):
        if name in table.masks:
            raise TableError(
                f"the {role} {name!r} cannot be masked: the loader needs its values",
                where=where,
                remedy=f"Remove its mask, or choose another {role}",
            )
    for name in key:
        if table.masks.get(name, HASH) != HASH:
            raise TableError(
                f"the mask `{table.masks[name]}` does not keep the key column {name!r} unique",
                where=where,
                remedy="Write `hash`, the only mask that keeps keys unique",
            )


def find_masks(table: SourceTable, masks: Mapping[str, str], where: str) -> dict[str, str]:
    """Returns the mask of each masked column. Names are case-insensitive.

    A name overrides wildcards, and a later wildcard overrides an earlier one.

    Raises:
        TableError: if the table has no column of a name. Wildcards need not match a column.
    """
    names = table.schema.names
    found: dict[str, str] = {}
    for pattern, mask in masks.items():
        if is_wildcard(pattern):
            found |= {name: mask for name in names if fnmatchcase(name.lower(), pattern.lower())}
    for pattern, mask in masks.items():
        # A column may have the name of a wildcard.
        matches = [name for name in names if name.lower() == pattern.lower()]
        is_excluded = pattern.lower() in map(str.lower, table.excluded)
        if not matches and not is_wildcard(pattern) and not is_excluded:
            raise TableError(
                f"there is no column {pattern!r} to mask",
                where=where,
                remedy=f"{did_you_mean(pattern, names)} Its columns: {', '.join(names)}. For a "
                f'column that only some tables have, write a wildcard: "{pattern}*"'.strip(),
            )
        found |= dict.fromkeys(matches, mask)
    return {name: found[name] for name in names if name in found}


def _check_mask(
    mask: str, column: t.StructField, column_types: Mapping[str, str], where: str
) -> None:
    """Raises a TableError if a mask does not fit the type of a column."""
    kind, data_type = mask.partition(":")[0], column.dataType
    types = {name.lower(): type_ for name, type_ in column_types.items()}
    if types.get(column.name.lower(), "string") != "string":
        raise TableError(
            f"the masked column {column.name!r} has a type in column_types: errors quote values "
            "that do not fit this type",
            where=f"{where}, mask",
            remedy="Remove the column from column_types, or set its type to string",
        )
    fits = {
        HASH: (_is_hashable, "texts, whole numbers, dates and binary values"),
        "last": (_is_text, "texts"),
        "domain": (_is_text, "texts"),
        "year": (_has_year, "dates and timestamps"),
    }
    if kind in fits and not fits[kind][0](data_type):
        raise TableError(
            f"the mask `{mask}` does not fit the column {column.name!r} of type "
            f"{data_type.simpleString()}: it masks {fits[kind][1]}",
            where=f"{where}, mask",
            remedy="Choose another mask; `null` and `redact` fit every type",
        )


def _is_text(data_type: t.DataType) -> bool:
    return isinstance(data_type, (t.StringType, t.CharType, t.VarcharType))


def _is_hashable(data_type: t.DataType) -> bool:
    # The texts of other types may differ between versions of Java, or between equal values.
    if isinstance(data_type, t.DecimalType):
        return data_type.scale == 0
    return _is_text(data_type) or isinstance(data_type, (t.IntegralType, t.DateType, t.BinaryType))


def _has_year(data_type: t.DataType) -> bool:
    return isinstance(data_type, (t.DateType, t.TimestampType, t.TimestampNTZType))


def replace_type(column: t.StructField, mask: str) -> t.StructField:
    """Returns the column with the type of the masked values."""
    data_type: t.DataType = t.StringType()
    if mask == "null":
        data_type = column.dataType
    elif mask == "year":
        data_type = t.IntegerType()
    return t.StructField(column.name, data_type, True, column.metadata)


def mask_rows(rows: DataFrame, table: SourceTable, key: bytes | None) -> DataFrame:
    """Returns the rows with masked values. Other columns stay as they are."""
    if not isinstance(table, MaskedTable):
        return rows
    names = rows.columns
    if any(table.masks.get(name) == HASH for name in names):
        assert key is not None
        # The hint makes Spark send the key to the partitions, which keep the order of their rows.
        rows = rows.crossJoin(f.broadcast(_frame_key(rows.sparkSession, key)))
    schema = rows.schema
    return rows.select(
        *(
            _mask_value(f.col(quote_name(name)), schema[name].dataType, table.masks[name]).alias(
                name
            )
            if name in table.masks
            else f.col(quote_name(name))
            for name in names
        )
    )


def _frame_key(spark: SparkSession, key: bytes) -> DataFrame:
    """Returns a frame with one row, which contains the two blocks that HMAC derives from a key."""
    block = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
    session: Any = spark
    jvm = session._jvm
    values = session.sparkContext._gateway.new_array(jvm.Object, 2)
    values[0] = bytearray(byte ^ 0x36 for byte in block)
    values[1] = bytearray(byte ^ 0x5C for byte in block)
    schema = t.StructType([t.StructField(name, t.BinaryType(), False) for name in (_INNER, _OUTER)])
    java_rows = jvm.java.util.ArrayList()
    java_rows.add(jvm.org.apache.spark.sql.RowFactory.create(values))
    java_schema = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    return DataFrame(session._jsparkSession.createDataFrame(java_rows, java_schema), spark)


def _mask_value(value: Column, data_type: t.DataType, mask: str) -> Column:
    """Returns the masked value. Nulls stay null."""
    kind, _, count = mask.partition(": ")
    if kind == "null":
        return f.lit(None).cast(data_type)
    if kind == "redact":
        masked = f.lit(REDACTED)
    elif kind == "year":
        return f.year(value)
    elif kind == "domain":
        domain = f.lower(f.regexp_extract(value, _ADDRESS, 1))
        masked = f.when(domain == "", f.lit(REDACTED)).otherwise(domain)
    elif kind == "last":
        text = f.rtrim(value)
        is_longer = f.length(text) > int(count)
        last = f.concat(f.lit(REDACTED), f.substring(text, -int(count), int(count)))
        masked = f.when(is_longer, last).otherwise(f.lit(REDACTED))
    else:
        text = value if isinstance(data_type, t.BinaryType) else value.cast("string").cast("binary")
        inner = f.unhex(f.sha2(f.concat(f.col(_INNER), text), 256))
        masked = f.sha2(f.concat(f.col(_OUTER), inner), 256)
    return f.when(value.isNotNull(), masked)


def _get_original(table: SourceTable) -> SourceTable:
    return table.original if isinstance(table, MaskedTable) else table
