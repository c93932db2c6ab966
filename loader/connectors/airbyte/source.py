"""The `airbyte` connector, which runs a program as a child process and reads its messages.

The protocol: https://docs.airbyte.com/platform/understanding-airbyte/airbyte-protocol
"""

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
from loader.connectors.subprocess.source import CatalogEntry, ProgramOptions, ProgramSource
from loader.errors import LoaderError, TableError
from loader.sources.interface import Progress
from loader.spec.redaction import excerpt

_MAX_SECRETS = 1_000
_MAX_SECRET_LENGTH = 1_000_000
"""The limits for the number and total length of a connector's secrets.

Each secret slows down redaction.
"""


class AirbyteSource(ProgramSource):
    """Reads the streams of an Airbyte connector."""

    options_model: ClassVar[type[ProgramOptions]] = AirbyteOptions
    protocol = "airbyte"
    options: AirbyteOptions
    _has_read_specification = False
    _specification: Any = None
    _streams: Collection[Hashable] = ()
    _hidden_secrets: frozenset[str] = frozenset()

    def list_entries(self, folder: Path) -> list[CatalogEntry]:
        entries = self._read_entries(folder)
        self._streams = {entry.key for entry in entries}
        return entries

    def _read_entries(self, folder: Path) -> list[CatalogEntry]:
        where = f"source {self.name}"
        file_name = self.find_catalog_file()
        if file_name is not None:
            content = self.read_catalog(file_name)
            inner = content.get("catalog") if isinstance(content, dict) else None
            return parse_catalog(inner or content, where, self.find_cursor)
        for message in self._run_verb(folder, "discover"):
            if message["type"] == "CATALOG":
                return parse_catalog(message.get("catalog") or {}, where, self.find_cursor)
        raise TableError(
            "the connector did not return a catalog",
            where=where,
            remedy="Check that the command is a connector of the Airbyte protocol, and check "
            "its `config`",
        )

    def probe(self, folder: Path) -> None:
        for message in self._run_verb(folder, "check"):
            status = message.get("connectionStatus") or {}
            if message["type"] == "CONNECTION_STATUS" and status.get("status") != "SUCCEEDED":
                self.hide_declared_secrets()
                raise TableError(
                    "the connector cannot reach its source: "
                    f"{excerpt(str(status.get('message')), 1000)}".strip(),
                    where=f"source {self.name}",
                    remedy="Correct the connector's `config`",
                )

    def prepare_read(self, read: PlannedRead) -> tuple[Sequence[str], MessageFormat]:
        states = {
            request.table.ref.native.key: read.states[request.name]
            for request in read.requests
            if request.table.progress is Progress.MARK
        }
        files = self._write_config(read.folder)
        files["catalog"] = write_json(read.folder, "catalog.json", configure_catalog(read.requests))
        state = build_state_input(
            states, self._streams, lambda text: read.context.warn(self.name, text)
        )
        if state is not None:
            files["state"] = write_json(read.folder, "state.json", state)
        is_strict = getattr(self.options, "logged_errors", "fail") == "fail"
        message_format = AirbyteMessages(self._store_update, self._streams, is_strict)
        return self.build_command(read.folder, "read", files), message_format

    def hide_declared_secrets(self) -> None:
        """Registers the values in `config` that the connector's specification marks as secret."""
        if self._has_read_specification:
            return
        self._has_read_specification = True
        config = self.build_config()
        with suppress(LoaderError), open_workspace() as folder:
            for message in self._run_verb(folder, "spec"):
                if message["type"] == "SPEC":
                    schema = (message.get("spec") or {}).get("connectionSpecification")
                    self._specification = schema
                    self.hide(*find_declared_secrets(schema, config))

    def build_command(self, folder: Path, verb: str, files: Mapping[str, Path]) -> list[str]:
        return build_command(self.options, folder, verb, files)

    def build_config(self) -> dict[str, Any]:
        return self.open_config_updates().apply_to(build_config(self.options, self.folder))

    def open_config_updates(self) -> ConfigUpdates:
        file_name = getattr(self.options, "renewed_config", None)
        path = self.folder / file_name if file_name else None
        return ConfigUpdates(path, self.options.config, self._hide_updated_secrets)

    def _store_update(self, control: Mapping[str, Any]) -> bool:
        self.hide_declared_secrets()
        return self.open_config_updates().store_update(control)

    def _hide_updated_secrets(self, values: Mapping[str, Any]) -> None:
        """Registers the secrets among the values that a connector refreshed.

        They are redacted only as whole words. Otherwise a connector could make messages unreadable.

        Raises:
            TableError: if there are too many secrets.
        """
        new = {
            *find_declared_secrets(self._specification, values),
            *find_secret_values(values),
        } - self._hidden_secrets
        hidden = self._hidden_secrets | new
        if len(hidden) > _MAX_SECRETS or sum(map(len, new)) > _MAX_SECRET_LENGTH:
            raise TableError(
                f"the connector has refreshed more than {_MAX_SECRETS:,} secrets of its "
                f"configuration, or more than {_MAX_SECRET_LENGTH:,} characters of them",
                where=f"source {self.name}",
                remedy="Report it to the connector's authors",
            )
        self._hidden_secrets = hidden
        self.hide(*new, whole_word=True)

    def find_catalog_file(self) -> str | None:
        """Returns the catalog file in the spec, or None if the connector lists its streams."""
        return self.options.catalog

    def _write_config(self, folder: Path) -> dict[str, Path]:
        return {"config": write_json(folder, "config.json", self.build_config())}

    def _run_verb(self, folder: Path, verb: str) -> Iterator[dict[str, Any]]:
        files = {} if verb == "spec" else self._write_config(folder)
        errors: list[str] = []

        def parse(line: bytes) -> dict[str, Any] | None:
            message = parse_line(line, self.name, self.hide_declared_secrets)
            if message and message["type"] == "CONTROL":
                self.open_config_updates().store_update(message.get("control") or {})
            trace = (message or {}).get("trace") or {}
            if message and message["type"] == "TRACE" and trace.get("type") == "ERROR":
                errors.append(describe_error(trace.get("error") or {}))
            return message

        yield from read_answer(
            lambda on_log_line: self.start_program(
                self.build_command(folder, verb, files), on_log_line
            ),
            parse,
            errors,
            self.options.timeout,
            f"source {self.name}",
            self.hide_declared_secrets,
            # `spec` lists the secrets. It runs even after an interruption, because the connector's
            # last messages may contain secrets.
            ignores_interruption=verb == "spec",
        )
