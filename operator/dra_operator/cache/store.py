"""The newest version of each object of one kind, and the parts of it that are kept (scheduling.md section 5.1).

Three sources feed a store, in any order: our own LIST at start, the watch (late, repeated), and the answers to
our own writes (the assume cache: a write is visible at once, before the watch reports it). So

* a newer resourceVersion wins, an older or equal one is dropped;
* the UIDs of deleted objects are remembered: an answer that arrives after the deletion does not bring the
  object back, and neither does a listing that was made before it (CC-02, CC-03);
* a deletion names the UID, so a late one does not hit a successor of the same name.

Users decide how large their objects are. ``without_bulk`` drops the fields that no decision reads, so that a cluster of
large objects costs the operator no more than one of small ones. The exception is a ResourceClaimTemplate: its spec is
copied into claims, and decoding it into structs would drop fields of newer API versions from every generated claim.
So it stays as its author wrote it.

A third size lies between, objects that are neither short nor too large: ``bulk``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, KeysView, ValuesView
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from dra_api.codec import DecodeError, decode, encode
from dra_api.core import Namespace, Node, NodeSelector, Pod
from dra_api.kueue import Workload
from dra_api.meta import Object
from dra_api.resource import (
    ADMIN_ACCESS_LABEL,
    OpaqueDeviceConfiguration,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimTemplateSpec,
    ResourcePoolStatusRequest,
)
from dra_api.scheduling import PodDisruptionBudget, PodGroup
from dra_api.storage import (
    AttachmentSource,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    StorageClass,
    TopologyTerm,
    VolumeAttachment,
    VolumeNodeAffinity,
    VolumeResources,
)
from msgspec import Raw, field
from msgspec.structs import replace

from dra_operator.scheduling.state import (
    BULKY_BYTES,
    LARGEST_OBJECT_BYTES,
    NO_VOLUME,
    NODE_MARK,
    SMALL_BYTES,
    MarkedSelector,
    SpecMark,
    bytes_of_large,
    claim_without_bulk,
    metadata_read,
    metadata_without_bulk,
    pod_without_bulk,
    short_name,
    spec_mark,
    spec_set_aside,
    spec_without_bulk,
    workload_set_aside,
    workload_without_bulk,
)

T = TypeVar("T", bound=Object)


class UidMemory:
    """The last ``limit`` UIDs that were put in; the oldest is forgotten first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._uids: OrderedDict[str, None] = OrderedDict()

    def add(self, uid: str) -> None:
        """Remember ``uid`` as the newest."""
        self._uids[uid] = None
        # One that is put in again must not be forgotten as if it were the oldest.
        self._uids.move_to_end(uid)
        if len(self._uids) > self._limit:
            self._uids.popitem(last=False)

    def discard(self, uid: str) -> None:
        """Forget it; one that is not remembered is ignored."""
        self._uids.pop(uid, None)

    def __contains__(self, uid: str) -> bool:
        return uid in self._uids

    def __iter__(self) -> Iterator[str]:
        return iter(self._uids)

    def __len__(self) -> int:
        return len(self._uids)


class ObjectChange(NamedTuple, Generic[T]):
    """A change of a store: ``old`` is None for a new object, ``new`` for a deleted one."""

    old: T | None
    new: T | None


