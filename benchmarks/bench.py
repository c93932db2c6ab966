"""What the rows of the benchmark share: sizes, database, loaded projects, samples."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from benchmarks.dropped_files import DroppedFiles
from benchmarks.ours import LABEL, Ours
from benchmarks.peers import CONNECTORX, Bare, BareFiles, Dlt
from benchmarks.results import Line
from benchmarks.shop import Shop, Sums
from benchmarks.stopwatch import Samples, expect
from tests.services import Database, Postgres


class Tool(Protocol):
    """Loads the tables of a shop."""

    @property
    def label(self) -> str: ...

    def load(self) -> int:
        """Loads what is new, as a process of its own; how many rows that was."""

    def sums(self) -> Sums:
        """The sums of all that it ever loaded."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        rounds: of each tool, in turn.
        rows: of the large table.
        changed: rows of it that change.
        tables: how many small ones.
        table_rows, table_changed: of each of them.
        warm_up: rounds of a loop before those that count.
        batches: after how many a build is measured, and again.
        builds: how many builds are measured then.
        growth: how many times as many rows the second load has whose memory is measured.
        file_rows: of the files of each format.
    """

    rounds: int = 3
    rows: int = 4_000_000
    changed: int = 1_000
    tables: int = 50
    table_rows: int = 1_000
    table_changed: int = 100
    warm_up: int = 20
    batches: tuple[int, int] = (20, 200)
    builds: int = 3
    growth: int = 4
    file_rows: int = 1_000_000


@dataclass
class Bench:
    """One run of the benchmark.

    Attributes:
        place: a folder for all that it writes.
        peers: the Python that has dlt; without it only ours is measured.
        beside: other checkouts of the loader, by label.
        left: what rows have loaded, for those after them, by folder.
    """

    server: Postgres
    place: Path
    sizes: Sizes
    peers: Path | None = None
    beside: Mapping[str, Path] = field(default_factory=dict)
    samples: Samples = field(default_factory=Samples)
    left: dict[str, Sequence[Tool]] = field(default_factory=dict)

    @cached_property
    def large(self) -> Shop:
        """One table of many rows."""
        return self.shop("large", self.sizes.rows)

    @cached_property
    def many(self) -> Shop:
        """Many tables of few rows."""
        return self.shop("many", self.sizes.table_rows, self.sizes.tables)

    def shop(self, name: str, rows: int, tables: int = 1) -> Shop:
        """Tables in a database of their own."""
        name = f"bench_{name}"
        self.server._execute(f"create database {name}")
        return Shop(Database(self.server, name), rows, tables).create()

    def dropped(self, form: str, rows: int) -> DroppedFiles:
        """Files of a format, in a folder of their own."""
        return DroppedFiles(self._cleared(f"dropped-{form}"), form, rows).create()

    def ours(self, shop: Shop | DroppedFiles, folder: str) -> Ours:
        """A new project over a shop, in the place of an earlier one."""
        return Ours(self._cleared(folder), shop).create()

    def dlt(self, shop: Shop, folder: str, label: str = CONNECTORX) -> Sequence[Dlt]:
        """A new pipeline over a shop; none without dlt."""
        return [Dlt(self._cleared(folder), shop, self.peers, label)] if self.peers else []

    def bare(self, shop: Shop, folder: str) -> Bare:
        """The script, with a new lake."""
        return Bare(self._cleared(folder), shop)

    def bare_files(self, dropped: DroppedFiles, folder: str) -> BareFiles:
        """The script for files, with a new lake."""
        return BareFiles(self._cleared(folder), dropped)

    def tools(self, shop: Shop, folder: str) -> Sequence[Tool]:
        """Ours, other checkouts' and dlt, with nothing loaded yet."""
        others = (
            Ours(self._cleared(f"{folder}-{label}"), shop, root, label).create()
            for label, root in self.beside.items()
        )
        return [self.ours(shop, folder), *others, *self.dlt(shop, f"{folder}-dlt")]

    def loaded(self, shop: Shop, folder: str) -> Sequence[Tool]:
        """The same with all loaded: those that a row before has left, or new ones."""
        if folder not in self.left:
            self.left[folder] = self.tools(shop, folder)
            for tool in self.left[folder]:
                tool.load()
        return self.left[folder]

    def loaded_ours(self, shop: Shop, folder: str) -> Ours:
        """Of them only ours."""
        for tool in self.left.get(folder, ()):
            if isinstance(tool, Ours) and tool.label == LABEL:
                return tool
        ours = self.ours(shop, folder)
        ours.load()
        return ours

    def timed(self, what: str, tool: Tool, rows: int, sums: Sums) -> None:
        """Times a load, and holds what was loaded against the sums that it must have."""
        self.samples.time(what, tool.label, tool.load, rows)
        found = tool.sums()
        expect(f"{what}, {tool.label}", found == sums, f"{found} instead of {sums}")

    def lines(self, what: str, goals: Mapping[str, float | None]) -> list[Line]:
        """Ours beside each peer that was measured, with the goal of their ratio."""
        mine = self.samples.median(what, LABEL)
        peers = [*goals, *self.beside]
        given = ((peer, self.samples.median(what, peer), goals.get(peer)) for peer in peers)
        found = [Line(what, mine, p, theirs, goal) for p, theirs, goal in given if theirs]
        return found or [Line(what, mine)]

    def _cleared(self, folder: str) -> Path:
        shutil.rmtree(self.place / folder, ignore_errors=True)
        return self.place / folder
