"""The options of a source with `path: file`, and the reader options of a table."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pyspark.sql.types import DataType, StructType

from loader.names import is_wildcard
from loader.spec.options import ColumnType, Name, TableOptions
from loader.spec.validation import OptionError


class FileTableOptions(TableOptions):
    """A table's options, in addition to those that all connectors have.

    Attributes:
        path: a folder, file or glob, relative to the source's path; by default the table's name.
        format, options: the format and options for Spark's reader; by default the source's format
            and options.
        column_types: either types, keyed by column name, or all columns as DDL
            (`id bigint, name string`). With DDL, Spark does not infer types.
    """

    path: str | None = None
    format: str | None = None
    options: dict[str, str] = Field(default_factory=dict)
    column_types: dict[Name, ColumnType] | str = Field(  # type: ignore[assignment]
        default_factory=dict
    )

    @property
    def ddl(self) -> str | None:
        """All columns as DDL; None if the spec does not list all columns."""
        given: dict[str, str] | str = self.column_types
        return given if isinstance(given, str) else None

    @property
    def types(self) -> dict[str, str]:
        """The types that the spec sets for individual columns, keyed by name."""
        given: dict[str, str] | str = self.column_types
        return {} if isinstance(given, str) else given


class FileOptions(BaseModel):
    """The inner `spec` of a source with `path: file`.

    Attributes:
        path: a folder, relative to the spec. Each file or subfolder in it is a table.
        format: csv, json, parquet, orc, text, avro, or another format that Spark can read.
        options: options of Spark's reader, such as `sep`; by default CSV files have a header.
        line_limit: the maximum number of bytes in a line, and of characters in a multi-line value.
        follow_links: whether links to files outside the folder are followed; by default, they are
            errors.
        table_options: the options of tables, keyed by name or wildcard.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    format: str
    options: dict[str, str] = Field(default_factory=dict)
    line_limit: int = Field(default=64 << 20, ge=1024)
    follow_links: bool = False
    table_options: dict[str, FileTableOptions] = Field(default_factory=dict)

    @field_validator("table_options")
    @classmethod
    def _has_one_path(cls, tables: dict[str, FileTableOptions]) -> dict[str, FileTableOptions]:
        for name, options in tables.items():
            if options.path is not None and is_wildcard(name):
                raise OptionError(
                    f"{name!r} matches several tables, but a path defines one table",
                    "Use the name of one table, or remove its path",
                )
        return tables


@dataclass(frozen=True)
class ReaderOptions:
    """The reader's options for one table.

    Attributes:
        path: the path to show in messages.
        pattern: the path for Spark. Wildcard characters that are not from the spec are escaped.
        home: the folder in the spec. Links to files outside this folder are rejected.
        given: the lower-case names of the options that the spec sets.
        columns: all columns as DDL; None if the spec does not list all columns.
        types: the types that the spec sets for individual columns.
        as_read: columns that Spark reads as a different type and then casts to the table's type.
        rivals: other files and folders that have the same table name.
        apart: whether files are read with different schemas; true if their types differ or are not
            supported.
        selection: the columns that the spec selects, as a string; empty for all columns.
        masks: the `mask` option. If it is set, errors do not quote values.
        all_columns: all columns of the files; columns that the spec excludes are read as strings.
            None if the spec selects all columns.
    """

    path: str
    pattern: str
    format: str
    options: tuple[tuple[str, str], ...]
    columns: str | None
    home: str
    line_limit: int
    given: frozenset[str] = frozenset()
    types: tuple[tuple[str, str], ...] = ()
    as_read: tuple[tuple[str, DataType], ...] = ()
    rivals: tuple[str, ...] = ()
    apart: bool = False
    selection: str = ""
    masks: tuple[tuple[str, str], ...] = ()
    all_columns: StructType | None = None

    def option(self, *names: str) -> str | None:
        """Returns the value of the first option that is set, if any. Names must be lower-case."""
        given = {name.lower(): value for name, value in self.options}
        return next((given[name] for name in names if name in given), None)

    @property
    def fails_on_malformed_records(self) -> bool:
        """Whether reading fails on a record that Spark cannot parse."""
        return (self.option("mode") or "").lower() == "failfast"

    @property
    def encoding(self) -> str:
        return self.option("encoding", "charset") or "UTF-8"

    @property
    def multiline(self) -> bool:
        """Whether a row may span several lines."""
        return (self.option("multiline") or "").lower() == "true"
