"""A run inside the test process that does something when a table reaches a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from loader.spec.spec import load_spec
from loader.sync.pipeline import Outcome, Pipeline
from loader.sync.watch import Watch
from tests.sync.project import Project


@dataclass(frozen=True)
class Hook:
    """Calls a function with each step and table; see :class:`loader.sync.watch.Steps`."""

    reached: Callable[[str, str], None]


def run_with(project: Project, reached: Callable[[str, str], None]) -> dict[str, Outcome]:
    """Runs a project's spec; returns each table's outcome."""
    pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
    outcomes = pipeline.run(Watch(steps=Hook(reached)), (), False, None)
    return {outcome.table: outcome for outcome in outcomes}
