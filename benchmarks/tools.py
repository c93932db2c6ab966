"""A tool under measurement, and the protocol for the process that it runs in.

The process reads each request as one JSON line and answers with another. The tool's own output goes
to a log. Only the standard library is used, because peers run in their own Python environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[1]


class Tool(Protocol):
    """Copies a table from a database to its own store."""

    def sync(self) -> int:
        """Reads what has changed since the last sync. Returns the number of rows."""

    def versions(self) -> list[list[Any]]:
        """Returns all versions: key, payload, cursor in microseconds, order of a key's versions."""


def serve(open_tools: Callable[[Mapping[str, Any]], Mapping[str, Tool]]) -> None:
    """Answers requests until the input ends.

    Args:
        open_tools: creates the tools from the first request, which contains `folder`, `user`,
            `password`, `database`, and `ports` (maps each tool's name to the port that it must
            connect to).
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    tools: Mapping[str, Tool] = {}
    for line in sys.stdin:
        request = json.loads(line)
        answer: Any = None
        if request["do"] == "open":
            tools = open_tools(request)
        elif request["do"] == "sync":
            answer = tools[request["tool"]].sync()
        else:
            answer = tools[request["tool"]].versions()
        print(json.dumps(answer), file=answers, flush=True)


class ToolFailed(Exception):
    """A tool's process exited unexpectedly. The message contains the end of its log."""


class Process:
    """A process that runs a module of this folder with one or more tools.

    Attributes:
        tools: the tools' names.
    """

    def __init__(self, python: str, module: str, tools: tuple[str, ...], folder: Path) -> None:
        folder.mkdir()
        self.tools = tools
        self._folder = folder
        self._log = folder / "log"
        env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DLT_DATA_DIR": str(folder / "dlt"),
            "RUNTIME__DLTHUB_TELEMETRY": "false",
            "STRANDLINE_WAREHOUSE": str(folder / "warehouse"),
            "STRANDLINE_DRIVER_MEMORY": "1g",
            # In a run of a minute on two cores, the optimizing compiler costs more than it saves.
            "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [python, "-m", f"benchmarks.{module}"],
                cwd=folder,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def open(self, ports: Mapping[str, int], **account: str) -> None:
        """Creates the tools, each with its own port to the database."""
        own = {tool: ports[tool] for tool in self.tools}
        self._ask({"do": "open", "folder": str(self._folder), "ports": own, **account})

    def sync(self, tool: str) -> int:
        """Runs one sync. Returns the number of rows read."""
        rows: int = self._ask({"do": "sync", "tool": tool})
        return rows

    def versions(self, tool: str) -> list[list[Any]]:
        """Returns all versions that a tool has."""
        found: list[list[Any]] = self._ask({"do": "versions", "tool": tool})
        return found

    def close(self) -> None:
        """Stops the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, request: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the log contains more
        answer = self._process.stdout.readline()
        if not answer:
            reported = self._log.read_text(errors="replace")[-3000:]
            raise ToolFailed(f"{', '.join(self.tools)}: the process ended\n{reported}")
        return json.loads(answer)
