"""What the operator knows about the cluster, and how changes come in.

One process, one loop, one owner of the state: this class. Nothing in here awaits, so every method sees and leaves a
consistent whole. ``apply`` and ``delete`` answer with the keys that the change concerns; ``wakeups`` says which.
Objects are frozen and shared, so callers cannot change what the cache hands out (CC-04).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from dra_api.core import Namespace, Node, Pod
from dra_api.kueue import Workload
from dra_api.meta import Object
from dra_api.references import (
    is_for_extended_resources,
    pod_is_done,
    without_group,
)
from dra_api.resource import (
    FINALIZER,
    AllocationResult,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from dra_api.scheduling import PodDisruptionBudget, PodGroup
from dra_api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from msgspec import structs

from dra_operator.allocator import DeviceId, Inventory, LeftAlone, Usage
from dra_operator.cache.key import WakeConditions
from dra_operator.cache.store import ClaimTemplate, ObjectChange, Store
from dra_operator.scheduling import STRATEGIES
from dra_operator.scheduling.gang import SameValues
from dra_operator.scheduling.preemption import Budget
from dra_operator.scheduling.state import (
    HOLD,
    Gang,
    Nomination,
    is_parked,
    is_set_aside,
    node_requests,
)

from . import (
    evictions,
    wakeups,
)
from .bulk import Bulk, BulkLimits
from .crowds import spread
from .filing import FiledState, on_others_claim
from .key import NOTHING, Crowd, Key, Keys
from .store import without_bulk

T = TypeVar("T", bound=Object)

SCHEDULER_NAME = "dra-scheduler"


class Cluster(FiledState):
    """The newest version of every object, and what follows from it."""

    def __init__(
        self,
        inventory: Inventory,
        *,
        scheduler_name: str = SCHEDULER_NAME,
        scoring_strategy: str = STRATEGIES[0],
        leaves: LeftAlone | None = None,
        limits: BulkLimits | None = None,
    ) -> None:
        """``limits``: how much of what tenants make is held whole (``cache.bulk``); None for all."""
        # Before the first slice: the territory judges each slice and node when it is put in.
        inventory.territory.leaves = leaves or LeftAlone()
        super().__init__(inventory, scheduler_name, scoring_strategy)
        self.bulk = Bulk(limits, lambda pod: bool(self.node_of(pod))) if limits is not None else None
        self.pods_aside = self.bulk.pods_aside if self.bulk is not None else frozenset()
        self.kept: Callable[[Object], Object] = without_bulk if self.bulk is None else self.bulk.kept
        self._rooms: dict[type[Object], tuple[Store[Any], Callable[[ObjectChange[Any]], Keys]]] = {
            Pod: (self.pods, self._absorb_pod),
            ResourceClaim: (self.claims, self._absorb_claim),
            ClaimTemplate: (self.templates, partial(wakeups.on_template, self)),
            ResourceSlice: (self.slices, self._absorb_slice),
            Node: (self.nodes, self._absorb_node),
            Namespace: (self.namespaces, self._absorb_namespace),
            DeviceClass: (self.classes, self._absorb_class),
            DeviceTaintRule: (self.rules, self._absorb_rule),
            PodGroup: (self.groups.store, self._absorb_group),
            PersistentVolumeClaim: (self.storage.claims, partial(wakeups.on_volume_claim, self)),
            PersistentVolume: (self.storage.volumes, self._absorb_volume),
            StorageClass: (self.storage.classes, partial(wakeups.on_storage, self)),
            CSINode: (self.storage.csi_nodes, partial(wakeups.on_storage, self)),
            CSIDriver: (self.storage.csi_drivers, partial(wakeups.on_storage, self)),
            CSIStorageCapacity: (self.storage.csi_capacities, partial(wakeups.on_storage, self)),
            VolumeAttachment: (self.storage.csi_attachments, self._absorb_attachment),
            **{kind: (Store(), partial(wakes, self)) for kind, wakes in wakeups.ONLY_KEPT.items()},
        }

    # --- changes ---

    def apply(self, obj: Object) -> Keys:
        """Take in a version of an object; which keys that concerns. Nothing for older versions than the known one."""
        store, absorb = self._rooms[type(obj)]
        key, meta = obj.key, obj.metadata
        # First: a version that is no news must take no room.
        if store.knows(key, meta.uid, meta.resource_version):
            return NOTHING
        # Made small before it is kept: tenants may write thousands of objects of a megabyte, and most of that is never
        # asked.
        return absorb(store.replace(key, self._as_known(self.kept(obj))))

    def set_aside(self, pod: Pod) -> list[Pod | ResourceClaim]:
        """Return the pod and its claims that have to be read before it can be placed."""
        # Nearly all clusters end here.
        if not (self.pods_aside or self.large_claims):
            return []
        # An allocated claim has its devices already.
        claims = [it for it in self.known_claims(pod) if it.status.allocation is None]
        claims += filter(is_for_extended_resources, self.claims_owned_by(pod))
        known = self.pods.get(pod.key, pod.metadata.uid)
        return [it for it in (known, *claims) if it is not None and is_set_aside(it)]

    def lend(self, obj: Pod | ResourceClaim) -> None:
        """Hold an object whole that is set aside, at the expense of objects that were lent before.

        A version that is news is held whole when it is applied.
        """
        if self.bulk is None:
            return
        for kind, key in self.bulk.lend(type(obj), obj.key):
            other = self._rooms[kind][0].get(key)
            if other is not None:
                self.swap(self.bulk.set_aside(other))
        store = self._rooms[type(obj)][0]
        known = store.get(obj.key, obj.metadata.uid)
        if known is not None and known.metadata.resource_version == obj.metadata.resource_version:
            self.swap(self._as_known(self.bulk.kept(obj)))

    def give_back(self, workload: Workload) -> None:
        """Hold a Workload whole no longer: nobody asks for its templates until it changes."""
        if self.bulk is not None and self.bulk.holds(workload):
            self.store_of(Workload).swap(self.bulk.set_aside(workload))

    def swap(self, obj: Object) -> None:
        """Have another form of the version that is known: that is no change, and wakes nobody."""
        change = self._rooms[type(obj)][0].swap(obj)
        if isinstance(obj, Pod):
            self._note_pod(change)
        else:
            self._note_claim(change, late=True)

    def load(self, objects: Iterable[Object]) -> None:
        """Take in the objects of one read, as ``apply`` does one by one, where no caller asks whom that concerns.

        In a large cluster nearly all objects are of four kinds. What follows from new ones is noted in one go: sums are
        made once per node and pool, and indexes wait until they are asked. An object is taken as it is, also if it is
        too large: ``without_bulk`` is up to the caller.
        """
        fresh: dict[type[Object], list[ObjectChange[Any]]] = {Pod: [], ResourceClaim: [], ResourceSlice: [], Node: []}
        for obj in objects:
            kind = type(obj)
            if kind not in fresh:
                self.apply(obj)
                continue
            store, absorb = self._rooms[kind]
            change = store.put(self._as_known(obj))
            if change is not None and change.old is None:
                fresh[kind].append(change)
            elif change is not None:  # a second version: what follows from the first has to be known
                self._note_all(fresh)
                absorb(change)
        self._note_all(fresh)

    def renew(self, obj: Object) -> None:
        """Take in a version of an object with the same UID, as ``apply``, where no caller asks whom that concerns."""
        store, absorb = self._rooms[type(obj)]
        change = store.put(self._as_known(self.kept(obj)))
        if change is None:
            return
        match obj:
            case Pod():
                self._note_pod(change)
            case ResourceClaim():
                self._note_claim(change, late=True)
            case Node():
                self._note_node(change)
            case _:
                absorb(change)

    def _note_all(self, fresh: dict[type[Object], list[ObjectChange[Any]]]) -> None:
        """What follows from new objects; nodes are last, since pods take room on them."""
        for change in fresh[ResourceSlice]:
            self._note_slice(change)
        self._note_claims([it.new for it in fresh[ResourceClaim] if it.new is not None])
        # What other schedulers have follows from a claim and its pods, whichever of them comes later.
        if len(self.pods) > len(fresh[Pod]):  # a pod that was known may use a new claim, a new pod is looked at itself
            self._note_sharing(on_others_claim, list(fresh[ResourceClaim]), late=True)
        self._note_pods([it.new for it in fresh[Pod] if it.new is not None])
        for change in fresh[Node]:
            self._note_node(change)
        for changes in fresh.values():
            changes.clear()

    def _as_known(self, obj: Object) -> Object:
        """Without what is of features that are off."""
        # A server drops fields of gates that are off, but keeps those of objects from a time when the gate was on.
        if isinstance(obj, Pod) and obj.spec.scheduling_group is not None and not self.features.generic_workload:
            return without_group(obj)
        if isinstance(obj, PodGroup) and not self.features.workload_resource_claims:
            return structs.replace(obj, spec=structs.replace(obj.spec, resource_claims=None))
        return obj

    def delete(self, kind: type[Object], key: str, uid: str | None = None) -> Keys:
        """The object is gone (if ``uid`` is given: that very one); which keys that concerns."""
        store, absorb = self._rooms[kind]
        change = store.remove(key, uid)
        if self.bulk is not None and key not in store:
            self.bulk.gone(kind, key)
        return NOTHING if change is None else absorb(change)

    def retract(self, kind: type[Object], key: str) -> None:
        """The object never was: unlike one that was deleted, it may be applied again."""
        store = self._rooms[kind][0]
        found = store.get(key)
        self.delete(kind, key)
        if found is not None:
            # Otherwise the store would refuse all that comes of this UID: late events must not bring a deleted object
            # back.
            store.deleted.discard(found.metadata.uid)

    def store_of(self, kind: type[T]) -> Store[T]:
        """Where the objects of a kind are kept."""
        return self._rooms[kind][0]

    def holders(self, device: DeviceId) -> Iterator[ResourceClaim]:
        """The claims that have a device, on the server."""
        for key in self.claims_by_device.keys(device):
            claim = self.claims.get(key)
            if claim is not None:
                yield claim

    def budgets(self, namespace: str) -> Iterator[Budget]:
        """The PodDisruptionBudgets of a namespace."""
        for it in self.store_of(PodDisruptionBudget):
            if it.metadata.namespace == namespace:
                yield Budget.of(it)

    def same_values(self, gang: Gang, running: Iterable[Pod]) -> SameValues:
        """Return the values that the places of the gang must share, and those that its running pods have already."""
        pods = list(running)
        nodes = (self.nodes.get(self.node_of(pod)) for pod in pods if gang.topology)
        labels = ((node.metadata.labels or {}).get(gang.topology) for node in nodes if node is not None)
        held = (claim.status.allocation for pod in pods if gang.attribute for claim in self.known_claims(pod))
        label = next((it for it in labels if it is not None), None)
        return SameValues(gang.topology, gang.attribute, label, tuple(it for it in held if it is not None))

    def assume_placed(
        self, pod: Pod, node: str, served: Collection[str] = (), of_devices: Mapping[str, int] | None = None
    ) -> Keys:
        """From now on the pod takes room on this node; ``forget_placed`` takes it back, an event confirms it.

        ``served``: the extended resources that devices serve to it there; ``of_devices``: what they take of its own
        resources. Answers with the pods that this helps.
        """
        before = self.pods_by_node.at(pod.metadata.uid)
        # Taken before anything is written: the next decision must not plan with the same room.
        self.loads.place(pod, node, node_requests(pod, served, of_devices))
        return wakeups.on_pod_of_node(self, before, (pod, node))

    @contextmanager
    def without_load_of(self, pod: Pod) -> Iterator[None]:
        """Inside the block the room that a pod holds in advance counts as free: for planning that very pod again."""
        uid = pod.metadata.uid
        held = self.loads.take_out(uid)
        try:
            yield
        finally:
            current = self.pods.get(pod.key, uid)
            # Others ran inside the block: the pod may be gone or done by now, or have a node.
            still_waits = current is not None and not pod_is_done(current)
            if current is not None and held is not None and still_waits and self.loads.node_of(uid) is None:
                self.loads.place(current, *held)

    def assume_bound(self, pod: Pod) -> None:
        """The server has answered the binding: the pod waits for nothing more, although the watch may be late."""
        current = self.pods.get(pod.key, pod.metadata.uid)
        if current is not None and not current.spec.node_name:
            # Until the watch shows the node nothing else tells that the pod must not be planned once more.
            self.bound.add(pod.metadata.uid)
            self._gang_members.clear()

    def forget_placed(self, pod: Pod) -> Keys:
        """The pod does not run where it was assumed to: the room is free again, unless the pod is bound after all."""
        self.storage.wait_no_more(pod.metadata.uid)
        current = self.pods.get(pod.key, pod.metadata.uid)
        # A binding whose answer was lost has landed: the room is the pod's.
        if current is not None and current.spec.node_name:
            return NOTHING
        before = self.pods_by_node.at(pod.metadata.uid)
        if not self.loads.forget(pod.metadata.uid):
            return NOTHING
        # Room is not all that came free: other pods may have been kept away by the pod itself, or by its volumes.
        left = (*wakeups.on_pod_of_node(self, before, None), *wakeups.volumes_left(self, pod))
        return (*wakeups.room_freed(self), *left)

    def nominate(self, nomination: Nomination) -> Keys:
        """The pod is to get this once others have ended: no pod of its priority or a lower one may take it meanwhile.

        Answers with the pods that may use what it was to get before.
        """
        before = self.nominated_pods.put(nomination)
        return NOTHING if before is None else self._after(before)

    def end_nomination(self, uid: str) -> Keys:
        """The pod is placed, gone, or to get something else: others may use what was kept for it."""
        before = self.nominated_pods.drop(uid)
        return NOTHING if before is None else self._after(before)

    def _after(self, nomination: Nomination) -> Keys:
        self._room_came_free(nomination.node)
        # Pods that were tried before count what came free; devices that were only kept for another pod count as well.
        for it in nomination.allocations:
            self.allocated_devices.freed_devices.freed(it)
        freed = [key for it in nomination.allocations for key in wakeups.devices_freed(self, it)]
        return (*freed, *wakeups.room_freed(self))

    def confirm(self, uid: str) -> Keys:
        """The write of an in-flight allocation is over: who waits for that; the event about it may have come before."""
        entry = self.allocated_devices.confirm(uid)
        if entry is None:
            return NOTHING
        claim, own, keys = entry.claim.key, entry.pod.key, NOTHING

        def hints_of(pod: str) -> tuple[Key, ...]:
            return (Key("placement", pod),) if pod != own and pod in self.waiting else ()

        # While the write was under way, no other pod of the claim was tried. Nearly no claim has another one.
        if self.pods_aside or self.pods_by_claim.count(claim) > 1:
            users = partial(self.users_of, claim)
            keys = spread(Crowd(("confirmed", claim, own), entry.claim.metadata.namespace, users, hints_of))
        # The write succeeded, and its event came first: nothing came free.
        if self.allocated_devices.holds(uid):
            return keys
        self.contested.pop(uid, None)
        return (*keys, *wakeups.devices_freed(self, entry.allocation))

    def follow(self, uid: str, claim: ResourceClaim) -> None:
        """The claim of an in-flight allocation, which did not exist yet, was created as ``claim``."""
        # The devices stay taken without a gap: they move from the placeholder's UID to that of the real claim.
        self.allocated_devices.follow(uid, claim)
        if (rival := self.contested.pop(uid, None)) is not None:
            self.contested[claim.metadata.uid] = rival

    def set_wake_conditions(self, key: str, wake_on: WakeConditions) -> None:
        """What can help the pod: ``EVERYTHING`` when an attempt begins, less when it ended and found out."""
        # A pod that stopped waiting meanwhile must not be put back by the end of its attempt.
        if key in self.waiting:
            self.waiting[key] = wake_on
            self.hinted.file(key, wake_on.hints)

    # --- taking changes in ---

    def _absorb_pod(self, change: ObjectChange[Pod]) -> Keys:
        old, new = change
        # A successor of the same name, by its UID, is another pod: the one before it is gone, though no event said so.
        gone = old if old is not None and (new is None or new.metadata.uid != old.metadata.uid) else None
        vacated = NOTHING
        # A pod that runs no longer, or is another one by now, uses its volumes no more.
        if old is not None and (gone is not None or (new is not None and pod_is_done(new))):
            vacated = wakeups.volumes_left(self, old)
        # The former nodes of the pods are asked as well: rules between pods compare before and after.
        left = self.pods_by_node.at(gone.metadata.uid) if gone is not None else None
        before = self.pods_by_node.at(new.metadata.uid) if new is not None else None
        room_freed = self._forget_pod(gone) if gone is not None else False
        room_freed |= self._note_pod(change)
        keys = (*wakeups.on_pod(self, change), *vacated)
        if self.has_evicting_taints:
            keys += evictions.on_pod(self, change)
        # A nomination keeps devices and room from pods of the same or a lower priority, so it must end with its reason.
        if old is not None and (gone is not None or new is None or new.spec.node_name or pod_is_done(new)):
            keys += self.end_nomination(old.metadata.uid)
        if left is not None:
            keys += wakeups.on_pod_of_node(self, left, None)
        if new is not None:
            keys += wakeups.on_pod_of_node(self, before, self.pods_by_node.at(new.metadata.uid))
        return (*keys, *wakeups.room_freed(self)) if room_freed else keys

    def _absorb_node(self, change: ObjectChange[Node]) -> Keys:
        # Taints and labels of a node may give its devices to us, or take them, without any slice being published.
        published = wakeups.devices_published(self) if self._note_node(change) else ()
        if change.new is None and change.old is not None:
            name = change.old.metadata.name
            return (*wakeups.on_node(self, change), *wakeups.on_node_gone(self, name))
        return (*published, *wakeups.on_node(self, change))

    def _absorb_namespace(self, change: ObjectChange[Namespace]) -> Keys:
        """Labels of namespaces say which pods an affinity term with a ``namespaceSelector`` is about."""
        old, new = change
        if new is not None:
            # The rules read the labels from here, at each look: they are no copy of the store's.
            self.pods_by_node.namespaces[new.metadata.name] = new.metadata.labels or {}
        elif old is not None:
            self.pods_by_node.namespaces.pop(old.metadata.name, None)
        return wakeups.on_namespace(self, change)

    def _absorb_volume(self, change: ObjectChange[PersistentVolume]) -> Keys:
        self.storage.file_volume(change)
        return wakeups.on_storage(self, change)

    def _absorb_attachment(self, change: ObjectChange[VolumeAttachment]) -> Keys:
        self.storage.file_attachment(change)
        return wakeups.on_storage(self, change) if change.new is None else NOTHING

    def _absorb_claim(self, change: ObjectChange[ResourceClaim]) -> Keys:
        self._note_claim(change)
        keys = wakeups.on_claim(self, change)
        return (*keys, *evictions.on_claim(self, change)) if self.has_evicting_taints else keys

    def _absorb_slice(self, change: ObjectChange[ResourceSlice]) -> Keys:
        evicted = self._note_slice(change)
        return (*wakeups.on_slice(self, change), *evicted)

    def _note_slice(self, change: ObjectChange[ResourceSlice]) -> Keys:
        """What follows from a slice in the inventory and in the taints of devices; whom these taints concern."""
        if change.new is not None:
            self.inventory.put_slice(change.new)
            self._shared_drivers.freed((change.new.spec.driver,))
            self._own_devices.visitors.freed((change.new.spec.driver,))
            # New devices of our territory are safe only after others have had time to see the taint.
            self._own_devices.note(change.new.spec.driver)
        elif change.old is not None:
            self.inventory.remove_slice(change.old.metadata.name)
        return evictions.on_slice(self, change)

    def _absorb_class(self, change: ObjectChange[DeviceClass]) -> Keys:
        if change.new is not None:
            self.inventory.put_class(change.new)
            self.shared_drivers.put_class(change.new)
            self.own_devices.visitors.put_class(change.new)
        elif change.old is not None:
            self.inventory.remove_class(change.old.metadata.name)
            self.shared_drivers.remove_class(change.old.metadata.name)
            self.own_devices.visitors.remove_class(change.old.metadata.name)
        return wakeups.on_class(self, change)

    def _absorb_group(self, change: ObjectChange[PodGroup]) -> Keys:
        self.groups.file(change)
        return wakeups.on_group(self, change)

    def _absorb_rule(self, change: ObjectChange[DeviceTaintRule]) -> Keys:
        if change.new is not None:
            # A rule may taint devices with our scheduler's taint, which makes them our own.
            self.inventory.put_rule(change.new)
            self._own_devices.note()
        elif change.old is not None:
            self.inventory.remove_rule(change.old.metadata.name)
        # A taint that goes frees devices for waiting pods that do not tolerate it.
        published = () if evictions.is_same_rule(change) else wakeups.devices_published(self)
        return (*published, *evictions.on_rule(self, change))


# --- what must hold at any moment (design.md section 2): a check, not a repair ---


class InvariantViolated(Exception):
    """The cache shows something that must never be."""


def violations(cluster: Cluster) -> Iterator[str]:
    """Yield a line per violation, naming the objects.

    Tests ask after every step; in production a switch has each violation logged as an error and counted.
    """
    yield from _devices_given_twice(cluster)
    yield from _wrong_totals(cluster)
    for claim in cluster.claims:
        finalizers = claim.metadata.finalizers or ()
        if claim.status.allocation is not None and not {FINALIZER, HOLD}.intersection(finalizers):
            yield f"claim {claim.key} is allocated without the finalizer {FINALIZER}"


def check(cluster: Cluster) -> None:
    """Raises InvariantViolated listing everything that is wrong."""
    found = list(violations(cluster))
    if found:
        raise InvariantViolated("; ".join(found))


def _devices_given_twice(cluster: Cluster) -> Iterator[str]:
    # A share conflicts only with a claim that has all of the device.
    whole: dict[DeviceId, str] = {}
    shared: dict[DeviceId, str] = {}
    names = {claim.metadata.uid: claim.key for claim in cluster.claims}
    parked = {claim.metadata.uid for claim in cluster.claims if is_parked(claim)}
    for uid, allocation in cluster.allocated_devices.holders():
        if uid in parked:
            continue  # no pod runs with its devices
        holder = names.get(uid, uid)
        for device, is_share in _held(allocation):
            other = whole.get(device) or (None if is_share else shared.get(device))
            if other is not None:
                yield f"device {device} is allocated to claim {other} and to claim {holder}"
            (shared if is_share else whole)[device] = holder


def _held(allocation: AllocationResult) -> Iterator[tuple[DeviceId, bool]]:
    for result in allocation.results:
        if not result.admin_access:
            yield DeviceId.of(result), result.share_id is not None


def _wrong_totals(cluster: Cluster) -> Iterator[str]:
    """The totals kept step by step must equal those counted afresh."""
    # Counted from nothing: a sum that is kept step by step shows a wrong step only in comparison.
    held = (allocation for _, allocation in cluster.allocated_devices.holders())
    if Usage(held, shares=cluster.features.consumable_capacity) != cluster.allocated_devices.usage:
        yield "the devices in use, kept step by step, differ from those that claims hold"
    pods = {pod.metadata.uid: pod for pod in cluster.pods if not pod_is_done(pod)}
    running = {uid for uid, pod in pods.items() if pod.spec.node_name}
    missing = sorted(pods[uid].key for uid in running if cluster.loads.node_of(uid) is None)
    if missing:
        yield f"the load of the nodes lacks the pods {', '.join(missing)}"
    phantoms = sorted(uid for uid in cluster.loads if uid not in pods)
    if phantoms:
        yield f"the load of the nodes counts pods that are finished or gone, by UID: {', '.join(phantoms)}"
    if dict(cluster.pods_by_node) != {uid: cluster.loads.node_of(uid) for uid in cluster.loads}:
        yield "rules between pods see other pods on nodes than the load of the nodes counts"
    yield from cluster.pods_by_node.miscounted()
