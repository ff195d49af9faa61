"""Bundles of pods that are preempted together or not at all, and the terms on which they are.

Pods are in one bundle because they share a claim or are a gang, on any nodes. A pod alone is a bundle as well. A pod is
protected if its priority is not lower than that of the pending pod, if it has no node yet, or if it is static, since
the kubelet would create it again. Then the rest of its gang is protected, too.

A bundle frees the devices of the claims that no pod outside it has reserved. So a claim that a protected pod has
reserved keeps its devices; the others that share it can be preempted for their node resources and their other claims. A
claim of the pending pod keeps its devices as well: its other consumers are no victims, and neither is the pod's gang.

The terms are priorities, PodDisruptionBudgets, termination times, and the cost limit of an attempt. As in
kube-scheduler, a budget is violated only if the pod fits in no other way. An attempt pauses as searches do, and stops
when it has used its steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Final, NamedTuple

from dra_api.core import MIRROR_ANNOTATION, Node, Pod
from dra_api.references import ClaimUse, is_reserved_for, pod_is_done
from dra_api.resource import FINALIZER, AllocationResult, ResourceClaim
from dra_api.scheduling import PodDisruptionBudget
from dra_api.selectors import Selector
from dra_api.values import parse_time

from dra_operator.allocator import DeviceId, NodeSelectionError, PoolId, node_selectors
from dra_operator.scheduling.cycle.pre_filter import CycleState
from dra_operator.scheduling.pieces import PAUSE_STEPS, Elapsed, Pause
from dra_operator.scheduling.state.applicants import is_immediate


@dataclass(frozen=True, slots=True, eq=False)
class Budget:
    """A PodDisruptionBudget. ``disrupted`` names pods whose disruption the budget has counted already."""

    selector: Selector
    allowed: int
    disrupted: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, budget: PodDisruptionBudget) -> Budget:
        """Return the budget. An empty selector selects every pod of the namespace (policy/v1)."""
        selector = Selector.of(budget.spec.selector)
        disrupted = frozenset(budget.status.disrupted_pods or ())
        return cls(selector, budget.status.disruptions_allowed, disrupted)

    def covers(self, pod: Pod) -> bool:
        """Return whether preempting the pod is charged to the budget."""
        # A disruption that the budget has counted already is not charged twice.
        return pod.metadata.name not in self.disrupted and self.selector.matches(pod.metadata.labels or {})


class BudgetsOfPods:
    """The budgets of pods, looked up once for each pod and namespace."""

    def __init__(self, budgets: Callable[[str], Iterable[Budget]]) -> None:
        self._budgets = budgets
        self._of_namespace: dict[str, tuple[Budget, ...]] = {}
        self._of_pod: dict[str, tuple[Budget, ...]] = {}
        self.compared = 0
        """Number of comparisons of a pod with a budget."""

    def broken_by(self, pods: Iterable[Pod]) -> list[Pod]:
        """Return the pods whose preemption violates a budget, if the pods are preempted in this order."""
        # In their order: each victim uses up a part of the budget, so the same pods in another order break it
        # elsewhere.
        ended: Counter[Budget] = Counter()
        broken = []
        for pod in pods:
            budgets = self._covering(pod)
            ended.update(budgets)
            if any(ended[it] > it.allowed for it in budgets):
                broken.append(pod)
        return broken

    def _covering(self, pod: Pod) -> tuple[Budget, ...]:
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        # The same pods are looked at in many sets of victims.
        if uid not in self._of_pod:
            if namespace not in self._of_namespace:
                self._of_namespace[namespace] = tuple(self._budgets(namespace))
            there = self._of_namespace[namespace]
            self.compared += len(there)
            self._of_pod[uid] = tuple(it for it in there if it.covers(pod))
        return self._of_pod[uid]


DEFAULT_GRACE_SECONDS: Final = 30
"""The grace period of a pod without terminationGracePeriodSeconds, as in the API."""
PREEMPTION_PATIENCE_SECONDS: Final = 30.0
"""Default of the setting ``preemption-patience``: the time for which one set of victims is waited for."""
OVERDUE_SECONDS: Final = 5.0
"""Time that a kubelet needs to kill a pod after its grace period."""
UNREACHABLE: Final = "node.kubernetes.io/unreachable"


class Weight(NamedTuple):
    """The importance of a pod. A higher ``level`` is kept first. ``seconds``: time until the pod is gone."""

    level: tuple[int, int]
    priority: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PreemptionTerms:
    """What preemption asks the cluster. Look-ups instead of lists, because an attempt needs few of many objects."""

    find_pod: Callable[[str, str], Pod | None]
    """By ``namespace/name`` and UID."""
    claims_of: Callable[[Pod], Iterable[tuple[ClaimUse, ResourceClaim | None]]]
    """The claims that a pod uses, each with the claim itself if it exists."""
    may_end: Callable[[Pod], bool]
    """Whether a pod of lower priority may be preempted at all, by its scheduler and earlier refused deletions."""
    is_leaving: Callable[[Pod], bool]
    """Whether the pod is being deleted and gone soon, so that waiting is better than a victim."""
    holders: Callable[[DeviceId], Iterable[ResourceClaim]]
    """The claims that have a device."""
    gang: Callable[[Pod], str | None]
    """The key of the pods that are preempted together with the pod, or None."""
    placed_with: Callable[[Pod], str | None]
    """The key of the gang with which the pod is placed, or None. Its pods do not preempt each other."""
    members: Callable[[str], Iterable[Pod]]
    """The pods of a gang that run or are being bound. They are preempted all, or none."""
    budgets: Callable[[str], Iterable[Budget]]
    """The PodDisruptionBudgets of a namespace."""
    priority: Callable[[Pod], int]
    """The priority of a pod, as victim and as preemptor."""
    seconds_left: Callable[[Pod], float]
    """Seconds until the pod is gone at the latest, counted from its deletion or from now."""
    patience: float = PREEMPTION_PATIENCE_SECONDS
    """A pod that needs longer is preempted only if no other pod of its priority would do."""
    is_late: bool = False
    """Whether a victim has outlasted ``patience``. Then slower pods come last at any priority, not only at their own.
    """
    overdue: frozenset[str] = frozenset()
    """Namespaces with a victim that outlived its grace period. Their other pods count as slow as well."""

    def weight(self, pod: Pod) -> Weight:
        """Return the pod's importance as a victim."""
        rank, seconds = self.priority(pod), self.seconds_left(pod)
        # A tenant chooses its grace periods. If slowness always came after priority, one tenant's slow pods could be
        # chosen again and again, and keep a pending pod waiting without end.
        outlasts = int(seconds > self.patience or pod.metadata.namespace in self.overdue)
        return Weight((outlasts, rank) if self.is_late else (rank, outlasts), rank, seconds)


