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
from dra_operator.sources.streams import Streams


class AppMetrics:
    """Kopf's restarts, malformed objects, and how long each kind's stream has been silent."""

    def __init__(self, registry: CollectorRegistry, streams: Streams) -> None:
        self._restarts = Counter(
            "dra_operator_kopf_restarts",
            "Starts of Kopf after the first one: after a failure, or to watch more kinds",
            ["reason"],
            registry=registry,
        )
        for reason in ("failure", "renewal"):
            self._restarts.labels(reason)
        self._malformed = Counter(
            "dra_operator_malformed_objects",
            "Versions of objects that could not be read and were left out",
            ["resource"],
            registry=registry,
        )
        registry.register(_StreamAges(streams))
        build = Gauge(
            "dra_operator_build_info", "1; the labels say what runs", ["version", "python", "kopf"], registry=registry
        )
        build.labels(VERSION, platform.python_version(), version("kopf")).set(1)
        ProcessCollector(registry=registry)

    def kopf_restarted(self, *, failed: bool) -> None:
        """Kopf is started again."""
        self._restarts.labels("failure" if failed else "renewal").inc()

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
    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily(
            "dra_operator_stream_age_seconds",
            "Time since the last sign of life of a kind's watch: an event, a bookmark, a new connection",
            labels=["resource"],
        )
        for resource, age in self._streams.ages():
            gauge.add_metric([resource], age)
        yield gauge
