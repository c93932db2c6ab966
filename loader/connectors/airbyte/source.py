"""The `airbyte` connector: runs a connector of the Airbyte protocol as a child process.

The protocol: https://docs.airbyte.com/platform/understanding-airbyte/airbyte-protocol"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from loader.connectors.airbyte.catalog import build_state_input, configure_catalog, parse_catalog
from loader.connectors.airbyte.config import (
    ConfigUpdates,
    find_declared_secrets,
    find_secret_values,
)
from loader.connectors.airbyte.launch import AirbyteOptions, build_command, build_config
from loader.connectors.airbyte.messages import AirbyteMessages, describe_error, parse_line
from loader.connectors.subprocess.message_reader import MessageFormat
from loader.connectors.subprocess.program import open_workspace, read_answer, write_json
from loader.connectors.subprocess.snapshot import PlannedRead
from loader.connectors.subprocess.source import Entry, ProgramOptions, ProgramSource
from loader.errors import LoaderError, TableError
from loader.sources.interface import Progress
from loader.spec.redaction import excerpt

_MOST_SECRETS = 1_000
_LONGEST_SECRETS = 1_000_000
"""What a connector may hide at most: each secret costs time wherever text is printed."""


class AirbyteSource(ProgramSource):
    """Reads the streams of a connector."""

    options_model: ClassVar[type[ProgramOptions]] = AirbyteOptions
    protocol = "airbyte"
    options: AirbyteOptions
    _learnt = False
    _specification: Any = None
    _streams: Collection[Hashable] = ()
    _hidden: frozenset[str] = frozenset()

    def entries(self, folder: Path) -> list[Entry]:
        found = self._list_entries(folder)
        self._streams = {entry.key for entry in found}
        return found

    def _list_entries(self, folder: Path) -> list[Entry]:
        where = f"source {self.name}"
        named = self.find_catalog_file()
        if named is not None:
            given = self.read_catalog(named)
            inner = given.get("catalog") if isinstance(given, dict) else None
            return parse_catalog(inner or given, where, self.find_cursor)
        for message in self._ask(folder, "discover"):
            if message["type"] == "CATALOG":
                return parse_catalog(message.get("catalog") or {}, where, self.find_cursor)
        raise TableError(
            "the connector did not say which streams it has",
            where=where,
            remedy="Check that the command is a connector of the Airbyte protocol, and its config",
        )

    def probe(self, folder: Path) -> None:
        for message in self._ask(folder, "check"):
            status = message.get("connectionStatus") or {}
            if message["type"] == "CONNECTION_STATUS" and status.get("status") != "SUCCEEDED":
                self.learn_secrets()
                raise TableError(
                    "the connector cannot reach its source: "
                    f"{excerpt(str(status.get('message')), 1000)}".strip(),
                    where=f"source {self.name}",
                    remedy="Correct the connector's `config`",
                )

    def prepare_read(self, read: PlannedRead) -> tuple[Sequence[str], MessageFormat]:
        known = {
            request.table.ref.native.key: read.states[request.name]
            for request in read.requests
            if request.table.progress is Progress.MARK
        }
        files = self._files(read.folder)
        files["catalog"] = write_json(read.folder, "catalog.json", configure_catalog(read.requests))
        state = build_state_input(
            known, self._streams, lambda text: read.context.warn(self.name, text)
        )
        if state is not None:
            files["state"] = write_json(read.folder, "state.json", state)
        strict = getattr(self.options, "logged_errors", "fail") == "fail"
        dialect = AirbyteMessages(self._keep_renewed, self._streams, strict)
        return self.build_command(read.folder, "read", files), dialect

    def learn_secrets(self) -> None:
        """Hides the values of `config` that the connector's specification calls secret."""
        if self._learnt:
            return
        self._learnt = True
        config = self.build_config()
        with suppress(LoaderError), open_workspace() as folder:
            for message in self._ask(folder, "spec"):
                if message["type"] == "SPEC":
                    about = (message.get("spec") or {}).get("connectionSpecification")
                    self._specification = about
                    self.hide(*find_declared_secrets(about, config))

    def build_command(self, folder: Path, verb: str, files: Mapping[str, Path]) -> list[str]:
        """Returns the command line for a verb of the protocol."""
        return build_command(self.options, folder, verb, files)

    def build_config(self) -> dict[str, Any]:
        """Returns the configuration that the connector gets."""
        return self.read_renewed().apply_to(build_config(self.options, self.folder))

    def read_renewed(self) -> ConfigUpdates:
        """Returns the connector's updates of its configuration."""
        named = getattr(self.options, "renewed_config", None)
        path = self.folder / named if named else None
        return ConfigUpdates(path, self.options.config, self._hide_renewed)

    def _keep_renewed(self, control: Mapping[str, Any]) -> bool:
        self.learn_secrets()
        return self.read_renewed().store_update(control)

    def _hide_renewed(self, values: Mapping[str, Any]) -> None:
        """Hides what a connector has renewed, as far as it is secret.

        Only as whole words: a connector must not make other sources' messages unreadable.

        Raises:
            TableError: if it is more than any configuration holds.
        """
        found = {
            *find_declared_secrets(self._specification, values),
            *find_secret_values(values),
        } - self._hidden
        hidden = self._hidden | found
        if len(hidden) > _MOST_SECRETS or sum(map(len, found)) > _LONGEST_SECRETS:
            raise TableError(
                f"the connector has renewed more than {_MOST_SECRETS:,} secrets of its "
                f"configuration, or more than {_LONGEST_SECRETS:,} characters of them",
                where=f"source {self.name}",
                remedy="Report it to the connector's authors",
            )
        self._hidden = hidden
        self.hide(*found, whole_word=True)

    def find_catalog_file(self) -> str | None:
        """Returns the file with the catalog that the spec names."""
        return self.options.catalog

    def _files(self, folder: Path) -> dict[str, Path]:
        return {"config": write_json(folder, "config.json", self.build_config())}

    def _ask(self, folder: Path, verb: str) -> Iterator[dict[str, Any]]:
        """Yields the messages of a verb that ends with an answer.

        Raises:
            TableError: if the connector fails; says why, in its own words.
        """
        files = {} if verb == "spec" else self._files(folder)
        why: list[str] = []

        def heard(line: bytes) -> dict[str, Any] | None:
            message = parse_line(line, self.name, self.learn_secrets)
            if message and message["type"] == "CONTROL":
                self.read_renewed().store_update(message.get("control") or {})
            trace = (message or {}).get("trace") or {}
            if message and message["type"] == "TRACE" and trace.get("type") == "ERROR":
                why.append(describe_error(trace.get("error") or {}))
            return message

        yield from read_answer(
            lambda hear: self.start_program(self.build_command(folder, verb, files), hear),
            heard,
            why,
            self.options.timeout,
            f"source {self.name}",
            self.learn_secrets,
            waits=verb == "spec",  # what it calls secret may be in what is shown in the end
        )
