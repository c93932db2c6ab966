"""Loader processes that tests may kill; those that stay alive are reused."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.crash import worker
from tests.sync.project import ROOT, Project, Ran


class Worker:
    """One process that runs `loader` commands; see :mod:`tests.crash.worker`.

    Args:
        profiles: the folder of its profiles.yml.
        environment: its variables; by default those of this process.
        within: a command prefix, such as `unshare`.
    """

    def __init__(
        self,
        profiles: Path = ROOT / "profiles",
        environment: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [*within, sys.executable, "-m", worker.__name__, str(profiles)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.jvm = 0

    def wait_until_ready(self) -> Worker:
        """Waits until Spark is up."""
        if not self.jvm:
            self.jvm = int(self._answer()["jvm"])
        return self

    def start(
        self, project: Project, *arguments: str, crash_at: str = "", **variables: str
    ) -> None:
        """Begins a command as soon as Spark is up, and does not wait for it to end."""
        config = str(project.folder / "loader.yml")
        words = ("-c", config, "--log-format", "json", *arguments)
        self.send(*words, crash_at=crash_at, **variables)

    def send(self, *arguments: str, crash_at: str = "", **variables: str) -> None:
        """Begins a command with these arguments only."""
        self.wait_until_ready()
        environment = {"LOADER_CRASH_AT": crash_at, **variables}
        wanted = {"arguments": arguments, "environment": environment}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(wanted) + "\n")
        self.process.stdin.flush()

    def ended(self) -> Ran:
        """Waits for the command to end; returns how it ended."""
        answer = self._answer()
        output: str = answer["output"]
        events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return Ran(int(answer["code"]), events, output)

    def died(self) -> int:
        """Waits for the process to die; returns the signal."""
        code = self.process.wait(timeout=120)
        assert code < 0, f"it was not killed, but ended with {code}"
        return -code

    def stop(self) -> str:
        """Lets the process exit normally; returns the log of the process and its JVM."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.log.seek(0)
        return self.log.read()

    def kill(self) -> None:
        """Kills the process."""
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
    """Hands out workers, each to one test at a time."""

    def __init__(self) -> None:
        self._given: list[Worker] = []
        self._idle: list[Worker] = []

    def take(self) -> Worker:
        """Returns a worker whose Spark is up, or starts while the test creates its tables."""
        taken = self._idle.pop() if self._idle else Worker()
        self._given.append(taken)
        return taken

    def give_back(self) -> None:
        """Takes workers back after a test; those that are alive may serve the next one."""
        self._idle += [worker for worker in self._given if worker.process.poll() is None]
        self._given.clear()

    def close(self) -> None:
        """Ends all of them."""
        for each in (*self._given, *self._idle):
            each.kill()
