"""The `airbyte` connector: runs a connector of the Airbyte protocol as a child process.

The protocol: https://docs.airbyte.com/platform/understanding-airbyte/airbyte-protocol
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from loader.errors import LoaderError, TableError
from loader.sources import Attention, Progress, Request
from loader.sources.airbyte.catalog import configured, entries
from loader.sources.airbyte.launch import command, config
from loader.sources.airbyte.memories import given_back
from loader.sources.airbyte.messages import AirbyteDialect, parsed, reason
from loader.sources.airbyte.options import AirbyteOptions
from loader.sources.airbyte.renewed import Renewed
from loader.sources.airbyte.specification import secrets
from loader.sources.programs.answer import answered
from loader.sources.programs.delivery import Delivery
from loader.sources.programs.memory import Memory
from loader.sources.programs.options import ProgramOptions
from loader.sources.programs.source import Entry, ProgramSource
from loader.sources.programs.stream import Stream
from loader.sources.programs.workspace import workspace, written


class AirbyteSource(ProgramSource):
    """Reads the streams of a connector."""

    options_model: ClassVar[type[ProgramOptions]] = AirbyteOptions
    protocol = "airbyte"
    options: AirbyteOptions
    _learnt = False
    _streams: Collection[Hashable] = ()

    def entries(self, folder: Path) -> list[Entry]:
        found = self._listed(folder)
        self._streams = {entry.key for entry in found}
        return found

    def _listed(self, folder: Path) -> list[Entry]:
        where = f"source {self.name}"
        named = self.catalog_file()
        if named is not None:
            given = self.read_catalog(named)
            inner = given.get("catalog") if isinstance(given, dict) else None
            return entries(inner or given, where, self.cursor_asked)
        for message in self._asked(folder, "discover"):
            if message["type"] == "CATALOG":
                return entries(message.get("catalog") or {}, where, self.cursor_asked)
        raise TableError(
            "the connector did not say which streams it has",
            where=where,
            remedy="Check that the command is a connector of the Airbyte protocol, and its config",
        )

    def probe(self, folder: Path) -> None:
        for message in self._asked(folder, "check"):
            status = message.get("connectionStatus") or {}
            if message["type"] == "CONNECTION_STATUS" and status.get("status") != "SUCCEEDED":
                self.learn_secrets()
                raise TableError(
                    f"the connector cannot reach its source: {status.get('message')}".strip(),
                    where=f"source {self.name}",
                    remedy="Correct the connector's `config`",
                )

    def begin(
        self,
        folder: Path,
        requests: Sequence[Request],
        memories: Mapping[str, Memory | None],
        streams: Mapping[Hashable, Stream],
        number: int,
        attention: Attention,
    ) -> Delivery:
        known = {
            request.table.ref.native.key: memories[request.name]
            for request in requests
            if request.table.progress is Progress.MARK
        }
        files = self._files(folder)
        files["catalog"] = written(folder, "catalog.json", configured(requests))
        state = given_back(known, self._streams, lambda text: attention.warn(self.name, text))
        if state is not None:
            files["state"] = written(folder, "state.json", state)

        words = self.command(folder, "read", files)
        told = getattr(self.options, "logged_errors", "fail")
        dialect = AirbyteDialect(self.renewed().keep, self._streams, told == "fail")
        return self.delivery(words, dialect, streams, number, attention)

    def learn_secrets(self) -> None:
        """Hides the values of `config` that the connector's specification calls secret."""
        if self._learnt:
            return
        self._learnt = True
        config = self.config()
        with suppress(LoaderError), workspace() as folder:
            for message in self._asked(folder, "spec"):
                if message["type"] == "SPEC":
                    about = (message.get("spec") or {}).get("connectionSpecification")
                    for value in secrets(about, config):
                        self.hide(value)

    def command(self, folder: Path, verb: str, files: Mapping[str, Path]) -> list[str]:
        """Returns the command line for a verb of the protocol."""
        return command(self.options, folder, verb, files)

    def config(self) -> dict[str, Any]:
        """Returns the configuration that the connector gets."""
        return self.renewed().applied(config(self.options, self.folder))

    def renewed(self) -> Renewed:
        """Returns what the connector has renewed in its configuration."""
        named = getattr(self.options, "renewed_config", None)
        return Renewed(self.folder / named if named else None, self.options.config, self.hide)

    def catalog_file(self) -> str | None:
        """Returns the file with the catalog that the spec names."""
        return self.options.catalog

    def _files(self, folder: Path) -> dict[str, Path]:
        return {"config": written(folder, "config.json", self.config())}

    def _asked(self, folder: Path, verb: str) -> Iterator[dict[str, Any]]:
        """Yields the messages of a verb that ends with an answer.

        Raises:
            TableError: if the connector fails; says why, in its own words.
        """
        files = {} if verb == "spec" else self._files(folder)
        why: list[str] = []

        def heard(line: bytes) -> dict[str, Any] | None:
            message = parsed(line, self.name, self.learn_secrets)
            if message and message["type"] == "CONTROL":
                self.renewed().keep(message.get("control") or {})
            trace = (message or {}).get("trace") or {}
            if message and message["type"] == "TRACE" and trace.get("type") == "ERROR":
                why.append(reason(trace.get("error") or {}))
            return message

        yield from answered(
            lambda hear: self.process(self.command(folder, verb, files), hear),
            heard,
            why,
            self.options.timeout,
            f"source {self.name}",
            self.learn_secrets,
            waits=verb == "spec",  # what it calls secret may be in what is shown in the end
        )
