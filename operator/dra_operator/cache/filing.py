"""Files objects: what follows from each that comes in or goes.

``FiledState`` keeps indexes, sums, taken devices and waiting pods up to date with each object; ``Cluster`` finds the
keys that a change concerns. ``shared_drivers`` has the pods of other schedulers, and the claims that these use.
``contested`` has our claims whose devices another claim has or had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from dra_api.codec import DecodeError
from dra_api.core import Node, Pod, PodResourceClaim
from dra_api.meta import Object
from dra_api.references import (
    ClaimName,
    ClaimNotCreatedYet,
    ClaimReferenceError,
    claim_names,
    classes_of,
    pod_is_done,
)
from dra_api.resource import ResourceClaim, ResourceClaimTemplateSpec

from dra_operator.allocator import Inventory
from dra_operator.cache.index import (
    Index,
    V,
    claims_used,
    consumers_of,
    devices_of,
    groups_named,
    groups_served,
    owners_of,
    templates_named,
    volume_claims_used,
)
from dra_operator.cache.key import EVERYTHING, UNMADE, WakeConditions
from dra_operator.cache.shared_drivers import EVERY_CLASS, drivers_in
from dra_operator.cache.state import ClusterState
from dra_operator.cache.store import ObjectChange
from dra_operator.scheduling.state import (
    GATED,
    LoadedNode,
    asks_for_more,
    extended_resources,
    gang_key,
    is_immediate,
    is_large,
    is_parked,
    node_requests,
    placeholder_key,
    placeholder_of,
    served_resources,
)

T = TypeVar("T", bound=Object)


class FiledState(ClusterState):
    """The state, and what follows from each object that comes in or goes: indexes, sums, taken devices, who waits."""

    def __init__(self, inventory: Inventory, scheduler_name: str, scoring_strategy: str) -> None:
        super().__init__(inventory, scheduler_name, scoring_strategy)
        # What a new look-up needs: filed for one pod, for a batch, and forgotten, all by these tables.
        self._pod_indexes: tuple[tuple[Index[str], Callable[[Pod], Iterable[str]]], ...] = (
            (self.pods_by_claim, claims_used),
            (self.pods_by_template, templates_named),
            (self.pods_by_volume_claim, volume_claims_used),
            (self.pods_by_gang, self._gangs_named),
            (self.groups.members, groups_named),
            (self.groups.active_members, groups_served),
        )
        self._claim_indexes: tuple[tuple[Index[Any], Callable[[ResourceClaim], Iterable[Any]]], ...] = (
            (self.claims_by_owner, owners_of),
            (self.claims_by_class, classes_of),
            (self.claims_by_consumer, consumers_of),
            (self.claims_by_device, devices_of),
        )

    def _note_pod(self, change: ObjectChange[Pod]) -> bool:
        """Keep indexes and sums up to date with a pod. Return whether room came free."""
        pod, room_freed = change.new, False
        if pod is not None:
            key, uid, node = pod.key, pod.metadata.uid, pod.spec.node_name
            # A change of any pod may make a gang complete, or take a member away.
            self._gang_members.clear()
            for index, values in self._pod_indexes:
                index.file(key, values(pod))
            self._note_waiting(pod)
            # The watch shows the node: what was only assumed of the binding counts no more.
            if node:
                self.bound.discard(uid)
                self.storage.wait_no_more(uid)
            if pod_is_done(pod):
                room_freed = self.loads.forget(uid)
            elif node:
                room_freed = self.loads.place(pod, node, node_requests(pod, served_resources(pod)))
            else:
                # A pod that is on its way to a node keeps its room there, whatever else of it changed.
                self.loads.renew(pod)
        self._note_sharing(on_others_pod, [change])
        return room_freed

    def _note_pods(self, pods: Sequence[Pod]) -> None:
        """As ``_note_pod`` for new ones."""
        self._gang_members.clear()
        for index, values in self._pod_indexes:
            index.file_late(_filings(pods, values))
        # A done pod still has its node, and takes nothing of it.
        placed = (pod for pod in pods if pod.spec.node_name and not pod_is_done(pod))
        self.loads.load((pod, node_requests(pod, served_resources(pod))) for pod in placed)
        for pod in pods:
            if not pod.spec.node_name:
                self._note_waiting(pod)
        self._note_sharing(on_others_pod, [ObjectChange(None, pod) for pod in pods], late=True)

    def _forget_pod(self, pod: Pod) -> bool:
        self._gang_members.clear()
        for index, _ in self._pod_indexes:
            index.file(pod.key, ())
        self.pods_by_resource.file(pod.key, ())
        self._wait_no_more(pod.key)
        self.bound.discard(pod.metadata.uid)
        self.storage.wait_no_more(pod.metadata.uid)
        return self.loads.forget(pod.metadata.uid)

    def _note_waiting(self, pod: Pod) -> None:
        """Whether the pod waits for us, and for what."""
        key = pod.key
        if self.waits_for_us(pod):
            # What an attempt found out about a waiting pod outlives changes that do not concern that.
            if key not in self.waiting:
                self._wait(key, UNMADE if self.lacks_generated_claim(pod) else EVERYTHING)
            self.pods_by_resource.file(key, extended_resources(pod))
        else:
            self._wait_no_more(key)
            self.pods_by_resource.file(key, ())

    def _gangs_named(self, pod: Pod) -> Iterable[str]:
        # A failed pod does not count as one of the gang's pods, so its replacement does not make the gang too large.
        is_member = pod.spec.scheduler_name == self.scheduler_name and pod.status.phase != "Failed"
        gang = gang_key(pod) if is_member else None
        return () if gang is None else (gang,)

    def _wait(self, key: str, wake_on: WakeConditions) -> None:
        self._arrived += 1
        self.waiting[key], self.arrivals[key] = wake_on, self._arrived

    def _wait_no_more(self, key: str) -> None:
        self.waiting.pop(key, None)
        self.arrivals.pop(key, None)
        self.hinted.file(key, frozenset())

    def _note_node(self, change: ObjectChange[Node]) -> bool:
        """What follows from a node; whether that gives or takes devices from us."""
        old, new = change
        is_given = False
        if new is not None:
            is_given = self.inventory.put_node(new)
            self._own_devices.note()
            self._loaded_nodes.put(LoadedNode(new, self.loads.used(new.metadata.name)))
            # The sum was read just now.
            self.loads.touched.discard(new.metadata.name)
        elif old is not None:
            self.inventory.remove_node(old.metadata.name)
            self._loaded_nodes.remove(old.metadata.name)
            # Another node of the same name wakes whom it may help by itself.
            self._freed_nodes.gone(old.metadata.name)
        return is_given

    def _note_claim(self, change: ObjectChange[ResourceClaim], *, late: bool = False) -> None:
        """What follows from a claim in indexes and in the devices that are taken; ``late``: what other schedulers have
        waits until it is asked."""
        old, new = change
        self._file_placeholder(change)
        # A successor of the same name has none of the devices of the claim before it.
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self.allocated_devices.stored(old.metadata.uid, None)
        if new is None:
            key = old.key if old else ""
            for index, _ in self._claim_indexes:
                index.file(key, ())
            self.large_claims.discard(key)
        else:
            self.allocated_devices.stored(new.metadata.uid, new.status.allocation)
            key = new.key
            if is_large(new):
                self.large_claims.add(key)
            elif self.large_claims:
                self.large_claims.discard(key)
            for index, values in self._claim_indexes:
                index.file(key, values(new))
        self._note_sharing(on_others_claim, [change], late=late)

    def _note_claims(self, claims: Sequence[ResourceClaim]) -> None:
        """As ``_note_claim`` for new ones."""
        allocated = [(it.metadata.uid, it.status.allocation) for it in claims if it.status.allocation is not None]
        self.allocated_devices.load(allocated)
        for index, values in self._claim_indexes:
            index.file_late(_filings(claims, values))
        self.large_claims.update(claim.key for claim in claims if is_large(claim))
        for claim in claims:
            self._file_placeholder(ObjectChange(None, claim))

    def _file_placeholder(self, change: ObjectChange[ResourceClaim]) -> None:
        """An immediate claim waits among the pods: what could help a pod that uses it, wakes its placeholder pod."""
        new = change.new
        is_new = new is not None and is_immediate(new)
        claim = new or change.old
        # Nearly all claims are of pods: they end here, without a look-up.
        if claim is None or not (is_new or self.placeholders):
            return
        key = placeholder_key(claim)
        if not is_new and self.placeholders.pop(key, None) is None:
            return
        # Filed as a user of the claim, the placeholder is woken by all that wakes users.
        self.pods_by_claim.file(key, (claim.key,) if is_new else ())
        if is_new:
            self.placeholders[key] = placeholder_of(claim, self.scheduler_name)
        if is_new and claim.status.allocation is None:
            if key not in self.waiting:
                self._wait(key, EVERYTHING)
        else:
            self._wait_no_more(key)

    def note_contests(self, claim: ResourceClaim, is_unbound: Callable[[ResourceClaim], bool]) -> None:
        """Remember of claims of ours with which no pod runs yet that another one has a device of them, or had.

        When that one gives it back, kube-scheduler takes it for free. So ours is of no use then, though it is alone.

        An allocation of ours that is on its way counts as written: a version without it (with the finalizer, say)
        ends no contest, and the watch may show it before its write is answered.
        """
        uid = claim.metadata.uid
        if is_parked(claim):
            self.contested.pop(uid, None)
            return
        if claim.status.allocation is None:
            # A version without the allocation may be older than our write, which is still on its way.
            if self.allocated_devices.assumed(uid) is None:
                self.contested.pop(uid, None)
            return
        devices = self.allocated_devices.clashes(claim)
        # Our allocations on their way are not among the claims with devices yet, but may have lost already.
        for entry in self.allocated_devices.assumed_with(devices) if devices else ():
            if entry.claim.metadata.uid != uid and any(self.rivals(entry.claim, devices)):
                self.contested.setdefault(entry.claim.metadata.uid, claim)
        # Either of two claims may be the one that came later.
        for one in (claim, *self.sharers(claim, devices)) if devices else ():
            is_open = is_unbound(one) or self.allocated_devices.assumed(one.metadata.uid) is not None
            rival = next(self.rivals(one, devices), None) if is_open else None
            if rival is not None:
                self.contested.setdefault(one.metadata.uid, rival)

    def waits_with_ours(self) -> Iterator[ResourceClaim]:
        """Yield the allocated claims that are reserved for pods which wait for us, and for no other."""
        for claim in self.claims:
            # A claim without consumers is not waited with: ``release`` takes its devices back.
            consumers = claim.status.reserved_for if claim.status.allocation is not None else ()
            if consumers and all(self._still_waits(claim, it) for it in consumers):
                yield claim


def on_others_pod(cluster: ClusterState, change: ObjectChange[Pod]) -> None:
    """Another scheduler's pod makes the drivers of its claims shared; what it has no claim for yet counts as well."""
    old, new = change
    # A pod keeps its scheduler as long as it lives: nothing was filed of one of ours.
    if all(pod is None or pod.spec.scheduler_name == cluster.scheduler_name for pod in change):
        return
    _file_entering(cluster, change)
    _file_user(cluster, change)
    theirs = [pod for pod in change if pod is not None and _has_other_scheduler(cluster, pod)]
    # A pod may have hundreds of claims: they are not looked at if the pod means the same for them.
    is_alike = bool(theirs) and old is not None and new is not None and _meaning(old) == _meaning(new)
    for pod in theirs:
        for claim in () if is_alike else cluster.known_claims(pod):
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


