"""All reconcilers with what they share, as one thing to start and stop.

``put`` and ``remove`` are the only ways in: they take a change into the view and put the keys it concerns on the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from dra_api.meta import Object
from dra_api.resource import ResourceClaim
from prometheus_client import CollectorRegistry

from dra_operator.allocator import Allocator
from dra_operator.cluster import Cluster, Concern, Key, violations
from dra_operator.kube import ClaimWriter, Client, EventRecorder, PodWriter

from .commit import Writing
from .generate import ClaimGenerator
from .metrics import ClaimCollector, ClaimMetrics, PlacementMetrics
from .place import PodPlacer
from .queue import WorkQueue
from .upkeep import ClaimUpkeep
from .workers import Handler, Workers

logger = logging.getLogger(__name__)

COMPONENT = "dra-operator"
WORKERS = 50


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
        workers: int = WORKERS,
        check_invariants: bool = False,
        now: Callable[[], str] = timestamp,
    ) -> None:
        self.cluster = cluster
        self.queue = WorkQueue()
        self._checks = check_invariants
        registry = registry or CollectorRegistry()
        registry.register(ClaimCollector(cluster.claims))
        clock = asyncio.get_running_loop().time
        self.events = EventRecorder(client, COMPONENT, clock=clock, now=now)
        stamp = now if cluster.features.binding_conditions else lambda: None
        claims = ClaimWriter(client, self.put, self._claim_gone, stamp)
        pods = PodWriter(client, self.put, now)
        self.generator = ClaimGenerator(cluster, claims, pods, self.events, ClaimMetrics(registry))
        self.upkeep = ClaimUpkeep(cluster, claims, pods)
        writing = Writing(claims, pods, PlacementMetrics(registry))
        self.placer = PodPlacer(
            cluster, allocator, writing, self.events, self.queue, lambda: datetime.fromisoformat(now())
        )
        handlers: dict[Concern, Handler] = {
            "pod": self.generator.handle,
            "claim": self.upkeep.handle,
            "place": self.placer.handle,
        }
        self._workers = Workers(self.queue, handlers, workers, self._after)

    def put(self, obj: Object) -> None:
        """An object appeared or changed, or a write of ours was answered."""
        self.queue.add(self.cluster.put(obj))

    def remove(self, kind: type[Object], key: str, uid: str | None = None) -> None:
        """An object is gone."""
        self.queue.add(self.cluster.remove(kind, key, uid))

    def _claim_gone(self, claim: ResourceClaim) -> None:
        self.remove(ResourceClaim, claim.key, claim.metadata.uid)

    def load(self, objects: Iterable[Object]) -> None:
        """Take in what was listed at start. Nothing is decided before ``run`` (CC-01)."""
        for obj in objects:
            self.put(obj)

    def look_again(self) -> None:
        """Have every waiting pod tried again: a safety net under the triggers."""
        self.queue.add(Key("place", pod) for pod in self.cluster.waiting)

    async def started(self) -> None:
        """Wait until ``run`` has all its tasks: Kopf ends every task that is younger than itself when it ends."""
        await self._workers.started.wait()

    async def run(self) -> None:
        """Work until cancelled; then write the last events and stop."""
        try:
            async with asyncio.TaskGroup() as group:
                events = group.create_task(self.events.run(), name="events")
                try:
                    await self._workers.run()
                finally:
                    await self.events.flush(1.0)
                    events.cancel()
        finally:
            self.queue.close()

    def _after(self) -> None:
        if self._checks:
            for violation in violations(self.cluster):
                logger.error("invariant violated: %s", violation)
