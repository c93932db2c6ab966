"""The base of all sources that are programs: their options, and tables from their catalogs."""

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

from pydantic import BeforeValidator, Field, field_validator
from pyspark.sql import types as t

from loader.connectors.subprocess.json_schema import REST, Column, build_columns
from loader.connectors.subprocess.log_relay import is_log_shown
from loader.connectors.subprocess.message_reader import Delivery, MessageFormat
from loader.connectors.subprocess.program import Program, open_workspace
from loader.connectors.subprocess.record_spool import Limits
from loader.connectors.subprocess.snapshot import PlannedRead, ProgramSnapshot
from loader.connectors.subprocess.spool_format import RecordLayout
from loader.duration import seconds_of
from loader.errors import SpecError, TableError
from loader.names import is_wildcard
from loader.rows.cursor import CursorType
from loader.rows.exact_cast import parse_data_type
from loader.sources.interface import Progress, Source, SourceTable, TableRef
from loader.spec.options import Name, Strict, TableOptions, options_for
from loader.spec.validation import OptionError


def _words(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise OptionError(f"it is not a command: {error}", "Write it as a list") from None
    return value


def _seconds(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return float(seconds_of(value.strip(), "a time", "write '30 minutes' or '2h'"))
        except ValueError as error:
            raise OptionError(str(error), "Correct it or remove it") from None
    return value


Command = Annotated[tuple[Name, ...], BeforeValidator(_words), Field(min_length=1)]
Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]


class ProgramTableOptions(TableOptions):
    """A table's options, beyond the common ones.

    Attributes:
        skip_columns: names or wildcards of fields that are left out.
    """

    skip_columns: tuple[Name, ...] = ()

    @field_validator("skip_columns", mode="before")
    @classmethod
    def _single(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class ProgramOptions(Strict):
    """The part of the inner `spec` that all programs share.

    Attributes:
        config: the connector's own configuration, as its documentation says.
        environment: variables for the program, which sees little of the loader's own.
        timeout: how long it may be silent.
        batch_rows: from how many rows on a state ends a batch.
        batch_time: after how long a state ends a batch.
        message_limit: the most bytes of one message.
        spool: the folder where records wait to be appended; the system's for temporary files by
            default. On a cluster, one that all executors can read.
    """

    config: dict[str, Any] = Field(default_factory=dict)
    environment: dict[Name, str] = Field(default_factory=dict)
    timeout: Seconds = 3600.0
    batch_rows: int = Field(default=250_000, ge=1)
    batch_time: Seconds = 600.0
    message_limit: int = Field(default=64 << 20, ge=1024)
    spool: Name | None = None
    table_options: dict[str, ProgramTableOptions] = Field(default_factory=dict)

    @field_validator("config", mode="before")
    @classmethod
    def _empty(cls, value: Any) -> Any:
        return {} if value is None else value


@dataclass(frozen=True, eq=False)
class Entry:
    """A stream as a program's catalog lists it.

    Attributes:
        key: its key in the program's messages.
        name: the table's name.
        schema: its JSON schema.
        progress: whether it can go on from a state.
        primary_key: its columns, if the program declares them; empty otherwise.
        cursor: the column that grows with every change, if the program declares one.
        raw: the catalog's own entry.
        columns, skipped: its columns, and the fields that the spec leaves out; known once it is
            described.
    """

    key: Hashable
    name: str
    schema: Mapping[str, Any]
    progress: Progress
    primary_key: tuple[str, ...]
    cursor: str | None
    raw: Mapping[str, Any]
    columns: tuple[Column, ...] = ()
    skipped: tuple[str, ...] = ()


class ProgramSource(Source):
    """A source that is a program of its own."""

    protocol: ClassVar[str]
    options: ProgramOptions
    _all: Sequence[str] = ()

    @abstractmethod
    def entries(self, folder: Path) -> list[Entry]:
        """Asks the program for its catalog.

        Args:
            folder: an empty folder, for its configuration.
        """

    @abstractmethod
    def prepare_read(self, read: PlannedRead) -> tuple[Sequence[str], MessageFormat]:
        """Writes the files of a read; returns its command, and the format of its messages."""

    def probe(self, folder: Path) -> None:
        """Makes sure that the program can reach its source; raises TableError if it cannot."""
        return

    def learn_secrets(self) -> None:
        """Redacts secrets that only the program declares; called before its output is shown."""
        return

    def start_read(self, read: PlannedRead) -> Delivery:
        """Starts a read of streams from their stored states."""
        command, dialect = self.prepare_read(read)
        return Delivery(
            lambda hear: self.start_program(command, hear),
            dialect,
            read.streams,
            self.protocol,
            read.number,
            self.options.timeout,
            read.context.warn,
            self.name,
            self.learn_secrets,
        )

    def tables(self) -> list[TableRef]:
        with open_workspace() as folder:
            found = self.entries(folder)
        names = [entry.name for entry in found]
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise TableError(
                f"the connector has two streams called {twice[0]}",
                where=f"source {self.name}",
                remedy="Give them different names in the connector's own configuration",
            )
        self._all = names
        return [TableRef(entry.name, entry) for entry in found]

    def find_cursor(self, name: str, fields: Collection[str]) -> str | None:
        """Returns the cursor field that the spec names for a table with these fields."""
        return self._options_of(name).cursor_among(fields)

    def describe(self, ref: TableRef) -> SourceTable:
        entry: Entry = ref.native
        where = f"table {self.name}.{ref.name}"
        options = self._options_of(ref.name)
        self._refuse_bounds(options, where)
        types = {n: _chosen_type(text, n, where) for n, text in options.column_types.items()}
        found = build_columns(entry.schema, types, options.skip_columns, where)
        fields = entry.schema.get("properties")
        if isinstance(fields, dict) and REST in fields and REST not in options.skip_columns:
            raise TableError(
                f"its records have a field {REST!r}, which the loader writes itself",
                where=where,
                remedy=f"Leave it out: skip_columns: [{REST}]",
            )
        schema = RecordLayout(ref.name, found, (), ()).schema
        by_name = {column.name: column for column in found}
        cursor = by_name.get(entry.cursor or "")
        ordered = cursor is not None and CursorType.of(cursor.type) is not None
        described = replace(entry, columns=found, skipped=options.skip_columns)
        return SourceTable(
            replace(ref, native=described),
            schema,
            primary_key=entry.primary_key if set(entry.primary_key) <= set(by_name) else (),
            cursor_field=entry.cursor if ordered else None,
            comment=str(entry.schema.get("description") or ""),
            column_comments={
                REST: "What no other column can take, as a JSON object: fields that the schema "
                "does not declare, and values of another type.",
                **_comments(entry.schema),
            },
            progress=entry.progress,
        )

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
                self._all,
            )
            try:
                yield snapshot
            finally:
                snapshot.close()

    def read_catalog(self, name: str) -> Any:
        """Reads a catalog file.

        Raises:
            SpecError: if it cannot be read.
        """
        path = self.folder / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise SpecError(
                f"the catalog cannot be read: {error}",
                where=str(path),
                remedy="Name a catalog in JSON, as the connector writes it",
            ) from None

    def start_program(self, command: Sequence[str], hear: Callable[[str], None]) -> Program:
        """Starts the program in the spec's folder."""
        if is_log_shown():
            self.learn_secrets()
        first = command[0]
        if "/" in first and not Path(first).is_absolute():
            command = [str(self.folder / first), *command[1:]]
        options = self.options
        return Program(command, self.folder, options.environment, options.message_limit, hear)

    def _options_of(self, name: str) -> ProgramTableOptions:
        exact, wildcards = self._options_by_name
        return options_for(
            {**wildcards, **exact.get(name.lower(), {})}, name, ProgramTableOptions()
        )

    @cached_property
    def _options_by_name(
        self,
    ) -> tuple[dict[str, dict[str, ProgramTableOptions]], dict[str, ProgramTableOptions]]:
        """The options of single tables, by name, and those of wildcards."""
        given = self.options.table_options.items()
        exact = {name.lower(): {name: each} for name, each in given if not is_wildcard(name)}
        return exact, {name: each for name, each in given if is_wildcard(name)}

    def _refuse_bounds(self, options: ProgramTableOptions, where: str) -> None:
        given = {
            "initial_cursor": options.initial_cursor is not None,
            "lookback": options.lookback is not None,
            "null_cursor: exclude": options.null_cursor == "exclude",
        }
        for name, is_set in given.items():
            if is_set:
                raise TableError(
                    "the connector decides which records it sends",
                    where=f"{where}, {name}",
                    remedy="Remove the option; most connectors have one for it in their own "
                    "`config` (start_date, lookback_window)",
                )


def _chosen_type(text: str, column: str, where: str) -> t.DataType:
    if text == "binary":
        raise TableError(
            "a connector's records are JSON, which has no bytes",
            where=f"{where}, column_types.{column}",
            remedy="Choose string",
        )
    return parse_data_type(text)


def _comments(schema: Mapping[str, Any]) -> dict[str, str]:
    fields = schema.get("properties")
    return {
        name: str(field["description"])
        for name, field in (fields if isinstance(fields, dict) else {}).items()
        if isinstance(field, dict) and field.get("description")
    }
