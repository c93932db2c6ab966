"""Whole processes, timed; the samples that they leave; the memory that they had at most."""

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
    """A command failed, or did not do what is measured; the message has what it said."""


def ran(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Runs a command to its end; what it printed.

    Raises:
        Failed: if it ended with another code than 0.
    """
    reported = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True
    )
    if reported.returncode != 0:
        said = f"{reported.stdout[-3000:]}{reported.stderr[-3000:]}"
        raise Failed(f"{' '.join(command)} ended with {reported.returncode}:\n{said}")
    return reported.stdout


class Samples:
    """Seconds, or what else was measured, by what it was and by tool."""

    def __init__(self) -> None:
        self.taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def take(self, what: str, tool: str, value: float) -> None:
        """Adds a sample."""
        self.taken[what][tool].append(value)

    def time(self, what: str, tool: str, act: Callable[[], int], rows: int) -> None:
        """Times an act, which returns how many rows it took.

        Raises:
            Failed: if that is another number than it must be.
        """
        began = time.monotonic()
        found = act()
        self.take(what, tool, time.monotonic() - began)
        expect(f"{what}, {tool}", found == rows, f"{found:,} rows instead of {rows:,}")

    def median(self, what: str, tool: str) -> float | None:
        """The median of a tool's samples; None if there are none."""
        found = self.taken.get(what, {}).get(tool)
        return statistics.median(found) if found else None


def expect(what: str, holds: bool, instead: object) -> None:
    """Raises Failed, with what was found instead, if something does not hold."""
    if not holds:
        raise Failed(f"{what}: {instead}")


class Memory:
    """Follows how much memory a process and its children hold, for as long as it is open.

    Attributes:
        peak: the most that they held together (RSS), in bytes, two looks in a row: a process that
            is about to start a program may look like two.
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
    """Bytes of memory (RSS) that a process and its descendants hold.

    A process that is about to start a program shares its parent's memory, and its command line,
    until the program runs: it holds nothing of its own.

    Args:
        parent: the command line of its parent.
    """
    place = Path("/proc") / str(pid)
    try:
        # first: what it shares no longer is counted once it has another
        command = (place / "cmdline").read_bytes()
        status = (place / "status").read_text()
        tasks = list((place / "task").iterdir())
    except OSError:
        return 0  # it has ended
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
