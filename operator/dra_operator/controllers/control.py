"""All controllers with what they share, as one thing to start and stop.

``apply`` and ``delete`` are the only ways in for objects, whatever brought them (``cache.source``): they take a change
into the cache, and put the keys that it concerns on the queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import AllocationResult, DeviceTaintRule, ResourceClaim, ResourcePoolStatusRequest
from dra_api.scheduling import PodGroup
from dra_api.values import format_time
from dra_kube import Object as JsonObject
from prometheus_client import CollectorRegistry

from dra_operator.allocator import Allocator, DeviceId
from dra_operator.cache import Cluster, Controller, Crowd, Key, Source, evictions, parts, spread, violations
from dra_operator.controllers.claims.delayed_deletion import DelayedDeletion
from dra_operator.controllers.claims.generate import ClaimGenerator, ClaimMaker, NamesBeingWritten
from dra_operator.controllers.claims.group import GroupClaimGenerator, GroupConditions
from dra_operator.controllers.claims.release import ClaimReleaser
from dra_operator.controllers.context import ControllerContext, GrowingPauses
from dra_operator.controllers.fairness import Rank
from dra_operator.controllers.late_work import LateWork
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
    ViolationLog,
    WaitingGauges,
)
from dra_operator.controllers.pools import PoolReporter
from dra_operator.controllers.queue import KeyBackoff, WorkQueue, WorkQueues
from dra_operator.controllers.scheduling.cycle import SchedulingCycle
from dra_operator.controllers.scheduling.mix import MixMemory
from dra_operator.controllers.scheduling.other_schedulers import ConflictCheck, Deference, DriverMemory
from dra_operator.controllers.scheduling.planning import SchedulingContext
from dra_operator.controllers.scheduling.preemption import Preemption
from dra_operator.controllers.settings import OwnControllers, PreemptionSettings, TimeSettings
from dra_operator.controllers.taints import PodEvictor, RuleReporter
from dra_operator.controllers.workers import (
    Dispatcher,
    Failures,
    Handler,
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
from dra_operator.scheduling.state import is_large, is_parked, placeholder_key

COMPONENT = "dra-operator"


def utc_now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


def _keys_of(obj: Object) -> tuple[Key, ...]:
    """Return the keys of the object by its own name, with the key of an immediate claim's placeholder pod."""
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


def _queues(
    times: TimeSettings, clock: Callable[[], float], rank: Callable[[Key], Rank], is_large: Callable[[Key], bool]
) -> WorkQueues:
    """One for each concern; pods to be placed have an order."""
    queues: dict[Controller, WorkQueue] = {
        name: WorkQueue(KeyBackoff(clock, times.retries), is_large=is_large, workers=workers)
        for name, workers in times.workers.items()
        if name != "placement"
    }
    slots = times.workers["placement"]
    queues["placement"] = WorkQueue(
        KeyBackoff(clock, times.placement_retries), rank=rank, is_large=is_large, firm=True, workers=slots
    )
    return WorkQueues(queues)


@dataclass(frozen=True, kw_only=True)
class ControlOptions:
    """How the controllers work.

    ``check_invariants`` is asked after every handled key whether to verify the cache, and to log what is wrong.
    ``sees_others`` says whether the watches of pods and claims are open, as far as is known.
    ``preemption`` is how pods are preempted, or None if they are not. ``placement`` says which of the nodes that fit
    is best, or None for the first one. ``mix`` and ``drivers`` outlive the process.
    """

    times: TimeSettings = TimeSettings()  # noqa: RUF009 - frozen
    controllers: OwnControllers = field(default_factory=OwnControllers)
    now: Callable[[], datetime] = utc_now
    check_invariants: Callable[[], bool] = lambda: False
    sees_others: Callable[[], bool] = lambda: True
    legacy_claim_names: bool = False
    preemption: PreemptionSettings | None = None
    placement: Placement | None = None
    mix: MixMemory | None = None
    drivers: DriverMemory = field(default_factory=DriverMemory)


class Observer(Protocol):
    """One that keeps a view of the cluster of its own."""

    def note(self, before: Object | None, now: Object | None) -> None:
        """Take in a change of the cache; one of the two is None for a new object, or for one that is gone."""

    def hold(self, uid: str, allocation: AllocationResult | None) -> None:
        """Count devices for a claim that cannot be read; None gives them back."""


