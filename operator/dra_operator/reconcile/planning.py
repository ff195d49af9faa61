"""A plan in the making, which may be put aside and taken up again.

A plan looks at one state of the devices, from its beginning to its end. While it is put aside, other plans take
devices. So when it is done at last, ``is_current`` says whether what it chose is still as it was; where a pool or a
node has changed, the plan is discarded and made anew.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from dra_api.core import Pod

from dra_operator.allocator import DeviceId, PoolId
from dra_operator.cluster import Cluster
from dra_operator.placement import Case, NodeFilter, NoPlace, Obstacle, Pause, Plan, Planning, volumes_of


@dataclass(eq=False, slots=True)
class PlanInProgress:
    """One attempt to place a pod; ``spent`` are the seconds of search that it took so far."""

    case: Case
    planning: Planning
    spent: float = 0.0
    elapsed: float | None = None
    """What the plan gets to know of them, once it has begun."""
    is_noted: bool = False
    """The pod says that it is being planned."""

    @property
    def pod(self) -> Pod:
        """Who is placed."""
        return self.case.pod

    async def advance(self, turn: float) -> Plan | NoPlace | None:
        """Work on for a turn of so many seconds, letting others run at each pause; None when it takes another one."""
        turn_ends = self.spent + turn
        while True:
            began = time.perf_counter()
            try:
                pause = self.planning.send(self.elapsed)
            except StopIteration as end:
                answer: Plan | NoPlace = end.value
                return answer
            if pause is Pause.SEARCHING:
                self.spent += time.perf_counter() - began
            self.elapsed = self.spent
            if pause is Pause.SEARCHING and self.spent >= turn_ends:
                return None
            await asyncio.sleep(0)

    def is_of(self, cluster: Cluster) -> bool:
        """Whether the pod and its claims are still those for which the plan is made."""
        if cluster.applicant(self.pod.key) is not self.pod:
            return False
        return all(cluster.claims.get(claim.key) is claim for claim in self.case.resource_claims)

    def is_current(self, plan: Plan, cluster: Cluster) -> bool:
        """Whether the devices and the room that the plan takes are as they were when it was begun."""
        if self.case.usage.revision != cluster.holdings.usage.revision:
            now = cluster.holdings.usage
            if any(self.case.usage.pool(pool) != now.pool(pool) for pool in _pools(plan)):
                return False
        nodes = cluster.loaded_nodes()
        state = nodes.get(plan.node)
        volumes = volumes_of(self.pod, cluster.storage)
        if state is None or isinstance(volumes, Obstacle):
            return False
        if volumes.bindings(state.node) != plan.volumes:
            return False
        asked = NodeFilter(self.pod, nodes.neighbours_of(self.pod), volumes)
        return asked.obstacle(state, plan.served) is None


def _pools(plan: Plan) -> set[PoolId]:
    results = (result for allocation in plan.allocations.values() for result in allocation.results)
    return {DeviceId.of(result).pool_id for result in results}
