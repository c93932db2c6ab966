"""Runs inside the test process that call a function when a table reaches a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loader.errors import TableError
from loader.spec.spec import load_spec
from loader.sync.pipeline import Pipeline
from loader.sync.protocol import sync_table
from loader.sync.run_context import Watch
from loader.sync.runner import Outcome, Work, run_tables
from tests.sync.project import Project


@dataclass(frozen=True)
class Hook:
    """Calls a function with each step and table; see :class:`loader.sync.run_context.Steps`."""

    report_step: Callable[[str, str], None]


def run_with(
    project: Project,
    reached: Callable[[str, str], None],
    select: Sequence[str] = (),
    work: Work = sync_table,
) -> dict[str, Outcome]:
    """Runs a project's spec; returns each table's outcome."""
    pipeline = Pipeline(load_spec(project.folder / "loader.yml"), project.spark)
    outcomes = run_tables(pipeline, Watch(steps=Hook(reached)), tuple(select), work=work)
    return {outcome.table: outcome for outcome in outcomes}


def break_off(project: Project, step: str, tables: Sequence[str]) -> None:
    """Runs these tables until they fail at a step; as much is durable as after a kill there."""

    def fail(now: str, table: str) -> None:
        if now == step:
            raise TableError("broken off", where=f"table {table}", remedy="Run again")

    outcomes = run_with(project, fail, tables)
    errors = {table: str(outcome.error) for table, outcome in outcomes.items()}
    assert set(errors) == set(tables)
    assert all("broken off" in error for error in errors.values()), errors
