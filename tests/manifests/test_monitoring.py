"""Alerts and dashboard ask for metrics that exist, by labels that they have.

docs/metrics.md says what the operator serves, and is compared with a scrape of a running one (tests/operator); what the
plugin serves is asked here. The expressions are parsed by a PromQL library; test_alerts.py evaluates them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
from command import ROOT
from dra_kubeletplugin.monitoring import Metrics
from google.protobuf.empty_pb2 import Empty
from monitoring import PANELS, RULES

BY_PROMETHEUS = {"job", "pod", "namespace", "instance", "le"}
TARGETS = {"up": {"job", "pod"}}
"""What Prometheus says itself of each target."""
EXPRESSIONS = [rule["expr"] for rule in RULES] + [target["expr"] for panel in PANELS for target in panel["targets"]]


def served() -> dict[str, set[str]]:
    """Every series that operator or plugin can have, or Prometheus has of them, and its labels."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE)
    found = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    for metric in Metrics().registry.collect():
        found[metric.name] = (metric.type, {"method", "outcome"})
    series: dict[str, set[str]] = dict(TARGETS)
    for name, (kind, labels) in found.items():
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            series[name + suffix] = labels
    return series


def selectors(expression: Any) -> Iterator[Any]:
    """The series that an expression names, wherever they stand in it."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    for name in ("expr", "lhs", "rhs", "vector_selector"):
        inner = getattr(expression, name, None)
        if inner is not None:
            yield from selectors(inner)
    for inner in getattr(expression, "args", None) or ():
        yield from selectors(inner)


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_every_expression_asks_for_what_is_served(text: str) -> None:
    series = served()
    found = list(selectors(promql_parser.parse(text)))
    assert found, text
    for selector in found:
        assert selector.name in series, f"{selector.name} in {text}"
        labels = {matcher.name for matcher in selector.matchers.matchers}
        assert labels <= series[selector.name] | BY_PROMETHEUS, text
    grouped = {name.strip() for names in re.findall(r"by \(([^)]*)\)", text) for name in names.split(",")}
    assert grouped <= set.union(*(series[selector.name] for selector in found)) | BY_PROMETHEUS, text


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_every_alert_says_what_is_wrong_and_where_to_look(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    page, _, section = rule["annotations"]["runbook_url"].partition("#")
    assert page == "https://kopf-dra.github.io/kopf-dra/alerts/"
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / "alerts.md").read_text(), re.MULTILINE)
    assert [rule["alert"]] == [heading for heading in headings if heading.lower() == section]
    mentioned = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    grouping = re.search(r"by \(([^)]*)\)", rule["expr"])
    if grouping:
        assert mentioned <= {name.strip() for name in grouping[1].split(",")}, "the sum has no other labels"


def test_a_misspelled_metric_would_be_noticed() -> None:
    (selector,) = selectors(promql_parser.parse('rate(scheduler_pending_pod{queue="active"}[5m]) > 0'))
    assert selector.name not in served()


async def test_calls_that_are_too_slow_are_measured_beyond_the_limit_of_their_alert() -> None:
    (rule,) = (rule for rule in RULES if rule["alert"] == "DRAPluginSlow")
    limit = float(rule["expr"].rpartition(">")[2])
    bounds = await finite_bounds("dra_plugin_grpc_duration_seconds_bucket")
    assert max(bounds) > limit, "a quantile is never above the last bound"


async def finite_bounds(series: str) -> list[float]:
    """The upper bounds of the buckets of a plugin's histogram after a call, without the last one, +Inf."""

    async def answer(request: Any, _: Any) -> Any:
        return request

    metrics = Metrics()
    await metrics.unary("NodePrepareResources", Empty(), None, answer)
    samples = [sample for metric in metrics.registry.collect() for sample in metric.samples]
    bounds = [float(sample.labels["le"]) for sample in samples if sample.name == series]
    return [bound for bound in bounds if bound != math.inf]
