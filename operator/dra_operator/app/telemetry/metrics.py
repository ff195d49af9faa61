"""Metrics of the process; controllers have their own."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version

from dra_api.version import VERSION
from dra_kube import Resource
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dra_operator.app.leader import Leader
from dra_operator.sources.watches import Watches


class AppMetrics:
    """Failures of watches, malformed objects, and how long each kind's stream has been silent."""

    def __init__(self, registry: CollectorRegistry, watches: Watches) -> None:
        self._failures = Counter(
            "dra_operator_watch_failures",
            "Lists and watches of a kind that failed; each is tried again",
            ["resource"],
            registry=registry,
        )
        self._malformed = Counter(
            "dra_operator_malformed_objects",
            "Versions of objects that could not be read and were left out",
            ["resource"],
            registry=registry,
        )
        registry.register(_StreamAges(watches))
        build = Gauge(
            "dra_operator_build_info", "1; the labels say what runs", ["version", "python", "kopf"], registry=registry
        )
        build.labels(VERSION, platform.python_version(), version("kopf")).set(1)
        ProcessCollector(registry=registry)

    def watch_failed(self, resource: Resource) -> None:
        """Count a list or watch of the kind that failed."""
        self._failures.labels(str(resource)).inc()

    def malformed(self, resource: Resource) -> None:
        """A version of an object could not be read."""
        self._malformed.labels(str(resource)).inc()


class LeaderGauge(Collector):
    """Whether this process leads."""

    def __init__(self, leader: Leader, name: str) -> None:
        self._leader, self._name = leader, name

    def collect(self) -> Iterator[Metric]:
        """One sample, for the Lease."""
        gauge = GaugeMetricFamily("leader_election_master_status", "1 while this process leads", labels=["name"])
        gauge.add_metric([self._name], int(self._leader.leads))
        yield gauge


class _StreamAges(Collector):
    def __init__(self, watches: Watches) -> None:
        self._watches = watches

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily(
            "dra_operator_stream_age_seconds",
            "Time since the last sign of life of a kind's watch: an event, a bookmark, a new connection",
            labels=["resource"],
        )
        for resource, age in self._watches.ages():
            gauge.add_metric([resource], age)
        yield gauge
