"""Counters of the controllers, gauges computed at each scrape, and warnings of a wrong cache.

The metrics are those of claim-controller.md 9 and scheduling.md 2. Gauges are computed when they are scraped, so that
they cost nothing in between. The labels are bounded: controllers and reasons are words of ours, and of the drivers only
the largest are named. 1.37 renamed three metrics. They have both names here, so that dashboards outlive the upgrade;
the old ones are to go with the next minor version (K37-MET-01 to -04).

``ViolationLog`` logs and counts each violated invariant once, and again only after it was gone. The news of two objects
may come in either order: a device that one claim has given back and another one got has two holders for a moment. So a
violation is reported when it has lasted.
"""

from __future__ import annotations

import logging
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from dra_api.core import Pod
from dra_api.references import group_name, is_for_extended_resources
from dra_api.resource import POD_CLAIM_NAME_ANNOTATION, ResourceClaim
from dra_api.scheduling import GROUP as SCHEDULING_GROUP
from dra_api.scheduling import PodGroup
from dra_api.values import parse_time
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dra_operator.cache import WITH_GANG, Cluster, Source, newest_slices
from dra_operator.controllers.queue import WorkQueues
from dra_operator.controllers.settings import ROUNDING_SECONDS
from dra_operator.controllers.workers import AttemptResult
from dra_operator.scheduling.claims import Readiness, age_of_allocation

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
        # Read from the queue at each scrape: a counter of the library would take a lock for each key.
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
    """The pods of our scheduler name without a node, and those at our gate; their gangs, and the age of the oldest."""

    def __init__(self, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._cluster, self._now = cluster, now

    def collect(self) -> Iterator[Metric]:
        """By what they wait for, and by the queue in which kube-scheduler would have them."""
        yield from self._pods()
        yield self._oldest()
        yield self._gangs()

    def _pods(self) -> Iterator[Metric]:
        reasons = Tally(wake_on.reason for wake_on in self._cluster.waiting.values())
        # Gated pods wait for somebody else, so they are not among the waiting ones.
        reasons["gated"] = sum(map(self._is_gated, self._cluster.pods))
        waiting = GaugeMetricFamily("dra_operator_waiting_pods", "Pods without a node, by reason", labels=["reason"])
        for reason, pods in sorted(reasons.items()):
            waiting.add_metric([reason], pods)
        yield waiting
        queues = Tally(dict.fromkeys(("active", "backoff", "unschedulable", "gated"), 0))
        for reason, pods in reasons.items():
            queues[_QUEUES.get(reason, "unschedulable")] += pods
        pending = GaugeMetricFamily("scheduler_pending_pods", "Pods without a node, by queue", labels=["queue"])
        for queue, pods in queues.items():
            pending.add_metric([queue], pods)
        yield pending

    def _oldest(self) -> Metric:
        """The API server writes all times of creation in one form, so the least text is the earliest."""
        created: dict[str, str] = {}
        for key, wake_on in self._cluster.waiting.items():
            pod = self._cluster.pods.get(key)
            text = pod.metadata.creation_timestamp if pod is not None else None
            if text:
                created[wake_on.reason] = min(text, created.get(wake_on.reason, text))
        oldest = GaugeMetricFamily(
            "dra_operator_oldest_waiting_pod_seconds", "Age of the oldest pod without a node", labels=["reason"]
        )
        for reason, text in sorted(created.items()):
            if (time := parse_time(text)) is not None:
                oldest.add_metric([reason], max(0.0, (self._now() - time).total_seconds()))
        return oldest

    def _gangs(self) -> Metric:
        """A gang counts once: by the reason of the pod that speaks for it, if others wait with that one."""
        speakers: dict[str, tuple[str, str]] = {}
        for key, wake_on in self._cluster.waiting.items():
            # By the index: a scrape that reads what each of 100,000 pods wishes holds up the event loop for long.
            for gang in self._cluster.pods_by_gang.values_of(key):
                if gang not in speakers or speakers[gang][0] == WITH_GANG.reason:
                    speakers[gang] = wake_on.reason, key
        reasons = Tally(reason for reason, key in speakers.values() if self._is_in_gang(key))
        waiting = GaugeMetricFamily(
            "dra_operator_waiting_gangs", "Gangs with pods without a node, by reason", labels=["reason"]
        )
        for reason, gangs in sorted(reasons.items()):
            waiting.add_metric([reason], gangs)
        return waiting

    def _is_in_gang(self, key: str) -> bool:
        """Return whether the pod is in a gang. The index also has pods of a PodGroup that asks for none."""
        pod = self._cluster.pods.get(key)
        return pod is not None and (group_name(pod) is None or self._cluster.gang_key_of(pod) is not None)

    def _is_gated(self, pod: Pod) -> bool:
        """Return whether nothing is done for the pod yet; one that waits at our own gate is worked on."""
        spec = pod.spec
        ours = spec.scheduler_name == self._cluster.scheduler_name and not spec.node_name
        return bool(ours and spec.scheduling_gates) and pod.key not in self._cluster.waiting


class DeviceGauges(Collector):
    """Published devices, those in use, and free devices beside them: how scattered free devices are."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        published, used, beside = Tally[str](), Tally[str](), Tally[str]()
        usage = self._cluster.allocated_devices.usage
        for pool, slices in newest_slices(self._cluster.slices).items():
            devices = sum(len(slice_.spec.devices or ()) for slice_ in slices)
            in_use = len(usage.pool(pool).charged)
            # Counted from the slices, not the inventory: an unusable pool has devices all the same.
            published[pool.driver] += devices
            used[pool.driver] += in_use
            beside[pool.driver] += max(0, devices - in_use) if in_use else 0
        for name, help_, counts in (
            ("dra_operator_devices", "Published devices", published),
            ("dra_operator_devices_in_use", "Devices that claims hold", used),
            ("dra_operator_devices_beside_used", "Free devices of pools with devices in use", beside),
        ):
            gauge = GaugeMetricFamily(name, help_, labels=["driver"])
            for driver, devices in largest(counts, published).items():
                gauge.add_metric([driver], devices)
            yield gauge


def largest(counts: Tally[str], ranks: Tally[str] | None = None) -> dict[str, int]:
    """Return the counts of the drivers that are largest by ``ranks``, and the sum of the rest."""
    # Drivers are names that anybody may publish: an unlimited label would fill the memory of whoever scrapes.
    named = [name for name, _ in (ranks or counts).most_common(NAMED_DRIVERS)]
    found = {name: counts[name] for name in named}
    rest = counts.total() - sum(found.values())
    return {**found, OTHERS: rest} if len(ranks or counts) > NAMED_DRIVERS else found


class ClaimMetrics:
    """Counters of claims that were made, or could not be; ``registry`` is where they are scraped."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._creates = Counter(
            "dynamic_resource_allocation_resourceclaim_creates",
            "ResourceClaims created for pods and PodGroups",
            ["status", "admin_access", "owner_api_group", "owner_api_kind"],
            registry=registry,
        )
        self._creates_from_templates = Counter(
            "resourceclaim_controller_creates",
            "ResourceClaims created from templates",
            ["status", "admin_access"],
            registry=registry,
        )

    def created(self, owner: type[Pod | PodGroup], *, success: bool, admin_access: bool) -> None:
        """Count a claim for an owner of this kind, from a template or for extended resources (K37-MET-03)."""
        group = "" if owner is Pod else SCHEDULING_GROUP
        self._creates.labels(_outcome(success), _text(admin_access), group, owner.__name__).inc()

    def created_from_template(self, owner: type[Pod | PodGroup], *, success: bool, admin_access: bool) -> None:
        """Count a claim that was made from a template for an owner of this kind, or could not be."""
        self.created(owner, success=success, admin_access=admin_access)
        self._creates_from_templates.labels(_outcome(success), _text(admin_access)).inc()


