"""All controllers with what they share, as one thing to start and stop.

``apply`` and ``delete`` are the only ways in for objects, whatever brought them (``cache.source``): they take a change
into the cache, and put the keys that it concerns on the queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import AllocationResult, DeviceTaintRule, ResourceClaim, ResourcePoolStatusRequest
from dra_api.scheduling import PodGroup
from dra_api.values import format_time
from dra_kube import Object as JsonObject
from prometheus_client import CollectorRegistry

from dra_operator.allocator import Allocator, DeviceId
from dra_operator.cache import Cluster, Controller, Key, Source, evictions, violations
from dra_operator.controllers.alarms import LateWork, ViolationLog
from dra_operator.controllers.claims.delayed_deletion import DelayedDeletion
from dra_operator.controllers.claims.generate import ClaimGenerator, ClaimMaker
from dra_operator.controllers.claims.group import GroupClaimGenerator, GroupConditions, GroupReservations
from dra_operator.controllers.claims.names import NamesBeingWritten
from dra_operator.controllers.claims.parked_claims import ParkedClaims
from dra_operator.controllers.claims.release import ClaimHold, ClaimProtection, ClaimReleaser
from dra_operator.controllers.fairness import Rank
from dra_operator.controllers.memory import GrowingPauses
from dra_operator.controllers.metrics import (
    CacheChanges,
    ClaimCollector,
    ClaimMetrics,
    DeviceGauges,
    EvictionMetrics,
    PlacementMetrics,
    PoolRequestMetrics,
    PreemptionMetrics,
    QueueGauges,
    WaitingGauges,
)
from dra_operator.controllers.pools import PoolReporter
from dra_operator.controllers.queue import Backoff, WorkQueue, WorkQueues
from dra_operator.controllers.scheduling.binding import SchedulingContext, Writing
from dra_operator.controllers.scheduling.cycle import SchedulingCycle
from dra_operator.controllers.scheduling.mix import MixMemory
from dra_operator.controllers.scheduling.other_schedulers import ConflictCheck, Deference, DriverMemory
from dra_operator.controllers.scheduling.preemption import Preemption
from dra_operator.controllers.scheduling.report import shows_reason
from dra_operator.controllers.scheduling.victims import VictimEvictor
from dra_operator.controllers.settings import OwnControllers, PreemptionSettings, TimeSettings
from dra_operator.controllers.taints import PodEvictor, RuleReporter
from dra_operator.controllers.workers import (
    Decided,
    Dispatcher,
    Failures,
    Handler,
    Postponed,
    Result,
    Workers,
)
from dra_operator.kube import (
    ClaimWriter,
    Client,
    EventRecorder,
    PodGroupWriter,
    PodWriter,
    PoolRequestWriter,
    RuleWriter,
    VolumeWriter,
)
from dra_operator.scheduling import Placement
from dra_operator.scheduling.state import is_parked, placeholder_key

COMPONENT = "dra-operator"


def utc_now() -> datetime:
    """The current time."""
    return datetime.now(UTC)


def _stamp(now: Callable[[], datetime]) -> str:
    """The current time as the API writes it."""
    return format_time(now())


def _keys_of(obj: Object) -> tuple[Key, ...]:
    """What is asked about the object by its own name, an immediate claim's placeholder pod included."""
    match obj:
        case Pod():
            return (Key("templates", obj.key), Key("placement", obj.key), Key("eviction", obj.key))
        case ResourceClaim():
            return (Key("release", obj.key), Key("placement", placeholder_key(obj)))
        case PodGroup():
            return (Key("pod-groups", obj.key), Key("group-conditions", obj.key))
        case DeviceTaintRule():
            return (Key("taint-rules", obj.key),)
        case ResourcePoolStatusRequest():
            return (Key("pool-status", obj.key),)
    return ()


def _is_given_claims(before: Pod, now: Pod) -> bool:
    """Return whether a claim was recorded in the pod between its two versions."""
    return len(now.status.resource_claim_statuses or ()) > len(before.status.resource_claim_statuses or ())


def _queues(times: TimeSettings, clock: Callable[[], float], rank: Callable[[Key], Rank]) -> WorkQueues:
    """One for each concern; pods to be placed have an order."""
    queues: dict[Controller, WorkQueue] = {
        name: WorkQueue(Backoff(clock, times.retries), workers=workers)
        for name, workers in times.workers.items()
        if name != "placement"
    }
    slots = times.workers["placement"]
    queues["placement"] = WorkQueue(Backoff(clock, times.placement_retries), rank=rank, firm=True, workers=slots)
    return WorkQueues(queues)


