"""Under which values the indexes of the cache file pods and claims. They follow from the object alone."""

from __future__ import annotations

from collections.abc import Iterable

from dra_api.core import Pod
from dra_api.relations.references import claims_of_pod, group_name, owning_group, owning_pod, pod_is_done
from dra_api.relations.volumes import volume_uses
from dra_api.resource import ResourceClaim

from dra_operator.allocator import DeviceId


def owner_id(namespace: str, uid: str) -> str:
    """A pod's UID beside its namespace: a claim of another one may name the UID as its owner, and is not the pod's."""
    return f"{namespace}/{uid}"


def claims_used(pod: Pod) -> Iterable[str]:
    """The keys of the claims that the pod uses."""
    return [f"{pod.metadata.namespace}/{use.name}" for use in claims_of_pod(pod)]


def templates_named(pod: Pod) -> Iterable[str]:
    """The keys of the templates that the pod names."""
    names = [entry.resource_claim_template_name for entry in pod.spec.resource_claims or ()]
    return [f"{pod.metadata.namespace}/{name}" for name in names if name]


def volume_claims_used(pod: Pod) -> Iterable[str]:
    """The keys of the PersistentVolumeClaims that the pod uses until it is done."""
    return () if pod_is_done(pod) else [use.key for use in volume_uses(pod)]


def groups_named(pod: Pod) -> Iterable[str]:
    """The key of the PodGroup that the pod is in."""
    group = group_name(pod)
    return (f"{pod.metadata.namespace}/{group}",) if group else ()


def owners_of(claim: ResourceClaim) -> Iterable[str]:
    """The pod or the PodGroup that the claim was made for."""
    owner = owning_pod(claim) or owning_group(claim)
    return () if owner is None else (owner_id(claim.metadata.namespace, owner.uid),)


def devices_of(claim: ResourceClaim) -> Iterable[DeviceId]:
    """The devices that the claim has, with admin access too."""
    return map(DeviceId.of, claim.results)
