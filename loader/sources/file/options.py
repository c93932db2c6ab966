"""The options of a source document with `path: file`, and how to read a table."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pyspark.sql.types import DataType

from loader.names import is_wildcard
from loader.spec.options import ColumnType, Name, TableOptions
from loader.spec.validation import OptionError


class FileTableOptions(TableOptions):
    """A table's options, beyond the common ones.

    Attributes:
        path: a folder, file or glob, relative to the source's path; the table's name by default.
        format, options: for Spark's reader; the source's by default.
        column_types: types of columns by their names; or all columns as DDL (`id bigint, name
            string`), so that Spark infers none.
    """

    path: str | None = None
    format: str | None = None
    options: dict[str, str] = Field(default_factory=dict)
    column_types: dict[Name, ColumnType] | str = Field(  # type: ignore[assignment]
        default_factory=dict
    )

    @property
    def ddl(self) -> str | None:
        """All columns as DDL; None if the spec does not name all of them."""
        given: dict[str, str] | str = self.column_types
        return given if isinstance(given, str) else None

    @property
    def types(self) -> dict[str, str]:
        """The types of some columns."""
        given: dict[str, str] | str = self.column_types
        return {} if isinstance(given, str) else given


class FileOptions(BaseModel):
    """The inner `spec` of a source with `path: file`.

    Attributes:
        path: a folder, relative to the spec; each folder and file in it is a table.
        format: csv, json, parquet, orc, text, avro, or any other that Spark has a reader for.
        options: options of that reader, such as `sep`; a CSV has a header by default.
        line_limit: the most bytes of a line, and the most characters of a value of several lines.
        follow_links: reads links that leave the folder, too; by default they fail their table.
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
                    f"{name!r} matches several tables, and a path makes one",
                    "Name that table, or remove its path",
                )
        return tables


@dataclass(frozen=True)
class ReaderOptions:
    """The reader's options for one table.

    Attributes:
        path: for people.
        pattern: the path as Spark gets it: only wildcards that the spec has are wildcards.
        home: the folder that the spec names; a link may not leave it.
        line_limit: the most bytes of a line.
        given: the options that the spec sets, in lower case.
        columns: all columns as DDL; None if the spec does not name all of them.
        types: the types that the spec gives to some columns.
        as_read: columns that are read as other types than they have in the table, and cast.
        rivals: other files and folders that have the table's name.
        apart: Spark cannot read the files as one: their types differ, or it does not know one.
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

    def option(self, *names: str) -> str | None:
        """Returns the option that has one of these names, in lower case; None if none is set."""
        given = {name.lower(): value for name, value in self.options}
        return next((given[name] for name in names if name in given), None)

    @property
    def encoding(self) -> str:
        """The encoding of the table's texts."""
        return self.option("encoding", "charset") or "UTF-8"

    @property
    def multiline(self) -> bool:
        """Whether a row may go over several lines."""
        return (self.option("multiline") or "").lower() == "true"
