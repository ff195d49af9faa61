"""Files what other schedulers have and want in ``shared_drivers``: their pods, and the claims that these use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from dra_api.codec import DecodeError
from dra_api.core import Pod, PodResourceClaim
from dra_api.references import (
    ClaimName,
    ClaimNotCreatedYet,
    ClaimReferenceError,
    claim_names,
    classes_of,
    pod_is_done,
)
from dra_api.resource import ResourceClaim, ResourceClaimTemplateSpec

from dra_operator.cache.devices import EVERY_CLASS, drivers_in
from dra_operator.cache.index import claims_used
from dra_operator.cache.state import ClusterState
from dra_operator.cache.store import ObjectChange
from dra_operator.scheduling.state import GATED, asks_for_more


def on_pod(cluster: ClusterState, change: ObjectChange[Pod]) -> None:
    """Another scheduler's pod makes the drivers of its claims shared; what it has no claim for yet counts as well."""
    old, new = change
    _file_entering(cluster, change)
    theirs = [pod for pod in change if pod is not None and _has_other_scheduler(cluster, pod)]
    # Each claim of the pod may have thousands of users: they are not looked at if the pod means the same for it.
    is_alike = bool(theirs) and old is not None and new is not None and _meaning(old) == _meaning(new)
    for pod in theirs:
        for _, claim in () if is_alike else cluster.claims_of(pod):
            if claim is not None:
                _file(cluster, claim)
        if _has_newer_version(cluster, pod, change):
            continue  # filing this one now would make the pod look as if it came just now
        # A pod with a node wants nothing more; its claims say what it has.
        is_waiting = pod is change.new and not pod.spec.node_name and not pod_is_done(pod)
        ahead = list(_templates_ahead(cluster, pod)) if is_waiting else []
        named = [class_ for template in ahead for class_ in classes_of(template)]
        if is_waiting and asks_for_more(pod):
            named.append(EVERY_CLASS)
        classes = (*cluster.classes_serving(pod).values(), *named) if is_waiting else ()
        # Filed beside claims of the same namespace and name: the prefix has a blank, which no claim's key has.
        key, own, is_queued = f"pod {pod.key}", cluster.own_devices, _is_queued(pod)
        cluster.shared_drivers.file(key, classes=classes, is_queued=is_queued)
        entering = named if any(map(own.may_enter, ahead)) else ()
        own.visitors.file(key, classes=classes if own.may_enter_nodes(pod) else entering, is_queued=is_queued)


def _file_entering(cluster: ClusterState, change: ObjectChange[Pod]) -> None:
    """Note for which claims another scheduler may look at our nodes, because a pod of theirs tolerates their taint."""
    own, new = cluster.own_devices, change.new
    if new is not None and _has_other_scheduler(cluster, new) and not pod_is_done(new) and own.may_enter_nodes(new):
        own.entering_pods.file(new.key, claims_used(new))
        return
    for pod in change:
        if pod is not None:
            own.entering_pods.file(pod.key, ())


def _meaning(pod: Pod) -> object:
    spec, status = pod.spec, pod.status
    claims = spec.resource_claims, status.resource_claim_statuses, status.extended_resource_claim_status
    scheduled = spec.scheduler_name, bool(spec.scheduling_gates), pod_is_done(pod), _is_queued(pod)
    return pod.metadata.uid, scheduled, claims, spec.tolerations


def on_claim(cluster: ClusterState, change: ObjectChange[ResourceClaim]) -> None:
    """A claim counts as long as a pod of another scheduler uses it; its devices may come free."""
    old, new = change
    # Whoever gave the devices back: the other scheduler may be taking them in this moment.
    if old is not None and old.status.allocation is not None and (new is None or new.status.allocation is None):
        cluster.shared_drivers.freed(drivers_in(old.status.allocation))
        cluster.own_devices.visitors.freed(drivers_in(old.status.allocation))
    if new is not None:
        is_theirs = _file(cluster, new)
        # Only a change that was seen tells who allocated: what was allocated at the start may be ours.
        was_open = old is not None and old.metadata.uid == new.metadata.uid and old.status.allocation is None
        is_news = is_theirs and was_open and cluster.allocated_devices.assumed(new.metadata.uid) is None
        if is_news and new.status.allocation is not None:  # and no write of our own
            cluster.own_devices.allocated_by_others(new, new.status.allocation)
    elif old is not None:
        cluster.shared_drivers.file(old.key)
        cluster.own_devices.visitors.file(old.key)


