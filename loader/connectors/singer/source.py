"""The `singer` connector, which runs a Singer tap as a child process.

The protocol: https://hub.meltano.com/singer/spec
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loader.connectors.singer.catalog import configure_catalog, map_aliases, parse_catalog
from loader.connectors.singer.messages import SingerMessages, build_state_input
from loader.connectors.subprocess.message_reader import MessageFormat
from loader.connectors.subprocess.program import read_answer, write_json
from loader.connectors.subprocess.snapshot import PlannedRead
from loader.connectors.subprocess.source import CatalogEntry, Command, ProgramOptions, ProgramSource
from loader.errors import TableError
from loader.spec.options import Name


class SingerOptions(ProgramOptions):
    """The inner `spec` of a source with `path: singer`.

    Attributes:
        command: the tap's command. A path is relative to the spec's folder.
        catalog: a file that contains the catalog, for taps that do not support `--discover`. The
            path is relative to the spec's folder.
    """

    command: Command
    catalog: Name | None = None


class SingerSource(ProgramSource):
    """Reads the streams of a tap."""

    options_model = SingerOptions
    protocol = "singer"
    options: SingerOptions
    _catalog: Mapping[str, Any]

    def list_entries(self, folder: Path) -> list[CatalogEntry]:
        catalog = (
            self.read_catalog(self.options.catalog)
            if self.options.catalog
            else self._discover(folder)
        )
        entries = parse_catalog(catalog, f"source {self.name}", self.find_cursor)
        self._catalog = catalog
        return entries

    def prepare_read(self, read: PlannedRead) -> tuple[Sequence[str], MessageFormat]:
        states = {r.table.ref.native.key: read.states[r.name] for r in read.requests}
        catalog = configure_catalog(self._catalog, read.requests)
        command = [*self._build_command(read.folder), "--catalog"]
        command.append(str(write_json(read.folder, "catalog.json", catalog)))
        aliases = map_aliases(self._catalog)
        state = build_state_input(states, aliases, lambda text: read.context.warn(self.name, text))
        if state is not None:
            command += ["--state", str(write_json(read.folder, "state.json", state))]
        keys = {request.table.ref.native.key: request.key for request in read.requests}
        return command, SingerMessages(keys, aliases)

    def _build_command(self, folder: Path) -> list[str]:
        return [
            *self.options.command,
            "--config",
            str(write_json(folder, "config.json", self.options.config)),
        ]

    def _discover(self, folder: Path) -> Any:
        command = [*self._build_command(folder), "--discover"]
        lines = read_answer(
            lambda on_log_line: self.start_program(command, on_log_line),
            lambda line: line,
            (),
            self.options.timeout,
            f"source {self.name}",
        )
        text = b"".join(lines)
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise TableError(
                "the tap did not return a catalog",
                where=f"source {self.name}",
                remedy="Check that the command is a tap that supports `--discover`; for another "
                "tap, set `catalog` to a file with its catalog",
            ) from None
