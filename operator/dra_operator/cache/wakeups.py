"""Which keys a change concerns (claim-controller.md 5.1, 5.2, 6 and 8, scheduling.md SC-02).

Questions only, no decisions: a key that turns out to need nothing costs one look. The opposite must not happen: a
change that a pod waits for, and that does not wake it.

Its own claims wake a pod always. Volumes and storage classes wake the pods whose last attempt met an obstacle in
their volumes, or was refused by nodes although they have some.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final

from dra_api.core import Namespace, Node, Pod
from dra_api.kueue import AdmissionCheck, ResourceFlavor, Workload
from dra_api.meta import Object
from dra_api.quota import resources_of
from dra_api.references import (
    claims_of_group,
    group_name,
    is_for_extended_resources,
    is_reserved_for,
    owning_group,
    owning_pod,
    pod_is_done,
    volume_uses,
)
from dra_api.resource import (
    AllocationResult,
    DeviceClass,
    ResourceClaim,
    ResourcePoolStatusRequest,
    ResourceSlice,
)
from dra_api.scheduling import PodDisruptionBudget, PodGroup
from dra_api.storage import PersistentVolumeClaim

from dra_operator.cache.crowds import crowd_of_users, pods_to_serve, spread, waiting_pods, waiting_users
from dra_operator.cache.index import any_claim, owner_id
from dra_operator.cache.key import (
    HINTS_AT_ONCE,
    NOTHING,
    WITH_GANG,
    Crowd,
    Hint,
    Key,
    Keys,
    WakeConditions,
    Weak,
    Wide,
    place,
    place_users,
)
from dra_operator.cache.needs import claim_needs_work, group_needs_work, has_duplicates, may_need_work, pod_needs_work
from dra_operator.cache.shared_drivers import drivers_in
from dra_operator.cache.state import ClusterState
from dra_operator.cache.store import ClaimTemplate, ObjectChange
from dra_operator.scheduling import ANY_DRIVER
from dra_operator.scheduling.rules import ClusterEvent
from dra_operator.scheduling.state import Place, asks_for_more, counts_alike, gang_key, placeholder_key


def on_pod(cluster: ClusterState, change: ObjectChange[Pod]) -> Keys:
    """The pod itself, and the claims it needs no longer (claim-controller.md 5.1)."""
    old, new = change
    gone = old if old is not None and not _is_same(old, new) else None
    keys: list[Hint] = []
    if gone is not None:
        keys += _claims_left_by(cluster, gone)
        # A write for the pod that is gone may still land: its key is handled once more to find out.
        keys += place(entry.pod.key for entry in cluster.allocated_devices.assumed_for(gone.key))
        keys += _left_by(cluster, gone)
    if new is not None:
        key = new.key
        if pod_is_done(new):
            keys += _claims_left_by(cluster, new)
        if pod_needs_work(cluster, new):
            keys.append(Key("templates", key))
        if new.spec.node_name and (old is None or gone is not None or not old.spec.node_name):
            # Only now: until the pod has its node, any of these claims may become the one that counts.
            keys += _made_in_vain(cluster, new)
            keys += _left_to_placeholders(cluster, new)
            keys += group_of_placed(cluster, new)
        # One that got its node, failed, or chose another gang no longer leads the gang it was in.
        if old is not None and gone is None and _waits(old) and (not _waits(new) or gang_key(old) != gang_key(new)):
            keys += _left_by(cluster, old)
        # Before its claim is recorded an attempt would only find that out; the record wakes the pod.
        is_other = gone is not None or _may_place_differently(cluster, old, new)
        if is_other and key in cluster.waiting and not cluster.lacks_generated_claim(new):
            keys.append(Key("placement", key))
    return tuple(keys)


def on_group(cluster: ClusterState, change: ObjectChange[PodGroup]) -> Keys:
    """The PodGroup itself and its pods; the claims that it leaves when it goes, or that no pod needs when it comes."""
    old, new = change
    group = new or old
    if group is None or (old is not None and new is not None and _is_same(old, new) and _says_the_same(old, new)):
        return NOTHING
    keys: list[Hint] = [Key("group-conditions", group.key)]
    # A group of the same name that comes anew has other claims, and owes those of the one before.
    if not _is_same(old, new):
        versions = (it for it in change if it is not None)
        for it in versions:
            keys += _released(cluster, it, [f"{it.metadata.namespace}/{name}" for name in claims_of_group(it)])
    if new is not None and group_needs_work(cluster, new):
        keys.append(Key("pod-groups", new.key))
    members = cluster.groups.members
    keys += pods_to_serve(cluster, "members", members, group.key, pod_needs_work)
    # All of them: its priority, its claims and its wish for a gang are read by each of its pods.
    keys += waiting_users(cluster, "members", members, group.key)
    return tuple(keys)


def _says_the_same(old: PodGroup, new: PodGroup) -> bool:
    """Whether nothing changed but what others report."""
    is_going = (old.metadata.deletion_timestamp is None) != (new.metadata.deletion_timestamp is None)
    names = old.status.resource_claim_statuses == new.status.resource_claim_statuses
    return old.spec == new.spec and names and not is_going


def _waits(pod: Pod) -> bool:
    """Whether the pod may still get a node."""
    return not pod.spec.node_name and not pod_is_done(pod) and pod.metadata.deletion_timestamp is None


def _left_by(cluster: ClusterState, pod: Pod) -> Keys:
    """A pod of the gang that still waits, and one that could be tried: the gang may lack a pod now, or its leader."""
    gang = gang_key(pod) if cluster.to_wake else None
    keys = cluster.pods_by_gang.keys(gang) if gang is not None else ()
    # Two passes that end early: a tenant may have any number of pods say that they are of one gang.
    first = islice((it for it in keys if it in cluster.waiting), 1)
    # The first may not be ready, and only one that was ready can lead.
    ready = (it for it in keys if it in cluster.waiting and cluster.waiting[it].reason == WITH_GANG.reason)
    return place(dict.fromkeys((*first, *islice(ready, 1))))


def on_pod_of_node(cluster: ClusterState, before: Place | None, after: Place | None) -> Keys:
    """Waiting pods with rules between pods, when a pod comes to a node, leaves it or changes there; None: nowhere."""
    # The same object: no event brought another version, so nothing is compared.
    if before is after:
        return NOTHING
    was, where = before or (None, "")
    now, there = after or (None, "")
    if was is not None and now is not None:
        if where == there and counts_alike(was, now):
            return NOTHING
        # Leaving and coming concern different pods: those near the one node and those near the other.
        if where != there:
            return (*on_pod_of_node(cluster, before, None), *on_pod_of_node(cluster, None, after))
    helped = cluster.hinted.helped_by(was, now, cluster.pods_by_node)
    found = list(islice(helped, HINTS_AT_ONCE + 1))
    if len(found) <= HINTS_AT_ONCE:
        return tuple(Wide(Key("placement", key)) for key in found)
    # Which of them it helps is left to their turn: each comparison costs as much as a cheap attempt.
    return waiting_pods(cluster, ("rules between pods",), lambda _, wake_on: bool(wake_on.hints), Wide)


def on_namespace(cluster: ClusterState, change: ObjectChange[Namespace]) -> Keys:
    """Waiting pods with rules that select namespaces, when labels of namespaces changed."""
    old, new = change
    # Selectors read labels, and nothing else of a namespace.
    if old is not None and new is not None and old.metadata.labels == new.metadata.labels:
        return NOTHING
    return _hinted(cluster, ClusterEvent.NAMESPACE)


def _hinted(cluster: ClusterState, event: ClusterEvent) -> Keys:
    return waiting_pods(cluster, (event,), lambda _, wake_on: event in wake_on.hints, Wide)


def on_claim(cluster: ClusterState, change: ObjectChange[ResourceClaim]) -> Keys:
    """The claim itself, the pods that use it, and pods that wait for devices that came free (SC-02).

    That a claim is gone helps none of its pods, but why they wait is another reason now.
    """
    old, new = change
    keys: list[Hint] = []
    key = new.key if new is not None else old.key if old is not None else ""
    if new is not None and claim_needs_work(cluster, new):
        keys.append(Key("release", key))
    keys += groups_of_claim(cluster, key, new)
    if new is not None and (owner := cluster.owner_of(new)) is not None and has_duplicates(cluster, owner):
        keys.append(Key("templates", owner.key))
    # A claim may have thousands of users, and anyone may change its annotations: only some changes concern them.
    matters = new is None or _matters_to_users(old, new)
    if cluster.pods_by_claim.has(key):
        keys += _concerned_users(cluster, key, change)
        if matters:
            keys += waiting_users(cluster, "users", cluster.pods_by_claim, key)
    if cluster.pods_aside and matters:  # there are none in nearly all clusters
        keys += _of_pods_aside(cluster, new or old, is_news=_is_news_of_life(change))
    # Gone, or replaced without an event about its end: both may be what its owner waits for.
    if old is not None and not _is_same(old, new):
        keys += _leftover_gone(cluster, old)
    # Devices come free with the allocation, however that ended.
    had = old.status.allocation if old is not None else None
    if had is not None and (new is None or new.status.allocation is None or not _is_same(old, new)):
        keys += devices_freed(cluster, had)
    elif had is not None and new is not None and cluster.nominated_pods.is_on and _has_lost_pod(cluster, old, new):
        keys += _may_preempt_users(cluster, new, had)
    if new is not None and new.status.allocation is not None and (had is None or _is_left(old, new)):
        keys += _clashing(cluster, new)
    return tuple(keys)


def _of_pods_aside(cluster: ClusterState, claim: ResourceClaim | None, *, is_news: bool) -> Keys:
    """Pods that may use the claim, since not all that they use is kept."""
    if claim is None:
        return NOTHING
    namespace, owner = claim.metadata.namespace, owning_pod(claim)
    # Thousands of such pods have claims made for them, one by one: each concerns the others as little as any other.
    if owner is not None:
        pod = cluster.pods.get(f"{namespace}/{owner.name}", owner.uid)
        if pod is None or not asks_for_more(pod):
            return NOTHING
        placed = place([pod.key] if pod.key in cluster.waiting else ())
        return (Key("templates", pod.key), *placed) if is_news and may_need_work(cluster, pod) else placed
    # They are the same for all claims of the namespace: however many of these come and go, the pods are read once.
    users, key = cluster.pods_by_claim, any_claim(namespace)
    served = pods_to_serve(cluster, "users of any", users, key, may_need_work) if is_news else NOTHING
    return (*served, *waiting_users(cluster, "users of any", users, key))


def _is_news_of_life(change: ObjectChange[ResourceClaim]) -> bool:
    """Whether the claim came or went, or is about to go."""
    old, new = change
    return old is None or new is None or not _is_same(old, new) or _life(old) != _life(new)


def _concerned_users(cluster: ClusterState, key: str, change: ObjectChange[ResourceClaim]) -> Keys:
    """The pods that use a claim, if a change of it may give them something to do."""
    if _is_news_of_life(change):
        return pods_to_serve(cluster, "users", cluster.pods_by_claim, key, may_need_work)
    if change.new is None or change.new.status.allocation is None:
        return NOTHING
    return pods_to_serve(cluster, "users on nodes", cluster.pods_by_claim, key, partial(_is_unreserved, claim=key))


def _is_unreserved(cluster: ClusterState, pod: Pod, *, claim: str) -> bool:
    """Whether the pod has a node, and the claim is not reserved for it: it was not placed by a scheduler that knows
    claims."""
    if not pod.spec.node_name or (known := cluster.claims.get(claim)) is None or known.status.allocation is None:
        return False
    return not is_reserved_for(pod, known) and may_need_work(cluster, pod)


def _clashing(cluster: ClusterState, claim: ResourceClaim) -> Keys:
    """Who holds a device of the claim as well, and can still give way: waiting pods, and immediate claims."""
    devices = cluster.allocated_devices.clashes(claim)
    if not devices:
        return NOTHING

    def users() -> Iterator[str]:
        for key in dict.fromkeys(key for device in devices for key in cluster.claims_by_device.keys(device)):
            yield from cluster.users_of(key)

    def hints(user: str) -> tuple[Key, ...]:
        is_open = user in cluster.waiting or user in cluster.placeholders
        return (Key("placement", user),) if is_open else ()

    crowd = Crowd(("clashing", claim.key), claim.metadata.namespace, users, hints)
    return tuple(dict.fromkeys(spread(crowd)))


def on_template(cluster: ClusterState, change: ObjectChange[ClaimTemplate]) -> Keys:
    """Pods that wait for a claim from the template; a deleted template concerns no pod (claim-controller.md 4)."""
    # Pods whose claims were made need it no more, and the others are told when they are tried.
    if change.new is None:
        return NOTHING
    key = change.new.key
    pods = pods_to_serve(cluster, "pods of template", cluster.pods_by_template, key, may_need_work)
    return pods + groups_of_template(cluster, key)


def on_node(cluster: ClusterState, change: ObjectChange[Node]) -> Keys:
    """Waiting pods that were refused by nodes, if the node is new or now takes other pods than before.

    That a node is gone helps only where its pods stood in the way, or where it was the last of its topology domain.
    """
    old, new = change
    if new is None:
        return _hinted(cluster, ClusterEvent.NODE_GONE)
    # A kubelet reports its node again and again: conditions and images must wake nobody.
    if old is not None and _offer(old) == _offer(new):
        return NOTHING
    return waiting_pods(cluster, ("nodes",), lambda _, wake_on: wake_on.nodes, Wide)


def on_class(cluster: ClusterState, change: ObjectChange[DeviceClass]) -> Keys:
    """Waiting pods that need the class, by a claim or by a resource that it serves, unless only metadata changed.

    That a class is gone helps no claim, but why its pods wait is another reason now, and another class may serve its
    resource (scheduling.md 7.1).
    """
    old, new = change
    # Only the selectors and the resource of a class matter to claims.
    if old is not None and new is not None and _is_same(old, new) and old.spec == new.spec:
        return NOTHING
    name = next(version.metadata.name for version in change if version is not None)
    # The resources of both versions: the class may have begun or ceased to serve one.
    resources = sorted({resource for it in (old, new) if it is not None for resource in resources_of(it)})

    def users() -> Iterator[str]:
        for claim in cluster.claims_by_class.keys(name):
            yield from cluster.pods_by_claim.keys(claim)
        for resource in resources:
            yield from cluster.pods_by_resource.keys(resource)
        # The cache lacks resources of these pods.
        yield from (pod.key for pod in _existing(cluster, list(cluster.pods_aside)) if asks_for_more(pod))

    few = list(islice(users(), HINTS_AT_ONCE + 1))
    if len(few) > HINTS_AT_ONCE:
        return (crowd_of_users(cluster, ("class", name, *resources), "", users),)
    return place_users([pod for pod in dict.fromkeys(few) if pod in cluster.waiting])


def on_slice(cluster: ClusterState, change: ObjectChange[ResourceSlice]) -> Keys:
    """Waiting pods that need devices: the slice may hold them, or its going may complete its pool (AL-03)."""
    old, new = change
    # Drivers write their slices again and again without a change.
    if old is not None and new is not None and old.spec == new.spec:
        return NOTHING
    return devices_published(cluster)


def devices_published(cluster: ClusterState) -> Keys:
    """Waiting pods that need devices, of whatever driver: a request for all devices minds every pool."""
    return waiting_pods(
        cluster, ("devices",), lambda key, wake_on: wake_on.devices and _needs_devices(cluster, key), Wide
    )


def devices_freed(cluster: ClusterState, allocation: AllocationResult) -> Keys:
    """Waiting pods whose classes may hold what was freed, if that is free still when their turn comes."""
    # A pod whose class may hold devices of any driver is helped by each of them.
    if not cluster.to_wake:
        return NOTHING
    freed = frozenset({ANY_DRIVER, *drivers_in(allocation)})

    def waits(key: str, wake_on: WakeConditions) -> bool:
        return not freed.isdisjoint(wake_on.freed) and _needs_devices(cluster, key)

    return waiting_pods(cluster, ("freed devices", freed), waits, Weak)


def _may_preempt_users(cluster: ClusterState, claim: ResourceClaim, allocation: AllocationResult) -> Keys:
    """Return waiting pods that may preempt a remaining user of the claim, since their priority is higher.

    A user that took long to terminate may have kept them from it: the others would have been preempted for nothing.
    """
    held = frozenset({ANY_DRIVER, *drivers_in(allocation)})
    names = (f"{claim.metadata.namespace}/{consumer.name}" for consumer in claim.status.reserved_for or ())
    # Pods of a tenant may come and go at a shared claim all the time: that wakes nobody who could not preempt them.
    lowest = min(map(cluster.priority_of, _existing(cluster, names)), default=None)
    if lowest is None:
        return NOTHING

    def waits(key: str, wake_on: WakeConditions) -> bool:
        if held.isdisjoint(wake_on.freed) or not _needs_devices(cluster, key):
            return False
        pod = cluster.pods.get(key)
        return pod is not None and cluster.priority_of(pod) > lowest

    return waiting_pods(cluster, ("held devices", held, lowest), waits, Wide)


def _has_lost_pod(cluster: ClusterState, old: ResourceClaim | None, new: ResourceClaim) -> bool:
    """Return whether the claim is still reserved for others, and no longer for a pod that is gone."""
    if old is None or not new.status.reserved_for or len(old.status.reserved_for or ()) <= len(new.status.reserved_for):
        return False
    left = {consumer.uid for consumer in new.status.reserved_for}
    gone = (it for it in old.status.reserved_for or () if it.uid not in left and it.resource == "pods")
    return any(cluster.pods.get(f"{new.metadata.namespace}/{it.name}", it.uid) is None for it in gone)


def _needs_devices(cluster: ClusterState, key: str) -> bool:
    return key in cluster.pods_by_claim or key in cluster.pods_by_resource


def room_freed(cluster: ClusterState) -> Keys:
    """Waiting pods for which the last attempt found too little cpu, memory or the like, if there is some still when
    their turn comes."""
    return waiting_pods(cluster, ("freed room",), lambda _, wake_on: wake_on.room, Weak)


def _is_same(one: Object | None, other: Object | None) -> bool:
    return one is not None and other is not None and one.metadata.uid == other.metadata.uid


def _claims_left_by(cluster: ClusterState, pod: Pod) -> Keys:
    """What the pod used, and what was made for it, used or not."""

    # Both, since a claim that was made for the pod and never recorded is in none of its entries.
    used = [f"{pod.metadata.namespace}/{use.name}" for use, _ in cluster.claims_of(pod)]
    used += claims_left_by_member(cluster, pod)
    return _released(cluster, pod, used)


def _released(cluster: ClusterState, owner: Pod | PodGroup, used: list[str]) -> Keys:
    """Claims that nobody may need any more, because their owner has left them."""
    namespace, uid = owner.metadata.namespace, owner.metadata.uid
    # Anyone may make claims that name the pod as their owner.
    if cluster.claims_by_owner.count(owner_id(namespace, uid)) <= HINTS_AT_ONCE:
        used += [claim.key for claim in cluster.claims_owned_by(owner)]
        return tuple([Key("release", key) for key in dict.fromkeys(used)])

    def claims() -> Iterator[str]:
        yield from used
        yield from [claim.key for claim in cluster.claims_owned_by(owner)]

    return (Crowd(("left by", uid), namespace, claims, lambda key: (Key("release", key),)),)


def _made_in_vain(cluster: ClusterState, pod: Pod) -> Keys:
    """Claims for extended resources beside the one with which the pod got its node."""
    return tuple(
        Key("release", claim.key) for claim in cluster.claims_owned_by(pod) if is_for_extended_resources(claim)
    )


def _left_to_placeholders(cluster: ClusterState, pod: Pod) -> Keys:
    """Placeholder pods of immediate claims without devices: until the pod had its node they left the decision to it."""
    placeholders = map(placeholder_key, cluster.known_claims(pod))
    return place(key for key in placeholders if key in cluster.waiting)


def _leftover_gone(cluster: ClusterState, claim: ResourceClaim) -> Keys:
    """Its owner, if that waits for this (scheduling.md 4.3)."""
    owner = claim.metadata.controller
    key = f"{claim.metadata.namespace}/{owner.name}" if owner is not None else ""
    wake_on = cluster.waiting.get(key)
    # An attempt would only find the leftover again, so the pod waits for its deletion and nothing else.
    waits = wake_on is not None and wake_on.leftovers and is_for_extended_resources(claim)
    return place((key,) if waits else ())


def _may_place_differently(cluster: ClusterState, old: Pod | None, new: Pod) -> bool:
    """Not on our own condition writes, which would chase their own tail."""
    return (
        old is None
        or old.spec != new.spec
        or old.status.resource_claim_statuses != new.status.resource_claim_statuses
        or old.metadata.labels != new.metadata.labels
        or (old.metadata.annotations != new.metadata.annotations and cluster.gang_of(old) != cluster.gang_of(new))
    )


def _matters_to_users(old: ResourceClaim | None, new: ResourceClaim) -> bool:
    """Whether a pod that waits with the claim may fare differently now.

    One more consumer helps no other pod; one less may, because a claim takes so many and no more, and because devices
    in the wrong place are only given back when their last user asks for that.
    """
    if old is None or not _is_same(old, new) or _is_left(old, new):
        return True
    before, now = old.status, new.status
    return _life(old) != _life(new) or before.devices != now.devices or before.allocation != now.allocation


def _life(claim: ResourceClaim) -> object:
    """Whether it is going, and for whom it was made."""
    return (claim.metadata.deletion_timestamp, claim.metadata.owner_references)


def _is_left(old: ResourceClaim | None, new: ResourceClaim) -> bool:
    """Whether a consumer gave the claim up."""
    if old is None or old.status.reserved_for is None:
        return False
    now = {consumer.uid for consumer in new.status.reserved_for or ()}
    return any(consumer.uid not in now for consumer in old.status.reserved_for)


def _offer(node: Node) -> object:
    return (node.metadata.labels, node.status.allocatable, node.status.declared_features, node.spec)


def _existing(cluster: ClusterState, keys: Iterable[str]) -> Iterator[Pod]:
    for key in keys:
        pod = cluster.pods.get(key)
        if pod is not None:
            yield pod


def on_pool_request(_: ClusterState, change: ObjectChange[ResourcePoolStatusRequest]) -> Keys:
    """The request itself: it may want an answer, and has a time at which it is old."""
    return tuple(Key("pool-status", request.key) for request in change if request is not None)


def on_nothing(_: ClusterState, __: ObjectChange[Any]) -> Keys:
    """Return no key.

    A budget decides which pods are preempted, not whether one fits. The controller ``admission`` has no queue: it looks
    at all Workloads in rounds.
    """
    return NOTHING


ONLY_KEPT: Final[Mapping[type[Object], Callable[[ClusterState, ObjectChange[Any]], Keys]]] = {
    ResourcePoolStatusRequest: on_pool_request,
    PodDisruptionBudget: on_nothing,
    Workload: on_nothing,
    ResourceFlavor: on_nothing,
    AdmissionCheck: on_nothing,
}
"""Kinds from which the cache derives nothing, and whom a change of one wakes."""


def group_of_placed(cluster: ClusterState, pod: Pod) -> Keys:
    """The PodGroup of a pod that has a node now: enough of its pods may run."""
    group = cluster.groups.of(pod)
    return NOTHING if group is None else (Key("group-conditions", group.key),)


def groups_of_claim(cluster: ClusterState, key: str, claim: ResourceClaim | None) -> Keys:
    """The PodGroups that record the claim, and the one that owns it, if they have something to do."""
    # Skipped without PodGroups: the gate is off in most clusters.
    if not cluster.groups.store:
        return NOTHING
    names = list(cluster.groups.by_claim.keys(key))
    if claim is not None and (owner := owning_group(claim)) is not None:
        names.append(f"{claim.metadata.namespace}/{owner.name}")
    groups = (cluster.groups.store.get(name) for name in dict.fromkeys(names))
    return tuple(Key("pod-groups", it.key) for it in groups if it is not None and group_needs_work(cluster, it))


def groups_of_template(cluster: ClusterState, key: str) -> Keys:
    """The PodGroups that wait for a claim from the template."""
    users = (cluster.groups.store.get(group) for group in cluster.groups.by_template.keys(key))
    return tuple(Key("pod-groups", it.key) for it in users if it is not None and group_needs_work(cluster, it))


def claims_left_by(cluster: ClusterState, group: PodGroup) -> Iterator[str]:
    """The keys of the claims that the group names, and of those made for it."""
    yield from (f"{group.metadata.namespace}/{name}" for name in claims_of_group(group))
    yield from (claim.key for claim in cluster.claims_owned_by(group))


def claims_left_by_member(cluster: ClusterState, pod: Pod) -> Iterator[str]:
    """The keys of the claims of the pod's group, if no other known pod of it is active."""
    name, group = group_name(pod), cluster.groups.of(pod)
    # As long as one pod of the group is active, its claims stay reserved for it.
    if name is None or group is None or cluster.groups.has_active(f"{pod.metadata.namespace}/{name}"):
        return
    yield from claims_left_by(cluster, group)


