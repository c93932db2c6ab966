"""The base of all sources that are programs: tables from a catalog, and a folder for each run."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import types as t

from loader.errors import SpecError, TableError
from loader.names import is_wildcard
from loader.rows.cursor import CursorType
from loader.rows.exact_cast import data_type
from loader.sources import Progress, Request, RunContext, Source, SourceTable, TableRef
from loader.sources.programs.columns import REST, Column, columns
from loader.sources.programs.connector_state import ConnectorState
from loader.sources.programs.layout import RecordLayout
from loader.sources.programs.log_relay import is_log_shown
from loader.sources.programs.message_reader import Delivery, MessageFormat
from loader.sources.programs.options import ProgramOptions, ProgramTableOptions
from loader.sources.programs.process import Process
from loader.sources.programs.snapshot import ProgramSnapshot
from loader.sources.programs.stream import Stream
from loader.sources.programs.workspace import workspace
from loader.spec.options import options_for


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
    def begin(
        self,
        folder: Path,
        requests: Sequence[Request],
        memories: Mapping[str, ConnectorState | None],
        streams: Mapping[Hashable, Stream],
        number: int,
        attention: RunContext,
    ) -> Delivery:
        """Starts a read of streams from their stored states.

        Args:
            number: the states that come get higher ones.
        """

    def probe(self, folder: Path) -> None:
        """Makes sure that the program can reach its source; raises TableError if it cannot."""
        return

    def learn_secrets(self) -> None:
        """Redacts secrets that only the program declares; called before its output is shown."""
        return

    def delivery(
        self,
        command: Sequence[str],
        dialect: MessageFormat,
        streams: Mapping[Hashable, Stream],
        number: int,
        attention: RunContext,
    ) -> Delivery:
        """Starts a read with a command."""
        return Delivery(
            lambda hear: self.process(command, hear),
            dialect,
            streams,
            self.protocol,
            number,
            self.options.timeout,
            attention.warn,
            self.name,
            self.learn_secrets,
        )

    def tables(self) -> list[TableRef]:
        with workspace() as folder:
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
        found = columns(entry.schema, types, options.skip_columns, where)
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
        with workspace(self.folder / spool if spool else None) as folder:
            snapshot = ProgramSnapshot(
                self.name,
                self.protocol,
                self.options,
                folder,
                lambda table: table.ref.native.key,
                lambda *asked: self.begin(folder, *asked),
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

    def process(self, command: Sequence[str], hear: Callable[[str], None]) -> Process:
        """Starts the program in the spec's folder."""
        if is_log_shown():
            self.learn_secrets()
        first = command[0]
        if "/" in first and not Path(first).is_absolute():
            command = [str(self.folder / first), *command[1:]]
        options = self.options
        return Process(command, self.folder, options.environment, options.message_limit, hear)

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
    return data_type(text)


def _comments(schema: Mapping[str, Any]) -> dict[str, str]:
    fields = schema.get("properties")
    return {
        name: str(field["description"])
        for name, field in (fields if isinstance(fields, dict) else {}).items()
        if isinstance(field, dict) and field.get("description")
    }