def seconds_left(pod: Pod, node: Node | None, now: datetime) -> float:
    """Return the seconds until the pod is gone at the latest; infinity on a node whose kubelet does not answer."""
    taints = node.spec.taints or () if node is not None else ()
    # Nobody kills its pods there, so their devices do not come free.
    if any(it.key == UNREACHABLE for it in taints):
        return math.inf
    ends = parse_time(pod.metadata.deletion_timestamp)
    if ends is not None:
        return max((ends - now).total_seconds(), 0.0)
    # Not deleted yet: by the time that the kubelet would give it.
    grace = pod.spec.termination_grace_period_seconds
    return float(max(DEFAULT_GRACE_SECONDS if grace is None else grace, 0))


def leaves_soon(pod: Pod, now: datetime, patience: float) -> bool:
    """Return whether the pod is being deleted, and should be gone within ``patience`` seconds."""
    ends = parse_time(pod.metadata.deletion_timestamp)
    # A pod that outlived its grace period may hang for ever, on a node that is gone, say.
    return ends is not None and -OVERDUE_SECONDS < (ends - now).total_seconds() <= patience


def priority(pod: Pod) -> int:
    """Return the pod's priority; 0 if it has none, as in the API."""
    return pod.spec.priority or 0


def born(pod: Pod) -> float:
    """Return the pod's creation time in seconds; 0 if it is unknown, so that the pod counts as the oldest."""
    moment = parse_time(pod.metadata.creation_timestamp)
    return moment.timestamp() if moment is not None else 0.0


MOST_PREEMPTION_STEPS: Final = 100_000
"""Limit of an attempt in steps of the allocator, about half a second. Then the best node so far counts."""
MOST_SMALLER_SETS: Final = 128
"""Limit of an attempt on trials with fewer victims of one priority."""


class StepsSpent(Exception):
    """The attempt has used its steps."""


class Meter:
    """Counts the steps of an attempt."""

    def __init__(self, most: int = MOST_PREEMPTION_STEPS) -> None:
        self._left, self._since_pause = most, 0
        self.smaller_sets = MOST_SMALLER_SETS
        """Trials that are left."""

    def charge(self, steps: int) -> None:
        """Count work that has paused by itself. Raises StepsSpent."""
        self._left -= steps
        if self._left < 0:
            raise StepsSpent

    def spend(self, steps: int) -> Generator[Pause, Elapsed, None]:
        """Count work, and pause after every ``PAUSE_STEPS`` steps. Raises StepsSpent."""
        # Before the pause, so that an attempt that has spent its steps ends without another one.
        self.charge(steps)
        self._since_pause += steps
        if self._since_pause >= PAUSE_STEPS:
            self._since_pause = 0
            yield Pause.SEARCHING


