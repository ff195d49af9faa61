"""All reconcilers with what they share, as one thing to start and stop.

``put`` and ``remove`` are the only ways in: they take a change into the view and put the keys it concerns on the queue.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from dra_api.meta import Object
from dra_api.resource import AllocationResult, ResourceClaim
from prometheus_client import CollectorRegistry

from dra_operator.allocator import Allocator
from dra_operator.cluster import Cluster, Key, violations
from dra_operator.kube import ClaimWriter, Client, EventRecorder, PodWriter

from .backoff import Backoff
from .commit import Writing
from .concerns import Concerns
from .confirmation import Confirmations
from .dispatcher import Decided, Dispatcher, Postponed
from .failures import Failures
from .generate import ClaimGenerator
from .metrics import ClaimCollector, ClaimMetrics, PlacementMetrics
from .pace import Pace
from .place import PodPlacer
from .queue import Rank, WorkQueue
from .queues import WorkQueues
from .upkeep import ClaimUpkeep
from .violation_log import ViolationLog
from .workers import Workers

COMPONENT = "dra-operator"


def timestamp() -> str:
    """The current time as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Control:
    """The reconcilers of one cluster. To be made inside a running event loop.

    ``check_invariants`` verifies the view after every handled key and logs what is wrong.
    """

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        allocator: Allocator,
        *,
        registry: CollectorRegistry | None = None,
        pace: Pace = Pace(),  # noqa: B008 - frozen
        check_invariants: bool = False,
        now: Callable[[], str] = timestamp,
        concerns: Concerns | None = None,
        legacy_claim_names: bool = False,
    ) -> None:
        self.cluster = cluster
        self.concerns = concerns or Concerns()
        clock = asyncio.get_running_loop().time
        placing = WorkQueue(Backoff(clock, pace.placement_retries), rank=self._rank, firm=True)
        pods_queue, claims_queue = (WorkQueue(Backoff(clock, pace.retries)) for _ in range(2))
        self.queues = WorkQueues({"pod": pods_queue, "claim": claims_queue, "place": placing})
        self._checks = check_invariants
        registry = registry or CollectorRegistry()
        self._violations = ViolationLog(registry)
        registry.register(ClaimCollector(cluster.claims))
        self.events = EventRecorder(client, COMPONENT, clock=clock, now=now)
        stamp = now if cluster.features.binding_conditions else lambda: None
        claims = ClaimWriter(client, self._take_in, self._claim_gone, stamp)
        pods = PodWriter(client, self._take_in, now)
        created = ClaimMetrics(registry)
        self.generator = ClaimGenerator(cluster, claims, pods, self.events, created, self.concerns)
        self.generator.legacy_names = legacy_claim_names
        self.upkeep = ClaimUpkeep(cluster, claims, pods, self.concerns)
        self._grace = pace.grace
        self._confirmations = Confirmations(cluster.is_contested, clock, pace.grace)
        writing = Writing(claims, pods, PlacementMetrics(registry), self._confirmations)
        self.placer = PodPlacer(
            cluster,
            allocator,
            writing,
            self.events,
            placing,
            self.queues.add,
            lambda: datetime.fromisoformat(now()),
            pace,
        )
        self._crews = self._hire(pace, Failures(registry))

    def _hire(self, pace: Pace, failures: Failures) -> tuple[Workers | Dispatcher, ...]:
        queue, after = self.queues.of, self._after
        return (
            Workers(queue("pod"), self.generator.handle, pace.workers["pod"], failures, after),
            Workers(queue("claim"), self.upkeep.handle, pace.workers["claim"], failures, after),
            Dispatcher(queue("place"), self._decide, pace.workers["place"], failures, after, pace.turns),
        )

    async def _decide(self, key: str) -> Decided | Postponed:
        return await self.placer.decide(key) if self.concerns.placement else Decided()

    def look_at_claims(self) -> None:
        """Have all pods and claims looked at: the concerns of claims became ours."""
        self.queues.add(Key("pod", pod.key) for pod in self.cluster.pods)
        self.queues.add(Key("claim", claim.key) for claim in self.cluster.claims)

    def put(self, obj: Object) -> None:
        """The watch, or a list, has brought an object."""
        self.shown(obj)
        self._take_in(obj)

    def shown(self, obj: Object) -> None:
        """The watch, or a list, has brought this version, which the view may have already."""
        if isinstance(obj, ResourceClaim) and self._confirmations.seen(obj):
            for pod in self.cluster.pods_by_claim.keys(obj.key):
                if pod in self.cluster.waiting:
                    self.queues.of("place").add_after(Key("place", pod), self._grace)

    def awaits(self, obj: Object) -> bool:
        """Whether something depends on the moment at which the watch shows this version, which is known already."""
        return isinstance(obj, ResourceClaim) and self._confirmations.wait([obj]) == math.inf

    def remove(self, kind: type[Object], key: str, uid: str | None = None) -> None:
        """An object is gone."""
        if uid and kind is ResourceClaim:
            self._confirmations.gone(uid)
        self.queues.add(self.cluster.remove(kind, key, uid))

    def _take_in(self, obj: Object) -> None:
        """An object is there, as the watch brought it or as the server answered one of our requests."""
        self.queues.add(self.cluster.put(obj))

    def hold(self, uid: str, allocation: AllocationResult | None) -> None:
        """Count devices for a claim that cannot be read; None gives them back."""
        self.cluster.ledger.stored(uid, allocation)
        if allocation is None:
            self.look_again()

    def _claim_gone(self, claim: ResourceClaim) -> None:
        self.remove(ResourceClaim, claim.key, claim.metadata.uid)

    def _rank(self, key: Key) -> Rank:
        """The order in which pods are placed: the highest priority first, then the oldest."""
        pod = self.cluster.pods.get(key.object)
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
        if self._checks:
            self._violations.report(violations(self.cluster))
