"""The base class of sources that run a program, and of their options."""

from __future__ import annotations

import json
import shlex
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, PositiveFloat, field_validator
from pyspark.sql import types as t

from loader.connectors.subprocess.connector_state import StateCipher
from loader.connectors.subprocess.json_schema import (
    Column,
    build_columns,
    is_skipped,
)
from loader.connectors.subprocess.log_relay import is_log_shown
from loader.connectors.subprocess.message_reader import MessageFormat, MessageReader
from loader.connectors.subprocess.program import Program, open_workspace
from loader.connectors.subprocess.record_spool import Limits
from loader.connectors.subprocess.snapshot import PlannedRead, ProgramSnapshot
from loader.connectors.subprocess.spool_format import RecordLayout
from loader.duration import seconds_of
from loader.errors import SpecError, TableError
from loader.names import is_wildcard
from loader.rows.cursor import CursorType
from loader.rows.exact_cast import parse_data_type
from loader.sources.interface import REST_COLUMN, Progress, Source, SourceTable, TableRef
from loader.spec.options import (
    ColumnSelection,
    Duration,
    Name,
    Names,
    Strict,
    TableOptions,
    options_for,
)
from loader.spec.validation import OptionError


def _parse_command(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise OptionError(f"the string is not a command: {error}", "Use a list") from None
    return value


def _parse_seconds(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return float(seconds_of(value.strip(), "a duration", "write '30 minutes' or '2h'"))
        except ValueError as error:
            raise OptionError(str(error), "Correct it or remove it") from None
    return value


Command = Annotated[
    tuple[Name, ...],
    BeforeValidator(_parse_command, json_schema_input_type=Name | Names),
    Field(min_length=1),
]
Seconds = Annotated[
    float,
    BeforeValidator(_parse_seconds, json_schema_input_type=Duration | PositiveFloat),
    Field(gt=0),
]


class ProgramOptions(Strict):
    """The options in the inner `spec` of all sources that run a program.

    Attributes:
        config: the connector's configuration, as described in its documentation.
        environment: environment variables for the program. It inherits only a few of the loader's
            variables.
        timeout: the maximum time that the program may run without output.
        batch_rows: the number of rows after which a batch ends at the next state.
        batch_time: the time after which a batch ends at the next state.
        message_limit: the maximum size of one message, in bytes.
        spool: the folder for records that are waiting to be appended. The default is the system's
            temporary folder. On a cluster, all executors must be able to read the folder.
        table_options: the options of tables. The keys are names or wildcards.
    """

    config: dict[str, Any] = Field(default_factory=dict)
    environment: dict[Name, str] = Field(default_factory=dict)
    timeout: Seconds = 3600.0
    batch_rows: int = Field(default=250_000, ge=1)
    batch_time: Seconds = 600.0
    message_limit: int = Field(default=64 << 20, ge=1024)
    spool: Name | None = None
    table_options: dict[str, TableOptions] = Field(default_factory=dict)

    @field_validator("config", mode="before", json_schema_input_type=dict[str, Any] | None)
    @classmethod
    def _default_config(cls, value: Any) -> Any:
        return {} if value is None else value


@dataclass(frozen=True, eq=False)
class CatalogEntry:
    """A stream in a program's catalog.

    Attributes:
        key: the stream's key in the program's messages.
        progress: whether the stream can resume from a state.
        primary_key: the primary key that the program declares; empty if there is none.
        cursor: the column whose value increases with every change, or None.
        raw: the catalog entry, unchanged.
        columns: the columns, which :meth:`ProgramSource.describe` sets.
        selection: the fields that the spec selects, which :meth:`ProgramSource.describe` sets; None
            for all fields.
    """

    key: Hashable
    name: str
    schema: Mapping[str, Any]
    progress: Progress
    primary_key: tuple[str, ...]
    cursor: str | None
    raw: Mapping[str, Any]
    columns: tuple[Column, ...] = ()
    selection: ColumnSelection | None = None


class ProgramSource(Source):
    """A source that runs a program as a child process.

    A subclass lists the streams, and prepares the command for a read.
    """

    protocol: ClassVar[str]
    can_mask = True
    can_mask_typed_columns = True
    masks_records = True
    selects_columns = True
    options: ProgramOptions
    _all_names: Sequence[str] = ()

    @abstractmethod
    def list_entries(self, folder: Path) -> list[CatalogEntry]:
        """Returns the streams in the program's catalog.

        Args:
            folder: an empty private folder for the program's configuration.
        """

    @abstractmethod
    def prepare_read(self, read: PlannedRead) -> tuple[Sequence[str], MessageFormat]:
        """Writes the files for a read. Returns the command, and a parser for its messages."""

    def probe(self, folder: Path) -> None:
        """Raises TableError if the program cannot reach its source."""
        return

    def hide_declared_secrets(self) -> None:
        """Registers the secrets that the program declares, so that they are redacted."""
        return

    def start_read(self, read: PlannedRead) -> MessageReader:
        command, message_format = self.prepare_read(read)
        return MessageReader(
            lambda on_log_line: self.start_program(command, on_log_line),
            message_format,
            read.streams,
            self.protocol,
            read.number,
            self.options.timeout,
            read.context.warn,
            self.name,
            self.hide_declared_secrets,
        )

    def tables(self) -> list[TableRef]:
        with open_workspace() as folder:
            entries = self.list_entries(folder)
        names = [entry.name for entry in entries]
        duplicates = [name for name, count in Counter(names).items() if count > 1]
        if duplicates:
            raise TableError(
                f"the connector has two streams called {duplicates[0]}",
                where=f"source {self.name}",
                remedy="Set different names in the connector's `config`",
            )
        self._all_names = names
        return [TableRef(entry.name, entry) for entry in entries]

    def find_cursor(self, name: str, fields: Collection[str]) -> str | None:
        """Returns the cursor field that the spec sets for a table with these fields, if any."""
        return self._find_options(name).choose_cursor(fields)

    def describe(self, ref: TableRef) -> SourceTable:
        entry: CatalogEntry = ref.native
        where = f"table {self.name}.{ref.name}"
        options = self._find_options(ref.name)
        self._refuse_window_options(options, where)
        types = {n: _parse_type(text, n, where) for n, text in options.column_types.items()}
        fields = entry.schema.get("properties")
        names = list(fields) if isinstance(fields, dict) else []
        selection = self._find_selection(ref, [*names, *types, REST_COLUMN], options, entry)
        columns = build_columns(entry.schema, types, selection, where)
        if REST_COLUMN in names and not is_skipped(REST_COLUMN, selection):
            raise TableError(
                f"the records have a field {REST_COLUMN!r}, a column name that is reserved for the "
                "loader",
                where=where,
                remedy=f"Exclude the field: columns: {{exclude: [{REST_COLUMN}]}}",
            )
        schema = RecordLayout(ref.name, columns, (), None).schema
        by_name = {column.name: column for column in columns}
        cursor = by_name.get(entry.cursor or "")
        ordered = cursor is not None and CursorType.of(cursor.type) is not None
        described = replace(entry, columns=columns, selection=selection)
        return SourceTable(
            replace(ref, native=described),
            schema,
            primary_key=entry.primary_key if set(entry.primary_key) <= set(by_name) else (),
            cursor_field=entry.cursor if ordered else None,
            comment=str(entry.schema.get("description") or ""),
            column_comments={
                REST_COLUMN: "Values that no other column can store, as a JSON object: fields that "
                "the schema does not declare, and values of another type.",
                **_list_comments(entry.schema),
            },
            progress=entry.progress,
            excluded=tuple(name for name in names if is_skipped(name, selection)),
        )

    def _find_selection(
        self, ref: TableRef, names: Sequence[str], options: TableOptions, entry: CatalogEntry
    ) -> ColumnSelection | None:
        """Returns the fields that the spec selects, plus the key and cursor fields.

        A wildcard that matches no field is allowed, because records may have undeclared fields.

        Args:
            names: the fields that the schema or the spec declares.

        Raises:
            TableError: if a name in the `columns` option is not a field.
        """
        selection = options.columns
        if selection is None:
            return None
        where = f"table {self.name}.{ref.name}"
        selection.check_names(names, where, allows_wildcards=True)
        cursor = options.choose_cursor(names)
        required = [*(options.primary_key or entry.primary_key), cursor, options.deleted_field]
        needed = [name for name in required if name]
        excluded = [name for name in needed if selection.excludes(name)]
        if excluded:
            raise TableError(
                f"the field {excluded[0]!r} cannot be excluded: the key, the cursor_field and the "
                "deleted_field are always read",
                where=f"{where}, columns",
                remedy="Do not exclude this field: list the others by name, or use a wildcard that "
                "does not match it",
            )
        if selection.include is None:
            return selection
        # The connector stores its own position, so the spec may exclude the connector's cursor. But
        # if the spec lists the fields to include, the cursor is included, too.
        include = (*selection.include, *needed, *filter(None, [entry.cursor]))
        return selection.model_copy(update={"include": include})

    @contextmanager
    def snapshot(self, tables: Sequence[SourceTable]) -> Iterator[ProgramSnapshot]:
        spool = self.options.spool
        with open_workspace(self.folder / spool if spool else None) as folder:
            snapshot = ProgramSnapshot(
                self.name,
                self.protocol,
                Limits(self.options.batch_rows, seconds=self.options.batch_time),
                folder,
                self.start_read,
                lambda: self.probe(folder),
                self._all_names,
                StateCipher(self.spark, self.mask_key) if self.mask_key is not None else None,
            )
            try:
                yield snapshot
            finally:
                snapshot.close()

    def read_catalog(self, name: str) -> Any:
        """Reads a catalog file.

        Raises:
            SpecError: if the file cannot be read.
        """
        path = self.folder / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise SpecError(
                f"the catalog cannot be read: {error}",
                where=str(path),
                remedy="Set the path of a catalog in JSON, as the connector writes it",
            ) from None

    def start_program(self, command: Sequence[str], on_log_line: Callable[[str], None]) -> Program:
        """Starts a command in the spec's folder."""
        if is_log_shown():
            self.hide_declared_secrets()
        first = command[0]
        if "/" in first and not Path(first).is_absolute():
            command = [str(self.folder / first), *command[1:]]
        options = self.options
        return Program(
            command, self.folder, options.environment, options.message_limit, on_log_line
        )

    def _find_options(self, name: str) -> TableOptions:
        exact, wildcards = self._options_by_name
        return options_for({**wildcards, **exact.get(name.lower(), {})}, name, TableOptions())

    @cached_property
    def _options_by_name(
        self,
    ) -> tuple[dict[str, dict[str, TableOptions]], dict[str, TableOptions]]:
        """Returns the options set by name, keyed in lower case, and the options set by wildcard."""
        options = self.options.table_options.items()
        exact = {name.lower(): {name: each} for name, each in options if not is_wildcard(name)}
        return exact, {name: each for name, each in options if is_wildcard(name)}

    def _refuse_window_options(self, options: TableOptions, where: str) -> None:
        is_set_by_option = {
            "initial_cursor": options.initial_cursor is not None,
            "lookback": options.lookback is not None,
            "null_cursor: exclude": options.null_cursor == "exclude",
        }
        for name, is_set in is_set_by_option.items():
            if is_set:
                raise TableError(
                    "the connector decides which records it sends",
                    where=f"{where}, {name}",
                    remedy="Remove the option; most connectors have a similar one in their "
                    "`config` (start_date, lookback_window)",
                )


def _parse_type(text: str, column: str, where: str) -> t.DataType:
    if text == "binary":
        raise TableError(
            "a connector's records are JSON, which has no binary type",
            where=f"{where}, column_types.{column}",
            remedy="Use string",
        )
    return parse_data_type(text)


def _list_comments(schema: Mapping[str, Any]) -> dict[str, str]:
    fields = schema.get("properties")
    return {
        name: str(field["description"])
        for name, field in (fields if isinstance(fields, dict) else {}).items()
        if isinstance(field, dict) and field.get("description")
    }
