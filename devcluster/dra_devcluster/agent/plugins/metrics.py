"""The metrics of a node, under the names that a kubelet has for them (kubelet-manager.md section 11, KM-05)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import grpc
from dra_api.validation.published import PREPARE, UNPREPARE
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dra_devcluster.agent.plugins.watcher import PluginSockets

_SHORTEST_SECONDS, _LONGEST_SECONDS, _BUCKET_COUNT = 0.1, 40.0, 15
BUCKETS = tuple(
    _SHORTEST_SECONDS * (_LONGEST_SECONDS / _SHORTEST_SECONDS) ** (index / (_BUCKET_COUNT - 1))
    for index in range(_BUCKET_COUNT)
)


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

        self._skips = {
            operation: Counter(
                f"dra_node_{word}_skips_total",
                f"Claims that a driver did not have to {word}.",
                ["driver_name"],
                registry=self.registry,
            )
            for operation, word in ((PREPARE, "prepare"), (UNPREPARE, "unprepare"))
        }

    def skipped(self, operation: str, driver: str) -> None:
        """A driver does without this call for one claim."""
        self._skips[operation].labels(driver).inc()

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
