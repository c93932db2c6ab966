"""The `cloudquery` connector, which reads a source plugin through the bridge.

The bridge is a child process that uses the Airbyte protocol, so the `airbyte` connector reads it.
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

_BRIDGE_PROGRAM = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import runpy, types; connectors = types.ModuleType('connectors'); "
    "connectors.__path__ = [sys.argv.pop(1)]; sys.modules['connectors'] = connectors; "
    "runpy.run_module('connectors.cloudquery.bridge', run_name='__main__', alter_sys=True)"
)
"""Runs the bridge without importing the `loader` package, which the interpreter may not have."""


class CloudQueryOptions(ProgramOptions):
    """The inner `spec` of a source with `path: cloudquery`.

    Attributes:
        command: the plugin's program. It is started with the argument `serve`.
        connection: the address of a running plugin, such as `localhost:7777`.
        python: a Python interpreter that has `cloudquery-plugin-pb`. The default is the loader's
            interpreter.
        config: the plugin's `spec`.
        deterministic_cq_id: whether the plugin computes `_cq_id` from the key. If so, it is the
            same in each sync.
    """

    command: Command | None = None
    connection: Name | None = None
    python: Name | None = None
    deterministic_cq_id: bool = True

    @model_validator(mode="after")
    def _check_plugin(self) -> CloudQueryOptions:
        if (self.command is None) == (self.connection is None):
            raise OptionError(
                "no plugin is set"
                if self.command is None
                else "`command` and `connection` are both set",
                "Set `command` (a program) or `connection` (the address of a running plugin)",
            )
        return self


def build_bridge_command(
    python: str | None, where: str, verb: str, files: Mapping[str, Path]
) -> list[str]:
    """Returns the bridge's command line.

    Args:
        python: a Python interpreter that has `cloudquery-plugin-pb`; None for the loader's own.
        files: maps the name of an option to the path of its file.

    Raises:
        SpecError: if `python` is None and `cloudquery-plugin-pb` is missing from the loader's
            interpreter.
    """
    if python is None and importlib.util.find_spec("cloudquery") is None:
        raise SpecError(
            "CloudQuery's protocol needs the package `cloudquery-plugin-pb`, which is not "
            "installed",
            where=where,
            remedy="Run `pip install 'strandline[cloudquery]'`; or install it into another "
            "environment, and set `python` or --python to its interpreter",
        )
    options = [part for name, path in files.items() for part in (f"--{name}", str(path))]
    return [
        python or sys.executable,
        "-c",
        _BRIDGE_PROGRAM,
        str(Path(__file__).parents[1]),
        verb,
        *options,
    ]


class CloudQuerySource(AirbyteSource):
    """Reads the tables of a CloudQuery source plugin."""

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

    def hide_declared_secrets(self) -> None:
        """Does nothing, because plugins do not declare secrets."""