class Control:
    """The controllers of one cluster. To be made inside a running event loop."""

    _looks_again: asyncio.TimerHandle | None = None
    _observer: Observer | None = None

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        allocator: Allocator,
        options: ControlOptions | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        options = options or ControlOptions()
        times, now, sees_others = options.times, options.now, options.sees_others
        clock, registry = asyncio.get_running_loop().time, registry or CollectorRegistry()
        self.cluster, self.controllers = cluster, options.controllers
        self._drivers, self._grace = options.drivers, times.grace
        self._sees_others, self._checks_now = sees_others, options.check_invariants
        self.answered = partial(self.apply, Source.ANSWER)  # takes in the server's answer to a write
        # First of all: nearly everything below puts keys on queues.
        self.queues = queues = _queues(times, clock, self._rank, self._is_large)
        context = self._context(client, times, clock, now)
        self.events, self._claims, self._pods = context.events, context.claims, context.pods

        # Claims: made from templates, recorded in pods and groups, given back when their consumers are gone.
        delayed_deletion, counts = DelayedDeletion(queues.of("release"), clock), ClaimMetrics(registry)
        # The names go first if devices are scarce: a pod without devices gets a write to the same status.
        abundance = delayed_deletion.abundance
        names = NamesBeingWritten(lambda pod: bool(abundance) and cluster.waits_for_us(pod), queues.add)
        maker, holds = ClaimMaker(context, counts), cluster.allocated_devices.holds
        self.conflict_check = ConflictCheck(self._has_shared_driver, holds, clock, times.grace, self._knows_shared)
        self.generator = ClaimGenerator(context, maker, names, legacy_names=options.legacy_claim_names)
        self.group_generator = GroupClaimGenerator(context, maker)
        self.group_conditions = GroupConditions(context)
        self.releaser = ClaimReleaser(context, delayed_deletion, self.conflict_check.is_listed)

        # Pods to be placed.
        scheduling = SchedulingContext(
            **vars(context),
            volumes=VolumeWriter(client, self.answered),
            metrics=PlacementMetrics(counts, cluster.scheduler_name),
            maker=maker,
            names_being_written=names,
            delayed_deletion=delayed_deletion,
            deference=Deference(cluster, clock, times.grace, sees_others, self._drivers.knows),
            conflict_check=self.conflict_check,
            group_waits=self.group_conditions.waits,
            claim_failure=self.generator.failure,
        )
        victims, preemption = PreemptionMetrics(registry), None
        if options.preemption is not None:
            preemption = Preemption(scheduling, options.preemption, victims)
        self.placer = SchedulingCycle(scheduling, allocator, preemption, options.placement, options.mix)

        # Tainted devices, and questions about pools.
        rules = RuleReporter(context, RuleWriter(client, self.answered))
        evictor = PodEvictor(context, rules, EvictionMetrics(registry))
        pools = PoolReporter(context, PoolRequestWriter(client, self.answered), PoolRequestMetrics(registry))

        # Figures of each scrape, and warnings of late work and of a wrong cache.
        self._violations, self._news = ViolationLog(registry, clock), CacheChanges()
        for collector in (
            *(self._news, QueueGauges(queues)),
            *(ClaimCollector(cluster.claims), WaitingGauges(cluster, options.now), DeviceGauges(cluster)),
        ):
            registry.register(collector)
        self._late_work = LateWork(cluster, queues.all(), self.placer, context.events, clock)

        # Who works on each queue.
        handlers: Mapping[Controller, Handler] = {
            "templates": self.generator.handle,
            "pod-groups": self.group_generator.handle,
            "group-conditions": self.group_conditions.handle,
            "release": self.releaser.handle,
            "taint-rules": rules.handle,
            "eviction": evictor.handle,
            "pool-status": pools.handle,
        }
        failures, after, ended = Failures(registry), self._after, scheduling.metrics.attempted
        self._crews: list[Workers | Dispatcher] = [
            Workers(queues.of(name), handle, times.workers[name], failures, after) for name, handle in handlers.items()
        ]
        place = queues.of("placement")
        self._crews.append(Dispatcher(place, self.placer.decide, times, failures, after, ended, self.placer.is_vain))

    def _context(
        self, client: Client, times: TimeSettings, clock: Callable[[], float], now: Callable[[], datetime]
    ) -> ControllerContext:
        """Make what all controllers work with.

        Answers to writes come in by the same door as watch events, so that nothing waits for the watch.
        """

        def stamp() -> str:
            return format_time(now())

        # Without the gate a server drops the time, and the answer would differ from what was written.
        allocated_at = stamp if self.cluster.features.binding_conditions else lambda: None
        return ControllerContext(
            cluster=self.cluster,
            ours=self.controllers,
            times=times,
            queues=self.queues,
            claims=ClaimWriter(client, self.answered, self._gone, allocated_at),
            pods=PodWriter(client, self.answered, self._gone, stamp),
            groups=PodGroupWriter(client, self.answered, stamp),
            events=EventRecorder(client, COMPONENT, clock=clock, now=stamp),
            pauses=GrowingPauses(clock, times.placement_retries, self.queues.add_after),
            clock=clock,
            now=now,
        )

    def observe(self, observer: Observer) -> None:
        """Have the observer told of every change of the cache."""
        self._observer = observer

    async def look_at_everything(self) -> None:
        """Have all pods, claims and evictions looked at: some of them became ours. Others run between parts of that."""
        for keys in evictions.everything(self.cluster):
            self.queues.add(keys)
            await asyncio.sleep(0)
        for pods in parts(list(self.cluster.pods), evictions.OBJECTS_IN_A_ROW):
            self.queues.add(Key("templates", pod.key) for pod in pods)
            await asyncio.sleep(0)
        for concern in ("pod-groups", "group-conditions"):
            self.queues.add(Key(concern, group.key) for group in self.cluster.groups.store)
        for claims in parts(list(self.cluster.claims), evictions.OBJECTS_IN_A_ROW):
            self.queues.add(Key("release", claim.key) for claim in claims)
            await asyncio.sleep(0)

    def apply(self, source: Source, obj: Object, raw: JsonObject | None = None) -> None:
        """Take in an object in this version. The cache keeps a newer one that it has.

        ``raw`` is what the server sent, if that is at hand: an update may be made on top of it. An answer to a write of
        ours does not show that others see the object by now; every other source does.
        """
        # Nothing is kept of a deleted claim: its last version may be shown after its deletion.
        if (
            source is not Source.ANSWER
            and isinstance(obj, ResourceClaim)
            and obj.metadata.uid not in self.cluster.claims.deleted
            and self.conflict_check.seen(obj)
        ):
            self._look_at_users([obj.key], after=self._grace)
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
            # It needs nothing more: its timer would only bring it back to find that out.
            self.queues.of("placement").cancel_timer(Key("placement", key))
            self.placer.report.forget(now)
        elif isinstance(now, Pod) and isinstance(before, Pod):
            recorded = len(now.status.resource_claim_statuses or ())
            if recorded > len(before.status.resource_claim_statuses or ()):
                self.placer.claim_came()  # whoever makes claims is at work, so pods without theirs wait in silence
        self._note(source, before, now)

    def _note_allocation(self, before: Object | None, now: ResourceClaim) -> None:
        """Take in a claim. If it got devices, or lost some, another scheduler may have given them."""
        self.cluster.note_contests(now, self.conflict_check.is_unbound)
        was = before if isinstance(before, ResourceClaim) else None
        if was is not None and (was.status.allocation is None) == (now.status.allocation is None):
            return
        # Both: who had devices and gave them back may take some again.
        for claim in (was, now):
            allocation = claim.status.allocation if claim is not None else None
            if claim is None or allocation is None:
                continue
            # By the consumers: nothing else in a claim says who allocated it.
            for consumer in claim.status.reserved_for or ():
                pod = self.cluster.pods.get(f"{claim.metadata.namespace}/{consumer.name}")
                if pod is not None and pod.spec.scheduler_name != self.cluster.scheduler_name:
                    for result in allocation.results:
                        self._drivers.met(result.driver)
                    break

    def records_claim(self, pod: Pod, claim: str) -> bool:
        """Return whether the claim of this name is being recorded in the pod from here, or may have been."""
        return self._pods.records(pod, claim)

    @property
    def sees_others(self) -> bool:
        """Return whether all pods of other schedulers are in the cache, as far as is known."""
        return self._sees_others()

    def listed(self, as_of: float) -> None:
        """Note that the cache has all claims as they were on the server at this time of the loop, or later."""
        claims = self.conflict_check.listed(as_of)
        self._look_at_users(claims, after=0.0)
        known = (claim for key in claims if (claim := self.cluster.claims.get(key)) is not None)
        self.queues.add(Key("release", claim.key) for claim in known if is_parked(claim))

    def _has_shared_driver(self, allocation: AllocationResult) -> bool:
        """Return whether another scheduler may have taken the same device: it has pods with claims to some, had, or may
        have.

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
            users = partial(self._waiting_users, claim)
            crowd = Crowd(("users", claim), claim.partition("/")[0], users, lambda pod: (Key("placement", pod),))
            for hint in spread(crowd):
                if isinstance(hint, Key):
                    self.queues.add_after(hint, after)
                else:
                    asyncio.get_running_loop().call_later(after, self.queues.add, (hint,))

    def _waiting_users(self, claim: str) -> Iterator[str]:
        return (pod for pod in self.cluster.users_of(claim) if pod in self.cluster.waiting)

    def delete(self, source: Source, kind: type[Object], key: str, uid: str | None = None) -> None:
        """An object is gone. Its successor of the same name, which the cache may have already, stays."""
        # By UID, even if the cache has a successor of the name: what was known of the claim ends with it.
        if uid and kind is ResourceClaim:
            self.conflict_check.gone(uid)
            self.cluster.contested.pop(uid, None)
        store = self.cluster.store_of(kind)
        before = store.get(key)
        self.queues.add(self.cluster.delete(kind, key, uid))
        self._note(source, before, store.get(key))

    def _note(self, source: Source, before: Object | None, now: Object | None) -> None:
        """Count what was news. If the object is gone by now, a successor of its name does not wait for its back-off."""
        if now is before:
            return
        is_new = now is not None and (before is None or before.metadata.uid != now.metadata.uid)
        # What a list brings may have been there for long.
        if is_new and source is Source.WATCH and isinstance(now, Pod):
            self.placer.report.came(now)
        if self._observer is not None:
            bulk = self.cluster.bulk
            # A view of its own would keep for good what is lent here.
            self._observer.note(before, bulk.lasting(now) if bulk is not None and now is not None else now)
        self._news.by_source[source] += 1
        if before is None or (now is not None and now.metadata.uid == before.metadata.uid):
            return
        if isinstance(before, Pod):
            self.placer.report.forget(before)
        # The back-off of a deleted pod must not delay a new one of its name.
        for key in _keys_of(before):
            self.queues.of(key.controller).forget(key)

    def hold(self, uid: str, allocation: AllocationResult | None) -> None:
        """Count devices for a claim that cannot be read; None gives back what it has, in whatever version it had it."""
        if self._observer is not None:
            self._observer.hold(uid, allocation)
        devices = self.cluster.allocated_devices
        # A claim that cannot be read still holds its devices: given away twice, they would break a running pod.
        had_some = devices.holds(uid)
        devices.stored(uid, allocation)
        if had_some and not devices.holds(uid):
            self.look_again()

    def _gone(self, obj: Object) -> None:
        self.delete(Source.ANSWER, type(obj), obj.key, obj.metadata.uid)

    def _rank(self, key: Key) -> Rank:
        """Return the order in which pods are placed while that is cheap: the highest priority first, then the
        oldest."""
        pod = self.cluster.applicant(key.object)
        if pod is None:
            return (0, "", 0)
        # As kube-scheduler's PrioritySort orders its queue. Times of creation are whole seconds: a pod that waits for a
        # device would come after all new ones of that second, and these would take the freed device.
        arrival = self.cluster.arrivals.get(key.object, 0)
        return (-(pod.spec.priority or 0), pod.metadata.creation_timestamp or "", arrival)

    def _is_large(self, key: Key) -> bool:
        """Return whether the key is of a large claim, or of a pod that uses one."""
        cluster = self.cluster
        # Nearly all clusters end here.
        if not (cluster.large_claims or cluster.pods_aside):
            return False
        if key.controller == "release":
            return key.object in cluster.large_claims
        pod = cluster.applicant(key.object) if key.controller == "placement" else None
        if pod is None:
            return False
        return pod.key in cluster.pods_aside or any(map(is_large, cluster.known_claims(pod)))

    def load(self, objects: Iterable[Object]) -> None:
        """Apply what was listed. At the start nothing is decided before ``run`` (CC-01)."""
        for obj in objects:
            self.apply(Source.LIST, obj)

    def look_again(self) -> None:
        """Have every waiting pod tried again: a safety net under the triggers."""
        waiting = self.cluster.waiting
        crowd = Crowd(("look again",), "", lambda: list(waiting), lambda pod: (Key("placement", pod),))
        self.queues.add(spread(crowd))

    async def started(self) -> None:
        """Wait until ``run`` has all its tasks: Kopf ends every task that is younger than itself when it ends."""
        for crew in self._crews:
            await crew.started.wait()

    async def run(self) -> None:
        """Work until cancelled; then write the last events and stop."""
        # Before the first decision: what a former process allocated may be contested without our knowing.
        self.conflict_check.begins(self.cluster.waits_with_ours())
        try:
            async with asyncio.TaskGroup() as group:
                events = group.create_task(self.events.run(), name="events")
                late_work = group.create_task(self._late_work.run(), name="late work")
                try:
                    async with asyncio.TaskGroup() as crews:
                        for crew in self._crews:
                            crews.create_task(crew.run(), name=type(crew).__name__)
                finally:
                    # The last events tell why the work ended; they are lost with the process otherwise.
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
        # News of two objects come in either order, so a violation counts only if it lasts: hence the second look.
        seconds = self._violations.report(violations(self.cluster))
        if seconds is not None and self._looks_again is None:
            self._looks_again = asyncio.get_running_loop().call_later(seconds, self._look_again)

    def _look_again(self) -> None:
        self._looks_again = None
        self._after()
