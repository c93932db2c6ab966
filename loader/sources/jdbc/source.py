"""The `jdbc` connector, which lists and describes the tables of a database."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from loader.errors import TableError, sentence, unknown_column
from loader.rows.exact_cast import parse_data_type
from loader.sources.interface import ExclusiveResource, Snapshot, SourceTable, TableRef
from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.cursor_columns import (
    find_collated_cursor,
    has_writer_cursor,
    refuse_unordered_cursor,
)
from loader.sources.jdbc.database import Database
from loader.sources.jdbc.dialect import Key
from loader.sources.jdbc.interface import load_capture
from loader.sources.jdbc.lossy_values import (
    BYTES,
    DISTINCT,
    JAVA_TYPES,
    Column,
    LossyValue,
    find_rounded_decimals,
    has_many_texts,
    has_odd_scale,
    jdbc_type,
    refuse_in_key,
)
from loader.sources.jdbc.metadata import (
    ColumnDescriptions,
    NativeColumns,
    add_remedy,
    build_layout,
    read_native_columns,
)
from loader.sources.jdbc.options import JdbcOptions
from loader.sources.jdbc.postgresql.continuity import XMIN
from loader.sources.jdbc.postgresql.exported_snapshot import open_exported_snapshot
from loader.sources.jdbc.reader import build_custom_schema, read_schema
from loader.sources.jdbc.snapshot import JdbcSnapshot
from loader.spark.error_translation import translate_jdbc_error

_TIMESTAMP_WITH_TIMEZONE = "2014"  # java.sql.Types
_WITHOUT_TWINS = ("-7", "-6", "5", "4", "-5", "2", "3", "16", "91", "93")
"""Numeric, boolean and time types. Different values of these types stay different when cast."""
_OF_TABLES = ("TABLE_CAT", "TABLE_SCHEM", "TABLE_NAME", "TABLE_TYPE", "REMARKS")


class JdbcSource(Database):
    selects_columns = True

    @classmethod
    def find_exclusive_resource(cls, name: str, options: JdbcOptions) -> ExclusiveResource | None:
        if all(table.sync_mode != "cdc" for table in options.table_options.values()):
            return None
        capture = load_capture(options.url, f"source {name}, sync_mode: cdc")
        return capture.find_single_reader(name, options)

    @cached_property
    def _schemas(self) -> dict[str, tuple[ColumnDescriptions, StructType]]:
        return {}

    @property
    def any_cursor(self) -> str:
        return XMIN if self.dialect.shares_snapshots else ""

    def tables(self) -> list[TableRef]:
        dialect = self.dialect
        with self.lend_catalog_connection() as connection:
            home = connection.default_namespace("Catalog") if dialect.uses_catalogs else None
            default = home if dialect.uses_catalogs else connection.default_namespace("Schema")
            kinds = connection.string_array(
                "TABLE",
                "BASE TABLE",
                "PARTITIONED TABLE",
                "VIEW",
                "MATERIALIZED VIEW",
                "FOREIGN TABLE",
            )
            hidden = dialect.list_hidden_tables(connection)
            remote = dialect.list_remote_tables(connection)
            refs = []
            listed = connection.metadata("getTables", home, None, "%", kinds, labels=_OF_TABLES)
            for row in listed:
                schema = row["TABLE_CAT"] if dialect.uses_catalogs else row["TABLE_SCHEM"]
                name = row["TABLE_NAME"] or ""
                if (schema or "") in dialect.system_schemas or (schema or "", name) in hidden:
                    continue
                shown = dialect.lake_name(name)
                if schema != default:
                    shown = f"{dialect.lake_name(schema or '')}.{shown}"
                is_view = "VIEW" in (row["TABLE_TYPE"] or "")
                is_foreign = "FOREIGN" in (row["TABLE_TYPE"] or "")
                stored = not is_view and not is_foreign and (schema or "", name) not in remote
                # MySQL reports the comment VIEW for a view that has none.
                comment = "" if row["REMARKS"] == "VIEW" else row["REMARKS"] or ""
                native = NativeColumns(
                    row["TABLE_CAT"], row["TABLE_SCHEM"], name, stored, comment=comment
                )
                origin = ".".join(
                    part if re.fullmatch(r"\w+", part) else dialect.quote(part)
                    for part in (row["TABLE_SCHEM"], name)
                    if part
                )
                refs.append(TableRef(shown, native, "view" if is_view else "table", origin))
        queries = self._list_queries()
        replaced = {ref.name.lower() for ref in queries}
        refs = [ref for ref in refs if ref.name.lower() not in replaced]
        return sorted([*refs, *queries], key=lambda ref: ref.name)

    def _list_queries(self) -> list[TableRef]:
        return [
            TableRef(name, NativeColumns(None, None, "", stored=False, query=options.query))
            for name, options in self.options.table_options.items()
            if options.query
        ]

    def describe(self, ref: TableRef) -> SourceTable:
        native: NativeColumns = ref.native
        option = ", query" if native.query else ""
        with self.lend_catalog_connection(f"table {self.name}.{ref.name}{option}") as connection:
            place = (native.catalog, native.schema, native.table)
            key, indexes = Key(()), []
            if not native.query:
                key = self.dialect.read_key(connection, place)
                labels = ("COLUMN_NAME", "ORDINAL_POSITION")
                indexes = connection.metadata("getIndexInfo", *place, False, True, labels=labels)
            all_columns = read_native_columns(connection, native)
            has_xmin = has_writer_cursor(self, ref, all_columns)
            cursor = (self.read_options(ref).choose_cursor(all_columns) or "").lower()
            cursor = XMIN if has_xmin else cursor
            selected = self._select_columns(ref, all_columns, key.columns, cursor)
            described = self._resolve_domains(connection, native, selected)
        declared = {name.lower() for name in self.read_options(ref).primary_key or ()}
        chosen = self._choose_types(
            ref, described, cursor, {*map(str.lower, key.columns), *declared}
        )
        schema = self._find_schema(ref, described, chosen)
        types = self._choose_read_types(described, chosen)
        shown = [
            (index, sql)
            for index, name in enumerate(schema.names)
            if (sql := self._choose_expression(name, described.get(name, {}), chosen))
        ]
        native = replace(native, columns=tuple(schema.names), where=self._check_where(ref))
        relation = self.rows(native)
        in_key = {
            index
            for index, name in enumerate(schema.names)
            if name in key.columns or self.dialect.lake_name(name).lower() in declared
        }
        lossy_values = find_rounded_decimals(schema, described, ref.name)
        lossy_values += self._find_lossy_values(schema, described, chosen, types)
        lossy_values = [
            value
            for lossy in lossy_values
            for value in (refuse_in_key(lossy, relation) if lossy.index in in_key else [lossy])
        ]
        as_texts = tuple(i for i, name in enumerate(schema.names) if name in chosen)
        schema = StructType(
            [StructField(c.name, chosen.get(c.name, c.dataType)) for c in schema.fields]
        )
        if has_xmin:
            schema = StructType([*schema.fields, StructField(XMIN, LongType())])
        fields = [
            StructField(self.dialect.lake_name(column.name), column.dataType)
            for column in schema.fields
        ]
        described_table = SourceTable(
            replace(
                ref,
                native=replace(
                    native,
                    columns=tuple(schema.names),
                    has_xmin=has_xmin,
                    lossy_values=tuple(lossy_values),
                    layout=build_layout(all_columns),
                    shown=tuple(shown),
                    types=tuple(types.items()),
                    as_texts=as_texts,
                ),
            ),
            StructType(fields),
            primary_key=tuple(map(self.dialect.lake_name, key.columns))
            if set(key.columns) <= set(schema.names)
            else (),
            no_key_reason=key.lacking,
            system_cursors=(self.any_cursor,) if self.any_cursor and native.stored else (),
            indexed=frozenset(
                self.dialect.lake_name(row["COLUMN_NAME"] or "")
                for row in indexes
                if row["ORDINAL_POSITION"] == "1" and row["COLUMN_NAME"]
            ),
            collated=find_collated_cursor(self, ref, schema, cursor),
            comment=native.comment,
            column_comments={
                self.dialect.lake_name(name): row["REMARKS"] or ""
                for name, row in described.items()
            },
            selection=native.selection,
            excluded=tuple(
                self.dialect.lake_name(name) for name in all_columns if name not in described
            ),
        )
        refuse_unordered_cursor(self, ref, described, cursor)
        self.partition_column(described_table)  # raises an error if the option is wrong
        return described_table

    def _find_lossy_values(
        self,
        schema: StructType,
        described: ColumnDescriptions,
        chosen: Collection[str],
        types: dict[str, str],
    ) -> list[LossyValue]:
        """Returns the values that each column can hold and its type in the lake cannot."""
        found: list[LossyValue] = []
        binary = self.reads_binary(types)
        for index, column in enumerate(schema.fields):
            row = described.get(column.name, {})
            if column.name in chosen:
                found += self.dialect.find_lossy_texts(index, row)
            else:
                found += self.dialect.find_lossy_values(index, column.dataType, row, binary)
        return found

    def _check_where(self, ref: TableRef) -> str:
        """Lets the database check a table's `where` option. Returns it, or an empty string."""
        condition, where = self.read_options(ref).where, f"table {self.name}.{ref.name}, where"
        if condition is None:
            return ""
        if ref.native.query:
            raise TableError(
                "the options of a wildcard filter this table, which is a query",
                where=where,
                remedy="Add the condition to the query, and set `where` for single tables instead",
            )
        remedy = "Write a condition as after the word WHERE in a SELECT of this table"
        with self.lend_catalog_connection(where) as connection, add_remedy(remedy):
            connection.types(
                f"select 1 from {self.relation(ref.native)} where (\n{condition}\n) and 1 = 0"
            )
        return condition

    def _select_columns(
        self, ref: TableRef, described: ColumnDescriptions, key: Sequence[str], cursor: str
    ) -> ColumnDescriptions:
        """Returns the descriptions of the columns that the `columns` option selects.

        Args:
            key: the key in the database. The `primary_key` option replaces it.
            cursor: the cursor's name, in lower case.
        """
        options = self.read_options(ref)
        required = [*(options.primary_key or key), cursor, options.deleted_field or ""]
        chosen = self.select_columns(ref, list(described), required)
        return {name: described[name] for name in chosen}

    def _choose_types(
        self, ref: TableRef, described: ColumnDescriptions, cursor: str, key: Collection[str]
    ) -> dict[str, DataType]:
        """Returns the types in `column_types`, keyed by the columns' names in the database.

        Args:
            cursor, key: the names of the cursor and the key columns, in lower case.

        Raises:
            TableError: if a column does not exist, or if its type cannot be changed.
        """
        configured = self.read_options(ref).column_types
        if not configured:
            return {}
        names = list(described) or self._find_schema(ref, described, {}).names
        by_name = {name.lower(): name for name in names}
        chosen: dict[str, DataType] = {}
        for name, text in configured.items():
            where = f"table {self.name}.{ref.name}, column_types"
            column = by_name.get(name.lower())
            if column is None:
                raise unknown_column(name, names, where)
            if column in chosen:
                raise TableError(
                    f"{name!r} is the column {column!r}, which is listed twice",
                    where=where,
                    remedy="Remove one of the two",
                )
            if name.lower() == cursor:
                raise TableError(
                    f"the type of the cursor {name!r} cannot be changed",
                    where=where,
                    remedy="Choose another cursor_field, or change the column's type in the source",
                )
            description = described.get(column, {})
            kind = jdbc_type(description)
            if text == "binary" and kind in BYTES:
                continue  # loaded unchanged, because conversion to text would change the bytes
            if column.lower() in key and text == "string" and has_many_texts(description):
                raise TableError(
                    f"{name!r} is a column of the key, and equal values may become different "
                    "strings, such as 1.0 and 1.00",
                    where=where,
                    remedy="Choose a decimal or bigint, or cast the column in a view of the source",
                )
            is_exact = text == "string" or kind in _WITHOUT_TWINS
            if column.lower() in key and not is_exact:
                raise TableError(
                    f"{name!r} is a column of the key, and different values may become the same "
                    f"{text}, such as the strings 7 and 07",
                    where=where,
                    remedy="Remove it, or choose string",
                )
            chosen[column] = parse_data_type(text)
        return chosen

    def _choose_expression(self, name: str, row: Column, chosen: Collection[str]) -> str:
        """Returns SQL that converts a column, or an empty string. ``{}`` stands for the column."""
        return self.dialect.as_text(row) if name in chosen else self.dialect.select_expression(row)

    def _find_schema(
        self, ref: TableRef, described: ColumnDescriptions, chosen: Collection[str]
    ) -> StructType:
        """Returns the columns and their types, from the cache if the description is unchanged."""
        cached = self._schemas.get(ref.name)
        # A domain is described only by its name, so the description does not show a change of its
        # base type.
        is_vague = not described or any(row["DATA_TYPE"] == DISTINCT for row in described.values())
        if cached is None or cached[0] != described or is_vague:
            cached = self._schemas[ref.name] = described, self._read_schema(ref, described, chosen)
        return cached[1]

    def _resolve_domains(
        self, connection: Connection, native: NativeColumns, described: ColumnDescriptions
    ) -> ColumnDescriptions:
        """Adds the base types of nested domains to the descriptions of the columns."""
        nested = [name for name, row in described.items() if row["SOURCE_DATA_TYPE"] == DISTINCT]
        if not nested:
            return described
        names = connection.types(self._build_empty_query(native, described))
        kinds = {name: JAVA_TYPES.get(names[name].lower(), DISTINCT) for name in nested}
        return {
            name: {**row, "SOURCE_DATA_TYPE": kinds[name]} if name in kinds else row
            for name, row in described.items()
        }

    def _build_empty_query(self, native: NativeColumns, columns: Iterable[str]) -> str:
        names = ", ".join(map(self.dialect.quote, columns))
        return f"select {names} from {self.rows(native)} where 1 = 0"

    def _read_schema(
        self, ref: TableRef, described: ColumnDescriptions, chosen: Collection[str]
    ) -> StructType:
        native: NativeColumns = ref.native
        where = f"table {self.name}.{ref.name}"
        is_whole = self.read_options(ref).columns is None
        columns = ", ".join(self._list_expressions(described, chosen, is_whole))
        try:
            query = f"(select {columns or '*'} from {self.rows(native)}) t"
            options = {
                **self.reader_options,
                **build_custom_schema(self._choose_read_types(described, chosen)),
            }
            with self.lend_catalog_connection(where) as connection:
                schema = read_schema(self.spark, connection, options, query)
        except Py4JJavaError as error:
            raise translate_jdbc_error(error, where) from error
        except PySparkException as error:
            remedy = "Read it through a view that renames or omits columns"
            if "ecimal scale" in str(error):
                odd = ", ".join(name for name, row in described.items() if has_odd_scale(row))
                remedy = (
                    f"{odd or 'A number'} has a scale that is negative or above its precision: "
                    "load it as a string (column_types: {n: string}), or read the table through a "
                    "view that casts it, for instance to numeric(7, 0)"
                )
            raise TableError(
                f"Spark cannot read its columns: {sentence(error)}", where=where, remedy=remedy
            ) from error
        # Drivers report both instants and wall-clock times as TIMESTAMP. Only the name of the
        # database's type distinguishes them.
        names = {name: row["TYPE_NAME"] or "" for name, row in described.items()}
        if any(row["DATA_TYPE"] == DISTINCT for row in described.values()):
            with self.lend_catalog_connection(where) as connection:
                names |= connection.types(self._build_empty_query(native, described))
        instants = {
            name
            for name, row in described.items()
            if names[name].lower() in self.dialect.instant_types
            or row["DATA_TYPE"] == _TIMESTAMP_WITH_TIMEZONE
        }
        # Spark 3 reads wall-clock times in an array as instants.
        wall_clock_arrays = {name for name in described if names[name] == "_timestamp"}
        types: dict[str, DataType] = {
            **dict.fromkeys(instants, TimestampType()),
            **dict.fromkeys(wall_clock_arrays, ArrayType(TimestampNTZType())),
        }
        types = {name: kind for name, kind in types.items() if name not in chosen}
        return StructType([StructField(c.name, types.get(c.name, c.dataType)) for c in schema])

    def _choose_read_types(
        self, described: ColumnDescriptions, chosen: Collection[str]
    ) -> dict[str, str]:
        """Returns the types of the columns for which the loader overrides Spark's choice."""
        types = {
            n: self.dialect.choose_read_type(row) for n, row in described.items() if n not in chosen
        }
        types |= {n: "string" for n in chosen if not self.dialect.as_text(described.get(n, {}))}
        return {name: type_name for name, type_name in types.items() if type_name}

    def _list_expressions(
        self, described: ColumnDescriptions, chosen: Collection[str], is_whole: bool
    ) -> Iterator[str]:
        """Yields SQL for each column, or nothing if `select *` reads the same values."""
        shown = {
            name: self._choose_expression(name, row, chosen) for name, row in described.items()
        }
        if is_whole and not self.dialect.hides_columns and not any(shown.values()):
            return
        for name, sql in shown.items():
            quoted = self.dialect.quote(name)
            yield f"{sql.replace('{}', quoted)} as {quoted}" if sql else quoted

    @contextmanager
    def snapshot(self, tables: Sequence[SourceTable]) -> Iterator[Snapshot]:
        logged = [table for table in tables if self.read_options(table.ref).sync_mode == "cdc"]
        if not logged:
            with self._open_queries(tables) as snapshot:
                yield snapshot
            return
        names = {table.ref.name for table in logged}
        queried = [table for table in tables if table.ref.name not in names]
        capture = load_capture(self.options.url, f"source {self.name}, sync_mode: cdc")
        with capture.open_snapshot(self, logged, queried, self._open_queries) as combined:
            yield combined

    @contextmanager
    def _open_queries(self, tables: Sequence[SourceTable]) -> Iterator[JdbcSnapshot]:
        if not self.dialect.shares_snapshots:
            yield JdbcSnapshot(self)
            return
        with (
            open_exported_snapshot(self, tables) as exported,
            closing(JdbcSnapshot(self, exported)) as snapshot,
        ):
            yield snapshot
