"""All reconcilers with what they share, as one thing to start and stop.

``put`` and ``remove`` are the only ways in: they take a change into the view and put the keys it concerns on the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import AllocationResult, DeviceTaintRule, ResourceClaim, ResourcePoolStatusRequest
from dra_api.times import format_time
from dra_kube import Object as JsonObject
from prometheus_client import CollectorRegistry

from dra_operator.allocator import Allocator
from dra_operator.cluster import NOTHING, Cluster, Concern, Key, Keys, evictions, violations
from dra_operator.kube import (
    ClaimWriter,
    Client,
    EventRecorder,
    PodWriter,
    PoolRequestWriter,
    RuleWriter,
    VolumeWriter,
)
from dra_operator.placement import stand_in_key

from .backoff import Backoff
from .commit import Writing
from .concerns import Concerns
from .confirmation import Confirmations
from .dispatcher import Decided, Dispatcher, Postponed, Result
from .evict import PodEvictor
from .failures import Failures
from .gauges import DeviceGauges, QueueGauges, WaitingGauges
from .generate import ClaimGenerator
from .growing_pauses import GrowingPauses
from .hold import ClaimHold
from .lingering import Lingering
from .metrics import ClaimCollector, ClaimMetrics, EvictionMetrics, PlacementMetrics, PoolRequestMetrics
from .pace import Pace
from .place import PodPlacer
from .placing import Placing
from .pool_status import PoolReporter
from .queue import Rank, WorkQueue
from .queues import WorkQueues
from .recording import Recording
from .release import ClaimReleaser
from .right_of_way import RightOfWay
from .taint_rules import RuleReporter
from .violation_log import ViolationLog
from .workers import Handler, Workers

COMPONENT = "dra-operator"


def utc_now() -> datetime:
    """The current time."""
    return datetime.now(UTC)


def _stamp(now: Callable[[], datetime]) -> str:
    """The current time as the API writes it."""
    return format_time(now())


def _keys_of(obj: Object) -> Keys:
    """What is asked about the object by its own name, an immediate claim's stand-in included."""
    match obj:
        case Pod():
            return (Key("pod", obj.key), Key("place", obj.key), Key("evict", obj.key))
        case ResourceClaim():
            return (Key("claim", obj.key), Key("place", stand_in_key(obj)))
        case DeviceTaintRule():
            return (Key("rule", obj.key),)
        case ResourcePoolStatusRequest():
            return (Key("pools", obj.key),)
    return NOTHING


def _queues(pace: Pace, clock: Callable[[], float], rank: Callable[[Key], Rank]) -> WorkQueues:
    """One for each concern; pods to be placed have an order."""
    placing = WorkQueue(Backoff(clock, pace.placement_retries), rank=rank, firm=True)
    others: tuple[Concern, ...] = ("pod", "claim", "evict", "rule", "pools")
    return WorkQueues({"place": placing, **{name: WorkQueue(Backoff(clock, pace.retries)) for name in others}})


def _register_gauges(registry: CollectorRegistry, cluster: Cluster, queues: WorkQueues) -> None:
    registry.register(ClaimCollector(cluster.claims))
    registry.register(QueueGauges(queues))
    registry.register(WaitingGauges(cluster))
    registry.register(DeviceGauges(cluster))


