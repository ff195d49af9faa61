"""Figures that are counted at each scrape, so that they cost nothing in between.

The labels are bounded: controllers and reasons are words of ours, and of the drivers only the largest are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from dra_api.core import Pod
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dra_operator.cache import Cluster, Source, newest_slices

from .queues import WorkQueues

NAMED_DRIVERS: Final = 50
"""So many drivers have figures of their own; the others are summed up as ``OTHERS``."""
OTHERS: Final = "(others)"

_QUEUES: Final = {
    "queued": "active",
    "another-write": "active",
    "being-bound": "active",
    "error": "backoff",
    "gated": "gated",
}


class QueueGauges(Collector):
    """How much work waits, and for how long, by controller; under the names that Kubernetes' own work queues have."""

    def __init__(self, queues: WorkQueues) -> None:
        self._queues = queues

    def collect(self) -> Iterator[Metric]:
        """A sample per controller."""
        depth = GaugeMetricFamily("workqueue_depth", "Keys that could be worked on now", labels=["name"])
        oldest = GaugeMetricFamily(
            "dra_operator_queue_oldest_seconds",
            "Seconds for which the oldest of these keys has waited",
            labels=["name"],
        )
        adds = CounterMetricFamily("workqueue_adds", "How often a key became ready to be worked on", labels=["name"])
        retries = CounterMetricFamily("workqueue_retries", "How often the work on a key failed", labels=["name"])
        for controller, queue in self._queues.all().items():
            name = [controller]
            depth.add_metric(name, queue.depth)
            oldest.add_metric(name, queue.age)
            adds.add_metric(name, queue.adds)
            retries.add_metric(name, queue.retries)
        yield from (depth, oldest, adds, retries)


class CacheChanges(Collector):
    """Which sources bring news: a source that never does is not worth what it costs.

    Every object that comes is counted, so a plain number is: one of ``prometheus_client.Counter`` takes a lock, and as
    long as the rest of taking an object in.
    """

    def __init__(self) -> None:
        self.by_source = dict.fromkeys(Source, 0)

    def collect(self) -> Iterator[Metric]:
        """A sample per source."""
        changes = CounterMetricFamily(
            "dra_operator_cache_changes",
            "Objects and deletions that were news to the cache, by what brought them first",
            labels=["source"],
        )
        for source, number in self.by_source.items():
            changes.add_metric([source.value], number)
        yield changes


class WaitingGauges(Collector):
    """The pods of our scheduler name without a node, and those at our gate."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        """By what they wait for, and by the queue in which kube-scheduler would have them."""
        reasons = Counter(wake_on.reason for wake_on in self._cluster.waiting.values())
        reasons["gated"] = sum(map(self._is_gated, self._cluster.pods))
        waiting = GaugeMetricFamily("dra_operator_waiting_pods", "Pods without a node, by reason", labels=["reason"])
        for reason, pods in sorted(reasons.items()):
            waiting.add_metric([reason], pods)
        yield waiting
        queues = Counter(dict.fromkeys(("active", "backoff", "unschedulable", "gated"), 0))
        for reason, pods in reasons.items():
            queues[_QUEUES.get(reason, "unschedulable")] += pods
        pending = GaugeMetricFamily("scheduler_pending_pods", "Pods without a node, by queue", labels=["queue"])
        for queue, pods in queues.items():
            pending.add_metric([queue], pods)
        yield pending

    def _is_gated(self, pod: Pod) -> bool:
        """Whether nothing is done for the pod yet; one that waits at our own gate is worked on."""
        spec = pod.spec
        ours = spec.scheduler_name == self._cluster.scheduler_name and not spec.node_name
        return bool(ours and spec.scheduling_gates) and pod.key not in self._cluster.waiting


class DeviceGauges(Collector):
    """Published devices and those in use."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        """By driver."""
        published, used = Counter[str](), Counter[str]()
        usage = self._cluster.allocated_devices.usage
        for pool, slices in newest_slices(self._cluster.slices).items():
            published[pool.driver] += sum(len(slice_.spec.devices or ()) for slice_ in slices)
            used[pool.driver] += len(usage.pool(pool).charged)
        total = GaugeMetricFamily("dra_operator_devices", "Published devices", labels=["driver"])
        in_use = GaugeMetricFamily("dra_operator_devices_in_use", "Devices that claims hold", labels=["driver"])
        for driver, devices in largest(published).items():
            total.add_metric([driver], devices)
        for driver, devices in largest(used, published).items():
            in_use.add_metric([driver], devices)
        yield from (total, in_use)


def largest(counts: Counter[str], ranks: Counter[str] | None = None) -> dict[str, int]:
    """The counts of the drivers that are largest by ``ranks``, and the sum of the rest."""
    named = [name for name, _ in (ranks or counts).most_common(NAMED_DRIVERS)]
    found = {name: counts[name] for name in named}
    rest = counts.total() - sum(found.values())
    return {**found, OTHERS: rest} if len(ranks or counts) > NAMED_DRIVERS else found
