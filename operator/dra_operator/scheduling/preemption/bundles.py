"""Pods that end together or not at all: those that share a claim, and those of a gang, on whatever nodes they are.

A pod alone is a bundle as well. A pod must not end if it has the same priority as the waiting pod or a higher one, or
has no node yet, or is a node's static pod, which the kubelet makes again; nor then may the others of its gang. A claim
that such a pod has reserved stays: those that share it may end for their room, and for what else they have. What comes
free with a bundle are the devices of the claims that no other pod has reserved. A claim of the waiting pod itself stays
as well: its other consumers are no victims, nor are pods of its gang.
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
from dra_operator.scheduling.state.placeholder import is_immediate

from .terms import PreemptionTerms, Weight, born


@dataclass(frozen=True, eq=False)
class Bundle:
    """``leaving`` pods end already, ``victims`` would have to; ``freed`` is what the end of all brings.

    ``weights``: those of the victims, in their order.
    """

    victims: tuple[Pod, ...]
    leaving: tuple[Pod, ...]
    freed: tuple[AllocationResult, ...]
    weights: tuple[Weight, ...]
    level: tuple[int, int]
    """The highest one of the victims, or of those that leave if there are none."""
    seconds: float
    """Until all its pods are gone."""

    @cached_property
    def pods(self) -> tuple[Pod, ...]:
        """All of them."""
        return (*self.victims, *self.leaving)

    @cached_property
    def rank(self) -> tuple[int, int, float, float, str]:
        """The bundle that matters most has the least: the highest level, then the last to be gone, then the oldest."""
        first, second = self.level
        return -first, -second, -self.seconds, min(map(born, self.pods)), min(pod.key for pod in self.pods)

    @cached_property
    def nodes(self) -> frozenset[str]:
        """Where its pods are."""
        return frozenset(pod.spec.node_name for pod in self.pods)

    @cached_property
    def pools(self) -> frozenset[PoolId]:
        """Where its devices are."""
        return frozenset(DeviceId.of(result).pool_id for allocation in self.freed for result in allocation.results)

    def frees_on(self, node: Node) -> bool:
        """Whether some of its devices can be used on the node."""
        return any(_reaches(allocation, node) for allocation in self.freed)


class Bundles:
    """The bundles of a cluster, each worked out when one of its pods is asked about.

    ``waiting`` is the pod for which they may end, or the pods of a gang.
    """

    def __init__(self, waiting: Sequence[CycleState], terms: PreemptionTerms) -> None:
        self._terms, self._find_claim = terms, waiting[0].find_claim
        self._priority = min(terms.priority(state.pod) for state in waiting)
        self._own = {claim.metadata.uid for state in waiting for claim in state.resource_claims}
        self._gang, self._placed_with = terms.gang(waiting[0].pod), terms.placed_with(waiting[0].pod)
        self._known: dict[str, Bundle | None] = {}
        self._goes: dict[str, bool] = {}
        """By the UID of a pod: whether it may end, with all that it cannot end without."""
        self._is_left: dict[str, bool] = {}
        """By the UID of a claim: whether all that have it reserved may end."""
        self.looked = 0
        """So many claims, consumers and pods of gangs were looked at."""

    def may_matter(self, pod: Pod) -> bool:
        """Whether the pod may be in a bundle that is of use: cheap, without a look at its claims."""
        return self._may_end(pod) or self._terms.is_leaving(pod)

    def of(self, pod: Pod) -> Bundle | None:
        """The bundle of the pod; None if it must not end."""
        uid = pod.metadata.uid
        if uid not in self._known:
            if self._may_go(pod):
                members, claims = self._members(pod)
                self._known.update(dict.fromkeys(members, self._bundle(members, claims)))
            else:
                self._known[uid] = None
        return self._known[uid]

    def with_device(self, device: DeviceId) -> Iterator[Bundle]:
        """Those that hold a device, and may end."""
        for claim in self._terms.holders(device):
            for pod in self._consumers(claim):
                bundle = self.of(pod)
                if bundle is not None:
                    yield bundle

    def _may_end(self, pod: Pod) -> bool:
        is_running = bool(pod.spec.node_name) and pod.metadata.deletion_timestamp is None and not pod_is_done(pod)
        if not is_running or MIRROR_ANNOTATION in (pod.metadata.annotations or {}):
            return False
        if self._gang is not None and self._terms.gang(pod) == self._gang:
            return False
        if self._placed_with is not None and self._terms.placed_with(pod) == self._placed_with:
            return False
        return self._terms.priority(pod) < self._priority and self._terms.may_end(pod)

    def _may_go(self, pod: Pod) -> bool:
        """Whether the pod and all others of its gang may end, and none shares a claim with the waiting pod."""
        uid = pod.metadata.uid
        if uid not in self._goes:
            together = {pod.metadata.uid: pod, **{mate.metadata.uid: mate for mate in self._mates(pod, set())}}
            goes = all(self.may_matter(it) and not self._has_own(it) for it in together.values())
            self._goes.update(dict.fromkeys(together, goes))
        return self._goes[uid]

    def _has_own(self, pod: Pod) -> bool:
        return any(claim.metadata.uid in self._own for claim in self._claims(pod))

    def _members(self, pod: Pod) -> tuple[dict[str, Pod], list[ResourceClaim]]:
        """Who shares a gang or claims that come free with the pod, directly or through others; and these claims."""
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
        """Whether all that have it reserved may end."""
        uid = claim.metadata.uid
        if uid not in self._is_left:
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
        """The pods of its gang, unless the gang is among those that are known. What leaves anyway ends alone."""
        gang = None if self._terms.is_leaving(pod) else self._terms.gang(pod)
        if gang is not None and gang not in known:
            known.add(gang)
            for mate in self._terms.members(gang):
                self.looked += 1
                if not self._terms.is_leaving(mate):
                    yield mate

    def _claims(self, pod: Pod) -> Iterator[ResourceClaim]:
        """Those that the pod has reserved."""
        for use in claims_of_pod(pod):
            self.looked += 1
            claim = self._find_claim(f"{pod.metadata.namespace}/{use.name}")
            if claim is not None and claim.status.allocation is not None and is_reserved_for(pod, claim):
                yield claim

    def _consumers(self, claim: ResourceClaim) -> Iterator[Pod]:
        """Those that are there and not done: others give the claim up by themselves."""
        for consumer in claim.status.reserved_for or ():
            self.looked += 1
            pod = self._terms.find_pod(f"{claim.metadata.namespace}/{consumer.name}", consumer.uid)
            if pod is not None and not pod_is_done(pod):
                yield pod


def _comes_free(claim: ResourceClaim) -> bool:
    """Whether the devices come free after the last pod: those of an immediate claim do not, nor those of a group."""
    is_of_pods = all(consumer.resource == "pods" for consumer in claim.status.reserved_for or ())
    return is_of_pods and FINALIZER in (claim.metadata.finalizers or ()) and not is_immediate(claim)


def _reaches(allocation: AllocationResult, node: Node) -> bool:
    """Nowhere, if what another scheduler wrote there cannot be understood."""
    try:
        return allocation.node_selector is None or node_selectors.matches(allocation.node_selector, node)
    except NodeSelectionError:
        return False
