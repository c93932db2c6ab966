"""Traces and metrics of real runs, as OpenTelemetry's SDK exports them."""

from __future__ import annotations

import gzip

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.services import Database
from tests.sync.project import Project
from tests.telemetry.receiver import Receiver, receive


def _read_spans(receiver: Receiver) -> list[Span]:
    spans: list[Span] = []
    for path, body in zip(receiver.paths, receiver.bodies, strict=True):
        if path == "/v1/traces":
            request = ExportTraceServiceRequest.FromString(_unpack(body))
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    spans += scope.spans
    return spans


def _unpack(body: bytes) -> bytes:
    return gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body


def test_a_run_is_a_trace_of_tables_and_their_phases(
    shop: Project, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres_database.execute("create table items (id int primary key)")
    shop.sources[0]["tables"] = ["orders", "items"]
    shop.sources[0]["spec"]["table_options"]["items"] = {"sync_mode": "full_refresh"}
    shop.write()
    with receive() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        shop.run()
        spans = {span.name: span for span in _read_spans(receiver)}
        run, orders = spans["loader run"], spans["sync shop.orders"]
        assert not run.parent_span_id
        assert {spans["sync shop.items"].parent_span_id, orders.parent_span_id} == {run.span_id}
        phases = [s.name for s in _read_spans(receiver) if s.parent_span_id == orders.span_id]
        assert phases[0] == "counting"
        assert "appending" in phases
        assert len({span.trace_id for span in spans.values()}) == 1
        facts = {each.key: each.value for each in orders.attributes}
        assert facts["strandline.rows_appended"].int_value == 2
        assert facts["strandline.status"].string_value == "synced"
        bodies = zip(receiver.paths, receiver.bodies, strict=True)
        [body] = [body for path, body in bodies if path == "/v1/metrics"]
        exported = ExportMetricsServiceRequest.FromString(_unpack(body))
        [resource] = exported.resource_metrics
        [service] = [a for a in resource.resource.attributes if a.key == "service.name"]
        assert service.value.string_value == "strandline"
        metrics = {each.name: each for each in resource.scope_metrics[0].metrics}
        [total] = [
            point.as_double
            for point in metrics["strandline_table_rows_appended"].sum.data_points
            if any(a.value.string_value == "orders" for a in point.attributes)
        ]
        assert total == 2
        # A failure is an error in the span of its table and in that of the run.
        receiver.paths.clear()
        receiver.bodies.clear()
        postgres_database.execute("alter table orders drop column version")
        assert shop.loader("run").code == 1
        spans = {span.name: span for span in _read_spans(receiver)}
        assert spans["loader run"].status.code == 2
        assert "version" in spans["sync shop.orders"].status.message
        assert spans["sync shop.items"].status.code == 0


def test_a_run_continues_if_the_endpoint_does_not_answer(
    shop: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    assert shop.run().table("shop.orders")["appended"] == 2