@dataclass(frozen=True, eq=False)
class Bundle:
    """Pods of which ``leaving`` are being deleted already and ``victims`` would be preempted.

    ``freed`` has the allocations that nobody holds once all are gone. ``weights`` are in the order of ``victims``.
    """

    victims: tuple[Pod, ...]
    leaving: tuple[Pod, ...]
    freed: tuple[AllocationResult, ...]
    weights: tuple[Weight, ...]
    level: tuple[int, int]
    """The highest level of a victim, or of a leaving pod if there are no victims."""
    seconds: float
    """Seconds until all its pods are gone; infinity if a node does not answer."""

    @cached_property
    def pods(self) -> tuple[Pod, ...]:
        return (*self.victims, *self.leaving)

    @cached_property
    def rank(self) -> tuple[int, int, float, float, str]:
        """A key that sorts the most important bundle first: highest level, then slowest to terminate, then oldest."""
        first, second = self.level
        return -first, -second, -self.seconds, min(map(born, self.pods)), min(pod.key for pod in self.pods)

    @cached_property
    def nodes(self) -> frozenset[str]:
        return frozenset(pod.spec.node_name for pod in self.pods)

    @cached_property
    def pools(self) -> frozenset[PoolId]:
        """The pools of the devices that it frees."""
        return frozenset(DeviceId.of(result).pool_id for allocation in self.freed for result in allocation.results)

    def frees_on(self, node: Node) -> bool:
        """Return whether the node can use some of the freed devices."""
        return any(_reaches(allocation, node) for allocation in self.freed)


