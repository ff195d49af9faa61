"""When a program sends traces: only with a destination, and it says so when OpenTelemetry is missing."""

from __future__ import annotations

import logging
import sys

import pytest
from dra_kube import spans
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@pytest.fixture(autouse=True)
def off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "_tracer", None)
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)


def test_without_an_endpoint_there_are_no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    spans.start_traces("x")
    assert spans._tracer is None


def test_a_missing_library_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with caplog.at_level(logging.WARNING):
        spans.start_traces("x")
    assert "the extra kopf-dra[otel] brings it" in caplog.text
    assert spans._tracer is None


@pytest.mark.parametrize(("variable", "service"), [(None, "dra-operator"), ("mine", "mine")])
def test_the_process_is_described(monkeypatch: pytest.MonkeyPatch, variable: str | None, service: str) -> None:
    if variable:
        monkeypatch.setenv("OTEL_SERVICE_NAME", variable)
    exporter = InMemorySpanExporter()
    spans.record(SimpleSpanProcessor(exporter), "dra-operator", **{"k8s.node.name": "worker-1"})
    with spans.span("plan"):
        pass
    (made,) = exporter.get_finished_spans()
    assert made.resource.attributes["service.name"] == service
    assert made.resource.attributes["k8s.node.name"] == "worker-1"