class Store(Generic[T]):
    """Objects by ``namespace/name``."""

    def __init__(self) -> None:
        self._objects: dict[str, T] = {}
        self.deleted = UidMemory(10_000)

    def put(self, obj: T) -> ObjectChange[T] | None:
        """Take ``obj`` in; None if that is no news."""
        key, meta = obj.key, obj.metadata
        # Sources overlap: the watch repeats what an answer has brought, and may bring it after a newer version.
        if (key in self._objects or self.deleted) and self.knows(key, meta.uid, meta.resource_version):
            return None
        return self.replace(key, obj)

    def replace(self, key: str, obj: T) -> ObjectChange[T]:
        """Take in an object that is news."""
        old, meta = self._objects.get(key), obj.metadata
        # The end of the old one was not seen, and may still be reported.
        if old is not None and old.metadata.uid != meta.uid:
            self.deleted.add(old.metadata.uid)
        self._objects[key] = obj
        return ObjectChange(old, obj)

    def swap(self, obj: T) -> ObjectChange[T]:
        """Put another form of the version that is there in its place."""
        old, self._objects[obj.key] = self._objects[obj.key], obj
        return ObjectChange(old, obj)

    def knows(self, key: str, uid: str, resource_version: str) -> bool:
        """Whether the store has seen this version of the object, a newer one, or its end."""
        old = self._objects.get(key)
        is_older = old is not None and not _is_newer(resource_version, old.metadata.resource_version)
        return is_older or bool(uid and uid in self.deleted)

    def remove(self, key: str, uid: str | None = None) -> ObjectChange[T] | None:
        """Forget the object; None if it is not there, or has another UID than ``uid``."""
        if uid:
            # Also of an object that is not known: its creation may be reported after its end.
            self.deleted.add(uid)
        old = self._objects.get(key)
        if old is None or (uid and old.metadata.uid != uid):
            return None
        del self._objects[key]
        self.deleted.add(old.metadata.uid)
        return ObjectChange(old, None)

    def get(self, key: str, uid: str | None = None) -> T | None:
        """The newest known version; None if there is none, or if it has another UID than ``uid``."""
        found = self._objects.get(key)
        return found if uid is None or found is None or found.metadata.uid == uid else None

    def keys(self) -> KeysView[str]:
        """All keys, in the order of arrival."""
        return self._objects.keys()

    def values(self) -> ValuesView[T]:
        """All objects, in the order of arrival."""
        return self._objects.values()

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: str) -> bool:
        return key in self._objects


def revision(resource_version: str) -> int | None:
    """A resourceVersion as a number, to compare two; None if the versions of this server are no numbers."""
    return int(resource_version) if resource_version.isascii() and resource_version.isdigit() else None


def _is_newer(new: str, old: str) -> bool:
    if new == old:
        return False
    after, before = revision(new), revision(old)
    if after is None or before is None:  # versions are opaque here: they can only be compared for equality
        return True
    return after > before


class ClaimTemplate(Object, frozen=True):
    """``spec`` is the JSON text of the template's spec; of a large one little is kept, as of a large claim.

    ``mark``: the ``SpecMark`` of a spec of which little is kept. The text of the spec has no mark.
    """

    spec: Raw = field(default_factory=Raw)
    mark: OpaqueDeviceConfiguration | None = None

    @property
    def is_set_aside(self) -> bool:
        """Whether little is kept of the spec, since there was no room: a claim is made from the server's object."""
        return isinstance(self.mark, SpecMark) and self.mark.is_aside

    @property
    def bytes_of_spec(self) -> int | None:
        """How long a spec was of which too little is kept to make claims; None if it is whole, or cannot be read."""
        try:
            return bytes_of_large(self.typed().spec)
        except DecodeError:
            return None

    def without_bulk(self) -> ClaimTemplate:
        """The template itself, or what is kept of it if it is large."""
        # Only the length is looked at where that is enough: to decode a template of a megabyte takes milliseconds.
        size = len(self.spec)
        if size + len(encode(self.metadata)) <= BULKY_BYTES:
            return self
        kept = replace(self, metadata=metadata_without_bulk(self.metadata))
        if size <= LARGEST_OBJECT_BYTES:
            return kept
        try:
            short = spec_without_bulk(self.typed().spec, size)
        except DecodeError:
            return kept
        return kept._with(short)

    def set_aside(self) -> ClaimTemplate:
        """Return the short form of a template for which there is no room."""
        try:
            short = spec_set_aside(self.typed().spec)
        except DecodeError:
            short = spec_set_aside(ResourceClaimSpec())
        return replace(self, metadata=metadata_without_bulk(self.metadata))._with(short)

    def _with(self, short: ResourceClaimSpec) -> ClaimTemplate:
        return replace(self, spec=Raw(encode(ResourceClaimTemplateSpec(spec=short))), mark=spec_mark(short))

    def content(self) -> dict[str, Any]:
        """Spec and metadata for a claim, as new dicts that may be changed (CC-04)."""
        content: dict[str, Any] = msgspec.json.decode(self.spec) if self.spec else {}
        return content

    def typed(self) -> ResourceClaimTemplateSpec:
        """The same for reading. Raises DecodeError, which names the template and the field at fault."""
        try:
            # Decoded when it is needed: most templates are named by no pod that waits.
            found = decode(ResourceClaimTemplateSpec, self.spec or b"{}")
        except DecodeError as error:
            raise DecodeError(f"ResourceClaimTemplate {self.key}: {error}") from error
        return replace(found, spec=self.mark.on(found.spec)) if isinstance(self.mark, SpecMark) else found


