"""What has to be allocated for a pod, which may differ between nodes.

First the claims of the pod that have no devices yet, then the claim for its extended resources (the order of the
reference). That claim differs between nodes: a node that counts a resource itself (a device plugin registered it)
serves it, on all others the class does to which the resource is mapped (scheduling.md 7.2). So each set of resources
has a claim of its own, which exists only here until the pod is bound with it. Most pods have one demand for all nodes.
Each demand has its own program and its own candidates in the index of the allocator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from dra_api.core import ContainerExtendedResourceRequest, Pod
from dra_api.meta import ObjectMeta
from dra_api.resource import AllocationResult, DeviceClaim, DeviceRequest, ResourceClaim, ResourceClaimSpec

from dra_operator.allocator import (
    Allocator,
    AttributeValue,
    Candidates,
    ClaimError,
    ClaimProgram,
    Refusal,
    extended_requests,
)
from dra_operator.scheduling.nodes import Nodes
from dra_operator.scheduling.state.node import LoadedNode, pod_requests

IN_MEMORY_NAME = "<extended-resources>"  # not a valid name, so that no object in the API can have it
Served = tuple[str, ...]
"""Names of resources, sorted."""


@dataclass(frozen=True, slots=True)
class ExtendedClaim:
    """The claim for what devices serve on some nodes, and which container uses which of its requests for what."""

    claim: ResourceClaim
    mappings: tuple[ContainerExtendedResourceRequest, ...]

    @property
    def requests(self) -> tuple[DeviceRequest, ...]:
        """One per container and resource, or shared by containers that run one after the other."""
        return self.claim.spec.devices.requests or ()

    def in_terms_of_pod(self, refusal: Refusal) -> Refusal:
        """The refusal in terms of the resource that the pod asks for; a refusal of another claim stays as it is."""
        if refusal.claim.key != self.claim.key:
            return refusal
        # The author of the pod has never seen the claim: it exists in memory, so its name and requests say nothing to
        # him.
        resources = {mapping.request_name: mapping.resource_name for mapping in self.mappings}
        classes = {request.name: request.exactly.device_class_name for request in self.requests if request.exactly}
        resource, class_ = resources.get(refusal.request), classes.get(refusal.request)
        named = replace(refusal.claim, resource=resource or "", device_class=class_ or "")
        return replace(refusal, claim=named)


class ExtendedResources:
    """The resources of a pod that devices may serve.

    ``classes``: the class of each resource that one serves. ``made``: the pod's claim for extended resources, if it is
    complete already, so that nothing but the binding is missing.
    """

    def __init__(self, pod: Pod, classes: Mapping[str, str], made: ResourceClaim | None = None) -> None:
        self.classes: dict[str, str] = {}
        """The resources that the pod asks for and that a class serves, sorted; amounts of zero do not count."""
        # Without such a class nothing has to be added up.
        if classes:
            wanted = pod_requests(pod)
            self.classes = {name: classes[name] for name in sorted(wanted) if name in classes and wanted[name] > 0}
        self.made = made
        self._pod = pod

    def served_on(self, state: LoadedNode) -> Served:
        """What devices serve on this node: everything that the node does not count itself."""
        return tuple(name for name in self.classes if name not in state.counted)

    def claim_for(self, served: Served) -> ExtendedClaim | None:
        """The claim for these resources; None for none of them.

        Raises ClaimError when no container could use it: the pod asks only in the overhead of its runtime class.
        """
        if not served:
            return None
        meta = self._pod.metadata
        # Worked out for each set of resources once, since nodes that serve the same get the same claim.
        found = extended_requests(self._pod, {name: self.classes[name] for name in served})
        # The overhead of a runtime class is of the pod, and a device can be given to containers only.
        if not found.requests:
            raise ClaimError(
                f"pod {self._pod.key}: no container asks for {', '.join(served)}, only spec.overhead does; "
                "devices can only be given to containers"
            )
        return ExtendedClaim(
            ResourceClaim(
                metadata=ObjectMeta(name=IN_MEMORY_NAME, namespace=meta.namespace, uid=f"{meta.uid}{IN_MEMORY_NAME}"),
                spec=ResourceClaimSpec(devices=DeviceClaim(requests=found.requests)),
            ),
            found.mappings,
        )

    def is_outdated(self, wanted: ExtendedClaim | None) -> bool:
        """Whether the existing claim asks for other devices than the pod needs now."""
        # Nothing was made, so nothing can be wrong with it.
        if self.made is None:
            return False
        return wanted is None or (self.made.spec.devices.requests or ()) != wanted.requests

    def groups(self, nodes: Nodes) -> dict[Served, frozenset[str] | None]:
        """The nodes by what devices serve on them; None stands for all nodes that no other group names."""
        # A node with a device plugin counts the resource itself: there no claim is made for it.
        counting = {name: nodes.counting(name) for name in self.classes}
        some: frozenset[str] = frozenset().union(*counting.values())
        groups: dict[Served, frozenset[str]] = {(): some} if some else {}
        for name, names in counting.items():
            # Each resource splits the groups so far, so there are as many as kinds of nodes, not as nodes.
            split = [((*served, name), members - names) for served, members in groups.items()]
            split += [(served, members & names) for served, members in groups.items()]
            groups = {served: members for served, members in split if members}
        rest: dict[Served, frozenset[str] | None] = {tuple(self.classes): None} if len(some) < len(nodes) else {}
        return {**rest, **groups}


@dataclass(slots=True, eq=False)
class Demand:
    """What the pod needs on the nodes where devices serve the same of its extended resources."""

    served: Served
    extended: ExtendedClaim | None
    """The claim that would have to be made; None if devices serve nothing, or if it is made already."""
    is_outdated: bool
    """The claim made in an earlier attempt is not what these nodes call for."""
    claims: tuple[ResourceClaim, ...]
    program: ClaimProgram
    candidates: Candidates | None = None
    """None if there is nothing to allocate, so that every node may do."""
    asked: int = 0

    def may_fit(self, node: str) -> bool:
        """Whether one of its nodes is worth trying."""
        return self.candidates is None or self.candidates.anywhere or node in self.candidates

    def in_terms_of_pod(self, refusal: Refusal) -> Refusal:
        """The refusal in the terms of the pod's author."""
        return self.extended.in_terms_of_pod(refusal) if self.extended is not None else refusal

    def allocations(self, results: Sequence[AllocationResult]) -> dict[str, AllocationResult]:
        """The results, which come in the order of the claims, by claim UID."""
        return {claim.metadata.uid: result for claim, result in zip(self.claims, results, strict=True)}


