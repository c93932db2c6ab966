"""Masks the values of columns as soon as rows are read from a source.

:class:`MaskedSource` wraps a source. Its tables have the types of the masked values, and its
snapshots return masked rows, so no later step sees the original values. The wrapped source receives
the original tables.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import types as t

from loader.errors import TableError, did_you_mean
from loader.names import is_wildcard
from loader.rows import mask_columns
from loader.rows.cursor import Cursor
from loader.rows.mask_values import HASH, find_mask
from loader.rows.window import Bounds, CursorField, Window
from loader.sources.interface import (
    Digest,
    Request,
    RunContext,
    Snapshot,
    Source,
    SourceTable,
    TableRef,
)
from loader.sources.masked_table import MaskedTable, get_original, mask_table
from loader.spec.options import TableOptions, options_for

if TYPE_CHECKING:
    from pydantic import SecretStr
    from pyspark.sql import SparkSession

    from loader.sources.contents import Contents


class MaskedSource(Source):
    """Wraps a source and masks its rows according to the `mask` option."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.name, source.options, source.spark, source.folder)
        self.source = source
        self.mask_key = source.mask_key
        for name in Source.__annotations__:  # the class variables of the connector
            setattr(self, name, getattr(source, name))

    def use_marks(self, marks: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:
        self.source.use_marks(marks)

    def tables(self) -> list[TableRef]:
        return self.source.tables()

    def describe(self, ref: TableRef) -> SourceTable:
        table = self.source.describe(ref)
        where = f"table {self.name}.{ref.name}"
        options = options_for(self.table_options, ref.name, TableOptions())
        masks = find_masks(table, options.mask, f"{where}, mask")
        if not masks and not (options.mask and self.source.masks_records):
            return table
        if not self.source.can_mask:
            raise TableError(
                "this connector cannot mask columns: it may write values to disk, or quote them in "
                "errors, before the loader can mask them",
                where=f"{where}, mask",
                remedy="Remove the mask, and exclude the column or mask it in the source",
            )
        for name, mask in masks.items():
            _check_mask(mask, table.schema[name], where)
        if not self.source.can_mask_typed_columns:
            _check_types(masks, options.column_types, where)
        key_id = ""
        if HASH in masks.values():
            if self.mask_key is None:
                raise TableError(
                    "the mask `hash` needs a key",
                    where=f"{where}, mask",
                    remedy="Create one with `openssl rand -hex 32`, and add "
                    "`mask_key: ${STRANDLINE_MASK_KEY}` next to the source's name",
                )
            key_id = hmac.digest(self.mask_key, b"strandline mask_key", "sha256").hex()[:16]
        patterns = options.mask if self.source.masks_records else {}
        return mask_table(table, masks, patterns, self.mask_key, key_id)

    @contextmanager
    def snapshot(self, tables: Sequence[SourceTable]) -> Iterator[Snapshot]:
        with self.source.snapshot(tables) as snapshot:
            yield snapshot if self.source.masks_records else MaskedSnapshot(snapshot, self.mask_key)

    @contextmanager
    def reuse_connections(self, keep: int = 1) -> Iterator[None]:
        with self.source.reuse_connections(keep):
            yield

    @property
    def any_cursor(self) -> str:
        return self.source.any_cursor


class MaskedSnapshot(Snapshot):
    """Wraps a snapshot and masks its rows.

    Args:
        key: the key for the `hash` mask; None if the spec has none.
    """

    def __init__(self, snapshot: Snapshot, key: bytes | None) -> None:
        self._snapshot = snapshot
        self._key = key
        for name in Snapshot.__annotations__:  # the class variables of the connector's snapshot
            setattr(self, name, getattr(snapshot, name))

    def read(
        self, spark: SparkSession, table: SourceTable, window: Window, bounds: Bounds
    ) -> DataFrame:
        rows = self._snapshot.read(spark, self._choose(table), window, bounds)
        return rows if self._snapshot.masks_rows(table) else mask_rows(rows, table)

    def read_first(
        self, spark: SparkSession, table: SourceTable, window: Window, limit: int
    ) -> DataFrame:
        rows = self._snapshot.read_first(spark, get_original(table), window, limit)
        return mask_rows(rows, table)

    def deletions(self, spark: SparkSession, table: SourceTable) -> Sequence[DataFrame]:
        found = self._snapshot.deletions(spark, self._choose(table))
        return [mask_rows(rows, table) for rows in found]

    def read_current_rows(
        self, spark: SparkSession, table: SourceTable, keys: DataFrame
    ) -> DataFrame:
        if isinstance(table, MaskedTable) and set(table.masks) & set(keys.columns):
            # Sources cannot search for hashes.
            return Snapshot.read_current_rows(self._by_queries(table), spark, table, keys)
        rows = self._snapshot.read_current_rows(spark, get_original(table), keys)
        return mask_rows(rows, table)

    def digest(
        self,
        table: SourceTable,
        window: Window,
        rows: int | None = None,
        until: Cursor | None = None,
    ) -> Digest | None:
        if not isinstance(table, MaskedTable):
            return self._snapshot.digest(table, window, rows, until)
        # Digests are stored. If they were not keyed, an attacker who can read a row's unmasked
        # columns in the raw table could try values for the masked columns until the digests match.
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
            # Spark must hash the rows, because the database would hash the original values.
            by_queries = self._by_queries(table)
            return Snapshot.contents(by_queries, spark, table, key, window, unique)
        return self._snapshot.contents(spark, table, key, window, unique)

    def _find_contents_bounds(self, table: SourceTable, part: Window, window: Window) -> Bounds:
        return self._snapshot._find_contents_bounds(get_original(table), part, window)

    def _by_queries(self, table: SourceTable) -> MaskedSnapshot:
        snapshot = self._snapshot.get_query_snapshot(table)
        return self if snapshot is self._snapshot else MaskedSnapshot(snapshot, self._key)

    def _choose(self, table: SourceTable) -> SourceTable:
        return table if self._snapshot.masks_rows(table) else get_original(table)

    def bounds(self, table: SourceTable, window: Window) -> Bounds:
        return self._snapshot.bounds(self._choose(table), window)

    def preview(self, table: SourceTable, window: Window) -> Bounds:
        return self._snapshot.preview(self._choose(table), window)

    def confirm_stored(self, table: SourceTable, mark: Mapping[str, Any] | None) -> None:
        self._snapshot.confirm_stored(self._choose(table), mark)

    def use_marks(self, marks: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:
        self._snapshot.use_marks(marks)

    def list_unmet_requirements(self, table: SourceTable) -> list[str]:
        return self._snapshot.list_unmet_requirements(self._choose(table))

    def list_option_notes(self, table: SourceTable, cursor: CursorField) -> list[str]:
        return self._snapshot.list_option_notes(self._choose(table), cursor)

    def count_values(
        self, table: SourceTable, columns: Sequence[str], window: Window, bounds: Bounds | None
    ) -> int | None:
        masks = table.masks if isinstance(table, MaskedTable) else {}
        kept = [name for name in columns if masks.get(name) != "null"]
        if not kept:
            return 0
        return self._snapshot.count_values(self._choose(table), kept, window, bounds)

    def lower_window(self, table: SourceTable, window: Window) -> Window:
        return self._snapshot.lower_window(self._choose(table), window)

    def finds_late_rows_by_time(self, table: SourceTable) -> bool:
        return self._snapshot.finds_late_rows_by_time(self._choose(table))

    def probe(self) -> None:
        self._snapshot.probe()

    def begin(self, requests: Sequence[Request], context: RunContext) -> None:
        self._snapshot.begin(requests, context)

    def has_more(self, table: SourceTable) -> bool:
        return self._snapshot.has_more(self._choose(table))

    def abandon(self, table: SourceTable) -> None:
        self._snapshot.abandon(self._choose(table))

    def check_unaltered(self, table: SourceTable) -> None:
        self._snapshot.check_unaltered(self._choose(table))

    def is_steady(self, table: SourceTable) -> bool:
        return self._snapshot.is_steady(self._choose(table))

    @contextmanager
    def open_later(self, table: SourceTable) -> Iterator[Snapshot]:
        with self._snapshot.open_later(get_original(table)) as later:
            yield MaskedSnapshot(later, self._key)

    def estimate_bytes(self, table: SourceTable, window: Window, bounds: Bounds) -> int | None:
        return self._snapshot.estimate_bytes(self._choose(table), window, bounds)


def mask_source(source: Source, key: SecretStr | None) -> Source:
    """Wraps the source if the spec masks columns in any table. Otherwise returns it unchanged."""
    source.mask_key = key.get_secret_value().encode() if key is not None else None
    if any(options.mask for options in source.table_options.values()):
        return MaskedSource(source)
    return source


def check_roles(
    table: SourceTable,
    key: Sequence[str],
    cursor: str | None,
    deleted: str | None,
    where: str,
) -> None:
    """Checks that a table's masks leave its key, cursor and deletion flag usable.

    Raises:
        TableError: if the cursor or the deletion flag is masked, or if a key column has a mask
            other than `hash`.
    """
    if not isinstance(table, MaskedTable):
        return
    where = f"{where}, mask"
    for name, role in ((cursor, "cursor_field"), (deleted, "deleted_field")):
        if name and name in table.masks:
            is_named = name.lower() in {pattern.lower() for pattern in table.patterns}
            change = "Remove its mask" if is_named else "Use wildcards that do not match it"
            raise TableError(
                f"the {role} {name!r} cannot be masked: the loader needs its values",
                where=where,
                remedy=f"{change}, or choose another {role}",
            )
    for name in key:
        if table.masks.get(name, HASH) != HASH:
            raise TableError(
                f"the mask `{table.masks[name]}` does not keep the key column {name!r} unique",
                where=where,
                remedy="Use `hash`, the only mask that keeps keys unique",
            )


def find_masks(table: SourceTable, masks: Mapping[str, str], where: str) -> dict[str, str]:
    """Returns the mask of each masked column (:func:`loader.rows.mask_values.find_mask`).

    Raises:
        TableError: if a name other than a wildcard is not a column of the table.
    """
    names = table.schema.names
    known = {name.lower() for name in (*names, *table.excluded)}
    for pattern in masks:
        if pattern.lower() not in known and not is_wildcard(pattern):
            raise TableError(
                f"there is no column {pattern!r} to mask",
                where=where,
                remedy=f"{did_you_mean(pattern, names)} Its columns: {', '.join(names)}. For a "
                f'column that only some tables have, write a wildcard: "{pattern}*"'.strip(),
            )
    found = {name: find_mask(name, masks) for name in names}
    return {name: mask for name, mask in found.items() if mask is not None}


def _check_types(masks: Mapping[str, str], column_types: Mapping[str, str], where: str) -> None:
    """Raises a TableError if `column_types` sets a type other than string for a masked column."""
    types = {name.lower(): type_ for name, type_ in column_types.items()}
    for name in masks:
        if types.get(name.lower(), "string") != "string":
            raise TableError(
                f"the masked column {name!r} has a type in column_types: errors quote values that "
                "do not fit this type",
                where=f"{where}, mask",
                remedy="Remove the column from column_types, or set its type to string",
            )


def _check_mask(mask: str, column: t.StructField, where: str) -> None:
    kind, data_type = mask.partition(":")[0], column.dataType
    fits = {
        HASH: (_is_hashable, "strings, whole numbers, dates and binary values"),
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
    # Versions of Java may format values of other types differently, and even equal values may be
    # formatted differently.
    if isinstance(data_type, t.DecimalType):
        return data_type.scale == 0
    return _is_text(data_type) or isinstance(data_type, (t.IntegralType, t.DateType, t.BinaryType))


def _has_year(data_type: t.DataType) -> bool:
    return isinstance(data_type, (t.DateType, t.TimestampType, t.TimestampNTZType))


def mask_rows(rows: DataFrame, table: SourceTable) -> DataFrame:
    if not isinstance(table, MaskedTable):
        return rows
    return mask_columns.mask_rows(rows, table.masks, table.key)
