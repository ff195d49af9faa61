"""How much a command holds of the objects that tenants store.

A namespace may have ten thousand claims or pods of 60 KB, and a struct takes four to six times as many bytes as its
JSON. A table shows little of that. So objects that are not short share a number of bytes, as in the operator
(``cache.bulk``): one is held whole if its kind in its namespace then has at most half of the rest. Of the others a
command holds a *brief* form, from which each table and each sum follows: names, classes, devices, holders, states, and
the room on a node. A pod that a command decides about is read again with its claims and templates, when its turn comes
(``Observed.whole``, ``Pipeline.at_hand``).

The text of a file is held as bytes, and its objects are read again from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Final, TypeVar

from dra_api.codec import encode
from dra_api.core import Event, Namespace, Pod
from dra_api.kueue import Workload
from dra_api.meta import Object, ObjectMeta
from dra_api.resource import (
    DeviceRequest,
    DeviceSubRequest,
    ExactDeviceRequest,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourcePoolStatusRequest,
)
from dra_api.scheduling import PodDisruptionBudget, PodGroup
from dra_api.selectors import Selector
from dra_api.storage import PersistentVolumeClaim
from msgspec.structs import replace

T = TypeVar("T", bound=Object)

ALWAYS_WHOLE_BYTES: Final = 2 << 10
"""Up to which an object is held whole in any number. The modules that know what to cut take long to load."""
WHOLE_OBJECT_BYTES: Final = 64 << 10
"""The longest object that the operator decides about."""
ROOM_BYTES: Final = 12 << 20
"""Of the objects that are not short and held whole."""
_LABEL_BYTES: Final = 1 << 10
_PART_BYTES: Final = 2 << 10
"""Bytes of the requests of a claim, and of the status of a pod, that a brief form has."""
_MESSAGE_CHARACTERS: Final = 500
"""Length to which a message is cut."""
_MOST_CONDITIONS: Final = 16
_BARE: Final = (PersistentVolumeClaim, PodDisruptionBudget, PodGroup, Namespace, ResourcePoolStatusRequest)
_SHARING: Final = (
    Pod,
    ResourceClaim,
    ResourceClaimTemplate,
    Workload,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    Namespace,
)


def room_of(options: argparse.Namespace) -> ObjectRoom:
    """Return the room of a command. Claims and pods keep the labels by which it selects."""
    made: ObjectRoom | None = getattr(options, "room", None)
    if made is not None:
        return made
    texts = (getattr(options, name, None) or "" for name in ("selector", "movable_selector"))
    return ObjectRoom([name for text in texts for name in _labels_named(text)])


def _labels_named(text: str) -> list[str]:
    """Return the names of the labels of a selector; none if it cannot be read."""
    try:
        return [it.key for it in Selector.parse(text).requirements or ()]
    except ValueError:
        return []


class ObjectRoom:
    """Call ``kept`` for each object as it is decoded. ``labels``: names of labels that the command asks for."""

    def __init__(self, labels: Collection[str] = (), whole: int = ROOM_BYTES) -> None:
        self._labels, self._left = labels, whole
        self._sums: dict[tuple[type[Object], str], int] = {}
        self.has_brief = False
        """Whether an object was cut that can be read again."""
        self.pods_cut = 0
        """Pods that name more claims than are kept."""

    def kept(self, obj: T) -> T:
        """Return the object, or its brief form."""
        if len(encode(obj)) <= ALWAYS_WHOLE_BYTES:
            return obj
        if isinstance(obj, Event):
            return _event_in_brief(obj)  # type: ignore[return-value]
        obj = without_bulk(obj)
        if not isinstance(obj, _SHARING) or self._takes(obj):
            return obj
        self.has_brief = True
        short = in_brief(obj, self._labels)
        if isinstance(obj, Pod) and isinstance(short, Pod):
            self.pods_cut += len(short.spec.resource_claims or ()) < len(obj.spec.resource_claims or ())
        return short  # type: ignore[return-value]

    def _takes(self, obj: Object) -> bool:
        account, size = (type(obj), obj.metadata.namespace), len(encode(obj))
        held = self._sums.get(account, 0)
        if held + size > self._left // 2:
            return size <= ALWAYS_WHOLE_BYTES
        self._sums[account] = held + size
        self._left -= size
        return True


def without_bulk(obj: T) -> T:
    """Return the object, or the parts that the operator keeps if it is too large to be decided about."""
    # Of some kinds no table shows more than the operator keeps of them from the first byte on.
    if len(encode(obj)) <= (ALWAYS_WHOLE_BYTES if isinstance(obj, _BARE) else WHOLE_OBJECT_BYTES):
        return obj
    from dra_operator.cache import without_bulk
    from dra_operator.scheduling.state import metadata_without_bulk, spec_without_bulk

    if not isinstance(obj, ResourceClaimTemplate):
        return without_bulk(obj)
    obj = replace(obj, metadata=metadata_without_bulk(obj.metadata))
    inner = obj.spec.spec
    if (size := len(encode(inner))) <= WHOLE_OBJECT_BYTES:
        return obj
    return replace(obj, spec=replace(obj.spec, spec=spec_without_bulk(inner, size)))


def in_brief(obj: Object, labels: Collection[str] = ()) -> Object:
    """Return the brief form of an object."""
    from dra_operator.cache.store import without_own_labels, without_selector
    from dra_operator.scheduling.state import metadata_without_bulk, spec_set_aside, workload_set_aside

    match obj:
        case Pod():
            return _pod_in_brief(obj, labels)
        case ResourceClaim():
            return _claim_in_brief(obj, labels)
        case ResourceClaimTemplate():
            spec = replace(obj.spec, metadata=type(obj.spec.metadata)(), spec=spec_set_aside(obj.spec.spec))
            return replace(obj, metadata=metadata_without_bulk(obj.metadata), spec=spec)
        case Workload():
            workload = workload_set_aside(replace(obj, metadata=metadata_without_bulk(obj.metadata)))
            return replace(workload, metadata=_labels_in_brief(obj, workload, labels))
        case PersistentVolumeClaim() | PodDisruptionBudget():
            return without_selector(obj)
        case Namespace():
            return without_own_labels(obj)
    return obj


def is_brief(obj: Object) -> bool:
    """Return whether ``in_brief`` has made the object."""
    from dra_operator.cache.bulk import is_aside
    from dra_operator.scheduling.state import spec_mark

    if not isinstance(obj, ResourceClaimTemplate):
        return is_aside(obj)
    mark = spec_mark(obj.spec.spec)
    return mark is not None and mark.is_aside


def _labels_in_brief(obj: Object, short: Object, wanted: Collection[str]) -> ObjectMeta:
    """Return the metadata of the short form with all labels if they are short, or else with the wanted ones."""
    known = obj.metadata.labels or {}
    if len(encode(known)) <= _LABEL_BYTES:
        return replace(short.metadata, labels=obj.metadata.labels)
    chosen = {name: known[name] for name in wanted if name in known}
    return replace(short.metadata, labels=chosen or None)


def _pod_in_brief(pod: Pod, labels: Collection[str]) -> Pod:
    """Of the status everything short is kept, since tables tell who is ready and whose device is ill."""
    from dra_operator.scheduling.state import pod_set_aside

    short = pod_set_aside(pod, is_placed=bool(pod.spec.node_name))
    short = replace(short, metadata=_labels_in_brief(pod, short, labels))
    said = [replace(it, message=it.message[:_MESSAGE_CHARACTERS]) for it in pod.status.conditions or ()]
    status = replace(short.status, conditions=tuple(said[:_MOST_CONDITIONS]) or None)
    containers = replace(
        status,
        container_statuses=pod.status.container_statuses,
        init_container_statuses=pod.status.init_container_statuses,
    )
    for each in (containers, status):
        if len(encode(each)) <= _PART_BYTES:
            return replace(short, status=each)
    return short


def _claim_in_brief(claim: ResourceClaim, labels: Collection[str]) -> ResourceClaim:
    """Keep classes and numbers with the names of requests if these are short together, and labels."""
    from dra_operator.scheduling.state import claim_set_aside

    short = claim_set_aside(claim)
    spec, requests = short.spec, tuple(map(_request_in_brief, claim.spec.devices.requests or ()))
    if len(encode(requests)) <= _PART_BYTES:
        spec = replace(spec, devices=replace(spec.devices, requests=requests))
    return replace(short, metadata=_labels_in_brief(claim, short, labels), spec=spec)


def _request_in_brief(request: DeviceRequest) -> DeviceRequest:
    exactly, choices = request.exactly, request.first_available or ()
    if exactly is not None:
        exactly = ExactDeviceRequest(
            device_class_name=exactly.device_class_name,
            allocation_mode=exactly.allocation_mode,
            count=exactly.count,
            admin_access=exactly.admin_access,
        )
    subs = [DeviceSubRequest(it.name, it.device_class_name, None, it.allocation_mode, it.count) for it in choices]
    return DeviceRequest(name=request.name, exactly=exactly, first_available=tuple(subs) or None)


def _event_in_brief(event: Event) -> Event:
    about = event.involved_object
    texts = {name: text[:_MESSAGE_CHARACTERS] for name in about.__struct_fields__ if (text := getattr(about, name))}
    cut = {name: text[:_MESSAGE_CHARACTERS] for name in ("reason", "message") if (text := getattr(event, name))}
    meta = replace(event.metadata, annotations=None, labels=None, finalizers=None, owner_references=None)
    return replace(event, metadata=meta, involved_object=replace(about, **texts), **cut)
