"""Metrics of the process; reconcilers have their own."""

from __future__ import annotations

from collections.abc import Iterator

from dra_kube import Resource
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .streams import Streams


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

    def kopf_restarted(self, *, failed: bool) -> None:
        """Kopf is started again."""
        self._restarts.labels("failure" if failed else "renewal").inc()

    def malformed(self, resource: Resource) -> None:
        """A version of an object could not be read."""
        self._malformed.labels(str(resource)).inc()


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