class PlacementMetrics:
    """What placing pods counts (scheduling.md section 2), beside what is counted of claims.

    ``profile`` is our scheduler name.
    """

    def __init__(self, claims: ClaimMetrics, profile: str) -> None:
        self._claims, registry = claims, claims.registry
        attempts = Counter(
            "scheduler_schedule_attempts", "Attempts to place a pod", ["result", "profile"], registry=registry
        )
        seconds = Histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Seconds of an attempt to place a pod, from the first look to the last write",
            ["result", "profile"],
            buckets=[0.001 * 2**power for power in range(15)],
            registry=registry,
        )
        # Looked up once: finding a labelled counter costs more than counting.
        self._attempts = {result: attempts.labels(result, profile) for result in AttemptResult}
        self._seconds = {result: seconds.labels(result, profile) for result in AttemptResult}
        labels = ["profile", "driver", "status"]
        self._profile, self._drivers = profile, set[str]()
        self._waits = Counter(
            "scheduler_dra_bindingconditions_allocations",
            "Allocated devices with binding conditions, by what became of them",
            labels,
            registry=registry,
        )
        # kube-scheduler has both; here they are the same wait.
        self._wait_seconds = [
            Histogram(
                f"scheduler_dra_bindingconditions_{name}_duration_seconds",
                "Seconds from the allocation of a device until its binding conditions were decided",
                labels,
                buckets=[0.1 * 2**power for power in range(14)],
                registry=registry,
            )
            for name in ("prebind", "wait")
        ]
        self._creates = Counter(
            "scheduler_resourceclaim_creates",
            "ResourceClaims created for the extended resources of pods",
            ["status"],
            registry=registry,
        )

        self._gave_way = Counter(
            "dra_operator_allocations_given_up",
            "Allocations released because another scheduler had given the same device to another claim",
            registry=registry,
        )

    def attempted(self, result: AttemptResult, seconds: float) -> None:
        self._attempts[result].inc()
        self._seconds[result].observe(seconds)

    def awaited(self, claim: ResourceClaim, state: Readiness, now: datetime) -> None:
        """Note that the wait for a claim's devices is over; those without binding conditions do not count."""
        for result in claim.results:
            if result.binding_conditions:
                labels = (self._profile, self._name(result.driver), _STATUS[state])
                self._waits.labels(*labels).inc()
                for seconds in self._wait_seconds:
                    seconds.labels(*labels).observe(age_of_allocation(claim, now))

    def _name(self, driver: str) -> str:
        # The first ones keep their names, since a counter cannot change its label.
        if len(self._drivers) < NAMED_DRIVERS:
            self._drivers.add(driver)
        return driver if driver in self._drivers else OTHERS

    def gave_way(self) -> None:
        """An allocation was taken back because another claim holds the same device."""
        self._gave_way.inc()

    def created(self, *, success: bool) -> None:
        """Note that a claim for extended resources was made, or could not be."""
        self._claims.created(Pod, success=success, admin_access=False)
        self._creates.labels(_outcome(success)).inc()


