"""Writes metrics to a file in Prometheus's text format (``loader run --metrics-file``).

The textfile collector of Prometheus's node_exporter reads such files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from loader.cli.telemetry.metrics import COUNTER, METRICS, Sample
from loader.errors import SpecError

_REMEDY = "Choose a file in a folder that the loader's user may write"


@dataclass(frozen=True, eq=False)  # the registry hashes it
class _Samples(Collector):
    samples: tuple[Sample, ...]

    def collect(self) -> Iterator[Metric]:
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
    raise SpecError(what, where=f"--metrics-file {path}", remedy=_REMEDY)


def write_file(path: Path, samples: Iterable[Sample]) -> None:
    """Replaces the file atomically. Raises an OSError if it cannot be written."""
    registry = CollectorRegistry()
    registry.register(_Samples(tuple(samples)))
    write_to_textfile(str(path), registry)
