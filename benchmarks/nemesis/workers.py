"""Processes that can be killed. One is always warm."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

from benchmarks.nemesis import worker
from tests.sync.project import ROOT


class Worker:
    """A worker process; see :mod:`benchmarks.nemesis.worker`."""

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
        self._jvm = 0

    def wait_until_ready(self) -> Worker:
        """Waits until the worker's Spark has started."""
        if not self._jvm:
            answer = self.answer()
            if answer is None:
                self.log.seek(0)
                raise AssertionError(f"the worker did not start:\n{self.log.read()[-3000:]}")
            self._jvm = int(answer["jvm"])
        return self

    def start(
        self, program: str, arguments: list[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Starts a command without waiting for it."""
        wanted = {
            "program": program,
            "arguments": arguments,
            "environment": {"LOADER_CRASH_AT": "", **(environment or {})},
        }
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(wanted) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any] | None:
        """Returns the result of the command; None if the process died first."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.kill()  # one of the two processes may still be running
            return None
        found: dict[str, Any] = json.loads(line)
        return found

    def kill_after(self, seconds: float) -> threading.Timer:
        """Kills the worker, as a power cut would, unless the timer is cancelled first."""
        timer = threading.Timer(seconds, self.kill)
        timer.start()
        return timer

    def kill(self) -> None:
        """Kills Python and its JVM at the same time."""
        for pid in filter(None, (self._jvm, self.process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Workers:
    """Provides a worker that is ready. Starts another one only after a worker has died."""

    def __init__(self) -> None:
        self._spare: Worker | None = None

    def take(self) -> Worker:
        """Returns a worker that is ready."""
        taken, self._spare = (self._spare or Worker()).wait_until_ready(), None
        return taken

    def give_back(self, taken: Worker) -> None:
        """Keeps a worker for reuse if it is alive, and otherwise starts the next one."""
        self._spare = taken if taken.process.poll() is None else Worker()

    def close(self) -> None:
        """Stops the remaining workers."""
        if self._spare is not None:
            self._spare.kill()