class EvictionMetrics:
    """Pods deleted because of tainted devices (scheduling.md 10.1)."""

    BUCKETS = (0.005, 0.025, 0.1, 0.5, 1, 2.5, 10, 30, 60, 120, 180, 240)

    def __init__(self, registry: CollectorRegistry) -> None:
        self._deletions = Counter(
            "device_taint_eviction_controller_pod_deletions",
            "Pods deleted because of tainted devices",
            registry=registry,
        )
        self._seconds = Histogram(
            "device_taint_eviction_controller_pod_deletion_duration_seconds",
            "Seconds from the time at which a pod was due for eviction to its deletion",
            buckets=self.BUCKETS,
            registry=registry,
        )

    def evicted(self, seconds: float) -> None:
        """Note that a pod was deleted, so long after it was due."""
        self._deletions.inc()
        self._seconds.observe(seconds)


class PreemptionMetrics:
    """Attempts at preemption, and their victims, under the names of kube-scheduler."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._attempts = Counter(
            "scheduler_preemption_attempts", "Attempts to find victims for a pending pod", registry=registry
        )
        self._victims = Histogram(
            "scheduler_preemption_victims",
            "Pods preempted, by attempt",
            buckets=[2**power for power in range(7)],
            registry=registry,
        )

    def attempted(self) -> None:
        self._attempts.inc()

    def ended(self, victims: int) -> None:
        """Count the victims of a pod."""
        self._victims.observe(victims)


class PoolRequestMetrics:
    """What answering ResourcePoolStatusRequests counts (claim-controller.md 12)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        prefix, labels = "resourcepoolstatusrequest_controller", ["driver"]
        self._processed = Counter(
            f"{prefix}_requests_processed", "ResourcePoolStatusRequests answered", labels, registry=registry
        )
        self._errors = Counter(
            f"{prefix}_request_processing_errors", "Answers that could not be written", labels, registry=registry
        )
        self._seconds = Histogram(
            f"{prefix}_request_processing_duration_seconds",
            "Seconds from the calculation of an answer to its write",
            labels,
            buckets=[0.001 * 2**power for power in range(15)],
            registry=registry,
        )

    @contextmanager
    def processing(self, driver: str) -> Iterator[None]:
        """Around the writing of one answer."""
        try:
            with self._seconds.labels(driver).time():
                yield
        except Exception:
            self._errors.labels(driver).inc()
            raise
        self._processed.labels(driver).inc()


