"""A plan for a pod: what it is made with, the plan in the making, and the last write that carries it out.

A plan may be put aside and taken up again. It looks at one state of the devices, from its beginning to its end. While
it is put aside, other plans take devices. So when it is done at last, ``is_current`` says whether what it chose is
still as it was; where a pool or a node has changed, the plan is discarded and made anew.

The last write comes once the pod has its claims::

    BindStep
    ├── Bind                 a pod of our scheduler gets its node
    ├── RemoveGate           a pod of another scheduler goes there, among the nodes that reach its devices
    └── AllocateImmediate    a claim that no pod uses yet has its devices: nothing more is to be written

``RemoveGate`` removes the scheduling gate and narrows the nodes of the pod in one write, after the claims are allocated
and reserved, so there is nothing to lose between the two:

* Before it, the pod is gated. The next attempt finds what its claims have, whatever happened to earlier writes.
* After it, the pod is its scheduler's. Its claims are reserved for it, so that kubelets accept the pod even if its
  scheduler knows nothing of claims, and the controller that releases claims takes the devices back when it ends.

The choice of nodes is narrowed for schedulers that do not know claims; kube-scheduler would find the nodes by itself.
There the narrowing prevents something: kube-scheduler gives devices back when a pod fits only nodes that cannot reach
them, and it never sees such nodes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import InitVar, dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import AllocationResult, ResourceClaim
from dra_kube import Conflict, NotFound
from dra_kube.spans import span

from dra_operator.allocator import DeviceId, PoolId, Usage
from dra_operator.cache import Cluster, Key, TimesFreed
from dra_operator.controllers.claims.delayed_deletion import DelayedDeletion
from dra_operator.controllers.claims.generate import ClaimMaker, NamesBeingWritten, check_recorded
from dra_operator.controllers.context import ControllerContext
from dra_operator.controllers.errors import BindingFailed, BoundElsewhere, PodVanished
from dra_operator.controllers.metrics import PlacementMetrics
from dra_operator.controllers.scheduling.other_schedulers import ConflictCheck, Deference
from dra_operator.controllers.workers import tell
from dra_operator.kube import EventReason, PodChanged, PodWriter, VolumeWriter
from dra_operator.scheduling import CycleState, Elapsed, NoPlace, Pause, Plan, Planning
from dra_operator.scheduling.claims import ClaimReadiness, claim_readiness, shortage
from dra_operator.scheduling.rules import volumes_of
from dra_operator.scheduling.state import GATE, Obstacle, claim_behind, reach


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


class BindEvent(NamedTuple):
    """The event about it."""

    about: Object
    reason: EventReason
    message: str


class BindStep(Protocol):
    """The last write for a pod."""

    def action(self, node: str) -> str:
        """Return the attempted action, as it follows ``cannot``."""
        ...

    async def write(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> None:
        """Write, unless it is already done. Raises BindingFailed if it is no longer possible, and KubeError."""
        ...

    def news(self, pod: Pod, node: str) -> BindEvent | None:
        """Return the event when it is done."""
        ...


logger = logging.getLogger(__name__)

BIND_ATTEMPTS = 3


class Bind:
    """Binds pods of our scheduler name."""

    def __init__(self, cluster: Cluster, pods: PodWriter) -> None:
        self._cluster, self._pods = cluster, pods

    def action(self, node: str) -> str:
        return f"bind the pod to node {node}"

    def news(self, pod: Pod, node: str) -> BindEvent:
        return BindEvent(pod, EventReason.SCHEDULED, f"Successfully assigned {pod.key} to {node}")

    async def write(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> None:
        """See ``BindStep``. Raises BoundElsewhere, PodVanished and ClaimChanged."""
        # The newest version: its record of the claims is what the kubelet will read.
        bound = self._cluster.pods.get(pod.key, pod.metadata.uid) or pod
        with span("bind", pod=pod.key, node=node):
            for attempt in range(1, BIND_ATTEMPTS + 1):
                try:
                    await self._pods.bind(bound, node)
                except NotFound as error:
                    raise PodVanished(str(error)) from error
                except Conflict as conflict:
                    # Any write to the pod makes a binding of an older version conflict, a condition of ours as well.
                    current = await self._unless_bound(bound, node, conflict)
                    if current is None:
                        break
                    if attempt == BIND_ATTEMPTS:
                        raise
                    check_recorded(current, claims)
                    bound = current
                else:
                    break
        self._cluster.assume_bound(bound)
        tell(logger, logging.INFO, "pod bound", pod=pod.key, node=node)

    async def _unless_bound(self, pod: Pod, node: str, conflict: Conflict) -> Pod | None:
        """Return the newer version of the pod; None if it is assigned to the node already.

        That may be by a binding of ours whose answer was lost. Another writer may have assigned it elsewhere.
        """
        try:
            current = await self._pods.read(pod.metadata.namespace, pod.metadata.name)
        except NotFound as error:
            raise PodVanished(str(error)) from error
        # The name says nothing: the pod that was planned is gone.
        if current.metadata.uid != pod.metadata.uid:
            raise PodVanished(f"pod {pod.key} was replaced by another one of the same name")
        if current.spec.node_name == node:
            return None
        if current.spec.node_name:
            elsewhere = f"another writer bound pod {pod.key} to node {current.spec.node_name}, not {node}"
            raise BoundElsewhere(elsewhere) from conflict
        if current.metadata.deletion_timestamp is not None:
            raise PodVanished(f"pod {pod.key} is being deleted") from conflict
        # There is no newer version that could be bound instead.
        if current.metadata.resource_version == pod.metadata.resource_version:
            raise conflict
        return current


class RemoveGate:
    """Lets pods of other schedulers go."""

    def __init__(self, cluster: Cluster, pods: PodWriter) -> None:
        self._cluster, self._pods = cluster, pods

    def action(self, node: str) -> str:
        return f"remove the scheduling gate {GATE}"

    def news(self, pod: Pod, node: str) -> BindEvent:
        return BindEvent(
            pod, EventReason.GATE_REMOVED, f"Scheduling gate {GATE} removed: claims allocated for node {node}"
        )

    async def write(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> None:
        """See ``BindStep``. A pod with changed node requirements or gates is planned again."""
        allocations = [claim.status.allocation for claim in claims]
        selectors = [allocation.node_selector for allocation in allocations if allocation is not None]
        # Its scheduler may choose any node that reaches the devices, and must not choose another one.
        where = reach(selectors, self._cluster.nodes.get(node))
        if where is None:
            raise BindingFailed(f"node {node} no longer reaches the devices of pod {pod.key}")
        try:
            await self._pods.open_gate(pod, GATE, where)
        except NotFound as error:
            raise PodVanished(str(error)) from error
        except PodChanged as error:
            raise BindingFailed(str(error)) from error
        tell(logger, logging.INFO, "gate removed", pod=pod.key, node=node)


class AllocateImmediate:
    """Allocates claims that no pod uses yet; the pod is a placeholder pod."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def action(self, node: str) -> str:
        return f"allocate devices of node {node}"

    async def write(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> None:
        """See ``BindStep``."""

    def news(self, pod: Pod, node: str) -> BindEvent | None:
        claim = self._cluster.claims.get(claim_behind(pod))
        return BindEvent(claim, EventReason.CLAIM_ALLOCATED, f"Devices of node {node} allocated") if claim else None
