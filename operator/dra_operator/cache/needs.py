"""For which pods, claims and PodGroups the claim controllers have something to do (claim-controller.md 5 to 7).

Asked at each change of an object, and of all that it refers to. So the answer is by look-ups, and errs on the side of
work: a key that turns out to need nothing costs one look.
"""

from __future__ import annotations

from typing import Final

from dra_api.core import Pod
from dra_api.references import (
    ClaimReferenceError,
    claim_names,
    consumer_of,
    is_for_extended_resources,
    is_owned_by,
    is_owned_by_group,
    is_pod_group,
    is_reserved_for,
    owning_pod,
    pod_is_done,
    pod_is_ending,
)
from dra_api.resource import FINALIZER, ResourceClaim
from dra_api.scheduling import PodGroup

from dra_operator.cache.index import duplicates, owner_id
from dra_operator.cache.state import ClusterState
from dra_operator.scheduling.state import ANNOTATION, HOLD, asks_for_more

LOOKED_AT_CLAIMS: Final = 16
"""So many claims of a pod are looked at with each change of one, or of their template."""


def pod_needs_work(cluster: ClusterState, pod: Pod) -> bool:
    """Whether claims have to be made, recorded or reserved for the pod (claim-controller.md 5.2).

    A finished pod needs nothing: its generated claim was just deleted and must not come back (PRJ-003).
    """
    if pod_is_ending(pod):
        return False
    if pod.spec.node_selector and asks_for_more(pod):
        return True  # it is read to find out
    name_of = claim_names(pod)
    for entry in pod.spec.resource_claims or ():
        try:
            name, must_check_owner = name_of(entry)
        except ClaimReferenceError:
            return True
        if name is None:
            continue
        claim = cluster.claims.get(f"{pod.metadata.namespace}/{name}")
        if claim is None:
            # A claim that is named but missing is made by someone else; so is that of the group.
            if entry.resource_claim_template_name is not None and not is_shared(cluster, pod, entry.name):
                return True
            continue
        # Somebody made a claim of this name for himself: nothing of it can be repaired here.
        if must_check_owner and not is_owned_by(pod, claim):
            continue
        # The kubelet starts no pod whose claim is not reserved for it, and no scheduler looks at a pod with a node.
        unreserved = claim.status.allocation is not None and not is_reserved_for(pod, claim)
        if pod.spec.node_name and unreserved:
            return True
    return has_duplicates(cluster, pod)


def may_need_work(cluster: ClusterState, pod: Pod) -> bool:
    """As ``pod_needs_work``; a pod with many entries is looked at when its turn comes, as there may be hundreds."""
    return len(pod.spec.resource_claims or ()) > LOOKED_AT_CLAIMS or pod_needs_work(cluster, pod)


def claim_needs_work(cluster: ClusterState, claim: ResourceClaim) -> bool:
    """Whether the claim may have to be held, released or deleted (claim-controller.md 6 and 7).

    Not while all that it is reserved for, and the pod that it was made for, are there: their end wakes it.
    """
    meta = claim.metadata
    # Each of these has more to do than to wait for its consumers.
    is_immediate = ANNOTATION in (meta.annotations or {}) or HOLD in (meta.finalizers or ())
    if is_immediate or meta.deletion_timestamp is not None or is_for_extended_resources(claim):
        return True
    if is_unprotected(cluster, claim) or is_reserved_in_vain(cluster, claim):
        return True
    users = [(it.name, it.uid) for it in claim.status.reserved_for or () if not is_pod_group(it)]
    if (owner := owning_pod(claim)) is not None:
        users.append((owner.name, owner.uid))
    for name, uid in users:
        # Compared by UID: a successor of the same name uses nothing of the claim.
        pod = cluster.pods.get(f"{meta.namespace}/{name}", uid)
        if pod is None or pod_is_done(pod):
            return True
    return False


def is_unprotected(cluster: ClusterState, claim: ResourceClaim) -> bool:
    """Whether nothing keeps the claim from vanishing although a pod that we placed uses it."""
    meta, status = claim.metadata, claim.status
    if status.allocation is None or meta.deletion_timestamp is not None:
        return False
    # Either finalizer keeps a deleted claim until its devices are given back.
    if FINALIZER in (meta.finalizers or ()) or HOLD in (meta.finalizers or ()):
        return False
    users = (user for it in status.reserved_for or () for user in cluster.pods_behind(it, meta.namespace))
    # Another scheduler protects its own claims: two writers would only make each other conflict.
    return any(pod.spec.scheduler_name == cluster.scheduler_name for pod in users)


def is_reserved_in_vain(cluster: ClusterState, claim: ResourceClaim) -> bool:
    """Whether the claim is reserved for a PodGroup of which no pod is known that needs it."""
    # A reservation for a group was made before the gate was turned off, and nobody knows whom it serves.
    if not cluster.features.workload_resource_claims:
        return False
    groups = (consumer for consumer in claim.status.reserved_for or () if is_pod_group(consumer))
    return any(not cluster.groups.needs(claim, group) for group in groups)


def group_needs_work(cluster: ClusterState, group: PodGroup) -> bool:
    """Whether claims have to be made or recorded for the group."""
    # Its claims end with it.
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


def is_shared(cluster: ClusterState, pod: Pod, entry_name: str) -> bool:
    """Return whether the entry of the pod means the claim of its PodGroup. The pod does not make that one."""
    group = cluster.groups.of(pod)
    entry = next((it for it in pod.spec.resource_claims or () if it.name == entry_name), None)
    if group is None or entry is None:
        return False
    try:
        return is_pod_group(consumer_of(pod, group, entry))
    except ClaimReferenceError:
        return True  # nothing can be made for such an entry


def has_duplicates(cluster: ClusterState, pod: Pod) -> bool:
    """Whether there may be some. Of far more claims than entries that is not found out here, with each of them."""
    claims = cluster.claims_by_owner.count(owner_id(pod.metadata.namespace, pod.metadata.uid))
    # Users can make claims that name the pod as their owner: comparing them all at each change would be quadratic.
    if claims > max(LOOKED_AT_CLAIMS, 2 * len(pod.spec.resource_claims or ())):
        return True
    return claims > 1 and any(duplicates(pod, cluster.claims_owned_by(pod)))