_STATUS = {Readiness.READY: "success", Readiness.FAILED: "failure", Readiness.TIMED_OUT: "timeout"}


class ClaimCollector(Collector):
    """The claims in the cache by kind, counted at each scrape."""

    def __init__(self, claims: Iterable[ResourceClaim]) -> None:
        self._claims = claims

    def collect(self) -> Iterator[Metric]:
        """A gauge under both names, with a sample per combination of labels that occurs."""
        tally = Tally(
            (_text(claim.status.allocation is not None), _text(_wants_admin(claim)), _source(claim))
            for claim in self._claims
        )
        for prefix in ("dynamic_resource_allocation", "resourceclaim_controller"):
            gauge = GaugeMetricFamily(
                f"{prefix}_resource_claims",
                "ResourceClaims in the cluster",
                labels=["allocated", "admin_access", "source"],
            )
            for labels, count in sorted(tally.items()):
                gauge.add_metric(labels, count)
            yield gauge


def _wants_admin(claim: ResourceClaim) -> bool:
    requests = claim.spec.devices.requests or ()
    return any(request.exactly is not None and bool(request.exactly.admin_access) for request in requests)


def _source(claim: ResourceClaim) -> str:
    if is_for_extended_resources(claim):
        return "extended_resource"
    return "resource_claim_template" if POD_CLAIM_NAME_ANNOTATION in (claim.metadata.annotations or {}) else ""


def _outcome(success: bool) -> str:
    return "success" if success else "failure"


def _text(value: bool) -> str:
    return "true" if value else "false"


logger = logging.getLogger(__name__)

LASTING_SECONDS: Final = 1.0


class ViolationLog:
    """``report`` is given all violations that hold at the moment; ``clock`` gives seconds."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._told: set[str] = set()
        self._count = Counter(
            "dra_operator_invariant_violations", "Violations of invariants that lasted", registry=registry
        )

    def report(self, violations: Iterable[str]) -> float | None:
        """Log and count those that have lasted. The seconds after which to look again; None if none is younger."""
        now = self._clock()
        self._since = {violation: self._since.get(violation, now) for violation in violations}
        # What was gone and comes again is news.
        self._told &= self._since.keys()
        for violation in [one for one in self._since if one not in self._told]:
            if now - self._since[violation] >= LASTING_SECONDS:
                logger.error("invariant violated: %s", violation)
                self._count.inc()
                self._told.add(violation)
        young = [since for one, since in self._since.items() if one not in self._told]
        return min(young) + LASTING_SECONDS - now + ROUNDING_SECONDS if young else None


class AdmissionMetrics:
    """Counters of the decisions about Workloads, each with a state of its check, and gauges of the last round."""

    def __init__(self, registry: CollectorRegistry, states: Iterable[str]) -> None:
        self._decisions = Counter(
            "dra_operator_admission_decisions", "Decisions about Workloads of Kueue", ["state"], registry=registry
        )
        self.requeued = Counter(
            "dra_operator_admission_requeues", "Back-offs of Workloads that freed devices ended", registry=registry
        )
        self.broken = Counter(
            "dra_operator_admission_broken_promises",
            "Workloads that were promised a place, lost it and had not started",
            registry=registry,
        )
        self.errors = Counter("dra_operator_admission_errors", "Decisions that could not be written", registry=registry)
        self.promises = Gauge(
            "dra_operator_admission_promises", "Workloads that are ready and have not started", registry=registry
        )
        self.waiting = Gauge(
            "dra_operator_admission_waiting", "Workloads that wait for a decision, or back off", registry=registry
        )
        self.round_seconds = Histogram(
            "dra_operator_admission_round_duration_seconds",
            "Seconds of one look at all Workloads that wait",
            buckets=[0.01 * 2**power for power in range(12)],
            registry=registry,
        )
        for state in states:
            self._decisions.labels(state.lower())

    def decided(self, state: str) -> None:
        """Count a decision that was written."""
        self._decisions.labels(state.lower()).inc()
