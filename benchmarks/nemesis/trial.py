"""Carries out one schedule against a real database, with checks at each quiet point."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession

from benchmarks.nemesis import findings
from benchmarks.nemesis.commands import Commands
from benchmarks.nemesis.findings import Key, Version, Violation
from benchmarks.nemesis.marts import Marts
from benchmarks.nemesis.schedule import Op, Schedule, Vocabulary
from benchmarks.nemesis.workers import Workers
from benchmarks.nemesis.writers import Writers
from tests.services import Database
from tests.sync.project import Project


class Arena(Protocol):
    """A database with events; see :mod:`benchmarks.nemesis.postgresql`."""

    vocabulary: Vocabulary
    database: Database
    writers: Writers
    moved: bool
    refusable: set[str]

    def open(self, tables: tuple[str, ...]) -> None: ...

    def close(self) -> None: ...


@dataclass
class Tally:
    """What a schedule did, in numbers that can be added up."""

    done: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    syncs: int = 0
    refusals: int = 0

    def add(self, other: Tally) -> None:
        """Adds the numbers of another schedule."""
        self.done += other.done
        self.kills += other.kills
        self.syncs += other.syncs
        self.refusals += other.refusals


class Trial:
    """Carries out one schedule from an empty state."""

    def __init__(
        self,
        schedule: Schedule,
        arena: Arena,
        spark: SparkSession,
        workers: Workers,
        folder: Path,
    ) -> None:
        self.schedule = schedule
        self.arena = arena
        self.tally = Tally()
        arena.open(schedule.tables)
        self.writers = arena.writers
        self.shapes = {name: self.writers.shapes[name] for name in schedule.tables}
        self.place = folder / uuid.uuid4().hex[:8]
        self.place.mkdir(parents=True)
        self.project = Project(self.place, spark, f"raw_{uuid.uuid4().hex[:8]}")
        self._configure()
        marts = Marts(self.project, self.place / "dbt", self.shapes)
        self.commands = Commands(self.project, marts, workers, self.shapes)

    def carry_out(self) -> Tally:
        """Carries out the whole schedule.

        Raises:
            Violation: if a promise is broken.
        """
        try:
            for number, op in enumerate(self.schedule.ops, 1):
                try:
                    self.do(op)
                except Violation as violation:
                    raise Violation(f"op {number}, {op}: {violation}") from None
            return self.tally
        finally:
            self.tally.kills = self.commands.kills
            self.tally.syncs = self.commands.syncs
            self._clear()

    def do(self, op: Op) -> None:
        """Carries out one operation: a quiet point, a command, an event or a write."""
        self.tally.done[op.does] += 1
        if op.does == "quiet":
            self._quiet(**op.given)
        elif op.does == "run":
            self._run()
        elif op.does == "run_amid":
            self.commands.run_amid(op.given["step"], op.during, self.do)
        elif hasattr(self.commands, op.does):
            getattr(self.commands, op.does)(**op.given)
        elif hasattr(self.arena, op.does):
            getattr(self.arena, op.does)(**op.given)
        else:
            getattr(self.writers, op.does)(**op.given)
        if self.arena.moved:
            self._configure()
            self.arena.moved = False

    def _run(self) -> None:
        """Runs the loader. Rows committed before the run must be in the raw table after it."""
        before = {table: self.writers.rows(table) for table in self.shapes}
        ran = self.commands.run()
        for table in self.shapes:
            if ran.code == 0 or ran.table(f"shop.{table}")["status"] in ("synced", "nothing new"):
                unseen = self.writers.unseen[table]
                findings.nothing_seen_is_missing(table, before[table], self._raw(table), unseen)

    def _quiet(self, proofs: bool) -> None:
        self.writers.settle()
        self._synced()
        heads = {table: self._head(table) for table in self.shapes}
        again = self.commands.run()
        appended = {t: self._again(t, head) for t, head in heads.items() if self._again(t, head)}
        if again.code != 0 or appended:
            raise Violation(f"a second run of the same appended again: {appended} {again.errors}")
        self.writers.widened.clear()
        for table in self.shapes:
            self._judged(table, self.writers.unseen[table])
        if any(self.writers.unseen[table] for table in self.shapes):
            repaired = self.commands.repair()
            if repaired.code != 0:
                raise Violation(f"reconcile --repair: {repaired.errors or repaired.text[-600:]}")
            self._synced()
            for table in self.shapes:
                self.writers.unseen[table].clear()
                self._judged(table, ())
        self.commands.marts.compare()
        if proofs:
            self.commands.marts.prove()

    def _synced(self) -> None:
        """Runs the loader, which must succeed, or refuse a table with a remedy that works."""
        ran = self.commands.run()
        for table in self.shapes:
            if f"shop.{table}" in str(ran.errors) and table in self.arena.refusable:
                self.tally.refusals += 1
                anew = self.commands.full_refresh(table, 0)
                if anew.code != 0:
                    raise Violation(f"the remedy does not work: {anew.errors}")
        if ran.code != 0:
            ran = self.commands.run()
        if ran.code != 0:
            raise Violation(f"a run of a quiet database failed: {ran.errors or ran.text[-600:]}")
        self.arena.refusable.clear()

    def _judged(self, table: str, excused: Any) -> None:
        versions = self._raw(table)
        findings.whole_batches(table, versions, self.commands.compacted)
        findings.nothing_twice(table, versions)
        findings.same_as_source(table, self.writers.rows(table), versions, excused)

    def _head(self, table: str) -> int:
        return max((version.batch for version in self._raw(table)), default=0)

    def _again(self, table: str, head: int) -> set[Key]:
        """Returns the keys in later batches, except keys with a change that no cursor can reveal.

        If rows do not show which transaction wrote them, each run rereads the time that the
        previous run took, so the second run may find such a change that the first has missed.
        """
        if table in self.writers.widened:
            return set()
        found = {version.key for version in self._raw(table) if version.batch > head}
        return found - self.writers.unseen[table]

    def _raw(self, table: str) -> list[Version]:
        shape = self.shapes[table]
        if not self.project.lake().exists(table):
            return []
        listed = ", ".join(shape.key)
        rows = self.project.rows(
            f"select {listed}, note, _cq_deleted, _cq_generation, {shape.cursor}, _cq_batch, "
            f"_cq_seq, _cq_row_hash from raw.{table}"
        )
        width = len(shape.key)
        return [Version(tuple(row[:width]), *row[width:]) for row in rows]

    def _configure(self) -> None:
        options: Mapping[str, Any] = {
            name: {"cursor_field": shape.cursor} for name, shape in self.shapes.items()
        }
        self.project.jdbc(self.arena.database, list(self.shapes), table_options=options)

    def _clear(self) -> None:
        self.arena.close()
        for schema in (self.project.schema, self.commands.marts.schema):
            with contextlib.suppress(Exception):
                for row in self.project.spark.sql(f"show tables in {schema}").collect():
                    self.project.spark.sql(f"drop table {schema}.{row['tableName']} purge")
                self.project.spark.sql(f"drop namespace {schema}")
