"""Pods of a snapshot as they were before they had a node, and the cluster without them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dra_api.core import Pod, PodStatus
from dra_api.meta import Object
from dra_api.resource import ResourceClaim, ResourceClaimStatus
from msgspec.structs import replace


def without_pods(objects: Iterable[Object], pods: Sequence[Pod]) -> Iterator[Object]:
    """The other objects. Claims that were made for pods are left out, and no claim has devices."""
    keys = {pod.key for pod in pods}
    for it in objects:
        if isinstance(it, ResourceClaim):
            owner = it.metadata.controller
            if owner is None or owner.kind != "Pod":
                yield replace(it, status=ResourceClaimStatus())
        elif not (isinstance(it, Pod) and it.key in keys):
            yield it


def anew(pod: Pod, copy: int = 0) -> Pod:
    """The pod before it has a node; copies have names and UIDs of their own."""
    meta = pod.metadata
    if copy:
        meta = replace(meta, name=f"{meta.name}-copy-{copy}", uid=f"{meta.uid or pod.key}-copy-{copy}")
    return replace(pod, metadata=meta, spec=replace(pod.spec, node_name=""), status=PodStatus())


def can_be_copied(pod: Pod) -> bool:
    """Whether all its claims come from templates; a claim that pods name is there once."""
    return all(it.resource_claim_template_name for it in pod.spec.resource_claims or ())
