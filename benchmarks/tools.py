"""A tool under measurement, and the conversation with the process that it runs in.

The process reads one JSON line for each request and answers with one; what the tool itself prints
goes to a log. Only the standard library is used: peers run on a Python of their own.
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
    """Brings a table of a database to a place of its own."""

    def sync(self) -> int:
        """Reads what changed since the last time; how many rows it took."""

    def versions(self) -> list[list[Any]]:
        """All that it has: key, payload, cursor in microseconds, order of a key's versions."""


def serve(open_tools: Callable[[Mapping[str, Any]], Mapping[str, Tool]]) -> None:
    """Answers requests until there are no more.

    Args:
        open_tools: makes the tools from the first request: `folder`, and by `ports` each tool's
            name with the port that it is to connect to, beside `user`, `password`, `database`.
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
    """A tool's process ended before it was asked to; the message has the end of its log."""


class Process:
    """A module of this folder, run by a Python, with one or more tools in it.

    Attributes:
        tools: their names.
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
            # On two cores the optimizing compiler takes more than it gives in a minute.
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
        """Makes the tools, each with its own port to the database."""
        own = {tool: ports[tool] for tool in self.tools}
        self._ask({"do": "open", "folder": str(self._folder), "ports": own, **account})

    def sync(self, tool: str) -> int:
        """One sync; how many rows it took."""
        rows: int = self._ask({"do": "sync", "tool": tool})
        return rows

    def versions(self, tool: str) -> list[list[Any]]:
        """All that a tool has."""
        found: list[list[Any]] = self._ask({"do": "versions", "tool": tool})
        return found

    def close(self) -> None:
        """Ends the process."""
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
            pass  # its log says more
        answer = self._process.stdout.readline()
        if not answer:
            reported = self._log.read_text(errors="replace")[-3000:]
            raise ToolFailed(f"{', '.join(self.tools)}: the process ended\n{reported}")
        return json.loads(answer)
