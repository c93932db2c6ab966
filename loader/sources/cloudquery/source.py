"""The `cloudquery` connector: reads a source plugin through a bridge, a program of its own.

The bridge (:mod:`loader.sources.cloudquery.bridge`) answers as an Airbyte connector would, so what
comes of its records and states is decided in one place for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loader.sources.airbyte.source import AirbyteSource
from loader.sources.cloudquery.bridge_command import command
from loader.sources.cloudquery.options import CloudQueryOptions


class CloudQuerySource(AirbyteSource):
    """Reads the tables of a source plugin."""

    options_model = CloudQueryOptions
    protocol = "cloudquery"
    options: CloudQueryOptions  # type: ignore[assignment]

    def command(self, folder: Path, verb: str, files: Mapping[str, Path]) -> list[str]:
        return command(self.options.python, f"source {self.name}", verb, files)

    def config(self) -> dict[str, Any]:
        options = self.options
        command = list(options.command or ())
        if command and "/" in command[0]:
            command[0] = str(self.folder / command[0])
        return {
            "command": command,
            "connection": options.connection,
            "spec": options.config,
            "tables": ["*"],
            "deterministic_cq_id": options.deterministic_cq_id,
        }

    def catalog_file(self) -> str | None:
        return None

    def learn_secrets(self) -> None:
        """Does nothing: plugins do not declare secrets."""
