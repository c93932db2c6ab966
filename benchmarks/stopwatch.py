"""Times whole processes, collects samples, and measures peak memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


class Failed(Exception):
    """A command failed, or did not do what is measured. The message contains its output."""


def ran(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Runs a command until it exits. Returns its output.

    Raises:
        Failed: if the exit code is not 0.
    """
    reported = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True
    )
    if reported.returncode != 0:
        said = f"{reported.stdout[-3000:]}{reported.stderr[-3000:]}"
        raise Failed(f"{' '.join(command)} ended with {reported.returncode}:\n{said}")
    return reported.stdout


class Samples:
    """Measured seconds or other values, grouped by measurement and tool."""

    def __init__(self) -> None:
        self.taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def take(self, what: str, tool: str, value: float) -> None:
        """Adds a sample."""
        self.taken[what][tool].append(value)

    def time(self, what: str, tool: str, act: Callable[[], int], rows: int) -> None:
        """Times a call that returns the number of rows that it loaded.

        Raises:
            Failed: if this is not the expected number.
        """
        began = time.monotonic()
        found = act()
        self.take(what, tool, time.monotonic() - began)
        expect(f"{what}, {tool}", found == rows, f"{found:,} rows instead of {rows:,}")

    def median(self, what: str, tool: str) -> float | None:
        """Returns the median of a tool's samples; None if there are none."""
        found = self.taken.get(what, {}).get(tool)
        return statistics.median(found) if found else None


def expect(what: str, holds: bool, instead: object) -> None:
    """Raises Failed, with what was found instead, if a check does not hold."""
    if not holds:
        raise Failed(f"{what}: {instead}")


class Memory:
    """Tracks the memory of a process and its children within the block.

    Attributes:
        peak: their peak memory (RSS) in bytes, as seen in two consecutive measurements: a process
            that is about to start a program may briefly be counted twice.
    """

    def __init__(self, pid: int, every: float = 0.1) -> None:
        self.peak = 0
        self._pid = pid
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        before = 0
        while not self._over.wait(self._every):
            now = resident(self._pid)
            self.peak = max(self.peak, min(before, now))
            before = now


def resident(pid: int, parent: bytes | None = None) -> int:
    """Returns the memory (RSS) of a process and its descendants, in bytes.

    A process that is about to start a program shares its parent's memory and command line until the
    program runs, so it is not counted.

    Args:
        parent: the command line of the process's parent.
    """
    place = Path("/proc") / str(pid)
    try:
        # Read before the memory, so that shared memory is never counted.
        command = (place / "cmdline").read_bytes()
        status = (place / "status").read_text()
        tasks = list((place / "task").iterdir())
    except OSError:
        return 0  # the process has exited
    if command == parent:
        return 0
    kilobytes = next((line.split()[1] for line in status.splitlines() if "VmRSS" in line), "0")
    total = int(kilobytes) * 1024
    for task in tasks:
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        total += sum(resident(int(child), command) for child in children)
    return total
