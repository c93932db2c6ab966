"""If Java ends while one source's tables are listed, the other sources are still synced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from loader.cli import run_once
from loader.cli.run_once import RestartingRun, RunRequest
from loader.errors import JavaEndedError, TableError
from loader.sync import pipeline as pipeline_module
from loader.sync.pipeline import Pipeline
from loader.sync.run_context import Watch
from loader.sync.runner import Outcome

ENDED = JavaEndedError("Spark's Java process exited with code 3")


def test_the_run_continues_without_the_source_that_ended_java(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    java = SimpleNamespace(ended=False)
    monkeypatch.setattr(pipeline_module, "has_java_ended", lambda: java.ended)
    monkeypatch.setattr(run_once, "is_restart_wanted", lambda: java.ended)

    def restart(settings: Any, pipeline: Any) -> Any:
        java.ended = False
        return pipeline

    def end_java() -> None:
        java.ended = True
        raise ENDED

    monkeypatch.setattr(run_once, "restart_pipeline", restart)
    pipeline: Any = Pipeline.__new__(Pipeline)
    pipeline.redact_error = lambda error, where: error
    pipeline.paused_sources, pipeline.tables_in_progress, pipeline.planned_names = (
        frozenset(),
        set(),
        set(),
    )

    def sync(pipeline: Pipeline, select: tuple[str, ...], done: Any) -> None:
        assert select == ("*.orders",)
        for name, ask in (("liar", end_java), ("shop", list)):
            source: Any = SimpleNamespace(name=name)
            bound: Any = SimpleNamespace(tables=raise_ended if java.ended else ask)
            found = pipeline._list_tables(source, bound)
            if not isinstance(found, TableError):
                done(Outcome(f"{name}.orders", source=name))
            elif name not in pipeline.paused_sources:
                done(Outcome(f"source {name}", error=found, source=name))

    def raise_ended() -> None:
        raise ENDED

    warnings: list[str] = []
    settings: Any = SimpleNamespace(output=SimpleNamespace(warning=warnings.append))
    outcomes: list[Outcome] = []
    watch: Any = Watch.__new__(Watch)
    watch.stopped, watch.steps = SimpleNamespace(is_set=lambda: False), None
    RestartingRun(settings, pipeline).run(("*.orders",), sync, watch, outcomes.append)
    assert [(one.table, one.source) for one in outcomes] == [
        ("source liar", "liar"),
        ("shop.orders", "shop"),
    ]
    assert "while the list of this source's tables was read" in str(outcomes[0].error)
    assert len(warnings) == 1


@pytest.mark.parametrize("select", [(), ("shop.orders",)])
def test_a_retried_table_counts_as_selected_only_if_the_user_selected_it(
    monkeypatch: pytest.MonkeyPatch, select: tuple[str, ...]
) -> None:
    """A full refresh of selected tables may replace a raw table that had another origin."""
    synced: list[tuple[tuple[str, ...], bool]] = []

    def run_tables(pipeline: Any, watch: Any, select: tuple[str, ...], *_: Any) -> list[Outcome]:
        synced.append((select, pipeline.accepts_other_origins))
        return []

    monkeypatch.setattr(run_once, "run_tables", run_tables)
    monkeypatch.setattr(run_once, "compact_system_tables", lambda pipeline: None)
    runs: Any = SimpleNamespace(
        run=lambda select, sync, watch, done: sync(SimpleNamespace(), select, done)
    )
    request = RunRequest(select, full_refresh=True)
    request.run(runs, Watch(), print)
    request.run(runs, Watch(), print, retried=("shop.orders",))
    assert synced == [(select, bool(select)), (("shop.orders",), bool(select))]
