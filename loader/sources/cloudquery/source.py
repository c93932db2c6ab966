"""The `cloudquery` connector: reads a source plugin through a bridge, a program of its own.

The bridge (:mod:`loader.sources.cloudquery.bridge`) answers as an Airbyte connector would, so what
comes of its records and states is decided in one place for both.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loader.errors import SpecError
from loader.sources.airbyte.source import AirbyteSource
from loader.sources.cloudquery.options import CloudQueryOptions

_BRIDGE = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "import runpy; runpy.run_module('bridge', run_name='__main__', alter_sys=True)"
)


class CloudQuerySource(AirbyteSource):
    """Reads the tables of a source plugin."""

    options_model = CloudQueryOptions
    protocol = "cloudquery"
    options: CloudQueryOptions  # type: ignore[assignment]

    def command(self, folder: Path, verb: str, files: Mapping[str, Path]) -> list[str]:
        python = self.options.python or sys.executable
        if self.options.python is None and importlib.util.find_spec("cloudquery") is None:
            raise SpecError(
                "a CloudQuery plugin needs the package `cloudquery-plugin-pb`, which is not "
                "installed",
                where=f"source {self.name}",
                remedy="Run `pip install 'strandline[cloudquery]'`; or install it into an "
                "environment of its own, and name that environment's Python: `python`",
            )
        given = [part for name, path in files.items() for part in (f"--{name}", str(path))]
        return [python, "-c", _BRIDGE, str(Path(__file__).parent), verb, *given]

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
