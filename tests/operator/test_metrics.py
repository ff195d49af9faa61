"""What a running operator serves at /metrics is what docs/metrics.md says: names, types and labels."""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dra_kube import Connection
from dra_operator.app.leader import Leader
from dra_operator.app.settings import OperatorSettings
from dra_operator.app.telemetry import LeaderGauge
from dra_operator.controllers.metrics import NAMED_DRIVERS, OTHERS, largest
from prometheus_client import CollectorRegistry, Counter
from supervised import LiveCluster, Supervising
from waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


class Family(NamedTuple):
    name: str
    type: str
    labels: frozenset[str]


def documented() -> set[Family]:
    rows = re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram) \|([^|]*)\| \S", PAGE.read_text(), re.MULTILINE)
    return {Family(name, kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def served(registry: CollectorRegistry) -> Iterator[Family]:
    """Every family that is registered, with its labels, also where it has no sample yet."""
    for collector in list(registry._collector_to_names):
        if isinstance(collector, CollectorRegistry):  # that of the controllers, which goes when they start over
            yield from served(collector)
            continue
        declared = getattr(collector, "_labelnames", None)
        for metric in collector.collect():
            labels = declared if declared is not None else getattr(metric, "_labelnames", ())
            suffix = "_total" if metric.type == "counter" else ""
            yield Family(metric.name + suffix, metric.type, frozenset(labels))


async def test_the_page_lists_every_metric_with_its_type_and_labels(
    cluster: LiveCluster, supervising: Supervising
) -> None:
    await cluster.furnish(template=True)
    async with supervising(OperatorSettings(check_invariants=True, controllers="auto,admission")) as site:
        await site.ready()
        await cluster.place("pod")

        async def counted() -> bool:
            return site.metric("scheduler_schedule_attempts_total", result="scheduled", profile="dra-scheduler") == 1

        await until("the attempt is counted", counted)
        registry = site.operator.registry
        leader = Leader(Connection("https://localhost", None, lambda: None), "lease")
        registry.register(LeaderGauge(leader, "dra-scheduler"))
        assert set(served(registry)) == documented()
        for metric in registry.collect():
            declared = {family.name: family.labels for family in documented()}
            for sample in metric.samples:
                name = re.sub("_(bucket|sum|count|created)$", "", sample.name)
                labels = declared.get(name, declared.get(f"{name}_total"))
                assert labels is not None, sample.name
                assert set(sample.labels) - {"le"} == set(labels)
        assert site.metric("rest_client_requests_total", code="201", method="POST") >= 2
        assert site.metric("rest_client_request_duration_seconds_count", verb="POST") >= 2
        assert site.metric("dra_operator_devices_in_use", driver="gpu.example.com") == 1


def test_a_family_with_labels_of_another_page_would_be_noticed() -> None:
    registry = CollectorRegistry()
    Counter("extra", "An undocumented one", ["pod"], registry=registry)
    assert set(served(registry)) == {Family("extra_total", "counter", frozenset({"pod"}))}


def test_only_the_largest_drivers_have_figures_of_their_own() -> None:
    few = Tally({"a": 3, "b": 1})
    assert largest(few) == {"a": 3, "b": 1}
    many = Tally({f"driver-{number}": number + 1 for number in range(NAMED_DRIVERS + 2)})
    found = largest(many)
    assert len(found) == NAMED_DRIVERS + 1
    assert found[OTHERS] == 1 + 2
    used = Tally({"driver-0": 1, f"driver-{NAMED_DRIVERS}": 5})
    assert largest(used, many)[OTHERS] == 1
    assert largest(used, many)[f"driver-{NAMED_DRIVERS}"] == 5
