"""What the benchmark's rows have in common: sizes, database, loaded projects, samples."""

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
        """Loads what is new, in a separate process. Returns the number of rows."""

    def sums(self) -> Sums:
        """Returns the sums over all rows that the tool has ever loaded."""


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        rounds: the number of rounds. In each round, the tools take turns.
        rows: the number of rows in the large table.
        changed: the number of these rows that change.
        tables: the number of small tables.
        table_rows, table_changed: the numbers of rows, and of changed rows, in each small table.
        warm_up: the number of rounds of a loop that are not counted.
        batches: the two numbers of batches after which builds are measured.
        builds: the number of builds that are measured each time.
        growth: by what factor the second load whose memory is measured is larger than the first.
        file_rows: the number of rows in the files of each format.
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
        place: the folder for everything that the benchmark writes.
        peers: the Python that has dlt; None if only the loader is measured.
        beside: other checkouts of the loader, keyed by label.
        left: what a row has loaded and a later row can use, keyed by folder.
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
        """Returns a shop with one large table."""
        return self.shop("large", self.sizes.rows)

    @cached_property
    def many(self) -> Shop:
        """Returns a shop with many small tables."""
        return self.shop("many", self.sizes.table_rows, self.sizes.tables)

    def shop(self, name: str, rows: int, tables: int = 1) -> Shop:
        """Creates tables in a new database."""
        name = f"bench_{name}"
        self.server._execute(f"create database {name}")
        return Shop(Database(self.server, name), rows, tables).create()

    def dropped(self, form: str, rows: int) -> DroppedFiles:
        """Creates files of one format in a new folder."""
        return DroppedFiles(self._cleared(f"dropped-{form}"), form, rows).create()

    def ours(self, shop: Shop | DroppedFiles, folder: str) -> Ours:
        """Creates a project for a shop. Replaces an earlier project in the same folder."""
        return Ours(self._cleared(folder), shop).create()

    def dlt(self, shop: Shop, folder: str, label: str = CONNECTORX) -> Sequence[Dlt]:
        """Creates a pipeline for a shop. Returns [] if dlt is not measured."""
        return [Dlt(self._cleared(folder), shop, self.peers, label)] if self.peers else []

    def bare(self, shop: Shop, folder: str) -> Bare:
        """Returns the bare script for a table, with a new lake."""
        return Bare(self._cleared(folder), shop)

    def bare_files(self, dropped: DroppedFiles, folder: str) -> BareFiles:
        """Returns the bare script for files, with a new lake."""
        return BareFiles(self._cleared(folder), dropped)

    def tools(self, shop: Shop, folder: str) -> Sequence[Tool]:
        """Returns the loader, its other checkouts and dlt, with nothing loaded yet."""
        others = (
            Ours(self._cleared(f"{folder}-{label}"), shop, root, label).create()
            for label, root in self.beside.items()
        )
        return [self.ours(shop, folder), *others, *self.dlt(shop, f"{folder}-dlt")]

    def loaded(self, shop: Shop, folder: str) -> Sequence[Tool]:
        """Returns these tools with everything loaded. Reuses those that an earlier row has left."""
        if folder not in self.left:
            self.left[folder] = self.tools(shop, folder)
            for tool in self.left[folder]:
                tool.load()
        return self.left[folder]

    def loaded_ours(self, shop: Shop, folder: str) -> Ours:
        """Returns only the loader, with everything loaded."""
        for tool in self.left.get(folder, ()):
            if isinstance(tool, Ours) and tool.label == LABEL:
                return tool
        ours = self.ours(shop, folder)
        ours.load()
        return ours

    def timed(self, what: str, tool: Tool, rows: int, sums: Sums) -> None:
        """Times a load, and checks the sums of the loaded rows."""
        self.samples.time(what, tool.label, tool.load, rows)
        found = tool.sums()
        expect(f"{what}, {tool.label}", found == sums, f"{found} instead of {sums}")

    def lines(self, what: str, goals: Mapping[str, float | None]) -> list[Line]:
        """Compares the loader with each measured peer. `goals` has the goal for each ratio."""
        mine = self.samples.median(what, LABEL)
        peers = [*goals, *self.beside]
        given = ((peer, self.samples.median(what, peer), goals.get(peer)) for peer in peers)
        found = [Line(what, mine, p, theirs, goal) for p, theirs, goal in given if theirs]
        return found or [Line(what, mine)]

    def _cleared(self, folder: str) -> Path:
        shutil.rmtree(self.place / folder, ignore_errors=True)
        return self.place / folder
