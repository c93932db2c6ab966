"""The metrics of a run, its build and its tables, and their file (``loader run --metrics-file``).

The tables' metrics come from the ledger, so counters include the runs of all processes, and tables
that this run did not sync also have metrics. The file has Prometheus's text format, which the
textfile collector of node_exporter reads.
"""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from loader.cli.results import BuildResult, RunResult, TableStatus
from loader.errors import SpecError
from loader.lake.ledger import FAILED

COUNTER = "counter"
GAUGE = "gauge"


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: ends in the unit, such as ``_seconds``. For a counter, it does not include the suffix
            ``_total``.
        kind: :data:`COUNTER` or :data:`GAUGE`.
    """

    name: str
    kind: str
    description: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """A value of a metric. Times are seconds since 1970 in UTC."""

    metric: Metric
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


_TABLE = ("source", "table")

RUN_TIMESTAMP = Metric("strandline_run_timestamp_seconds", GAUGE, "The end of the newest run.")
RUN_DURATION = Metric(
    "strandline_run_duration_seconds", GAUGE, "The duration of the newest run, including its build."
)
RUN_SUCCESS = Metric(
    "strandline_run_success", GAUGE, "1 if all tables of the newest run were synced, otherwise 0."
)
RUN_TABLES = Metric(
    "strandline_run_tables", GAUGE, "The tables of the newest run, by status.", ("status",)
)
BUILD_SUCCESS = Metric(
    "strandline_build_success", GAUGE, "1 if the newest dbt build succeeded, otherwise 0."
)
BUILD_DURATION = Metric(
    "strandline_build_duration_seconds", GAUGE, "The duration of the newest dbt build."
)
BUILD_NODES = Metric(
    "strandline_build_nodes",
    GAUGE,
    "The models, tests, seeds and snapshots of the newest dbt build, by status.",
    ("status",),
)
BUILD_NODE_FAILED = Metric(
    "strandline_build_node_failed",
    GAUGE,
    "1 for each model, test, seed and snapshot that failed in the newest dbt build.",
    ("node",),
)
TABLE_SUCCESS = Metric(
    "strandline_table_success",
    GAUGE,
    "0 if the newest sync of the table failed, otherwise 1.",
    _TABLE,
)
TABLE_SYNCED = Metric(
    "strandline_table_synced_timestamp_seconds",
    GAUGE,
    "The end of the table's newest successful sync.",
    _TABLE,
)
TABLE_COMPLETE = Metric(
    "strandline_table_complete_until_timestamp_seconds",
    GAUGE,
    "The raw table contains all rows that were committed in the source up to this time.",
    _TABLE,
)
TABLE_DURATION = Metric(
    "strandline_table_sync_duration_seconds",
    GAUGE,
    "The duration of the table's sync in the newest run.",
    _TABLE,
)
TABLE_ROWS_READ = Metric(
    "strandline_table_rows_read",
    GAUGE,
    "The rows that the source returned in the newest run, appended or not.",
    _TABLE,
)
TABLE_ROWS_APPENDED = Metric(
    "strandline_table_rows_appended", COUNTER, "The rows that were appended by all syncs.", _TABLE
)
TABLE_LATE_ROWS = Metric(
    "strandline_table_late_rows",
    COUNTER,
    "The appended rows at or below the cursor that was stored before their sync. A query for "
    "higher cursors would have missed them.",
    (*_TABLE, "position"),
)
TABLE_UNMOVED_ROWS = Metric(
    "strandline_table_cursor_unmoved_rows",
    COUNTER,
    "The late rows that are updates without a change of the cursor.",
    _TABLE,
)
TABLE_BATCH = Metric(
    "strandline_table_batch", GAUGE, "The number of the table's newest batch.", _TABLE
)
TABLE_LOG = Metric(
    "strandline_table_retained_log_bytes",
    GAUGE,
    "The size of the log that the database retains for log-based capture.",
    _TABLE,
)
TABLE_VERIFIED = Metric(
    "strandline_table_verified_until_timestamp_seconds",
    GAUGE,
    "All keys have been compared with the source since this time, and are equal or were repaired.",
    _TABLE,
)
TABLE_UNREPAIRED = Metric(
    "strandline_table_unrepaired_differences",
    GAUGE,
    "The differences from the source that were found and not repaired.",
    _TABLE,
)

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All metrics, in output order."""