class Demands:
    """The demands of one pod with these claims. All devices have the ``value``, if there is one."""

    def __init__(
        self,
        claims: Iterable[ResourceClaim],
        extended: ExtendedResources,
        nodes: Nodes,
        allocator: Allocator,
        value: AttributeValue | None = None,
    ) -> None:
        self._open = tuple(claim for claim in claims if claim.status.allocation is None)
        self._extended, self._nodes, self._allocator, self._value = extended, nodes, allocator, value
        self._known: dict[Served, Demand] = {}
        self._groups: dict[Served, frozenset[str] | None] = {}
        self._rest: Demand | None = None

    def on(self, state: LoadedNode) -> Demand:
        """The demand on one node. Raises ClaimError, see ``ExtendedResources.claim_for``."""
        # Most pods ask for no extended resource that a class serves: all nodes cause one demand.
        return self._get(self._extended.served_on(state) if self._extended.classes else ())

    def all(self) -> list[Demand]:
        """All demands that the current nodes cause. Raises ClaimError."""
        if not self._extended.classes:
            self._groups = {(): None} if len(self._nodes) else {}
        else:
            self._groups = self._extended.groups(self._nodes)
        demands, self._rest = list[Demand](), None
        for served, members in self._groups.items():
            demands.append(self._get(served))
            if members is None:
                self._rest = demands[-1]
        return demands

    def may_fit(self, node: str) -> bool:
        """Whether the node is worth trying, according to the candidates of its demand."""
        demand = self._of(node)
        return demand is not None and demand.may_fit(node)

    def nodes_of(self, demand: Demand, names: Iterable[str]) -> Iterator[str]:
        # The usual case: one demand for all nodes, so none has to be asked for its own.
        if demand is self._rest and len(self._groups) == 1:
            return iter(names)
        return (name for name in names if self._of(name) is demand)

    def size(self, demand: Demand) -> int:
        """How many nodes have this demand."""
        # Counted and not listed: the group of the rest has no list of its nodes.
        members = self._groups.get(demand.served)
        if members is not None:
            return len(members)
        return len(self._nodes) - sum(len(others) for others in self._groups.values() if others is not None)

    def short_list(self, most: int) -> list[str] | None:
        """All nodes that may fit, if they are fewer than ``most``."""
        found: list[str] = []
        for served, members in self._groups.items():
            # One for each group: nodes that serve other resources have candidates of their own.
            candidates = self._get(served).candidates
            # One more than allowed is enough to know that they are too many.
            if candidates is not None and not candidates.anywhere:
                found += islice(self.nodes_of(self._get(served), candidates), most - len(found))
            elif members is not None and len(members) < most - len(found):
                found += members
            else:
                return None
            # No short list: whoever asks takes the order of all nodes.
            if len(found) >= most:
                return None
        return found

    def _of(self, node: str) -> Demand | None:
        """What ``on`` says, as it was when ``all`` was asked, and without looking at the node."""
        for served, members in self._groups.items():
            if members is not None and node in members:
                return self._known[served]
        return self._rest

    def _get(self, served: Served) -> Demand:
        known = self._known.get(served)
        if known is None:
            wanted = self._extended.claim_for(served) if served else None
            # A claim that is made already is used or found outdated; a second one is never made.
            missing = wanted if self._extended.made is None else None
            claims = (*self._open, missing.claim) if missing is not None else self._open
            is_outdated = self._extended.is_outdated(wanted)
            known = Demand(served, missing, is_outdated, claims, self._allocator.compile(claims, self._value))
            self._known[served] = known
        return known
