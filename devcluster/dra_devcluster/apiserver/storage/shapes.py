"""Converts between the stored and the served version of an object.

Most versions of a kind differ only in ``apiVersion``, which is not stored. The exceptions are
``resource.k8s.io/v1beta1`` (api.md section 12), PodGroups and Workloads of ``scheduling.k8s.io/v1alpha2``
(kubernetes-1.37.md section 8), and the two faces of events.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from dra_api import conversion

from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.structure import Resource

from .store import Stored

_DRA = "resource.k8s.io"
_SCHEDULING = "scheduling.k8s.io"
_RESHAPED = frozenset({"deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"})

# events.k8s.io/v1 field: core/v1 field
_EVENT_FIELDS: Mapping[str, str] = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_EVENT_FIELDS_BACK = {core: new for new, core in _EVENT_FIELDS.items()}


def is_stored_shape(resource: Resource) -> bool:
    """Whether objects of this resource look as they are stored."""
    if resource.group == _DRA:
        return resource.version != "v1beta1" or resource.plural not in _RESHAPED
    return resource.group != "events.k8s.io" and not _is_of_alpha_groups(resource)


def _is_of_alpha_groups(resource: Resource) -> bool:
    return (resource.group, resource.version) == (_SCHEDULING, "v1alpha2")


def to_stored(resource: Resource, obj: Json) -> Json:
    """An object as a client sent it, in the stored shape."""
    if is_stored_shape(resource):
        return obj
    if resource.group == _DRA:
        return conversion.convert(obj, f"{_DRA}/v1")
    if resource.group == _SCHEDULING:
        return conversion.convert(obj, f"{_SCHEDULING}/v1beta1")
    return {stored_name(resource, key): value for key, value in obj.items()}


def stored_name(resource: Resource, field: str) -> str:
    """What a member of an object is called as it is stored."""
    return _EVENT_FIELDS.get(field, field) if resource.group == "events.k8s.io" else field


def to_served(resource: Resource, obj: Json) -> Json:
    """A stored object (apiVersion and kind may be missing) as the resource's version has it."""
    if not is_stored_shape(resource):
        if resource.group != "events.k8s.io":
            stored = f"{_DRA}/v1" if resource.group == _DRA else f"{_SCHEDULING}/v1beta1"
            whole = {**obj, "apiVersion": stored, "kind": resource.kind}
            obj = conversion.convert(whole, resource.api_version)
        else:
            obj = {_EVENT_FIELDS_BACK.get(key, key): value for key, value in obj.items()}
    rest = {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}
    return {"kind": resource.kind, "apiVersion": resource.api_version, **rest}


def data_of(resource: Resource, stored: Stored) -> bytes:
    """The encoded object without ``{`` and the two members that name its version."""
    if is_stored_shape(resource):
        return stored.data
    served = to_served(resource, stored.decode())
    return orjson.dumps({key: value for key, value in served.items() if key not in ("kind", "apiVersion")})[1:]


def prefix_of(resource: Resource) -> bytes:
    """What `data_of` leaves out."""
    return b'{"kind":"%s","apiVersion":"%s",' % (resource.kind.encode(), resource.api_version.encode())
