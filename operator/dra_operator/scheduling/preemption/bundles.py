"""Bundles: pods that are preempted together or not at all, because they share a claim or are a gang, on any nodes.

A pod alone is a bundle as well. A pod is protected if its priority is not lower than that of the pending pod, if it has
no node yet, or if it is static, since the kubelet would create it again. Then the rest of its gang is protected, too.

A bundle frees the devices of the claims that no pod outside it has reserved. So a claim that a protected pod has
reserved keeps its devices; the others that share it can be preempted for their node resources and their other claims.
A claim of the pending pod keeps its devices as well: its other consumers are no victims, and neither is the pod's gang.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dra_api.core import MIRROR_ANNOTATION, Node, Pod
from dra_api.references import claims_of_pod, is_reserved_for, pod_is_done
from dra_api.resource import FINALIZER, AllocationResult, ResourceClaim

from dra_operator.allocator import DeviceId, NodeSelectionError, PoolId, node_selectors
from dra_operator.scheduling.cycle.pre_filter import CycleState
from dra_operator.scheduling.state.applicants import is_immediate

from .terms import PreemptionTerms, Weight, born


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
        """All pods of the bundle."""
        return (*self.victims, *self.leaving)

    @cached_property
    def rank(self) -> tuple[int, int, float, float, str]:
        """A key that sorts the most important bundle first: highest level, then slowest to terminate, then oldest."""
        first, second = self.level
        return -first, -second, -self.seconds, min(map(born, self.pods)), min(pod.key for pod in self.pods)

    @cached_property
    def nodes(self) -> frozenset[str]:
        """The nodes of its pods."""
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
        self._terms, self._find_claim = terms, waiting[0].find_claim
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
        for use in claims_of_pod(pod):
            self.looked += 1
            claim = self._find_claim(f"{pod.metadata.namespace}/{use.name}")
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
