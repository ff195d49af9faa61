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

A third size lies between: objects that are neither short nor too large (``Bulk``). A namespace may have ten thousand
claims or pods of 60 KB, and a struct takes four to six times as many bytes as its JSON. So objects that are not short
share a number of bytes. One is held whole if its kind in its namespace then has at most half of the rest: a single
namespace gets a third of all, and however many have taken their share, some is left for the next one. The others are
*set aside*: little is kept of them (``scheduling.state.large``). When the turn of a pod comes, it and its claims are
read from the server and *lent*: they are held whole until enough others were. A template that is set aside is read for
each claim that is made from it.

Workloads that wait for quota leave room to Workloads that have it, since only these are decided on. One that is set
aside is read when its turn comes (``admission.reading``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, KeysView, ValuesView
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
from dra_api.codec import DecodeError, decode, encode
from dra_api.core import Namespace, Node, Pod
from dra_api.kueue import Workload
from dra_api.meta import Object, ObjectMeta
from dra_api.resource import (
    OpaqueDeviceConfiguration,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimTemplateSpec,
    ResourcePoolStatusRequest,
)
from dra_api.scheduling import PodDisruptionBudget, PodGroup
from dra_api.storage import (
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    VolumeResources,
)
from msgspec import Raw, field
from msgspec.structs import replace

from dra_operator.scheduling.state import (
    BULKY_BYTES,
    LARGEST_OBJECT_BYTES,
    NO_VOLUME,
    SMALL_BYTES,
    MarkedSelector,
    SpecMark,
    annotations_read,
    bytes_of_large,
    claim_set_aside,
    claim_without_bulk,
    has_lost_selector,
    is_set_aside,
    is_workload_set_aside,
    metadata_without_bulk,
    pod_set_aside,
    pod_without_bulk,
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

    def __init__(self, memory: int = 10_000) -> None:
        self._objects: dict[str, T] = {}
        self.deleted = UidMemory(memory)

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

    ``mark``: the ``SpecMark`` of a spec of which little is kept, which its text does not have. JSON has none.
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

    Nodes, namespaces and volumes keep their labels, which selectors look at; who may create them is no tenant.
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
    match obj:
        case Node() | Namespace() | PersistentVolume():
            return replace(obj, metadata=_with_labels(obj.metadata))
    obj = replace(obj, metadata=_without_labels(obj.metadata))
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


_ACCESS_MODES: Final = 4
"""Access modes that there are."""


def _that_counts(spec: PersistentVolumeClaimSpec) -> PersistentVolumeClaimSpec:
    """The API server also admits requests that mean nothing, and one access mode a thousand times."""
    amount = (spec.resources.requests or {}).get("storage")
    resources = VolumeResources(requests=None if amount is None else {"storage": amount})
    modes = tuple(dict.fromkeys(spec.access_modes or ()))[:_ACCESS_MODES]
    return replace(spec, access_modes=modes or None, resources=resources)


def _with_labels(meta: ObjectMeta) -> ObjectMeta:
    return replace(meta, annotations=None, finalizers=None, owner_references=None)


def _without_labels(meta: ObjectMeta) -> ObjectMeta:
    """Keep the annotations that are read, and the controller."""
    # The controller stays: evictions and budgets look for pods by their owner.
    owner = meta.controller
    return replace(
        _with_labels(meta),
        labels=None,
        annotations=annotations_read(meta),
        owner_references=None if owner is None else (owner,),
    )


def without_selector(obj: PersistentVolumeClaim | PodDisruptionBudget) -> PersistentVolumeClaim | PodDisruptionBudget:
    """Return the short form of an object with a selector for which there is no room.

    Such a claim is not bound, and such a budget protects all pods of its namespace.
    """
    if isinstance(obj, PersistentVolumeClaim):
        return replace(obj, spec=replace(obj.spec, selector=NO_VOLUME))
    return replace(obj, spec=replace(obj.spec, selector=ALL_PODS))


ALL_PODS: Final = MarkedSelector()


_SHARING: Final = frozenset({Pod, ResourceClaim, ClaimTemplate, Workload, PersistentVolumeClaim, PodDisruptionBudget})
Place = tuple[type[Object], str]
"""A kind, and the key of an object or the name of a namespace."""


class BulkLimits(NamedTuple):
    """Bytes as JSON: up to which an object is short, of all that are held whole, and of those that are lent."""

    short: int = SMALL_BYTES
    whole: int = 24 << 20
    lent: int = 4 << 20


class Bulk:
    """Call ``kept`` for each object that comes in, and ``gone`` for each that goes.

    ``is_placed`` says of a pod whether it has a node, or is on its way to one.
    """

    def __init__(self, limits: BulkLimits, is_placed: Callable[[Pod], bool]) -> None:
        self._limits, self._is_placed = limits, is_placed
        self._whole: dict[Place, int] = {}
        """Bytes of each object that is held whole, without lent ones."""
        self._sums: dict[Place, int] = {}
        """Bytes by kind and namespace."""
        self._total = 0
        self._lent: OrderedDict[Place, int] = OrderedDict()
        self.pods_aside: set[str] = set()
        """Keys of the pods that are set aside."""
        self.has_aside = False
        """Whether anything has been set aside so far."""

    def kept(self, obj: T) -> T:
        """Return the object, or its short form."""
        kind = type(obj)
        if kind not in _SHARING:
            return without_bulk(obj)
        if kind is Workload:  # of most there is no need of the templates, however short they are
            obj = without_bulk(obj)
        # Encoded once, as nearly all objects end here.
        if len(encode(obj)) <= self._limits.short:
            if self._whole or self._lent or self.pods_aside:
                self.gone(kind, obj.key)
            return obj
        obj = without_bulk(obj)
        if self._is_aside(obj):
            return obj
        # What Kueue says of a Workload changes often, and must not take its room away.
        size, place = len(encode(obj.spec if isinstance(obj, Workload) else obj)), (kind, obj.key)
        share = 4 if isinstance(obj, Workload) and not obj.has_quota else 2
        if size <= self._limits.short or self._takes(place, obj.metadata.namespace, size, share):
            if size <= self._limits.short:
                self.gone(kind, obj.key)
            self._note_pod(obj, is_aside=False)
            return obj
        if place in self._lent:
            self._lent[place] = size
            return obj
        return self.set_aside(obj)

    def set_aside(self, obj: T) -> T:
        """Return the short form of an object for which there is no room."""
        self._drop((type(obj), obj.key))
        self.has_aside = True
        self._note_pod(obj, is_aside=True)
        return self._short(obj)

    def holds(self, obj: Object) -> bool:
        """Return whether the object counts against the shared bytes."""
        return (type(obj), obj.key) in self._whole

    def _short(self, obj: T) -> T:
        match obj:
            case Workload():
                return workload_set_aside(obj)  # type: ignore[return-value]
            case PersistentVolumeClaim() | PodDisruptionBudget():
                return without_selector(obj)  # type: ignore[return-value]
            case Pod():
                return pod_set_aside(obj, is_placed=self._is_placed(obj))  # type: ignore[return-value]
            case ResourceClaim():
                return claim_set_aside(obj)  # type: ignore[return-value]
            case ClaimTemplate():
                return obj.set_aside()  # type: ignore[return-value]
        return obj

    def lasting(self, obj: T) -> T:
        """Return the form in which the object is held in the long run."""
        return self._short(obj) if (type(obj), obj.key) in self._lent else obj

    def lend(self, kind: type[Object], key: str) -> list[Place]:
        """Have the next version of the object kept whole. Return the objects that are to be set aside for it."""
        # Its size is not known before it comes; the last one that is lent always fits.
        self._lent[kind, key] = self._lent.pop((kind, key), 0)
        given_back = []
        while sum(self._lent.values()) > self._limits.lent and len(self._lent) > 1:
            given_back.append(self._lent.popitem(last=False)[0])
        return given_back

    def gone(self, kind: type[Object], key: str) -> None:
        """Note that the object is no more, or is short now."""
        if not (self._whole or self._lent or self.pods_aside):
            return
        self._drop((kind, key))
        self._lent.pop((kind, key), None)
        if kind is Pod:
            self.pods_aside.discard(key)

    def _is_aside(self, obj: Object) -> bool:
        match obj:
            case Pod() | ResourceClaim():
                return is_set_aside(obj)
            case ClaimTemplate():
                return obj.is_set_aside
            case Workload():
                return is_workload_set_aside(obj)
            case PersistentVolumeClaim():
                return has_lost_selector(obj)
            case PodDisruptionBudget():
                return obj.spec.selector == ALL_PODS
        return False

    def _takes(self, place: Place, namespace: str, size: int, share: int) -> bool:
        """Hold the object whole if its account then has at most ``1/share`` of the rest. Return whether it has."""
        account, before = (place[0], namespace), self._whole.get(place, 0)
        left = self._limits.whole - self._total
        # One that is held already stays so, though others have come since, unless it grows.
        if size > before and self._sums.get(account, 0) + size - before > left // share:
            return False
        self._drop(place)
        self._lent.pop(place, None)
        self._whole[place] = size
        self._sums[account] = self._sums.get(account, 0) + size
        self._total += size
        return True

    def _drop(self, place: Place) -> None:
        size = self._whole.pop(place, None)
        if size is None:
            return
        kind, key = place
        account = (kind, key.partition("/")[0])
        self._total -= size
        left = self._sums[account] - size
        if left:
            self._sums[account] = left
        else:
            del self._sums[account]

    def _note_pod(self, obj: Object, *, is_aside: bool) -> None:
        if isinstance(obj, Pod):
            (self.pods_aside.add if is_aside else self.pods_aside.discard)(obj.key)
