"""What pods hold of nodes and of storage: requests by node, nodes that have gained room since, and volumes.

A pod counts from the moment its node is decided, which is before the binding is written; a finished pod counts no more.
Pods are known by UID: a pod and its successor of the same name overlap whenever the new one's first event comes before
the old one's last.

If a thousand pods lack cpu, the cpu of a pod that finishes may help any of them, and it is gone when the first one has
been tried. So ``FreedNodes`` remembers where room came free, and the others are first asked whether they would fit on
one of these nodes as it is now.

``StorageView`` has volumes, the claims to them and their classes. A plan takes volumes and selects nodes for claims
before it is written, so that the next plan sees them as taken: until its write is over, ``volume`` and ``claim`` show
objects as they will be. That saves conflicts and no more. What is written is decided by the API server: a volume has
room for one claim, and a claim for one node.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from dra_api.core import Pod
from dra_api.storage import (
    ClaimReference,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)

from dra_operator.cache.index import Index
from dra_operator.cache.store import ObjectChange, Store
from dra_operator.scheduling.rules import Bindings, VolumeWait, reference, with_claim, with_node
from dra_operator.scheduling.state import Attachable, PodsByNode, add, subtract

_NONE: dict[str, int] = {}


class NodeLoads:
    """Requests per node, in billionths. ``pods_by_node`` has the pods that count, for rules between pods.

    ``freed`` gets the name of a node whenever room comes free on it.
    """

    def __init__(self, pods_by_node: PodsByNode, freed: Callable[[str], None]) -> None:
        self._pods_by_node, self._freed = pods_by_node, freed
        self._pods: dict[str, tuple[str, Mapping[str, int]]] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._priorities: Counter[int] = Counter()
        self.touched: set[str] = set()
        """Nodes whose sum changed since the last reader that keeps up with the sums emptied this set."""

    def place(self, pod: Pod, node: str, requests: Mapping[str, int]) -> bool:
        """The pod runs, or is about to run, on the node; this replaces what was known. Whether room came free."""
        uid = pod.metadata.uid
        before, wanted = self._pods.get(uid, ("", _NONE))
        # The watch shows what was assumed: the sum stays, the pod may have other labels.
        if (before, wanted) == (node, requests):
            self._pods_by_node.put(pod, node)
            return False
        self._drop(uid)
        self._pods_by_node.put(pod, node)
        self._pods[uid] = (node, requests)
        self._priorities[pod.spec.priority or 0] += 1
        # A new mapping, not a changed one: nodes that were handed out keep the old sum.
        self._used[node] = add(self._used.get(node, _NONE), requests)
        self.touched.add(node)
        moved = before not in ("", node)
        is_less = moved or any(requests.get(name, 0) < amount for name, amount in wanted.items())
        if is_less:
            self._freed(before)
        return is_less

    def load(self, placed: Iterable[tuple[Pod, Mapping[str, int]]]) -> None:
        """As ``place`` for each on the node that it has, with a sum that is made once per node."""
        sums: dict[str, dict[str, int]] = {}
        for pod, requests in placed:
            uid, node = pod.metadata.uid, pod.spec.node_name
            # A pod may be known by an assumed place already.
            if uid in self._pods:
                self.forget(uid)
            self._pods_by_node.put(pod, node)
            self._pods[uid] = (node, requests)
            self._priorities[pod.spec.priority or 0] += 1
            total = sums.get(node)
            if total is None:
                # One copy for each node, instead of one for each pod on it.
                total = sums[node] = dict(self._used.get(node, _NONE))
            for name, amount in requests.items():
                total[name] = total.get(name, 0) + amount
        self._used.update(sums)
        self.touched.update(sums)

    def forget(self, uid: str) -> bool:
        """The pod asks for nothing any more. Whether room came free."""
        node = self._drop(uid)
        if node:
            self._freed(node)
        return bool(node)

    def _drop(self, uid: str) -> str:
        """The pod counts no more; the node on which it did."""
        node, requests = self._pods.pop(uid, ("", _NONE))
        if not node:
            return ""
        if (place := self._pods_by_node.at(uid)) is not None:
            self._priorities -= Counter([place[0].spec.priority or 0])
        self._pods_by_node.remove(uid)
        self.touched.add(node)
        # A node without pods is forgotten: names of nodes that are gone must not pile up.
        rest = subtract(self._used[node], requests)
        if rest:
            self._used[node] = rest
        else:
            del self._used[node]
        return node

    def has_lower(self, priority: int) -> bool:
        """Whether a pod that counts has a lower priority."""
        return any(it < priority for it in self._priorities)

    def used(self, node: str) -> Mapping[str, int]:
        return self._used.get(node, _NONE)

    def node_of(self, uid: str) -> str | None:
        """Where the pod was placed, if it was."""
        entry = self._pods.get(uid)
        return entry[0] if entry else None

    def requests_of(self, uid: str) -> Mapping[str, int]:
        """Return the requests of the pod on the node on which it was placed."""
        return self._pods.get(uid, ("", _NONE))[1]

    def renew(self, pod: Pod) -> None:
        """Another version of a pod, which counts as before if it does."""
        entry = self._pods.get(pod.metadata.uid)
        if entry is not None:
            self._pods_by_node.put(pod, entry[0])

    def take_out(self, uid: str) -> tuple[str, Mapping[str, int]] | None:
        """The pod does not count for now; what ``place`` needs to have it count again, None if it did not."""
        entry = self._pods.get(uid)
        self._drop(uid)
        return entry

    def __iter__(self) -> Iterator[str]:
        """The UIDs of the pods that count."""
        return iter(self._pods)


class FreedNodes:
    """Names of nodes, in the order in which room came free on them last."""

    def __init__(self) -> None:
        self._freed_at: OrderedDict[str, int] = OrderedDict()
        self.number = 0
        """How often room came free."""

    def freed(self, node: str) -> None:
        """A pod left the node, or takes less of it than before."""
        self.number += 1
        self._freed_at.pop(node, None)
        self._freed_at[node] = self.number

    def gone(self, node: str) -> None:
        """There is no such node any more."""
        self._freed_at.pop(node, None)

    def since(self, number: int) -> Iterator[str]:
        """The nodes on which room came free after this number of times, the latest first."""
        for node, freed_at in reversed(self._freed_at.items()):
            # They are in the order in which room came free, so the others came free earlier still.
            if freed_at <= number:
                return
            yield node


class Assumed(NamedTuple):
    """What one plan will write: the claims by the volumes that they get; other claims get a new one on ``node``."""

    node: str
    reserved: Mapping[str, ClaimReference]


class StorageView:
    """``users`` gives the UIDs of the pods that use a claim on a node, or are on their way to one."""

    def __init__(self, users: Callable[[str], Iterable[str]]) -> None:
        self.claims: Store[PersistentVolumeClaim] = Store()
        self.volumes: Store[PersistentVolume] = Store()
        self.classes: Store[StorageClass] = Store()
        self.csi_nodes: Store[CSINode] = Store()
        self.csi_drivers: Store[CSIDriver] = Store()
        self.csi_capacities: Store[CSIStorageCapacity] = Store()
        self.csi_attachments: Store[VolumeAttachment] = Store()
        self.unseen: Iterable[str] = ()
        """The kinds among these that the API server does not serve, or not to us."""
        self.users = users
        self._volumes_by_class: Index[str] = Index()
        self._attachments_by_node: Index[str] = Index()
        self._assumed: dict[str, Assumed] = {}
        self._assumed_by_object: Index[str] = Index()
        """The plans, by pod, that take a volume (by name) or a claim (by key)."""
        self._waits: dict[str, VolumeWait] = {}

    # --- look-ups ---

    def claim(self, key: str) -> PersistentVolumeClaim | None:
        """By ``namespace/name``."""
        found = self.claims.get(key)
        # As it will be after the write of a plan: the next plan must not give the claim another node.
        plan = self._plan_with(key)
        if found is None or plan is None:
            return found
        return with_node(found, plan.node)

    def volume(self, name: str) -> PersistentVolume | None:
        found = self.volumes.get(name)
        plan = self._plan_with(name)
        return found if found is None or plan is None else with_claim(found, plan.reserved[name])

    def volumes_of_class(self, name: str) -> Iterator[PersistentVolume]:
        found = map(self.volume, self._volumes_by_class.keys(name))
        return (volume for volume in found if volume is not None)

    def storage_class(self, name: str) -> StorageClass | None:
        return self.classes.get(name)

    def attach_limits(self, node: str) -> dict[str, int]:
        """How many volumes each driver attaches to the node; none for drivers without limit."""
        found = self.csi_nodes.get(node)
        drivers = (found.spec.drivers if found is not None else None) or ()
        return {it.name: it.allocatable.count for it in drivers if it.allocatable.count is not None}

    def attachments(self, node: str) -> Iterator[Attachable]:
        """The volumes that are attached to the node, or are being attached or detached."""
        for key in self._attachments_by_node.keys(node):
            found = self.csi_attachments.get(key)
            volume = self.volumes.get(found.spec.source.persistent_volume_name or "") if found is not None else None
            if found is not None and volume is not None and volume.spec.csi is not None:
                yield Attachable(found.spec.attacher, volume.spec.csi.volume_handle)

    def capacities(self, storage_class: StorageClass) -> tuple[CSIStorageCapacity, ...] | None:
        """What room there is for new volumes of the class; None if its driver does not tell."""
        # A driver that does not publish capacity is taken to have enough, as kube-scheduler takes it.
        driver = self.csi_drivers.get(storage_class.provisioner)
        if driver is None or not driver.spec.storage_capacity:
            return None
        return tuple(it for it in self.csi_capacities if it.storage_class_name == storage_class.metadata.name)

    def wait_of(self, pod_uid: str) -> VolumeWait | None:
        """For what volumes a pod waits that has its node already."""
        return self._waits.get(pod_uid)

    def _plan_with(self, key: str) -> Assumed | None:
        """The plan that takes a volume or a claim; of several, which share a claim, the first."""
        pods = self._assumed_by_object.keys(key)
        return self._assumed[pods[0]] if pods else None

    # --- changes ---

    def file_volume(self, change: ObjectChange[PersistentVolume]) -> None:
        """A volume came, went, or changed."""
        for volume in change:
            if volume is not None:
                # The old version first, then the new one, which replaces what was filed.
                classes = (volume.storage_class,) if volume is change.new else ()
                self._volumes_by_class.file(volume.key, classes)

    def file_attachment(self, change: ObjectChange[VolumeAttachment]) -> None:
        """An attachment came or went; it never moves."""
        for attachment in change:
            if attachment is not None:
                nodes = (attachment.spec.node_name,) if attachment is change.new else ()
                self._attachments_by_node.file(attachment.key, nodes)

    def assume(self, pod_uid: str, node: str, bindings: Bindings) -> None:
        """A plan for the pod will be written; ``written`` ends this."""
        reserved = {volume.metadata.name: reference(claim) for claim, volume in bindings.reserve}
        # Most pods use no volume: nothing is kept of them.
        if reserved or bindings.provision:
            self._assumed[pod_uid] = Assumed(node, reserved)
            self._assumed_by_object.file(pod_uid, (*reserved, *(claim.key for claim in bindings.provision)))

    def written(self, pod_uid: str) -> None:
        """The write is over: from now on the objects show what became of it."""
        self._assumed.pop(pod_uid, None)
        self._assumed_by_object.file(pod_uid, ())

    def wait(self, pod_uid: str, wait: VolumeWait) -> VolumeWait:
        """The pod waits for its volumes; the first deadline for a node holds."""
        known = self._waits.get(pod_uid)
        # Otherwise each look at the pod would put its deadline off, and it would wait for ever.
        if known is None or known.node != wait.node:
            self._waits[pod_uid] = wait
        return self._waits[pod_uid]

    def wait_no_more(self, pod_uid: str) -> None:
        """The pod has its volumes, has to be placed anew, or is gone."""
        self._waits.pop(pod_uid, None)
