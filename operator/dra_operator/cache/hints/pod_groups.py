"""What concerns PodGroups and the claims that their pods share (claim-controller.md section 8). Like ``triggers``."""

from __future__ import annotations

from collections.abc import Iterator

from dra_api.core import Pod
from dra_api.relations.references import (
    ClaimReferenceError,
    claim_names,
    claims_of_group,
    consumer_of,
    group_name,
    is_owned_by_group,
    is_pod_group,
    owning_group,
)
from dra_api.resource import ResourceClaim
from dra_api.scheduling import PodGroup

from dra_operator.cache.key import NOTHING, Key, Keys
from dra_operator.cache.state import State


def group_needs_work(cluster: State, group: PodGroup) -> bool:
    """Whether claims have to be made or recorded for the group."""
    if group.metadata.deletion_timestamp is not None:
        return False
    name_of = claim_names(group)
    for entry in group.spec.resource_claims or ():
        try:
            name, must_check_owner = name_of(entry)
        except ClaimReferenceError:
            return True
        claim = cluster.claims.get(f"{group.metadata.namespace}/{name}") if name is not None else None
        if must_check_owner and name is not None and (claim is None or not is_owned_by_group(group, claim)):
            return True
    return False


def group_of_placed(cluster: State, pod: Pod) -> Keys:
    """The PodGroup of a pod that has a node now: enough of its pods may run."""
    group = cluster.groups.of(pod)
    return NOTHING if group is None else (Key("group-conditions", group.key),)


def groups_of_claim(cluster: State, key: str, claim: ResourceClaim | None) -> Keys:
    """The PodGroups that record the claim, and the one that owns it, if they have something to do."""
    if not cluster.groups.store:
        return NOTHING
    names = list(cluster.groups.by_claim.keys(key))
    if claim is not None and (owner := owning_group(claim)) is not None:
        names.append(f"{claim.metadata.namespace}/{owner.name}")
    groups = (cluster.groups.store.get(name) for name in dict.fromkeys(names))
    return tuple(Key("pod-groups", it.key) for it in groups if it is not None and group_needs_work(cluster, it))


def groups_of_template(cluster: State, key: str) -> Keys:
    """The PodGroups that wait for a claim from the template."""
    users = (cluster.groups.store.get(group) for group in cluster.groups.by_template.keys(key))
    return tuple(Key("pod-groups", it.key) for it in users if it is not None and group_needs_work(cluster, it))


def is_shared(cluster: State, pod: Pod, entry_name: str) -> bool:
    """Whether the entry of the pod means the claim of its PodGroup, which the pod does not make."""
    group = cluster.groups.of(pod)
    entry = next((it for it in pod.spec.resource_claims or () if it.name == entry_name), None)
    if group is None or entry is None:
        return False
    try:
        return is_pod_group(consumer_of(pod, group, entry))
    except ClaimReferenceError:
        return True  # nothing can be made for such an entry


def claims_left_by(cluster: State, group: PodGroup) -> Iterator[str]:
    """The keys of the claims that the group names, and of those made for it."""
    yield from (f"{group.metadata.namespace}/{name}" for name in claims_of_group(group))
    yield from (claim.key for claim in cluster.claims_owned_by(group))


def claims_left_by_member(cluster: State, pod: Pod) -> Iterator[str]:
    """The keys of the claims of the pod's group, if no other known pod of it is active."""
    name, group = group_name(pod), cluster.groups.of(pod)
    if name is None or group is None or cluster.groups.has_active(f"{pod.metadata.namespace}/{name}"):
        return
    yield from claims_left_by(cluster, group)


def is_reserved_in_vain(cluster: State, claim: ResourceClaim) -> bool:
    """Whether the claim is reserved for a PodGroup of which no pod is known that needs it."""
    if not cluster.features.workload_resource_claims:
        return False
    groups = (consumer for consumer in claim.status.reserved_for or () if is_pod_group(consumer))
    return any(not cluster.groups.needs(claim, group) for group in groups)
