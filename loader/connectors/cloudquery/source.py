"""The `cloudquery` connector: reads a source plugin through a bridge, a program of its own.

The bridge answers as an Airbyte connector would, so what comes of its records and states is decided
in one place for both.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import model_validator

from loader.connectors.airbyte.source import AirbyteSource
from loader.connectors.subprocess.source import Command, ProgramOptions
from loader.errors import SpecError
from loader.spec.options import Name
from loader.spec.validation import OptionError

_RUN = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import runpy, types; connectors = types.ModuleType('connectors'); "
    "connectors.__path__ = [sys.argv.pop(1)]; sys.modules['connectors'] = connectors; "
    "runpy.run_module('connectors.cloudquery.bridge', run_name='__main__', alter_sys=True)"
)
"""Runs the bridge in an environment that need not have the loader: only this folder is imported,
and nothing of the current one, which Python would put first."""


class CloudQueryOptions(ProgramOptions):
    """The inner `spec` of a source with `path: cloudquery`.

    Attributes:
        command: the plugin's program, which is started with `serve`.
        connection: the address of a plugin that is running: `localhost:7777`.
        python: a Python that has `cloudquery-plugin-pb`; the loader's own by default.
        config: the plugin's own `spec`.
        deterministic_cq_id: whether `_cq_id` is made from the key, so that it stays the same.
    """

    command: Command | None = None
    connection: Name | None = None
    python: Name | None = None
    deterministic_cq_id: bool = True

    @model_validator(mode="after")
    def _one_plugin(self) -> CloudQueryOptions:
        if (self.command is None) == (self.connection is None):
            raise OptionError(
                "nothing says which plugin to read"
                if self.command is None
                else "`command` and `connection` both say which plugin to read",
                "Write `command` (a program) or `connection` (the address of one that is running)",
            )
        return self


def build_bridge_command(
    python: str | None, where: str, verb: str, files: Mapping[str, Path]
) -> list[str]:
    """Returns the bridge's command line.

    Args:
        python: a Python that has `cloudquery-plugin-pb`; None is the loader's own.
        where: the part that needs it, for the error.
        files: by the option that they are given with.

    Raises:
        SpecError: if the loader's own lacks that package.
    """
    if python is None and importlib.util.find_spec("cloudquery") is None:
        raise SpecError(
            "CloudQuery's protocol needs the package `cloudquery-plugin-pb`, which is not "
            "installed",
            where=where,
            remedy="Run `pip install 'strandline[cloudquery]'`; or install it into an environment "
            "of its own, and name that environment's Python (`python`, `--python`)",
        )
    given = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    return [python or sys.executable, "-c", _RUN, str(Path(__file__).parents[1]), verb, *given]


class CloudQuerySource(AirbyteSource):
    """Reads the tables of a source plugin."""

    options_model = CloudQueryOptions
    protocol = "cloudquery"
    options: CloudQueryOptions  # type: ignore[assignment]

    def build_command(self, folder: Path, verb: str, files: Mapping[str, Path]) -> list[str]:
        return build_bridge_command(self.options.python, f"source {self.name}", verb, files)

    def build_config(self) -> dict[str, Any]:
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

    def find_catalog_file(self) -> str | None:
        return None

    def learn_secrets(self) -> None:
        """Does nothing: plugins do not declare secrets."""