def measure(
    result: RunResult,
    statuses: Iterable[TableStatus],
    seconds: float,
    now: dt.datetime,
) -> list[Sample]:
    """Returns the samples of a run that took `seconds`, including its build, and ended `now`."""
    return [
        Sample(RUN_TIMESTAMP, now.timestamp()),
        Sample(RUN_DURATION, seconds),
        Sample(RUN_SUCCESS, float(not result.errors)),
        *_count(RUN_TABLES, Counter(table.status for table in result.tables)),
        *(_measure_build(result.build) if result.build is not None else ()),
        *_measure_tables(result, statuses),
    ]


def _measure_build(build: BuildResult) -> Iterator[Sample]:
    yield Sample(BUILD_SUCCESS, float(build.success))
    yield Sample(BUILD_DURATION, build.seconds)
    counts = ("succeeded", "warned", "failed", "skipped")
    yield from _count(BUILD_NODES, {name: getattr(build, name) for name in counts})
    for node in build.failures:
        yield Sample(BUILD_NODE_FAILED, 1.0, {"node": node})


def _measure_tables(result: RunResult, statuses: Iterable[TableStatus]) -> Iterator[Sample]:
    synced = {table.table: table for table in result.tables}
    for status in statuses:
        source, _, table = status.table.partition(".")
        labels = {"source": source, "table": table}
        now = synced.get(status.table)
        values: dict[Metric, float | dt.datetime | None] = {
            TABLE_SUCCESS: float(status.status != FAILED),
            TABLE_SYNCED: status.synced_at,
            TABLE_COMPLETE: status.complete_until,
            TABLE_DURATION: now.seconds if now else None,
            TABLE_ROWS_READ: now.rows_read if now else None,
            TABLE_ROWS_APPENDED: status.rows_appended,
            TABLE_UNMOVED_ROWS: status.rows_cursor_unmoved,
            TABLE_BATCH: status.batch,
            TABLE_LOG: status.log_bytes,
            TABLE_VERIFIED: status.verified_until,
            TABLE_UNREPAIRED: status.unrepaired,
        }
        for metric, value in values.items():
            if value is not None:
                number = value.timestamp() if isinstance(value, dt.datetime) else float(value)
                yield Sample(metric, number, labels)
        positions = {"below": status.rows_below_cursor, "at": status.rows_at_cursor}
        for position, count in positions.items():
            if count is not None:
                yield Sample(TABLE_LATE_ROWS, float(count), {**labels, "position": position})


def _count(metric: Metric, counts: Mapping[str, int]) -> Iterator[Sample]:
    return (Sample(metric, float(n), {"status": status}) for status, n in counts.items())


@dataclass(frozen=True, eq=False)  # the registry hashes it
class _Samples(Collector):
    samples: tuple[Sample, ...]

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
            family = kind(metric.name, metric.description, labels=metric.labels)
            for sample in self.samples:
                if sample.metric == metric:
                    values = [sample.labels[label] for label in metric.labels]
                    family.add_metric(values, sample.value)
            if family.samples:
                yield family


def check_writable(path: Path) -> None:
    """Raises a SpecError if the file cannot be replaced."""
    folder = path.absolute().parent
    if path.is_dir():
        what = "it is a folder"
    elif not folder.is_dir():
        what = f"the folder {folder} does not exist"
    elif not os.access(folder, os.W_OK):
        what = f"the folder {folder} is not writable"
    else:
        return
    raise SpecError(
        what,
        where=f"--metrics-file {path}",
        remedy="Choose a file in a folder that the loader's user may write",
    )


def write_file(path: Path, samples: Iterable[Sample]) -> None:
    """Replaces the file atomically. Raises an OSError if it cannot be written."""
    registry = CollectorRegistry()
    registry.register(_Samples(tuple(samples)))
    write_to_textfile(str(path), registry)
