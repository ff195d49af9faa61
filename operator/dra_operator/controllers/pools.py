"""A ResourcePoolStatusRequest is answered once, and deleted when it is old (claim-controller.md 12).

The controller ``pool-status``. A pool that lacks slices may just be published, so the answer waits a few seconds for
it; then it is given all the same, with what is missing in words. A status is never changed: a request that has one,
from whatever controller, is only waited for until it is old. After a crash, or an answer that was lost, the next look
finds either no status, and gives it, or the status, and is done.
"""

from __future__ import annotations

from dra_api.resource import ResourcePoolStatusRequest
from dra_api.values import format_time, parse_time
from dra_kube import NotFound

from dra_operator.cache import Key, incomplete_pools, pool_answer
from dra_operator.controllers.context import ControllerContext
from dra_operator.controllers.metrics import OTHERS, PoolRequestMetrics
from dra_operator.kube import PoolRequestWriter

INCOMPLETE_POOL_LOOKS = 5  # looks at an incomplete pool after the first
INCOMPLETE_POOL_SECONDS = 1.0  # seconds between them
ANSWERED_SECONDS = 3600.0  # that a request is kept after its answer
UNANSWERED_SECONDS = 86400.0  # that one without an answer is kept after its creation
POOL_LOOK_SECONDS = 600.0


class PoolReporter:
    """Handles ``pool-status:`` keys."""

    def __init__(self, context: ControllerContext, requests: PoolRequestWriter, metrics: PoolRequestMetrics) -> None:
        self._cluster, self._requests, self._metrics = context.cluster, requests, metrics
        self._queue, self._now = context.queues.of("pool-status"), context.now
        self._tries: dict[str, tuple[str, int]] = {}
        """By name: the UID of a request, and how often its pools were incomplete."""

    async def handle(self, key: str) -> None:
        """Answer the request, or see whether it is old."""
        request = self._cluster.store_of(ResourcePoolStatusRequest).get(key)
        if request is None:
            self._tries.pop(key, None)
            return
        if (left := self._time_left(request)) <= 0:
            await self._requests.delete(request)
            return
        if request.status is None and not await self._answer(request):
            return
        self._queue.add_after(Key("pool-status", key), min(left, POOL_LOOK_SECONDS))

    async def _answer(self, request: ResourcePoolStatusRequest) -> bool:
        """Return whether the request is done with; otherwise it is looked at again by itself."""
        key, uid = request.metadata.name, request.metadata.uid
        cluster = self._cluster
        slices = (cluster.inventory.slice(slice_.metadata.name) or slice_ for slice_ in cluster.slices)
        now = format_time(self._now())
        status = pool_answer(request, slices, cluster.allocated_devices.usage, now, cluster.features)
        known, tries = self._tries.get(key, (uid, 0))
        # A new request of the same name starts anew.
        tries = tries if known == uid else 0
        if incomplete_pools(status.pools) and tries < INCOMPLETE_POOL_LOOKS:
            self._tries[key] = (uid, tries + 1)
            self._queue.add_after(Key("pool-status", key), INCOMPLETE_POOL_SECONDS)
            return False
        try:
            with self._metrics.processing(request.spec.driver if status.pool_count else OTHERS):
                await self._requests.answer(request, status)
        except NotFound:
            return False  # deleted meanwhile
        self._tries.pop(key, None)
        return True

    def _time_left(self, request: ResourcePoolStatusRequest) -> float:
        """Return the seconds until the request is old; a time that is missing or cannot be read counts as now."""
        conditions = request.status.conditions or () if request.status is not None else ()
        times = [condition.last_transition_time for condition in conditions]
        since, kept = (
            (times[0], ANSWERED_SECONDS) if times else (request.metadata.creation_timestamp, UNANSWERED_SECONDS)
        )
        now = self._now()
        return kept - (now - (parse_time(since) or now)).total_seconds()
