"""A plan in the making, which may be put aside and taken up again; and the context in which attempts work.

A plan looks at one state of the devices, from its beginning to its end. While it is put aside, other plans take
devices. So when it is done at last, ``is_current`` says whether what it chose is still as it was; where a pool or a
node has changed, the plan is discarded and made anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import InitVar, dataclass
from typing import Generic, TypeVar

from dra_api.core import Pod
from dra_api.resource import AllocationResult, ResourceClaim

from dra_operator.allocator import DeviceId, PoolId, Usage
from dra_operator.cache import Cluster, Key, TimesFreed
from dra_operator.controllers.claims.delayed_deletion import DelayedDeletion
from dra_operator.controllers.claims.generate import ClaimMaker, NamesBeingWritten
from dra_operator.controllers.context import ControllerContext
from dra_operator.controllers.metrics import PlacementMetrics
from dra_operator.controllers.scheduling.other_schedulers import ConflictCheck, Deference
from dra_operator.kube import VolumeWriter
from dra_operator.scheduling import CycleState, Elapsed, NoPlace, Pause, Plan, Planning
from dra_operator.scheduling.claims import ClaimReadiness, claim_readiness, shortage
from dra_operator.scheduling.rules import volumes_of
from dra_operator.scheduling.state import Obstacle


@dataclass(frozen=True, kw_only=True)
class SchedulingContext(ControllerContext):
    """``wake`` has those looked at who may use what an attempt gives back; ``pauses`` are of pods that give claims up.

    ``group_waits`` gets a pod, its PodGroup and the reason why it waits. ``claim_failure`` returns why the
    claims of a pod could not be made when that was tried last, or an empty text.
    """

    volumes: VolumeWriter
    metrics: PlacementMetrics
    maker: ClaimMaker
    names_being_written: NamesBeingWritten
    delayed_deletion: DelayedDeletion
    deference: Deference
    conflict_check: ConflictCheck
    group_waits: Callable[[Pod, str, str], None]
    claim_failure: Callable[[Pod], str]

    def look_again(self, pod: str, after: float = 0.0) -> None:
        """Have the pod of this key looked at once more, after so many seconds at the latest."""
        key = Key("placement", pod)
        if after > 0:
            self.queues.add_after(key, after)
        else:
            self.queues.add((key,))

    def is_working(self, pod: str) -> bool:
        """Return whether the pod of this key is being decided on, or a decision about it is being written."""
        return self.queues.of("placement").is_working(Key("placement", pod))

    def readiness(self, claim: ResourceClaim) -> ClaimReadiness:
        """Return how far the claim's devices are."""
        return claim_readiness(claim, self.now(), self.times.binding_timeout)


T = TypeVar("T")


@dataclass(eq=False)
class InProgress(Generic[T]):
    """Planning in pieces; ``spent`` are the seconds of search that it took so far.

    They are this thread's: what other processes take of a busy machine must not have a pod rest for a second.
    """

    planning: InitVar[Generator[Pause, Elapsed, T]]
    spent: float = 0.0
    is_interrupted: bool = False
    """Others have run since it began."""
    is_noted: bool = False
    """The pod says that it is being planned."""

    def __post_init__(self, planning: Generator[Pause, Elapsed, T]) -> None:
        self._planning = planning

    async def advance(self, turn: float) -> T | None:
        """Work on for a turn of so many seconds, letting others run at each pause; None when it takes another one."""
        turn_ends = self.spent + turn
        while True:
            began, pause = time.thread_time(), None
            try:
                # A generator that has not begun takes no value.
                pause = self._planning.send(self.spent if self.is_interrupted else None)
            except StopIteration as end:
                answer: T = end.value
                return answer
            finally:
                # What brings the index up to date is not the pod's to pay: other decisions gain from it.
                if pause is not Pause.INDEXING:
                    self.spent += time.thread_time() - began
            # From here on others may take what this plan counts on.
            self.is_interrupted = True
            if pause is Pause.SEARCHING and self.spent >= turn_ends:
                return None
            await asyncio.sleep(0)


class PlanInProgress(InProgress[Plan | NoPlace]):
    """One attempt to place a pod."""

    def __init__(self, cycle_state: CycleState, planning: Planning, tried_at: TimesFreed) -> None:
        super().__init__(planning)
        self.cycle_state, self.tried_at = cycle_state, tried_at
        """``tried_at``: how often something had come free when it began."""

    @property
    def pod(self) -> Pod:
        """Who is placed."""
        return self.cycle_state.pod

    def is_of(self, cluster: Cluster) -> bool:
        """Return whether the pod and its claims are still those for which the plan is made."""
        # Compared by identity: each version is an object of its own.
        if cluster.applicant(self.pod.key) is not self.pod:
            return False
        return all(cluster.claims.get(claim.key) is claim for claim in self.cycle_state.resource_claims)

    def is_current(self, plan: Plan, cluster: Cluster) -> bool:
        """Return whether the devices and the room that the plan takes are as they were when it was begun."""
        if not self.is_interrupted:
            return True
        # Another pod may have been nominated meanwhile, which this plan has not seen.
        if is_promised(self.cycle_state, plan, cluster):
            return False
        return has_devices(self.cycle_state.usage, plan, cluster) and has_room(self.pod, plan, cluster)


def has_devices(usage: Usage, plan: Plan, cluster: Cluster) -> bool:
    """Return whether nothing has changed in the pools of the plan's devices since the plan saw this usage."""
    now = cluster.allocated_devices.usage
    # By pools, since counters and capacity are shared by the devices of one; most plans see no change at all.
    pools = _pools(plan.allocations.values()) if usage.revision != now.revision else ()
    return all(usage.pool(pool) == now.pool(pool) for pool in pools)


def has_room(pod: Pod, plan: Plan, cluster: Cluster) -> bool:
    """Return whether the rules let the pod go to the node of the plan, as it is now."""
    nodes = cluster.loaded_nodes()
    state = nodes.get(plan.node)
    # Anew: another plan may have taken a volume that this one counts on.
    volumes = volumes_of(pod, cluster.storage)
    if state is None or isinstance(volumes, Obstacle):
        return False
    if volumes.bindings(state.node) != plan.volumes:
        return False
    obstacle = nodes.rules_of(pod, volumes).obstacle(state, plan.served) or shortage(pod, state, plan.node_use)
    return obstacle is None


def is_promised(cycle_state: CycleState, plan: Plan, cluster: Cluster) -> bool:
    """Return whether another pod was nominated meanwhile for the node of the plan, or for devices of the same pools."""
    # By identity: a nomination that was renewed is another object, and may be for other devices.
    known = set(map(id, cycle_state.nominations.of_others))
    later = [it for it in cluster.nominated_pods.as_seen_by(cycle_state.pod).of_others if id(it) not in known]
    pools = _pools(plan.allocations.values()) if later else set()
    return any(it.node == plan.node or not pools.isdisjoint(_pools(it.allocations)) for it in later)


def _pools(allocations: Iterable[AllocationResult]) -> set[PoolId]:
    return {DeviceId.of(result).pool_id for allocation in allocations for result in allocation.results}
