"""What the operator knows about the cluster, and how changes come in.

One process, one loop, one owner of the state: this class. Nothing in here awaits, so every method sees and leaves a
consistent whole. ``apply`` and ``delete`` answer with the keys that the change concerns; ``hints`` says which.
Objects are frozen and shared, so callers cannot change what the cache hands out (CC-04).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from dra_api.core import Namespace, Node, Pod
from dra_api.meta import Object
from dra_api.policy import PodDisruptionBudget
from dra_api.references import (
    classes_of,
    group_name,
    pod_is_done,
    without_group,
)
from dra_api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_api.scheduling import PodGroup
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

from dra_operator.allocator import DeviceId, Inventory, LeftAlone
from dra_operator.cache.key import EVERYTHING, UNMADE, WakeConditions
from dra_operator.cache.store import ClaimTemplate, ObjectChange, Store
from dra_operator.scheduling import STRATEGIES
from dra_operator.scheduling.preemption import Budget
from dra_operator.scheduling.state import (
    LoadedNode,
    Nomination,
    extended_resources,
    gang_key,
    is_immediate,
    node_requests,
    placeholder_key,
    placeholder_of,
    served_resources,
)

from . import (
    evictions,
    hints,
    other_schedulers,
)
from .index import (
    V,
    claims_used,
    devices_of,
    groups_named,
    owners_of,
    templates_named,
    volume_claims_used,
)
from .key import NOTHING, Keys
from .state import ClusterState
from .store import without_bulk

T = TypeVar("T", bound=Object)

SCHEDULER_NAME = "dra-scheduler"


class Cluster(ClusterState):
    """The newest version of every object, and what follows from it."""

    def __init__(
        self,
        inventory: Inventory,
        *,
        scheduler_name: str = SCHEDULER_NAME,
        scoring_strategy: str = STRATEGIES[0],
        clock: Callable[[], float] = time.monotonic,
        leaves: LeftAlone | None = None,
    ) -> None:
        inventory.territory.leaves = leaves or LeftAlone()
        super().__init__(inventory, scheduler_name, scoring_strategy, clock)
        self._rooms: dict[type[Object], tuple[Store[Any], Callable[[ObjectChange[Any]], Keys]]] = {
            Pod: (self.pods, self._absorb_pod),
            ResourceClaim: (self.claims, self._absorb_claim),
            ClaimTemplate: (self.templates, partial(hints.on_template, self)),
            ResourceSlice: (self.slices, self._absorb_slice),
            Node: (self.nodes, self._absorb_node),
            Namespace: (self.namespaces, self._absorb_namespace),
            DeviceClass: (self.classes, self._absorb_class),
            DeviceTaintRule: (self.rules, self._absorb_rule),
            PodGroup: (self.groups.store, self._absorb_group),
            PersistentVolumeClaim: (self.storage.claims, partial(hints.on_volume_claim, self)),
            PersistentVolume: (self.storage.volumes, self._absorb_volume),
            StorageClass: (self.storage.classes, partial(hints.on_storage, self)),
            CSINode: (self.storage.csi_nodes, partial(hints.on_storage, self)),
            CSIDriver: (self.storage.csi_drivers, partial(hints.on_storage, self)),
            CSIStorageCapacity: (self.storage.csi_capacities, partial(hints.on_storage, self)),
            VolumeAttachment: (self.storage.csi_attachments, self._absorb_attachment),
            **{kind: (Store(), partial(wakes, self)) for kind, wakes in hints.ONLY_KEPT.items()},
        }

    # --- changes ---

    def apply(self, obj: Object) -> Keys:
        """Take in a version of an object; which keys that concerns. Nothing for older versions than the known one."""
        store, absorb = self._rooms[type(obj)]
        change = store.put(self._as_known(without_bulk(obj)))
        return NOTHING if change is None else absorb(change)

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
        change = store.put(self._as_known(obj))
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
        if len(self.pods) > len(fresh[Pod]):  # a pod that was known may use a new claim, a new pod is looked at itself
            self._note_sharing(other_schedulers.on_claim, list(fresh[ResourceClaim]), late=True)
        self._note_pods([it.new for it in fresh[Pod] if it.new is not None])
        for change in fresh[Node]:
            self._note_node(change)
        for changes in fresh.values():
            changes.clear()

    def _as_known(self, obj: Object) -> Object:
        """Without what is of features that are off."""
        if isinstance(obj, Pod) and obj.spec.scheduling_group is not None and not self.features.generic_workload:
            return without_group(obj)
        if isinstance(obj, PodGroup) and not self.features.workload_resource_claims:
            return structs.replace(obj, spec=structs.replace(obj.spec, resource_claims=None))
        return obj

    def delete(self, kind: type[Object], key: str, uid: str | None = None) -> Keys:
        """The object is gone (if ``uid`` is given: that very one); which keys that concerns."""
        store, absorb = self._rooms[kind]
        change = store.remove(key, uid)
        return NOTHING if change is None else absorb(change)

    def retract(self, kind: type[Object], key: str) -> None:
        """The object never was: unlike one that was deleted, it may be applied again."""
        store = self._rooms[kind][0]
        found = store.get(key)
        self.delete(kind, key)
        if found is not None:
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

    def assume_placed(
        self, pod: Pod, node: str, served: Collection[str] = (), of_devices: Mapping[str, int] | None = None
    ) -> Keys:
        """From now on the pod takes room on this node; ``forget_placed`` takes it back, an event confirms it.

        ``served``: the extended resources that devices serve to it there; ``of_devices``: what they take of its own
        resources. Answers with the pods that this helps.
        """
        before = self.pods_by_node.at(pod.metadata.uid)
        self.loads.place(pod, node, node_requests(pod, served, of_devices))
        return hints.on_pod_of_node(self, before, (pod, node))

    @contextmanager
    def without_load_of(self, pod: Pod) -> Iterator[None]:
        """Inside the block the room that a pod holds in advance counts as free: for planning that very pod again."""
        uid = pod.metadata.uid
        held = self.loads.take_out(uid)
        try:
            yield
        finally:
            current = self.pods.get(pod.key, uid)
            still_waits = current is not None and not pod_is_done(current)
            if current is not None and held is not None and still_waits and self.loads.node_of(uid) is None:
                self.loads.place(current, *held)

    def assume_bound(self, pod: Pod) -> None:
        """The server has answered the binding: the pod waits for nothing more, although the watch may be late."""
        current = self.pods.get(pod.key, pod.metadata.uid)
        if current is not None and not current.spec.node_name:
            self.bound.add(pod.metadata.uid)
            self._gang_members.clear()

    def forget_placed(self, pod: Pod) -> Keys:
        """The pod does not run where it was assumed to: the room is free again, unless the pod is bound after all."""
        self.storage.wait_no_more(pod.metadata.uid)
        current = self.pods.get(pod.key, pod.metadata.uid)
        if current is not None and current.spec.node_name:
            return NOTHING
        before = self.pods_by_node.at(pod.metadata.uid)
        if not self.loads.forget(pod.metadata.uid):
            return NOTHING
        left = (*hints.on_pod_of_node(self, before, None), *hints.volumes_left(self, pod))
        return (*hints.room_freed(self), *left)

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
        for it in nomination.allocations:
            self.allocated_devices.freed_devices.freed(it)
        freed = [key for it in nomination.allocations for key in hints.devices_freed(self, it)]
        return (*freed, *hints.room_freed(self))

    def confirm(self, uid: str) -> Keys:
        """The write of an in-flight allocation is over: who waits for that; the event about it may have come before."""
        entry = self.allocated_devices.confirm(uid)
        if entry is None:
            return NOTHING
        keys = hints.write_over(self, entry)
        if self.allocated_devices.holds(uid):
            return keys
        self.contested.pop(uid, None)
        return (*keys, *hints.devices_freed(self, entry.allocation))

    def follow(self, uid: str, claim: ResourceClaim) -> None:
        """The claim of an in-flight allocation, which did not exist yet, was created as ``claim``."""
        self.allocated_devices.follow(uid, claim)
        if (rival := self.contested.pop(uid, None)) is not None:
            self.contested[claim.metadata.uid] = rival

    def set_wake_conditions(self, key: str, wake_on: WakeConditions) -> None:
        """What can help the pod: ``EVERYTHING`` when an attempt begins, less when it ended and found out."""
        if key in self.waiting:
            self.waiting[key] = wake_on
            self.hinted.file(key, wake_on.hints)

    # --- taking changes in ---

    def _absorb_pod(self, change: ObjectChange[Pod]) -> Keys:
        old, new = change
        vacated = NOTHING
        # A pod that runs no longer, or is another one by now, uses its volumes no more.
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid or pod_is_done(new)):
            vacated = hints.volumes_left(self, old)
        room_freed = False
        gone = old if old is not None and (new is None or new.metadata.uid != old.metadata.uid) else None
        left = self.pods_by_node.at(gone.metadata.uid) if gone is not None else None
        before = self.pods_by_node.at(new.metadata.uid) if new is not None else None
        if gone is not None:
            room_freed = self._forget_pod(gone)
        room_freed |= self._note_pod(change)
        keys = (*hints.on_pod(self, change), *evictions.on_pod(self, change), *vacated)
        if old is not None and (gone is not None or new is None or new.spec.node_name or pod_is_done(new)):
            keys += self.end_nomination(old.metadata.uid)
        if left is not None:
            keys += hints.on_pod_of_node(self, left, None)
        if new is not None:
            keys += hints.on_pod_of_node(self, before, self.pods_by_node.at(new.metadata.uid))
        return (*keys, *hints.room_freed(self)) if room_freed else keys

    def _note_pod(self, change: ObjectChange[Pod]) -> bool:
        """What follows from a pod in indexes and sums; whether room came free."""
        new, room_freed = change.new, False
        if new is not None:
            self._file_pod(new.key, new)
            room_freed = self._count_pod(new)
        self._note_sharing(other_schedulers.on_pod, [change])
        return room_freed

    def _note_pods(self, pods: Sequence[Pod]) -> None:
        """As ``_note_pod`` for new ones."""
        self._gang_members.clear()
        self.pods_by_claim.file_late(_filings(pods, claims_used))
        self.pods_by_template.file_late(_filings(pods, templates_named))
        self.pods_by_volume_claim.file_late(_filings(pods, volume_claims_used))
        self.pods_by_gang.file_late(_filings(pods, self._gangs_named))
        self.groups.members.file_late(_filings(pods, groups_named))
        placed = (pod for pod in pods if pod.spec.node_name and not pod_is_done(pod))
        self.loads.load((pod, node_requests(pod, served_resources(pod))) for pod in placed)
        for pod in pods:
            if not pod.spec.node_name:
                self._note_waiting(pod)
        self._note_sharing(other_schedulers.on_pod, [ObjectChange(None, pod) for pod in pods], late=True)

    def _forget_pod(self, pod: Pod) -> bool:
        self._gang_members.clear()
        for index in (
            self.pods_by_claim,
            self.pods_by_template,
            self.pods_by_resource,
            self.pods_by_volume_claim,
            self.pods_by_gang,
            self.groups.members,
        ):
            index.file(pod.key, ())
        self._wait_no_more(pod.key)
        self.bound.discard(pod.metadata.uid)
        self.storage.wait_no_more(pod.metadata.uid)
        return self.loads.forget(pod.metadata.uid)

    def _file_pod(self, key: str, pod: Pod) -> None:
        self._gang_members.clear()
        self.pods_by_claim.file(key, claims_used(pod))
        self.pods_by_template.file(key, templates_named(pod))
        self.pods_by_volume_claim.file(key, volume_claims_used(pod))
        self.pods_by_gang.file(key, self._gangs_named(pod))
        if group_name(pod):
            self.groups.members.file(key, groups_named(pod))
        self._note_waiting(pod)

    def _note_waiting(self, pod: Pod) -> None:
        """Whether the pod waits for us, and for what."""
        key = pod.key
        if self.waits_for_us(pod):
            if key not in self.waiting:
                self.waiting[key] = UNMADE if self.lacks_generated_claim(pod) else EVERYTHING
            self.pods_by_resource.file(key, extended_resources(pod))
        else:
            self._wait_no_more(key)
            self.pods_by_resource.file(key, ())

    def _gangs_named(self, pod: Pod) -> Iterable[str]:
        is_member = pod.spec.scheduler_name == self.scheduler_name and pod.status.phase != "Failed"
        gang = gang_key(pod) if is_member else None
        return () if gang is None else (gang,)

    def _wait_no_more(self, key: str) -> None:
        self.waiting.pop(key, None)
        self.hinted.file(key, frozenset())

    def _count_pod(self, pod: Pod) -> bool:
        """Have the pod take the room that it takes now; whether room came free."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        if node:
            self.bound.discard(uid)
            self.storage.wait_no_more(uid)
        if pod_is_done(pod):
            return self.loads.forget(uid)
        if not node:
            self.loads.renew(pod)
            return False
        return self.loads.place(pod, node, node_requests(pod, served_resources(pod)))

    def _absorb_node(self, change: ObjectChange[Node]) -> Keys:
        published = hints.devices_published(self) if self._note_node(change) else ()
        if change.new is None and change.old is not None:
            name = change.old.metadata.name
            return (*hints.on_node(self, change), *hints.on_node_gone(self, name))
        return (*published, *hints.on_node(self, change))

    def _note_node(self, change: ObjectChange[Node]) -> bool:
        """What follows from a node; whether that gives or takes devices from us."""
        old, new = change
        is_given = False
        if new is not None:
            is_given = self.inventory.put_node(new)
            self._own_devices.note()
            self._loaded_nodes.put(LoadedNode(new, self.loads.used(new.metadata.name)))
            self.loads.touched.discard(new.metadata.name)
        elif old is not None:
            self.inventory.remove_node(old.metadata.name)
            self._loaded_nodes.remove(old.metadata.name)
            self._freed_nodes.gone(old.metadata.name)
        return is_given

    def _absorb_namespace(self, change: ObjectChange[Namespace]) -> Keys:
        """Labels of namespaces say which pods an affinity term with a ``namespaceSelector`` is about."""
        old, new = change
        if new is not None:
            self.pods_by_node.namespaces[new.metadata.name] = new.metadata.labels or {}
        elif old is not None:
            self.pods_by_node.namespaces.pop(old.metadata.name, None)
        return hints.on_namespace(self, change)

    def _absorb_volume(self, change: ObjectChange[PersistentVolume]) -> Keys:
        self.storage.file_volume(change)
        return hints.on_storage(self, change)

    def _absorb_attachment(self, change: ObjectChange[VolumeAttachment]) -> Keys:
        self.storage.file_attachment(change)
        return hints.on_storage(self, change) if change.new is None else NOTHING

    def _absorb_claim(self, change: ObjectChange[ResourceClaim]) -> Keys:
        self._note_claim(change)
        return (*hints.on_claim(self, change), *evictions.on_claim(self, change))

    def _note_claim(self, change: ObjectChange[ResourceClaim], *, late: bool = False) -> None:
        """What follows from a claim in indexes and in the devices that are taken; ``late``: what other schedulers have
        waits until it is asked."""
        old, new = change
        self._file_placeholder(change)
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self.allocated_devices.stored(old.metadata.uid, None)
        if new is None:
            key = old.key if old else ""
            self.claims_by_owner.file(key, ())
            self.claims_by_class.file(key, ())
            self.claims_by_device.file(key, ())
        else:
            self.allocated_devices.stored(new.metadata.uid, new.status.allocation)
            key = new.key
            self.claims_by_owner.file(key, owners_of(new))
            self.claims_by_class.file(key, classes_of(new))
            self.claims_by_device.file(key, devices_of(new))
        self._note_sharing(other_schedulers.on_claim, [change], late=late)

    def _note_claims(self, claims: Sequence[ResourceClaim]) -> None:
        """As ``_note_claim`` for new ones."""
        allocated = [(it.metadata.uid, it.status.allocation) for it in claims if it.status.allocation is not None]
        self.allocated_devices.load(allocated)
        self.claims_by_owner.file_late(_filings(claims, owners_of))
        self.claims_by_class.file_late(_filings(claims, classes_of))
        self.claims_by_device.file_late(_filings(claims, devices_of))
        for claim in claims:
            self._file_placeholder(ObjectChange(None, claim))

    def _file_placeholder(self, change: ObjectChange[ResourceClaim]) -> None:
        """An immediate claim waits among the pods: what could help a pod that uses it, wakes its placeholder pod."""
        new = change.new
        is_new = new is not None and is_immediate(new)
        claim = new or change.old
        if claim is None or not (is_new or self.placeholders):
            return
        key = placeholder_key(claim)
        if not is_new and self.placeholders.pop(key, None) is None:
            return
        self.pods_by_claim.file(key, (claim.key,) if is_new else ())
        if is_new:
            self.placeholders[key] = placeholder_of(claim, self.scheduler_name)
        if is_new and claim.status.allocation is None:
            self.waiting.setdefault(key, EVERYTHING)
        else:
            self._wait_no_more(key)

    def _absorb_slice(self, change: ObjectChange[ResourceSlice]) -> Keys:
        evicted = self._note_slice(change)
        return (*hints.on_slice(self, change), *evicted)

    def _note_slice(self, change: ObjectChange[ResourceSlice]) -> Keys:
        """What follows from a slice in the inventory and in the taints of devices; whom these taints concern."""
        if change.new is not None:
            self.inventory.put_slice(change.new)
            self._shared_drivers.freed((change.new.spec.driver,))
            self._own_devices.visitors.freed((change.new.spec.driver,))
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
        return hints.on_class(self, change)

    def _absorb_group(self, change: ObjectChange[PodGroup]) -> Keys:
        self.groups.file(change)
        return hints.on_group(self, change)

    def _absorb_rule(self, change: ObjectChange[DeviceTaintRule]) -> Keys:
        if change.new is not None:
            self.inventory.put_rule(change.new)
            self._own_devices.note()
        elif change.old is not None:
            self.inventory.remove_rule(change.old.metadata.name)
        published = () if evictions.is_same_rule(change) else hints.devices_published(self)
        return (*published, *evictions.on_rule(self, change))


def _filings(objects: Iterable[T], values: Callable[[T], Iterable[V]]) -> Iterator[tuple[str, Iterable[V]]]:
    return ((obj.key, values(obj)) for obj in objects)