def _register_gauges(registry: CollectorRegistry, cluster: Cluster, queues: WorkQueues, news: CacheChanges) -> None:
    registry.register(news)
    registry.register(ClaimCollector(cluster.claims))
    registry.register(QueueGauges(queues))
    registry.register(WaitingGauges(cluster))
    registry.register(DeviceGauges(cluster))


class Control:
    """The controllers of one cluster. To be made inside a running event loop.

    ``check_invariants`` is asked after every handled key whether to verify the cache, and to log what is wrong.
    ``sees_others`` says whether the watches of pods and claims are open, as far as is known.
    ``preemption``: how pods end so that others fit; None: no pod ends for another one.
    ``placement`` says which of the nodes that fit is best; None: the first one. ``mix`` and ``drivers`` outlive the
    process.
    """

    deciding = ""
    """The pod that is being placed, in words."""

    _looks_again: asyncio.TimerHandle | None = None

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        allocator: Allocator,
        *,
        registry: CollectorRegistry | None = None,
        times: TimeSettings = TimeSettings(),  # noqa: B008 - frozen
        check_invariants: Callable[[], bool] = lambda: False,
        now: Callable[[], datetime] = utc_now,
        controllers: OwnControllers | None = None,
        legacy_claim_names: bool = False,
        sees_others: Callable[[], bool] = lambda: True,
        preemption: PreemptionSettings | None = None,
        placement: Placement | None = None,
        mix: MixMemory | None = None,
        drivers: DriverMemory | None = None,
    ) -> None:
        self._drivers = drivers or DriverMemory()
        self.cluster, self.controllers = cluster, controllers or OwnControllers()
        clock, registry = asyncio.get_running_loop().time, registry or CollectorRegistry()
        self.queues = _queues(times, clock, self._rank)
        self._violations, self._news = ViolationLog(registry, clock), CacheChanges()
        _register_gauges(registry, cluster, self.queues, self._news)
        self.events, self._claims, self._pods, groups = self._writers(client, clock, now)
        delayed_deletion = DelayedDeletion(self.queues.of("release"), clock)
        names = NamesBeingWritten(lambda pod: delayed_deletion.is_abundant and cluster.waits_for_us(pod), self._plan)
        made, pauses = ClaimMetrics(registry), GrowingPauses(clock, times.placement_retries, self.queues.add_after)
        maker = ClaimMaker(cluster, self._claims, made)
        self.generator = self._generator(maker, names, pauses, times, legacy_names=legacy_claim_names)
        self.group_generator = GroupClaimGenerator(cluster, groups, maker, self.events, self.controllers, pauses)
        self._grace, self._sees_others, self._checks_now = times.grace, sees_others, check_invariants
        holds = cluster.allocated_devices.holds
        self._conflict_check = ConflictCheck(self._has_shared_driver, holds, clock, times.grace, self._knows_shared)
        self.releaser = self._releaser(groups, delayed_deletion, pauses)
        volumes, counted = VolumeWriter(client, self._answered), PlacementMetrics(made, cluster.scheduler_name)
        writing = Writing(self._claims, self._pods, counted, self._conflict_check, volumes, names)
        context = self._scheduling_context(writing, now, times, delayed_deletion, pauses, groups, maker)
        preempts = self._preemption(context, registry, preemption)
        self.placer = SchedulingCycle(context, allocator, self.controllers, preempts, placement, mix)
        handlers = self._handlers(client, registry, now)
        self._late_work = LateWork(self.queues.all(), self._shows_reason, clock)
        self._crews = self._hire(times, Failures(registry), handlers, writing.metrics.attempted)

    def _writers(
        self, client: Client, clock: Callable[[], float], now: Callable[[], datetime]
    ) -> tuple[EventRecorder, ClaimWriter, PodWriter, PodGroupWriter]:
        stamp = partial(_stamp, now)
        at = stamp if self.cluster.features.binding_conditions else lambda: None
        return (
            EventRecorder(client, COMPONENT, clock=clock, now=stamp),
            ClaimWriter(client, self._answered, self._gone, at),
            PodWriter(client, self._answered, self._gone, stamp),
            PodGroupWriter(client, self._answered, stamp),
        )

    def _generator(
        self,
        maker: ClaimMaker,
        names: NamesBeingWritten,
        pauses: GrowingPauses,
        times: TimeSettings,
        *,
        legacy_names: bool,
    ) -> ClaimGenerator:
        cluster, claims, pods, ours = self.cluster, self._claims, self._pods, self.controllers
        later = partial(self.queues.add_after, seconds=times.faulty_templates)
        return ClaimGenerator(
            cluster, claims, pods, self.events, maker, ours, names, pauses, later, legacy_names=legacy_names
        )

    def _scheduling_context(
        self,
        writing: Writing,
        now: Callable[[], datetime],
        times: TimeSettings,
        late: DelayedDeletion,
        pauses: GrowingPauses,
        groups: PodGroupWriter,
        maker: ClaimMaker,
    ) -> SchedulingContext:
        cluster, wake = self.cluster, self.queues.add
        self.group_conditions = GroupConditions(cluster, groups, self.controllers, pauses, wake)
        first = Deference(cluster, asyncio.get_running_loop().time, times.grace, self._sees_others, self._drivers.knows)
        place = self.queues.of("placement")
        tell = self.group_conditions.waits
        failure = self.generator.failure
        return SchedulingContext(
            cluster, writing, self.events, place, wake, now, times, first, late, pauses, tell, failure, maker
        )

    def _releaser(self, groups: PodGroupWriter, late: DelayedDeletion, pauses: GrowingPauses) -> ClaimReleaser:
        cluster, claims, wake = self.cluster, self._claims, self.queues.add
        hold, protection = ClaimHold(claims, self.events, wake), ClaimProtection(cluster, claims, pauses)
        of_groups, clock = GroupReservations(cluster, groups, wake), asyncio.get_running_loop().time
        add_after = self.queues.add_after
        parked = ParkedClaims(cluster, claims, self._conflict_check.is_listed, clock, self._grace, add_after, wake)
        return ClaimReleaser(cluster, claims, self._pods, hold, protection, late, of_groups, parked, self.controllers)

    def _preemption(
        self, context: SchedulingContext, registry: CollectorRegistry, settings: PreemptionSettings | None
    ) -> Preemption | None:
        metrics = PreemptionMetrics(registry)
        if settings is None:
            return None
        cluster, rest, clock = self.cluster, context.times.preemption_rest, asyncio.get_running_loop().time
        name, now = cluster.scheduler_name, context.clock
        return Preemption(
            cluster,
            self._pods,
            self.events,
            VictimEvictor(self._pods, self.events, name, clock=clock, now=now, rest=rest, patience=settings.patience),
            metrics,
            settings,
            clock=clock,
            now=now,
            rest=rest,
            look_again=context.look_again,
            wake=context.wake,
        )

    def _handlers(
        self, client: Client, registry: CollectorRegistry, now: Callable[[], datetime]
    ) -> Mapping[Controller, Handler]:
        """All controllers but that of placement; here are made those that write no claims."""
        cluster, pods, queue = self.cluster, self._pods, self.queues.of
        writer = RuleWriter(client, self._answered)
        rules = RuleReporter(cluster, writer, queue("taint-rules"), queue("eviction"), self.controllers, now)
        counts = EvictionMetrics(registry)
        evictor = PodEvictor(cluster, pods, self.events, queue("eviction"), rules, counts, self.controllers, now)
        requests, answers = PoolRequestWriter(client, self._answered), PoolRequestMetrics(registry)
        pools = PoolReporter(cluster, requests, queue("pool-status"), answers, now)
        return {
            "templates": self.generator.handle,
            "pod-groups": self.group_generator.handle,
            "group-conditions": self.group_conditions.handle,
            "release": self.releaser.handle,
            "taint-rules": rules.handle,
            "eviction": evictor.handle,
            "pool-status": pools.handle,
        }

    def _hire(
        self,
        times: TimeSettings,
        failures: Failures,
        handlers: Mapping[Controller, Handler],
        attempted: Callable[[Result, float], None],
    ) -> tuple[Workers | Dispatcher, ...]:
        queue, after = self.queues.of, self._after
        return (
            *(Workers(queue(name), handle, times.workers[name], failures, after) for name, handle in handlers.items()),
            Dispatcher(
                queue("placement"),
                self._decide,
                times.workers["placement"],
                failures,
                after,
                times.time_slices,
                attempted,
                self.placer.is_vain,
            ),
        )

    def _shows_reason(self, key: Key) -> bool:
        pod = self.cluster.pods.get(key.object)
        return pod is None or shows_reason(pod)

    async def _decide(self, key: str) -> Decided | Postponed:
        self.deciding = f"pod {key}"
        try:
            return await self.placer.decide(key)
        finally:
            self.deciding = ""

    async def look_at_everything(self) -> None:
        """Have all pods, claims and evictions looked at: some of them became ours. Others run between parts of that."""
        for keys in evictions.everything(self.cluster):
            self.queues.add(keys)
            await asyncio.sleep(0)
        for pods in evictions.parts(list(self.cluster.pods)):
            self.queues.add(Key("templates", pod.key) for pod in pods)
            await asyncio.sleep(0)
        for concern in ("pod-groups", "group-conditions"):
            self.queues.add(Key(concern, group.key) for group in self.cluster.groups.store)
        for claims in evictions.parts(list(self.cluster.claims)):
            self.queues.add(Key("release", claim.key) for claim in claims)
            await asyncio.sleep(0)

    def apply(self, source: Source, obj: Object, raw: JsonObject | None = None) -> None:
        """An object is there, in this version. The cache keeps a newer one that it has.

        ``raw`` is what the server sent, if that is at hand: an update may be made on top of it. An answer to a write of
        ours does not show that others see the object by now; every other source does.
        """
        if source is not Source.ANSWER:
            self._shown(obj)
        if raw is not None and isinstance(obj, Pod):
            self._pods.came(obj, raw)
        elif raw is not None and isinstance(obj, ResourceClaim):
            self._claims.came(obj, raw)
        store, key = self.cluster.store_of(type(obj)), obj.key
        before = store.get(key)
        if before is obj:
            return  # the watch shows what the cache has
        self.queues.add(self.cluster.apply(obj))
        now = store.get(key)
        if isinstance(now, ResourceClaim):
            self._note_allocation(before, now)
        if isinstance(now, Pod) and now.spec.node_name:  # perhaps by the attempt of another pod of its gang
            self.queues.of("placement").settled(Key("placement", key))
            self.placer.is_over(now)
        elif isinstance(now, Pod) and isinstance(before, Pod) and _is_given_claims(before, now):
            self.placer.claim_came()
        self._note(source, before, now)

    def _note_allocation(self, before: Object | None, now: ResourceClaim) -> None:
        """A claim is there. If it got devices, or lost some, another scheduler may have given them."""
        self.cluster.note_contests(now, self._conflict_check.is_unbound)
        was = before if isinstance(before, ResourceClaim) else None
        if was is not None and (was.status.allocation is None) == (now.status.allocation is None):
            return
        for claim in (was, now):
            allocation = claim.status.allocation if claim is not None else None
            if claim is None or allocation is None:
                continue
            users = (f"{claim.metadata.namespace}/{it.name}" for it in claim.status.reserved_for or ())
            pods = (pod for key in users if (pod := self.cluster.pods.get(key)) is not None)
            if any(pod.spec.scheduler_name != self.cluster.scheduler_name for pod in pods):
                for result in allocation.results:
                    self._drivers.met(result.driver)

    def _shown(self, obj: Object) -> None:
        if not isinstance(obj, ResourceClaim) or obj.metadata.uid in self.cluster.claims.deleted:
            return  # of a claim that has ended nothing is kept
        if self._conflict_check.seen(obj):
            self._look_at_users([obj.key], after=self._grace)

    def records_claim(self, pod: Pod, claim: str) -> bool:
        """Whether the claim of this name is being recorded in the pod from here, or may have been."""
        return self._pods.records(pod, claim)

    def awaits(self, obj: Object) -> bool:
        """Whether something depends on the moment at which the watch shows this version, which is known already."""
        return isinstance(obj, ResourceClaim) and self._conflict_check.is_unseen(obj)

    @property
    def wants_list(self) -> asyncio.Event:
        """Set when pods have to wait until the cache has all claims as of now (``listed``)."""
        return self._conflict_check.asked

    def list_is_late(self, why: str) -> None:
        """Pods that wait for that say so from now on; empty: they do not."""
        self._conflict_check.obstacle = why

    @property
    def late_list(self) -> str:
        """Why the list is late that pods wait for, in words for people; empty if it is not."""
        return self._conflict_check.obstacle

    @property
    def sees_others(self) -> bool:
        """Whether all pods of other schedulers are in the cache, as far as is known."""
        return self._sees_others()

    def listed(self, as_of: float) -> None:
        """The cache has all claims as they were on the server at this time of the loop, or later."""
        claims = self._conflict_check.listed(as_of)
        self._look_at_users(claims, after=0.0)
        known = (claim for key in claims if (claim := self.cluster.claims.get(key)) is not None)
        self.queues.add(Key("release", claim.key) for claim in known if is_parked(claim))

    def _plan(self, pod: Pod) -> None:
        """Have the pod planned now."""
        self.queues.add((Key("placement", pod.key),))

    def _has_shared_driver(self, allocation: AllocationResult) -> bool:
        """Whether another scheduler may have taken the same device: it has pods with claims to some, had, or may have.

        Devices of our own territory are safe from what others may do, but for the pods that may enter it.
        """
        return not self._sees_others() or self._knows_shared(allocation)

    def _knows_shared(self, allocation: AllocationResult) -> bool:
        """The same by what is known of other schedulers."""
        if self.cluster.has_shared_driver(allocation):
            return True
        own = self.cluster.own_devices
        taken = (it for it in allocation.results if not it.admin_access)
        return any(self._drivers.knows(it.driver) and not own.is_safe(DeviceId.of(it)) for it in taken)

    def _look_at_users(self, claims: Iterable[str], *, after: float) -> None:
        """Have the waiting pods of these claims looked at, after so many seconds."""
        for claim in claims:
            for pod in self.cluster.pods_by_claim.keys(claim):
                if pod in self.cluster.waiting:
                    self.queues.of("placement").add_after(Key("placement", pod), after)

    def delete(self, source: Source, kind: type[Object], key: str, uid: str | None = None) -> None:
        """An object is gone. Its successor of the same name, which the cache may have already, stays."""
        if uid and kind is ResourceClaim:
            self._conflict_check.gone(uid)
            self.cluster.contested.pop(uid, None)
        store = self.cluster.store_of(kind)
        before = store.get(key)
        self.queues.add(self.cluster.delete(kind, key, uid))
        self._note(source, before, store.get(key))

    def _note(self, source: Source, before: Object | None, now: Object | None) -> None:
        """Count what was news. If the object is gone by now, a successor of its name does not wait for its back-off."""
        if now is before:
            return
        self._news.by_source[source] += 1
        if before is None or (now is not None and now.metadata.uid == before.metadata.uid):
            return
        if isinstance(before, Pod):
            self.placer.is_over(before)
        for key in _keys_of(before):
            self.queues.of(key.controller).forget(key)

    def hold(self, uid: str, allocation: AllocationResult | None) -> None:
        """Count devices for a claim that cannot be read; None gives back what it has, in whatever version it had it."""
        devices = self.cluster.allocated_devices
        had_some = devices.holds(uid)
        devices.stored(uid, allocation)
        if had_some and not devices.holds(uid):
            self.look_again()

    def _answered(self, obj: Object) -> None:
        self.apply(Source.ANSWER, obj)

    def _gone(self, obj: Object) -> None:
        self.delete(Source.ANSWER, type(obj), obj.key, obj.metadata.uid)

    def _rank(self, key: Key) -> Rank:
        """The order in which pods are placed while that is cheap: the highest priority first, then the oldest."""
        pod = self.cluster.applicant(key.object)
        if pod is None:
            return (0, "")
        return (-(pod.spec.priority or 0), pod.metadata.creation_timestamp or "")

    def load(self, objects: Iterable[Object]) -> None:
        """Apply what was listed. At the start nothing is decided before ``run`` (CC-01)."""
        for obj in objects:
            self.apply(Source.LIST, obj)

    def look_again(self) -> None:
        """Have every waiting pod tried again: a safety net under the triggers."""
        self.queues.add(Key("placement", pod) for pod in self.cluster.waiting)

    async def started(self) -> None:
        """Wait until ``run`` has all its tasks: Kopf ends every task that is younger than itself when it ends."""
        for crew in self._crews:
            await crew.started.wait()

    async def run(self) -> None:
        """Work until cancelled; then write the last events and stop."""
        self._conflict_check.begins(self.cluster.waits_with_ours())
        try:
            async with asyncio.TaskGroup() as group:
                events = group.create_task(self.events.run(), name="events")
                late_work = group.create_task(self._late_work.run(), name="late work")
                try:
                    async with asyncio.TaskGroup() as crews:
                        for crew in self._crews:
                            crews.create_task(crew.run(), name=type(crew).__name__)
                finally:
                    await self.events.flush(1.0)
                    events.cancel()
                    late_work.cancel()
        finally:
            self.queues.close()
            if self._looks_again is not None:
                self._looks_again.cancel()

    def _after(self) -> None:
        if not self._checks_now():
            return
        seconds = self._violations.report(violations(self.cluster))
        if seconds is not None and self._looks_again is None:
            self._looks_again = asyncio.get_running_loop().call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        self._looks_again = None
        self._after()
