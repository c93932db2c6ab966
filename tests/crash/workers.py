"""Loader processes to be killed: one is always warm, the next starts while it is used."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any

from tests.crash import worker
from tests.sync.project import ROOT, Project, Ran


class Worker:
    """One process that runs `loader` commands; see :mod:`tests.crash.worker`."""

    def __init__(self) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", worker.__name__],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.jvm = 0

    def wait_until_ready(self) -> Worker:
        """Waits until its Spark is up."""
        self.jvm = int(self._answer()["jvm"])
        return self

    def start(self, project: Project, *arguments: str, crash_at: str = "") -> None:
        """Begins a command, and does not wait for it."""
        options = ["-c", str(project.folder / "loader.yml"), "--log-format", "json"]
        wanted = {
            "arguments": [*options, *arguments],
            "environment": {"LOADER_CRASH_AT": crash_at},
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(wanted) + "\n")
        self.process.stdin.flush()

    def ended(self) -> Ran:
        """How the command ended that was begun."""
        answer = self._answer()
        output: str = answer["output"]
        events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return Ran(int(answer["code"]), events, output)

    def died(self) -> int:
        """The signal that ended the process."""
        code = self.process.wait(timeout=120)
        assert code < 0, f"it was not killed, but ended with {code}"
        return -code

    def kill(self) -> None:
        """Ends it, whatever it does."""
        self.process.kill()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise AssertionError(f"the worker ended:\n{self.log.read()[-3000:]}")
        found: dict[str, Any] = json.loads(line)
        return found


class Workers:
    """Hands out workers that are ready, and keeps one in reserve."""

    def __init__(self) -> None:
        self._spare: Worker | None = None
        self._given: list[Worker] = []

    def take(self) -> Worker:
        """A worker that is ready; the next one starts meanwhile."""
        taken = (self._spare or Worker()).wait_until_ready()
        self._spare = Worker()
        self._given.append(taken)
        return taken

    def close(self) -> None:
        """Ends all of them."""
        for each in (*self._given, *([self._spare] if self._spare else [])):
            each.kill()
