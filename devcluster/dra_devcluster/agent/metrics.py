"""The metrics of a node, under the names that a kubelet has for them (kubelet-manager.md section 11, KM-05)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import grpc
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .claims import ClaimInfo
from .discovery import PluginSockets

ANY_DRIVER = "<any>"
_SHORTEST, _LONGEST, _COUNT = 0.1, 40.0, 15
BUCKETS = tuple(_SHORTEST * (_LONGEST / _SHORTEST) ** (index / (_COUNT - 1)) for index in range(_COUNT))


class NodeMetrics:
    """The histograms of one node; ``registry`` holds what is exposed."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._operations = Histogram(
            "dra_operations_duration_seconds",
            "How long the claims of a pod took to be prepared or unprepared.",
            ["operation_name", "is_error"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._calls = Histogram(
            "dra_grpc_operations_duration_seconds",
            "How long the calls of drivers took.",
            ["driver_name", "method_name", "grpc_status_code"],
            buckets=BUCKETS,
            registry=self.registry,
        )

    @contextmanager
    def operation(self, name: str) -> Iterator[None]:
        """Time the claims of one pod; every exception counts as an error."""
        start, failed = time.monotonic(), "true"
        try:
            yield
            failed = "false"
        finally:
            self._operations.labels(name, failed).observe(time.monotonic() - start)

    def called(self, driver: str, method: str, code: grpc.StatusCode, seconds: float) -> None:
        """A call of a driver has ended; ``method`` is its full name."""
        self._calls.labels(driver, method, code_name(code)).observe(seconds)


class ClaimsInUse(Collector):
    """Counts the prepared claims at each scrape, per driver and in all."""

    def __init__(self, claims: Iterable[ClaimInfo]) -> None:
        self._claims = claims

    def collect(self) -> Iterator[Metric]:
        """The counts of this moment."""
        prepared = [claim for claim in self._claims if claim.prepared]
        counts = Counter(driver for claim in prepared for driver in claim.drivers)
        counts[ANY_DRIVER] = len(prepared)
        gauge = GaugeMetricFamily(
            "dra_resource_claims_in_use", "Claims that are prepared on the node.", labels=["driver_name"]
        )
        for driver, count in sorted(counts.items()):
            gauge.add_metric([driver], count)
        yield gauge


class PluginSocketCount(Collector):
    """Shows at each scrape which plugin sockets there are, and which are registered."""

    def __init__(self, sockets: PluginSockets) -> None:
        self._sockets = sockets

    def collect(self) -> Iterator[Metric]:
        """The sockets of this moment."""
        gauge = GaugeMetricFamily(
            "plugin_manager_total_plugins", "Plugin sockets by state.", labels=["socket_path", "state"]
        )
        states: dict[str, Iterable[str]] = {
            "actual_state_of_world": self._sockets.actual,
            "desired_state_of_world": self._sockets.desired,
        }
        for state, paths in states.items():
            for path in sorted(paths):
                gauge.add_metric([path, state], 1)
        yield gauge


def code_name(code: grpc.StatusCode) -> str:
    """A status code as Go writes it: ``OK``, ``Canceled``, ``DeadlineExceeded``."""
    if code is grpc.StatusCode.OK:
        return "OK"
    if code is grpc.StatusCode.CANCELLED:
        return "Canceled"
    return "".join(word.capitalize() for word in code.name.split("_"))
