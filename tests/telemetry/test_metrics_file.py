"""`loader run --metrics-file` writes the ledger's values in Prometheus' text format."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loader.cli.results import BuildResult, RunResult, TableStatus
from loader.cli.telemetry.metrics import METRICS, measure, write_file
from tests.services import Database
from tests.sync.project import Project

Values = dict[tuple[str, ...], float]


def read(path: Path) -> Values:
    """Returns the value of each sample by its name and labels, which are sorted by name."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }


def test_the_metrics_of_runs(shop: Project, postgres_database: Database, tmp_path: Path) -> None:
    path = tmp_path / "strandline.prom"
    shop.run("--metrics-file", str(path))
    first = read(path)
    assert first["strandline_run_success",] == 1
    assert first["strandline_run_tables", "synced"] == 1
    assert first["strandline_table_rows_appended_total", "shop", "orders"] == 2
    now = dt.datetime.now(dt.timezone.utc).timestamp()
    assert now - 60 < first["strandline_table_synced_timestamp_seconds", "shop", "orders"] <= now
    assert now - 60 < first["strandline_run_timestamp_seconds",] <= now
    # A row at the stored cursor. The totals include earlier runs, which were other processes.
    postgres_database.execute("insert into orders values (3, 6), (4, 7)")
    shop.run("--metrics-file", str(path))
    second = read(path)
    assert second["strandline_table_rows_appended_total", "shop", "orders"] == 4
    assert second["strandline_table_late_rows_total", "at", "shop", "orders"] == 1
    assert second["strandline_table_batch", "shop", "orders"] == 2
    # The table fails. The time of its last success stays.
    postgres_database.execute("alter table orders drop column version")
    assert shop.loader("run", "--metrics-file", str(path)).code == 1
    third = read(path)
    assert third["strandline_run_success",] == 0
    assert third["strandline_table_success", "shop", "orders"] == 0
    synced = ("strandline_table_synced_timestamp_seconds", "shop", "orders")
    assert third[synced] == second[synced]
    assert [file.name for file in tmp_path.glob("*.prom*")] == ["strandline.prom"]


def test_every_metric_is_written_and_hostile_names_are_escaped(tmp_path: Path) -> None:
    now = dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc)
    name = 'shop.a"b\\c\nd{}'
    status = TableStatus(name, "failed", "7", 3, 10, 1, 2, 1, now, 1024, now, now, 4, "an error")
    build = BuildResult(1, 5, 1, 1, 2, 3.5, {'test.a"b': "1 row"}, {'test.a"b': 1.0})
    samples = measure(RunResult((), (), build), [status], 1.5, now)
    # The run has no tables to count, and did not sync the table.
    missing = {metric.name for metric in METRICS} - {sample.metric.name for sample in samples}
    assert missing == {
        "strandline_run_tables",
        "strandline_table_rows_read",
        "strandline_table_sync_duration_seconds",
    }
    path = tmp_path / "metrics.prom"
    write_file(path, samples)
    values = read(path)
    assert len(values) == len(samples)
    assert values["strandline_table_batch", "shop", name[5:]] == 3
    assert values["strandline_build_node_failed", 'test.a"b'] == 1
    assert values["strandline_table_complete_until_timestamp_seconds", "shop", name[5:]] == (
        now.timestamp()
    )


@pytest.mark.parametrize(
    ("path", "what"), [("missing/file.prom", "does not exist"), (".", "is a directory")]
)
def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    shop: Project, path: str, what: str
) -> None:
    ran = shop.loader("run", "--metrics-file", path)
    assert ran.code == 2
    assert what in ran.text
    assert not shop.lake().exists("orders")
