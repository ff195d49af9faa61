"""The alerts and the dashboard of the manifests, and the spans that our code makes, kept in memory as trees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from command import ROOT
from dra_api import yaml_text
from dra_kube import spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

_FOLDER = ROOT / "manifests" / "components" / "monitoring"
SPEC = yaml_text.load((_FOLDER / "alerts.yaml").read_text())["spec"]
"""The content of a rule file of Prometheus."""
RULES = [rule for group in SPEC["groups"] for rule in group["rules"]]
PANELS = json.loads((_FOLDER / "dashboard.json").read_text())["panels"]


Tree = tuple[str, list["Tree"]]


class Recording:
    """The spans that have ended."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def all(self, name: str) -> list[ReadableSpan]:
        """Those of one name, in the order of their ends."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def trees(self) -> list[Tree]:
        """Names, children in the order in which they began."""
        return [self._tree(span) for span in self._exporter.get_finished_spans() if span.parent is None]

    def _tree(self, span: ReadableSpan) -> Tree:
        assert span.context is not None
        own = span.context.span_id
        found = [it for it in self._exporter.get_finished_spans() if it.parent is not None and it.parent.span_id == own]
        return span.name, [self._tree(it) for it in sorted(found, key=lambda it: it.start_time or 0)]


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    monkeypatch.setattr(spans, "_tracer", None)
    exporter = InMemorySpanExporter()
    spans.record(SimpleSpanProcessor(exporter), "test")
    try:
        yield Recording(exporter)
    finally:
        monkeypatch.undo()