def without_bulk(obj: T) -> T:
    """The object itself, or what is kept of it if it is large.

    Nodes, namespaces and volumes keep their labels, which selectors look at, if there is room.
    """
    match obj:
        case Pod():
            return pod_without_bulk(obj)  # type: ignore[return-value]
        case ResourceClaim():
            return claim_without_bulk(obj)  # type: ignore[return-value]
        case ClaimTemplate():
            return obj.without_bulk()  # type: ignore[return-value]
        case Workload() if obj.status.admission_checks:
            obj = workload_without_bulk(obj)  # type: ignore[assignment]
        case Workload() if obj.spec.pod_sets:
            # No admission check is asked about it: of a queue with thousands of Workloads little is kept.
            obj = replace(obj, spec=replace(obj.spec, pod_sets=None))
    limit = SMALL_BYTES if isinstance(obj, _BY_THE_THOUSAND) else LARGEST_OBJECT_BYTES
    return obj if len(encode(obj)) <= limit else _cut(obj)


_BY_THE_THOUSAND: Final = (
    Workload,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PodGroup,
    Namespace,
    ResourcePoolStatusRequest,
)
"""Tenants make nearly all of them, and hardly anything is read of their metadata."""


def _cut(obj: T) -> T:
    has_labels, meta = isinstance(obj, Node | Namespace | PersistentVolume), metadata_read(obj.metadata)
    obj = replace(obj, metadata=meta if has_labels else replace(meta, labels=None))
    if not isinstance(obj, _BY_THE_THOUSAND):
        return obj if len(encode(obj)) <= LARGEST_OBJECT_BYTES else _matching_nothing(obj)
    if isinstance(obj, PersistentVolumeClaim):
        obj = replace(obj, spec=_that_counts(obj.spec))
    match obj:
        case Workload() if not obj.status.admission_checks:
            return workload_set_aside(obj)  # type: ignore[return-value]
        case ResourcePoolStatusRequest() if obj.status is not None:
            # When it was answered is read, not what was.
            conditions = tuple([replace(it, message="") for it in obj.status.conditions or ()]) or None
            return replace(obj, status=replace(obj.status, pools=None, conditions=conditions))
        case PersistentVolumeClaim() if obj.spec.volume_name:
            return replace(obj, spec=replace(obj.spec, selector=None))
        case PersistentVolumeClaim() | PodDisruptionBudget() if len(encode(obj.spec.selector)) > LARGEST_OBJECT_BYTES:
            return without_selector(obj)  # type: ignore[return-value]
    return obj


def _matching_nothing(obj: T) -> T:
    """Return the short form of an object of the cluster that is too large.

    A part of its labels and selectors could match what all of them do not. So no pod goes to such a node, no node
    reaches such a volume, and none has such a topology. Kinds whose lengths the API server limits stay as they are.
    """
    match obj:
        case Node():
            return _node_with_mark(obj)  # type: ignore[return-value]
        case PersistentVolume():
            return _volume_nowhere(obj)  # type: ignore[return-value]
        case StorageClass():
            return replace(obj, allowed_topologies=(TopologyTerm(),))
        case CSIStorageCapacity():
            return replace(obj, node_topology=None)
        case CSINode():
            # A driver that is left out counts as one that reports no limit.
            drivers = [replace(it, name=short_name(it.name)) for it in (obj.spec.drivers or ())[:_MOST_CSI_DRIVERS]]
            return replace(obj, spec=replace(obj.spec, drivers=tuple(drivers)))
        case VolumeAttachment():
            name = short_name(obj.spec.source.persistent_volume_name or "")
            return replace(obj, spec=replace(obj.spec, source=AttachmentSource(persistent_volume_name=name)))
    return obj