def _file_user(cluster: ClusterState, change: ObjectChange[Pod]) -> None:
    """Note which claims a pod of another scheduler uses, and whether it is queued.

    A claim may have tens of thousands of users, and each change of it asks whether one of them is theirs.
    """
    old, new = change
    pod = new or old
    if pod is None:
        return
    is_theirs = pod is new and _has_other_scheduler(cluster, pod) and not pod_is_done(pod)
    used = list(claims_used(pod)) if is_theirs else []
    cluster.others_pods.file(pod.key, used)
    cluster.queued_pods.file(pod.key, used if used and _is_queued(pod) else ())


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


def on_others_claim(cluster: ClusterState, change: ObjectChange[ResourceClaim]) -> None:
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
    key, allocation, visitors = claim.key, claim.status.allocation, cluster.own_devices.visitors
    further = cluster.further_users(claim) if cluster.pods_aside else ()
    if not cluster.others_pods.has(key) and not any(_is_theirs(cluster, it) for it in further):
        # Most claims are never theirs: nothing is filed for these.
        if key in cluster.shared_drivers:
            cluster.shared_drivers.file(key)
            visitors.file(key)
        return False
    # Another pod of theirs may still be queued when the first one was refused.
    is_queued = allocation is None and cluster.queued_pods.has(key)
    drivers = drivers_in(allocation) if allocation is not None else ()
    classes = () if allocation is not None else (*classes_of(claim),)
    cluster.shared_drivers.file(key, drivers=drivers, classes=classes, is_queued=is_queued)
    own = cluster.own_devices
    # If nodes are tainted instead of devices, the pod's tolerations decide, not the claim's.
    may_enter = own.may_enter(claim) or own.entering_pods.has(key)
    visitors.file(key, drivers=drivers if may_enter else (), classes=classes if may_enter else (), is_queued=is_queued)
    return True


def _is_theirs(cluster: ClusterState, key: str) -> bool:
    pod = cluster.pods.get(key)
    return pod is not None and _has_other_scheduler(cluster, pod) and not pod_is_done(pod)


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


def _filings(objects: Iterable[T], values: Callable[[T], Iterable[V]]) -> Iterator[tuple[str, Iterable[V]]]:
    return ((obj.key, values(obj)) for obj in objects)
