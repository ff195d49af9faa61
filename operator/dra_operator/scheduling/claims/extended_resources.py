"""The extended resources of a pod that devices serve, and the claim for them (scheduling.md 7.2).

They differ between nodes: a node that counts a resource itself (a device plugin registered it) serves it, on all others
the class does to which the resource is mapped. So each set of resources has a claim of its own, which exists only here
until the pod is bound with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dra_api.core import ContainerExtendedResourceRequest, Pod
from dra_api.meta import ObjectMeta
from dra_api.resource import DeviceClaim, DeviceRequest, ResourceClaim, ResourceClaimSpec

from dra_operator.allocator import ClaimError, Refusal, extended_requests
from dra_operator.scheduling.nodes import Nodes
from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.requests import pod_requests

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
        wanted = pod_requests(pod) if classes else {}
        self.classes = {name: classes[name] for name in sorted(wanted) if name in classes and wanted[name] > 0}
        """The resources that the pod asks for and that a class serves, sorted; amounts of zero do not count."""
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
        found = extended_requests(self._pod, {name: self.classes[name] for name in served})
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
        if self.made is None:
            return False
        return wanted is None or (self.made.spec.devices.requests or ()) != wanted.requests

    def groups(self, nodes: Nodes) -> dict[Served, frozenset[str] | None]:
        """The nodes by what devices serve on them; None stands for all nodes that no other group names."""
        counting = {name: nodes.counting(name) for name in self.classes}
        some: frozenset[str] = frozenset().union(*counting.values())
        groups: dict[Served, frozenset[str]] = {(): some} if some else {}
        for name, names in counting.items():
            split = [((*served, name), members - names) for served, members in groups.items()]
            split += [(served, members & names) for served, members in groups.items()]
            groups = {served: members for served, members in split if members}
        rest: dict[Served, frozenset[str] | None] = {tuple(self.classes): None} if len(some) < len(nodes) else {}
        return {**rest, **groups}
