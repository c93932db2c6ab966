"""The commands of the loader and dbt that a schedule calls, some of which are killed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from benchmarks.nemesis.findings import Violation
from benchmarks.nemesis.marts import Marts
from benchmarks.nemesis.schedule import Op
from benchmarks.nemesis.tables import Shape
from benchmarks.nemesis.workers import Workers
from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import run_tables
from tests.sync.project import Project, Ran


class Does(Protocol):
    """Carries out an operation during a run."""

    def __call__(self, op: Op) -> None:
        """Carries out one operation."""


class _Hook:
    """Calls a function once, when the first table reaches a step."""

    def __init__(self, step: str, act: Callable[[], None]) -> None:
        self.step = step
        self.act = act
        self.failure: BaseException | None = None
        self._once = threading.Lock()
        self._done = False

    def report_step(self, step: str, table: str) -> None:
        with self._once:
            if step != self.step or self._done:
                return
            self._done = True
            try:
                self.act()
            except BaseException as failure:  # reported by the command, not by the table
                self.failure = failure


class Commands:
    """Runs the loader and dbt in one project, and records what they report.

    Attributes:
        failures: the errors of tables and commands.
        compacted: whether versions were removed, so that batches may lack rows.
        kills: the number of processes that were killed while running, for each command or step.
    """

    def __init__(
        self, project: Project, marts: Marts, workers: Workers, shapes: dict[str, Shape]
    ) -> None:
        self.project = project
        self.marts = marts
        self.workers = workers
        self.shapes = shapes
        self.compacted = False
        self.failures: list[str] = []
        self.kills: Counter[str] = Counter()
        self.syncs = 0

    def run(self) -> Ran:
        """Runs `loader run`, which may fail."""
        self.syncs += 1
        return self._tried("run", "--concurrency", "2")

    def run_amid(self, step: str, during: Sequence[Op], do: Does) -> None:
        """Starts a run, and carries out operations when its first table reaches a step."""
        self.syncs += 1
        hook = _Hook(step, lambda: [do(op) for op in during] and None)
        pipeline = Pipeline(load_spec(self.project.folder / "loader.yml"), self.project.spark)
        for outcome in run_tables(pipeline, Watch(steps=hook), (), False, 2):
            if outcome.error is not None:
                self.failures.append(f"run_amid {step}: {outcome.error}")
        if hook.failure is not None:
            raise hook.failure

    def run_killed(self, step: str) -> None:
        """Starts a run in another process, and kills it when a table reaches a step."""
        self._killed("loader", self._arguments("run"), {"LOADER_CRASH_AT": step})

    def race(self) -> None:
        """Runs twice at the same time. Each run skips tables that the other has locked."""
        self.syncs += 1
        taken = self.workers.take()
        taken.start("loader", self._arguments("run"))
        self.run()
        if taken.answer() is None:
            raise Violation("a run beside another one died")
        self.workers.give_back(taken)

    def build(self) -> None:
        """Builds latest tables and histories with `dbt run`, if the raw tables exist."""
        if self._raw_is_there():
            self.marts.build()

    def build_killed(self, after: float) -> None:
        """Builds in another process, and kills it after some seconds if it is still running."""
        if not self._raw_is_there():
            return
        self.build()
        taken = self.workers.take()
        taken.start("dbt", self.marts.arguments())
        timer = taken.kill_after(after)
        if taken.answer() is None:
            self.kills["dbt run"] += 1
        timer.cancel()
        self.workers.give_back(taken)

    def full_refresh(self, table: str, at: float) -> Ran:
        """Runs a full refresh of a table."""
        self.syncs += 1
        return self._tried("run", "--full-refresh", "--select", f"shop.{table}")

    def backfill(self, table: str, at: float) -> None:
        """Rereads a cursor range."""
        low = self._cursor(table, at)
        if low is not None and self.shapes[table].cursor != "xmin":
            self._tried("run", "--select", f"shop.{table}", "--from", low)

    def set_back(self, table: str, at: float) -> None:
        """Runs `loader state set` with a much lower cursor."""
        low = self._cursor(table, at)
        if low is not None and self.shapes[table].cursor != "xmin":
            self._tried("state", "set", f"shop.{table}", low)

    def rebuild_state(self) -> None:
        """Rebuilds state and ledger from the data commits, if the raw tables exist."""
        if self._raw_is_there():
            self._tried("state", "rebuild")

    def compact(self) -> None:
        """Compacts the raw tables if they exist, and expires old snapshots."""
        if not self._raw_is_there():
            return
        self._tried("compact", "--keep-versions", "1", "--expire-days", "0")
        self.compacted = True

    def repair(self) -> Ran:
        """Runs `loader reconcile --repair`."""
        self.syncs += 1
        return self._tried("reconcile", "--repair", "--allow-deletes")

    def _tried(self, *arguments: str) -> Ran:
        ran = self.project.loader(*arguments)
        if ran.code == 2:
            raise Violation(f"loader {' '.join(arguments)}: {ran.text[-800:]}")
        self.failures += [f"{arguments[0]}: {error}" for error in ran.errors]
        return ran

    def _killed(self, program: str, arguments: list[str], environment: dict[str, str]) -> None:
        self.syncs += 1
        taken = self.workers.take()
        taken.start(program, arguments, environment)
        if taken.answer() is None:
            self.kills[environment["LOADER_CRASH_AT"]] += 1
        self.workers.give_back(taken)

    def _arguments(self, *command: str) -> list[str]:
        options = ["-c", str(self.project.folder / "loader.yml"), "--log-format", "json"]
        return [*options, *command]

    def _raw_is_there(self) -> bool:
        lake = self.project.lake()
        return all(lake.exists(table) for table in self.shapes)

    def _cursor(self, table: str, at: float) -> str | None:
        """Returns a cursor in the raw table as text. `at` is its position, from 0 to 1."""
        if not self.project.lake().exists(table):
            return None
        name = self.shapes[table].cursor
        rows: list[tuple[Any, ...]] = self.project.rows(
            f"select cast({name} as string) from raw.{table} where {name} is not null order by 1"
        )
        return str(rows[int(at * len(rows))][0]) if rows else None