class Control:
    """The reconcilers of one cluster. To be made inside a running event loop.

    ``check_invariants`` is asked after every handled key whether to verify the view, and to log what is wrong.
    ``sees_others`` says whether the watches of pods and claims are open, as far as is known.
    """

    deciding = ""
    """The pod that is being placed, in words."""

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        allocator: Allocator,
        *,
        registry: CollectorRegistry | None = None,
        pace: Pace = Pace(),  # noqa: B008 - frozen
        check_invariants: Callable[[], bool] = lambda: False,
        now: Callable[[], datetime] = utc_now,
        concerns: Concerns | None = None,
        legacy_claim_names: bool = False,
        sees_others: Callable[[], bool] = lambda: True,
    ) -> None:
        self.cluster = cluster
        self.concerns = concerns or Concerns()
        clock = asyncio.get_running_loop().time
        self.queues = _queues(pace, clock, self._rank)
        self._checks_now = check_invariants
        registry = registry or CollectorRegistry()
        self._violations = ViolationLog(registry)
        _register_gauges(registry, cluster, self.queues)
        stamp = partial(_stamp, now)
        self.events = EventRecorder(client, COMPONENT, clock=clock, now=stamp)
        allocated_at = stamp if cluster.features.binding_conditions else lambda: None
        self._claims = claims = ClaimWriter(client, self._take_in, self._gone, allocated_at)
        self._pods = pods = PodWriter(client, self._take_in, self._gone, stamp)
        hold = ClaimHold(claims, self.events, self.queues.add)
        lingering = Lingering(self.queues.of("claim"), clock)
        recording = Recording(lambda pod: lingering.is_ample and cluster.waits_for_us(pod), self._plan)
        made = ClaimMetrics(registry)
        pauses, legacy = GrowingPauses(clock, pace.placement_retries, self.queues.add_after), legacy_claim_names
        self.generator = ClaimGenerator(
            cluster, claims, pods, self.events, made, self.concerns, recording, pauses, legacy_names=legacy
        )
        self.releaser = ClaimReleaser(cluster, claims, pods, hold, lingering, self.concerns)
        self._grace = pace.grace
        self._sees_others = sees_others
        self._confirmations = Confirmations(self._is_contested, cluster.holdings.holds, clock, pace.grace)
        volumes, counted = VolumeWriter(client, self._take_in), PlacementMetrics(registry, cluster.scheduler_name)
        writing = Writing(claims, pods, counted, self._confirmations, volumes, recording)
        first, place = RightOfWay(cluster, clock, pace.grace), self.queues.of("place")
        means = Placing(cluster, writing, self.events, place, self.queues.add, now, pace, first, lingering, pauses)
        self.placer = PodPlacer(means, allocator, self.concerns)
        handlers: Mapping[Concern, Handler] = {
            "pod": self.generator.handle,
            "claim": self.releaser.handle,
            **self._without_claims(client, pods, registry, now),
        }
        self._crews = self._hire(pace, Failures(registry), handlers, writing.metrics.attempted)

    def _without_claims(
        self, client: Client, pods: PodWriter, registry: CollectorRegistry, now: Callable[[], datetime]
    ) -> Mapping[Concern, Handler]:
        """The reconcilers that write no claims: of tainted devices, and of questions about pools."""
        cluster, queue = self.cluster, self.queues.of
        rules = RuleReporter(cluster, RuleWriter(client, self._take_in), queue("rule"), self.concerns, now)
        counts = EvictionMetrics(registry)
        evictor = PodEvictor(cluster, pods, self.events, queue("evict"), rules, counts, self.concerns, now)
        requests, answers = PoolRequestWriter(client, self._take_in), PoolRequestMetrics(registry)
        pools = PoolReporter(cluster, requests, queue("pools"), answers, now)
        return {"rule": rules.handle, "evict": evictor.handle, "pools": pools.handle}

    def _hire(
        self,
        pace: Pace,
        failures: Failures,
        handlers: Mapping[Concern, Handler],
        attempted: Callable[[Result, float], None],
    ) -> tuple[Workers | Dispatcher, ...]:
        queue, after = self.queues.of, self._after
        return (
            *(Workers(queue(name), handle, pace.workers[name], failures, after) for name, handle in handlers.items()),
            Dispatcher(queue("place"), self._decide, pace.workers["place"], failures, after, pace.turns, attempted),
        )

    async def _decide(self, key: str) -> Decided | Postponed:
        self.deciding = f"pod {key}"
        try:
            return await self.placer.decide(key)
        finally:
            self.deciding = ""

    def look_at_everything(self) -> None:
        """Have all pods, claims and evictions looked at: some of them became ours."""
        self.queues.add(evictions.everything(self.cluster))
        self.queues.add(Key("pod", pod.key) for pod in self.cluster.pods)
        self.queues.add(Key("claim", claim.key) for claim in self.cluster.claims)

    def put(self, obj: Object, raw: JsonObject | None = None) -> None:
        """The watch, or a list, has brought an object; ``raw`` is what the server sent, if that is at hand."""
        self.shown(obj)
        if raw is not None and isinstance(obj, Pod):
            self._pods.came(obj, raw)
        elif raw is not None and isinstance(obj, ResourceClaim):
            self._claims.came(obj, raw)
        self._take_in(obj)

    def shown(self, obj: Object) -> None:
        """The watch, or a list, has brought this version, which the view may have already."""
        if isinstance(obj, ResourceClaim) and self._confirmations.seen(obj):
            self._look_at_users([obj.key], after=self._grace)

    def awaits(self, obj: Object) -> bool:
        """Whether something depends on the moment at which the watch shows this version, which is known already."""
        return isinstance(obj, ResourceClaim) and self._confirmations.is_unseen(obj)

    @property
    def wants_list(self) -> asyncio.Event:
        """Set when pods have to wait until the view has all claims as of now (``listed``)."""
        return self._confirmations.asked

    def listed(self, as_of: float) -> None:
        """The view has all claims as they were on the server at this time of the loop, or later."""
        self._look_at_users(self._confirmations.listed(as_of), after=0.0)

    def _plan(self, pod: Pod) -> None:
        """Have the pod planned now."""
        self.queues.add((Key("place", pod.key),))

    def _is_contested(self, allocation: AllocationResult) -> bool:
        """Whether another scheduler may have taken the same device: it has pods with claims to some, or may have."""
        return not self._sees_others() or self.cluster.is_contested(allocation)

    def _look_at_users(self, claims: Iterable[str], *, after: float) -> None:
        """Have the waiting pods of these claims looked at, after so many seconds."""
        for claim in claims:
            for pod in self.cluster.pods_by_claim.keys(claim):
                if pod in self.cluster.waiting:
                    self.queues.of("place").add_after(Key("place", pod), after)

    def remove(self, kind: type[Object], key: str, uid: str | None = None) -> None:
        """An object is gone."""
        if uid and kind is ResourceClaim:
            self._confirmations.gone(uid)
        before = self.cluster.store_of(kind).get(key)
        self.queues.add(self.cluster.remove(kind, key, uid))
        self._forget_failures(before)

    def _take_in(self, obj: Object) -> None:
        """An object is there, as the watch brought it or as the server answered one of our requests."""
        before = self.cluster.store_of(type(obj)).get(obj.key)
        self.queues.add(self.cluster.put(obj))
        self._forget_failures(before)

    def _forget_failures(self, obj: Object | None) -> None:
        """If the object is gone by now, a successor of its name does not wait for its back-off."""
        if obj is None or self.cluster.store_of(type(obj)).get(obj.key, obj.metadata.uid) is not None:
            return
        for key in _keys_of(obj):
            self.queues.of(key.concern).forget(key)

    def hold(self, uid: str, allocation: AllocationResult | None) -> None:
        """Count devices for a claim that cannot be read; None gives them back."""
        self.cluster.holdings.stored(uid, allocation)
        if allocation is None:
            self.look_again()

    def _gone(self, obj: Object) -> None:
        self.remove(type(obj), obj.key, obj.metadata.uid)

    def _rank(self, key: Key) -> Rank:
        """The order in which pods are placed: the highest priority first, then the oldest."""
        pod = self.cluster.applicant(key.object)
        if pod is None:
            return (0, "")
        return (-(pod.spec.priority or 0), pod.metadata.creation_timestamp or "")

    def load(self, objects: Iterable[Object]) -> None:
        """Take in what was listed at start. Nothing is decided before ``run`` (CC-01)."""
        for obj in objects:
            self.put(obj)

    def look_again(self) -> None:
        """Have every waiting pod tried again: a safety net under the triggers."""
        self.queues.add(Key("place", pod) for pod in self.cluster.waiting)

    async def started(self) -> None:
        """Wait until ``run`` has all its tasks: Kopf ends every task that is younger than itself when it ends."""
        for crew in self._crews:
            await crew.started.wait()

    async def run(self) -> None:
        """Work until cancelled; then write the last events and stop."""
        try:
            async with asyncio.TaskGroup() as group:
                events = group.create_task(self.events.run(), name="events")
                try:
                    async with asyncio.TaskGroup() as crews:
                        for crew in self._crews:
                            crews.create_task(crew.run(), name=type(crew).__name__)
                finally:
                    await self.events.flush(1.0)
                    events.cancel()
        finally:
            self.queues.close()

    def _after(self) -> None:
        if self._checks_now():
            self._violations.report(violations(self.cluster))