def _file(cluster: ClusterState, claim: ResourceClaim) -> bool:
    """File the claim as what it is now; return whether a pod of another scheduler uses it."""
    key, visitors = claim.key, cluster.own_devices.visitors
    # Up to the first of theirs that is queued: a claim may have thousands of users.
    allocation, is_theirs, is_queued = claim.status.allocation, False, False
    for user in cluster.users_of(key):
        pod = cluster.pods.get(user)
        if pod is None or not _has_other_scheduler(cluster, pod) or pod_is_done(pod):
            continue
        # Another pod of theirs may still be queued when the first one was refused.
        is_theirs, is_queued = True, allocation is None and _is_queued(pod)
        if is_queued or allocation is not None:
            break
    if not is_theirs:
        # Most claims are never theirs: nothing is filed for these.
        if key in cluster.shared_drivers:
            cluster.shared_drivers.file(key)
            visitors.file(key)
        return False
    drivers = drivers_in(allocation) if allocation is not None else ()
    classes = () if allocation is not None else (*classes_of(claim),)
    cluster.shared_drivers.file(key, drivers=drivers, classes=classes, is_queued=is_queued)
    own = cluster.own_devices
    # If nodes are tainted instead of devices, the pod's tolerations decide, not the claim's.
    may_enter = own.may_enter(claim) or own.entering_pods.has(key)
    visitors.file(key, drivers=drivers if may_enter else (), classes=classes if may_enter else (), is_queued=is_queued)
    return True


def _has_other_scheduler(cluster: ClusterState, pod: Pod) -> bool:
    """Whether another scheduler may allocate for the pod; it does not look at gated pods."""
    return pod.spec.scheduler_name != cluster.scheduler_name and not pod.spec.scheduling_gates


def _has_newer_version(cluster: ClusterState, pod: Pod, change: ObjectChange[Pod]) -> bool:
    """Whether the change brings another version of the same pod, which replaces what is filed."""
    new = change.new
    return (
        new is not None
        and new is not pod
        and new.metadata.uid == pod.metadata.uid
        and _has_other_scheduler(cluster, new)
    )


def _is_queued(pod: Pod) -> bool:
    """Whether its scheduler has given it no node, and not said why not."""
    # Any other reason is a scheduler's answer: it has tried the pod, and waits for a change.
    said = (entry for entry in pod.status.conditions or () if (entry.type, entry.status) == ("PodScheduled", "False"))
    return not pod.spec.node_name and all(entry.reason == GATED for entry in said)


def _templates_ahead(cluster: ClusterState, pod: Pod) -> Iterator[ResourceClaimTemplateSpec]:
    """The pod's templates whose claims the cache lacks: its scheduler may know these before we do."""
    namespace = pod.metadata.namespace
    name_of = claim_names(pod)
    for entry in pod.spec.resource_claims or ():
        template = cluster.templates.get(f"{namespace}/{entry.resource_claim_template_name}")
        if template is None:
            continue
        # A faulty template makes no claim, so no scheduler can be allocating one.
        with suppress(DecodeError, ClaimReferenceError):
            name = _name_or_unmade(name_of, entry)
            if name is not None and f"{namespace}/{name}" not in cluster.claims:
                yield template.typed()


def _name_or_unmade(name_of: Callable[[PodResourceClaim], ClaimName], entry: PodResourceClaim) -> str | None:
    """The name of the entry's claim, an empty one before it is made; None if the entry needs no claim."""
    try:
        return name_of(entry).name
    except ClaimNotCreatedYet:
        return ""
