"""A project of the loader, with its commands as whole processes, and its loop."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.dropped_files import DroppedFiles
from benchmarks.shop import Shop, Sums, sums_of_files
from benchmarks.stopwatch import Failed, ran

ROOT = Path(__file__).resolve().parents[1]
LABEL = "ours"
EVERY = "0.1s"
"""The interval of a loop. It is so short that rounds follow each other immediately."""
_PROJECT = """\
name: bench
version: "1.0.0"
profile: strandline
dispatch: [{macro_namespace: dbt, search_order: [bench, strandline, dbt]}]
"""


@dataclass
class Ours:
    """A project as `loader init` creates it, with a cursor for each table.

    Args:
        folder: the project's folder, which is created.
        root: the checkout whose loader and package the project uses.
        label: the project's name in the results.
    """

    folder: Path
    shop: Shop | DroppedFiles
    root: Path = ROOT
    label: str = LABEL
    environment: Mapping[str, str] = field(default_factory=dict)

    def create(self) -> Ours:
        """Writes the project. Loads nothing."""
        source = {"name": "shop", "tables": ["*"], "destinations": ["lake"]}
        documents = [
            {"kind": "source", "spec": {**source, **self.shop.source()}},
            {"kind": "destination", "spec": {"name": "lake", "path": "spark"}},
        ]
        self.write("loader.yml", yaml.safe_dump_all(documents))
        self.write("dbt_project.yml", _PROJECT)
        self.write("packages.yml", f"packages: [{{local: {self.root}}}]\n")
        shutil.copytree(ROOT / "profiles", self.folder / "profiles")
        self.environment = {
            "PYTHONPATH": str(self.root),
            "STRANDLINE_WAREHOUSE": str(self.folder / "warehouse"),
            **self.shop.secrets(),
            "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
        }
        return self

    def write(self, path: str, text: str) -> None:
        """Writes a file of the project."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def load(self, *arguments: str) -> int:
        """Runs `loader run`. Returns the number of appended rows."""
        reported = self.loader("run", *arguments)
        events = [json.loads(line) for line in reported.splitlines() if line.startswith("{")]
        return sum(event["appended"] or 0 for event in events if event.get("event") == "table")

    def loader(self, *arguments: str) -> str:
        """Runs a command of the loader. Returns its output."""
        command = (sys.executable, "-m", "loader", "--log-format", "json", *arguments)
        return ran(command, self.folder, self.environment)

    def dbt(self, *arguments: str) -> str:
        """Runs a command of dbt. Returns its output."""
        dbt = str(Path(sys.executable).parent / "dbt")
        return ran((dbt, *arguments), self.folder, self.environment)

    def build(self, *arguments: str) -> str:
        """Runs `dbt build`. Returns its output."""
        return self.dbt("build", "--profiles-dir", "profiles", *arguments)

    def started(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts a command of the loader without waiting for it."""
        return subprocess.Popen(
            [sys.executable, "-m", "loader", "--log-format", "json", *arguments],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            text=True,
        )

    def sums(self) -> Sums:
        """Returns the sums over all appended rows."""
        raw = self.folder / "warehouse" / "raw"
        return sums_of_files(raw / name / "data" for name in self.shop.names)


class Looped:
    """A `loader run --every` whose events are read as they arrive."""

    def __init__(self, ours: Ours, every: str, *arguments: str) -> None:
        self.process = ours.started("run", "--every", every, *arguments)

    def __enter__(self) -> Looped:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.stop()
        else:
            self.process.kill()
            self.process.wait()

    def next(self, may_fail: bool = False) -> dict[str, Any]:
        """Returns the facts of the next round.

        Raises:
            Failed: if a table failed in the round, or the loop has ended.
        """
        return self.until(lambda event: True, may_fail)

    def until(
        self, holds: Callable[[dict[str, Any]], bool], may_fail: bool = False
    ) -> dict[str, Any]:
        """Returns the first round that meets a condition."""
        for event in self._events():
            if event["event"] == "round":
                if event["failed"] and not may_fail:
                    raise Failed(f"a round failed: {event}")
                if holds(event):
                    return event
        raise Failed("the loop has ended")

    def build(self) -> dict[str, Any]:
        """Returns the facts of the next build.

        Raises:
            Failed: if a node of the build failed.
        """
        for event in self._events():
            if event["event"] == "build":
                return event
        raise Failed("the loop has ended")

    def stop(self) -> None:
        """Stops the loop as systemd would.

        Raises:
            Failed: if the loop exits with an error.
        """
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=120)
        if self.process.returncode != 0:
            raise Failed(f"the loop ended with {self.process.returncode}")

    def _events(self) -> Iterator[dict[str, Any]]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                event = json.loads(line)
                if "event" in event:
                    yield event
