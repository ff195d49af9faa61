"""The alerts and the dashboard of the manifests, and a real Prometheus: its tool for rules, and its server with what we
serve as targets.

Both programs are taken from the folder KOPF_DRA_PROMETHEUS or from PATH; ``.ci/prometheus`` fetches them.

The spans that our code makes, kept in memory as trees.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from command import ROOT, running
from dra_api import yaml_text
from dra_kube import spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from waiting import until

_FOLDER = ROOT / "manifests" / "components" / "monitoring"
SPEC = yaml_text.load((_FOLDER / "alerts.yaml").read_text())["spec"]
"""The content of a rule file of Prometheus."""
RULES = [rule for group in SPEC["groups"] for rule in group["rules"]]
PANELS = json.loads((_FOLDER / "dashboard.json").read_text())["panels"]


_PATH = os.environ.get("KOPF_DRA_PROMETHEUS") or os.environ.get("PATH", "")
PROMTOOL, _SERVER = shutil.which("promtool", path=_PATH), shutil.which("prometheus", path=_PATH)

needs_prometheus = pytest.mark.skipif(
    not (PROMTOOL and _SERVER), reason="no Prometheus: KOPF_DRA_PROMETHEUS=$(.ci/prometheus) fetches one. NOT evaluated"
)


class Prometheus:
    """A running server that scrapes its targets each second."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that the expression gives now. Raises AssertionError with the server's own words."""
        return list((await self._get("query", query=expression))["result"])

    async def rules(self) -> dict[str, dict[str, Any]]:
        """The alerts by name, as they were evaluated last."""
        groups = (await self._get("rules"))["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    async def _get(self, what: str, **query: str) -> dict[str, Any]:
        async with self._http.get(f"/api/v1/{what}", params=query) as answer:
            said = await answer.json()
        assert said["status"] == "success", f"{query}: {said}"
        data: dict[str, Any] = said["data"]
        return data


@asynccontextmanager
async def prometheus(folder: Path, targets: Mapping[str, str], rules: Path) -> AsyncIterator[Prometheus]:
    """A server with one target per job, ``{job: host:port}``, once each was scraped twice."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    scrapes = [
        {"job_name": job, "static_configs": [{"targets": [target], "labels": {"pod": f"{job}-0"}}]}
        for job, target in targets.items()
    ]
    config = folder / "prometheus.yaml"
    pace = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config.write_text(yaml.safe_dump({"global": pace, "rule_files": [str(rules)], "scrape_configs": scrapes}))
    assert _SERVER is not None
    words = (
        _SERVER,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address={address}",
    )
    async with running(words) as program, aiohttp.ClientSession(f"http://{address}") as http:
        await program.says("Server is ready to receive web requests")
        server = Prometheus(http)

        async def scraped() -> bool:
            found = await server.query("count_over_time(up[1m]) > 1 and up == 1")
            return {series["metric"]["job"] for series in found} == targets.keys()

        await until("two scrapes of each target", scraped)
        yield server


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