_MOST_CSI_DRIVERS: Final = 100
"""CSI drivers of a node that are kept if there are too many."""
_HANDLE_LETTERS: Final = 4096
_PLACE_LABELS: Final = (
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
)
_OF_EACH_NODE: Final = ("cpu", "memory", "ephemeral-storage", "pods")


def _node_with_mark(node: Node) -> Node:
    """The pods that it has count on it, and in its zone."""
    meta, status = node.metadata, node.status
    labels = {name: value for name, value in (meta.labels or {}).items() if name in _PLACE_LABELS}
    room = {name: amount for name, amount in (status.allocatable or {}).items() if name in _OF_EACH_NODE}
    ready = [replace(it, status=short_name(it.status)) for it in status.conditions or () if it.type == "Ready"][:1]
    return replace(
        node,
        metadata=replace(meta, labels=labels),
        spec=replace(node.spec, taints=(NODE_MARK,)),
        status=replace(status, allocatable=room, conditions=tuple(ready), declared_features=None),
    )


def _volume_nowhere(volume: PersistentVolume) -> PersistentVolume:
    spec, room = volume.spec, (volume.spec.capacity or {}).get("storage")
    claim, csi = spec.claim_ref, spec.csi
    if claim is not None:
        claim = replace(claim, **{name: short_name(getattr(claim, name)) for name in claim.__struct_fields__})
    if csi is not None:
        csi = replace(csi, volume_handle=csi.volume_handle[:_HANDLE_LETTERS])
    spec = replace(
        spec,
        capacity=None if room is None else {"storage": room},
        access_modes=tuple(dict.fromkeys(spec.access_modes or ()))[:_ACCESS_MODES],
        claim_ref=claim,
        csi=csi,
        node_affinity=VolumeNodeAffinity(required=NodeSelector()),
    )
    return replace(volume, metadata=replace(volume.metadata, labels=None), spec=spec)


_ACCESS_MODES: Final = 4
"""Access modes that there are."""


def _that_counts(spec: PersistentVolumeClaimSpec) -> PersistentVolumeClaimSpec:
    """The API server also admits requests that mean nothing, and one access mode a thousand times."""
    amount = (spec.resources.requests or {}).get("storage")
    resources = VolumeResources(requests=None if amount is None else {"storage": amount})
    modes = tuple(dict.fromkeys(spec.access_modes or ()))[:_ACCESS_MODES]
    name = short_name(spec.volume_name)
    return replace(spec, access_modes=modes or None, resources=resources, volume_name=name)


def without_own_labels(namespace: Namespace) -> Namespace:
    """Return the short form of a namespace for which there is no room: with the label that the API server gives it, and
    the one that admits admin access."""
    meta, labels = namespace.metadata, {NAME_LABEL: namespace.metadata.name}
    if (known := meta.labels or {}) and ADMIN_ACCESS_LABEL in known:
        labels[ADMIN_ACCESS_LABEL] = known[ADMIN_ACCESS_LABEL]
    return replace(namespace, metadata=replace(meta, labels=labels))


NAME_LABEL: Final = "kubernetes.io/metadata.name"


def without_selector(obj: PersistentVolumeClaim | PodDisruptionBudget) -> PersistentVolumeClaim | PodDisruptionBudget:
    """Return the short form of an object with a selector for which there is no room.

    Such a claim is not bound, and such a budget protects all pods of its namespace.
    """
    if isinstance(obj, PersistentVolumeClaim):
        return replace(obj, spec=replace(obj.spec, selector=NO_VOLUME))
    return replace(obj, spec=replace(obj.spec, selector=ALL_PODS))


ALL_PODS: Final = MarkedSelector()
