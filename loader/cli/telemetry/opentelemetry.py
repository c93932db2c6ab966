"""Exports traces and metrics of runs with OpenTelemetry.

OpenTelemetry's standard variables configure the export: ``OTEL_EXPORTER_OTLP_ENDPOINT``,
``OTEL_SERVICE_NAME`` and others. Each run is a trace. It has a span for each table, with child
spans for the phases of the table's sync, such as reading and appending.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from loader import __version__
from loader.cli.telemetry.metrics import COUNTER, METRICS, Metric, Sample
from loader.sync.run_context import Listener, Watch
from loader.sync.runner import Outcome

_SCOPE = "strandline"
_ROW_COUNTS = ("rows_read", "rows_appended", "rows_redelivered", "rows_below_cursor")


class OpenTelemetry:
    """The exporters of this process, which send to the OTLP endpoint."""

    def __init__(self) -> None:
        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "strandline"}
        resource = Resource.create(named)
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._traces.get_tracer(_SCOPE, __version__)
        # Exports only when a run ends.
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(), math.inf)
        self._metrics = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._values: dict[Metric, list[Sample]] = {}
        self._observe_metrics()
        self._run: RunTrace | None = None

    def follow(self, watch: Watch, done: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
        """Starts a run's trace if necessary. Returns a function that replaces `done`."""
        if self._run is None:
            self._run = RunTrace(self._tracer, watch.listener)
        run = self._run
        watch.listener = run

        def end(outcome: Outcome) -> None:
            run.end_table(outcome)
            done(outcome)

        return end

    def end_run(self, samples: Iterable[Sample], error: str | None) -> None:
        """Ends the trace of a run, and sets the metrics to send."""
        if self._run is not None:
            self._run.end(error)
            self._run = None
        self._values = {}
        for sample in samples:
            self._values.setdefault(sample.metric, []).append(sample)

    def send(self) -> None:
        """Sends spans and metrics.

        Raises a ConnectionError if they were not sent. (The SDK itself only logs the reason.)
        """
        errors = _Errors()
        logger = logging.getLogger("opentelemetry")
        logger.addHandler(errors)
        try:
            self._traces.force_flush()
            self._metrics.force_flush()
        finally:
            logger.removeHandler(errors)
        if errors.has_any:
            raise ConnectionError("the endpoint did not accept it")

    def _observe_metrics(self) -> None:
        meter = self._metrics.get_meter(_SCOPE, __version__)
        for metric in METRICS:

            def observe(_: CallbackOptions, metric: Metric = metric) -> list[Observation]:
                samples = self._values.get(metric, [])
                return [Observation(each.value, dict(each.labels)) for each in samples]

            create = (
                meter.create_observable_counter
                if metric.kind == COUNTER
                else meter.create_observable_gauge
            )
            create(metric.name, [observe], description=metric.description)


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.has_any = False

    def emit(self, record: logging.LogRecord) -> None:
        self.has_any = True


@dataclass
class _TableSpans:
    table: Span
    phase: Span | None = None


@dataclass
class RunTrace:
    """A listener that records the spans of a run, and forwards all reports to another listener."""

    tracer: Tracer
    listener: Listener
    _tables: dict[str, _TableSpans] = field(default_factory=dict)
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._span = self.tracer.start_span("loader run")
        self._context = trace.set_span_in_context(self._span)

    def report_phase(self, table: str, phase: str, rows: int | None) -> None:
        with self._changing:
            spans = self._begin_table(table)
            if spans.phase is not None:
                spans.phase.end()
            context = trace.set_span_in_context(spans.table)
            spans.phase = self.tracer.start_span(phase, context)
            if rows is not None:
                spans.phase.set_attribute("strandline.rows", rows)
        self.listener.report_phase(table, phase, rows)

    def warn(self, table: str, text: str) -> None:
        with self._changing:
            if table in self._tables:
                self._tables[table].table.add_event("warning", {"message": text})
        self.listener.warn(table, text)

    def end_table(self, outcome: Outcome) -> None:
        with self._changing:
            spans = self._begin_table(outcome.table)
            self._tables.pop(outcome.table)
        if spans.phase is not None:
            spans.phase.end()
        record = outcome.record
        if record is not None:
            spans.table.set_attribute("strandline.status", record.status)
            for name in ("batch", *_ROW_COUNTS):
                value = getattr(record, name)
                if value is not None:
                    spans.table.set_attribute(f"strandline.{name}", value)
        if outcome.error is not None:
            spans.table.set_status(Status(StatusCode.ERROR, str(outcome.error)))
        spans.table.end()

    def end(self, error: str | None) -> None:
        with self._changing:
            tables, self._tables = self._tables, {}
        for spans in tables.values():
            if spans.phase is not None:
                spans.phase.end()
            spans.table.end()
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()

    def _begin_table(self, table: str) -> _TableSpans:
        if table not in self._tables:
            span = self.tracer.start_span(f"sync {table}", self._context)
            source, _, name = table.partition(".")
            span.set_attributes({"strandline.source": source, "strandline.table": name})
            self._tables[table] = _TableSpans(span)
        return self._tables[table]