class Bundles:
    """The bundles of a cluster, each built when somebody asks about one of its pods.

    ``waiting`` is the pending pod, or the pending pods of a gang.
    """

    def __init__(self, waiting: Sequence[CycleState], terms: PreemptionTerms) -> None:
        self._terms = terms
        # A gang is placed as a whole, so its least important pod decides who may be preempted for it.
        self._priority = min(terms.priority(state.pod) for state in waiting)
        self._own = {claim.metadata.uid for state in waiting for claim in state.resource_claims}
        self._gang, self._placed_with = terms.gang(waiting[0].pod), terms.placed_with(waiting[0].pod)
        self._known: dict[str, Bundle | None] = {}
        self._goes: dict[str, bool] = {}
        """Whether a pod, by UID, may be preempted with its whole gang."""
        self._is_left: dict[str, bool] = {}
        """Whether all consumers of a claim, by UID, may be preempted."""
        self.looked = 0
        """Number of claims, consumers and gang members visited so far; callers charge it to the attempt."""

    def may_matter(self, pod: Pod) -> bool:
        """Return whether the pod can be in a useful bundle. Cheap: looks at no claim."""
        # A pod that is being deleted frees its devices in any case.
        return self._may_end(pod) or self._terms.is_leaving(pod)

    def of(self, pod: Pod) -> Bundle | None:
        """Return the bundle of the pod, or None if the pod is protected."""
        uid = pod.metadata.uid
        if uid not in self._known:
            # One bundle serves all its members: each of them leads to the same pods and claims.
            if self._may_go(pod):
                members, claims = self._members(pod)
                self._known.update(dict.fromkeys(members, self._bundle(members, claims)))
            else:
                self._known[uid] = None
        return self._known[uid]

    def with_device(self, device: DeviceId) -> Iterator[Bundle]:
        """Yield the bundles of pods that hold the device and may be preempted."""
        for claim in self._terms.holders(device):
            for pod in self._consumers(claim):
                bundle = self.of(pod)
                if bundle is not None:
                    yield bundle

    def _may_end(self, pod: Pod) -> bool:
        is_running = bool(pod.spec.node_name) and pod.metadata.deletion_timestamp is None and not pod_is_done(pod)
        # The kubelet mirrors a static pod into the API; deleting the mirror frees nothing.
        if not is_running or MIRROR_ANNOTATION in (pod.metadata.annotations or {}):
            return False
        # A gang that preempts its own members would never be complete.
        if self._gang is not None and self._terms.gang(pod) == self._gang:
            return False
        if self._placed_with is not None and self._terms.placed_with(pod) == self._placed_with:
            return False
        return self._terms.priority(pod) < self._priority and self._terms.may_end(pod)

    def _may_go(self, pod: Pod) -> bool:
        """Return whether the pod and its whole gang may be preempted, and none shares a claim with the pending pod."""
        uid = pod.metadata.uid
        if uid not in self._goes:
            together = {pod.metadata.uid: pod, **{mate.metadata.uid: mate for mate in self._mates(pod, set())}}
            goes = all(self.may_matter(it) and not self._has_own(it) for it in together.values())
            self._goes.update(dict.fromkeys(together, goes))
        return self._goes[uid]

    def _has_own(self, pod: Pod) -> bool:
        # What it shares with the pending pod stays allocated, so to preempt it frees nothing of use.
        return any(claim.metadata.uid in self._own for claim in self._claims(pod))

    def _members(self, pod: Pod) -> tuple[dict[str, Pod], list[ResourceClaim]]:
        """Return the pods that share a gang or a freed claim with the pod, also through others, and these claims."""
        # Sharing is transitive: A and B share a claim, B and C a gang. So members are followed until none is new.
        found, rest, gangs = {pod.metadata.uid: pod}, [pod], set[str]()
        claims: dict[str, ResourceClaim] = {}
        while rest:
            member = rest.pop()
            others = list(self._mates(member, gangs))
            for claim in self._claims(member):
                if claim.metadata.uid not in claims and self._may_be_left(claim):
                    claims[claim.metadata.uid] = claim
                    others += self._consumers(claim)
            for other in others:
                if other.metadata.uid not in found:
                    found[other.metadata.uid] = other
                    rest.append(other)
        return found, list(claims.values())

    def _may_be_left(self, claim: ResourceClaim) -> bool:
        """Return whether all consumers of the claim may be preempted, so that its devices come free."""
        uid = claim.metadata.uid
        if uid not in self._is_left:
            # One consumer that stays keeps the devices, and the others would go for nothing.
            self._is_left[uid] = all(map(self._may_go, self._consumers(claim)))
        return self._is_left[uid]

    def _bundle(self, members: dict[str, Pod], claims: list[ResourceClaim]) -> Bundle:
        freed = [claim.status.allocation for claim in claims if _comes_free(claim)]
        leaving = [pod for pod in members.values() if self._terms.is_leaving(pod)]
        victims = sorted((pod for pod in members.values() if not self._terms.is_leaving(pod)), key=lambda pod: pod.key)
        weights = {uid: self._terms.weight(pod) for uid, pod in members.items()}
        return Bundle(
            tuple(victims),
            tuple(leaving),
            tuple(allocation for allocation in freed if allocation is not None),
            tuple(weights[pod.metadata.uid] for pod in victims),
            max(weights[pod.metadata.uid].level for pod in victims or leaving),
            max(it.seconds for it in weights.values()),
        )

    def _mates(self, pod: Pod, known: set[str]) -> Iterator[Pod]:
        """Yield the other pods of its gang, once per gang. A pod that is being deleted does not take its gang along."""
        gang = None if self._terms.is_leaving(pod) else self._terms.gang(pod)
        if gang is not None and gang not in known:
            known.add(gang)
            for mate in self._terms.members(gang):
                self.looked += 1
                if not self._terms.is_leaving(mate):
                    yield mate

    def _claims(self, pod: Pod) -> Iterator[ResourceClaim]:
        """Yield the allocated claims that the pod has reserved."""
        for _, claim in self._terms.claims_of(pod):
            self.looked += 1
            if claim is not None and claim.status.allocation is not None and is_reserved_for(pod, claim):
                yield claim

    def _consumers(self, claim: ResourceClaim) -> Iterator[Pod]:
        """Yield the consumers that exist and are not finished. The others' reservations are released in any case."""
        for consumer in claim.status.reserved_for or ():
            self.looked += 1
            # By UID: a new pod of the same name has not reserved the claim.
            pod = self._terms.find_pod(f"{claim.metadata.namespace}/{consumer.name}", consumer.uid)
            if pod is not None and not pod_is_done(pod):
                yield pod


def _comes_free(claim: ResourceClaim) -> bool:
    """Return whether the claim is deallocated after its last pod.

    An immediate claim keeps its devices without pods, and a claim reserved for a PodGroup keeps them for the group.
    """
    is_of_pods = all(consumer.resource == "pods" for consumer in claim.status.reserved_for or ())
    return is_of_pods and FINALIZER in (claim.metadata.finalizers or ()) and not is_immediate(claim)


def _reaches(allocation: AllocationResult, node: Node) -> bool:
    """Return whether the node can use the devices; False for a selector of another scheduler that cannot be parsed."""
    try:
        return allocation.node_selector is None or node_selectors.matches(allocation.node_selector, node)
    except NodeSelectionError:
        return False