def on_volume_claim(cluster: ClusterState, change: ObjectChange[PersistentVolumeClaim]) -> Keys:
    """The waiting pods that use the claim."""
    if not _is_news(change):
        return NOTHING
    key = next(obj.key for obj in change if obj is not None)
    return waiting_users(cluster, "users of volume", cluster.pods_by_volume_claim, key)


def on_storage(cluster: ClusterState, change: ObjectChange[Any]) -> Keys:
    """The pods that wait because of their volumes."""
    if not _is_news(change):
        return NOTHING
    return waiting_pods(cluster, ("volumes",), lambda _, wake_on: wake_on.volumes, Wide)


def on_node_gone(cluster: ClusterState, name: str) -> Keys:
    """The pods that wait for their volumes to be bound on the node."""

    def waits(key: str, _: WakeConditions) -> bool:
        pod = cluster.pods.get(key)
        wait = cluster.storage.wait_of(pod.metadata.uid) if pod is not None else None
        return wait is not None and wait.node == name

    return waiting_pods(cluster, ("volumes of node", name), waits, lambda key: key)


def volumes_left(cluster: ClusterState, pod: Pod) -> Keys:
    """The pods that wait for a claim which this one uses no longer."""
    # Asked first: an overlay in which nobody waits moves thousands of pods.
    waiting = cluster.to_wake
    if not waiting:
        return NOTHING
    claims = [use.key for use in volume_uses(pod)]

    def users() -> Iterator[str]:
        for claim in claims:
            yield from cluster.pods_by_volume_claim.keys(claim)

    few = list(islice(users(), HINTS_AT_ONCE + 1))
    # Their conditions are not compared here: these may change before their turn comes.
    if len(few) > HINTS_AT_ONCE:
        return (crowd_of_users(cluster, ("left volumes", *claims), pod.metadata.namespace, users),)
    return place_users([user for user in few if user in waiting and waiting[user].volumes])


def _is_news(change: ObjectChange[Any]) -> bool:
    """Whether anything but the bookkeeping of the server changed."""
    old, new = change
    return old is None or new is None or _content(old) != _content(new)


def _content(obj: Object) -> tuple[Any, ...]:
    meta = obj.metadata
    # Without resourceVersion and managedFields, which change with every write.
    fields = tuple(getattr(obj, name) for name in obj.__struct_fields__ if name != "metadata")
    return (meta.uid, meta.labels, meta.annotations, meta.deletion_timestamp, meta.owner_references, *fields)
