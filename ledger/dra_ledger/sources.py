"""Read objects in the forms that programs have, into the forms that the ledger keeps.

A source is JSON (bytes or text), a dictionary, a list of sources, or an object of ``dra_api``, of the ``kubernetes``
package or of a client that keeps the dictionary (``raw``, ``obj``, ``to_dict()``). It may also be a list as the API
server answers it or ``kubectl get -o json`` writes it, several of them one after another, an event of a watch, or a
file.
Objects of other kinds and groups are passed over. An object without a kind is an error: it would be passed over in
silence, and its devices would count as free.

Only the devices and consumers of a claim are read, and the name, group, end and device health of a
pod: a ledger of 20,000 claims takes a tenth of the memory of their JSON. Versions from v1alpha3 on are understood.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from sys import intern
from typing import Any, Final, NamedTuple

import msgspec
from dra_api.codec import DecodeError, convert, decode
from dra_api.conversion import GROUP
from dra_api.conversion import convert as converted
from dra_api.core import Node, Pod
from dra_api.meta import Object, ObjectMeta, Part
from dra_api.references import claims_of_pod, group_name, pod_is_done
from dra_api.resource import (
    AllocationResult,
    DeviceAllocationResult,
    DeviceClass,
    DeviceRequestAllocationResult,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceSlice,
)
from dra_api.scheduling import GROUP as SCHEDULING_GROUP
from msgspec import structs

from .errors import shortened
from .forms import Document, Listed, Malformed, documents

JSON = Mapping[str, Any]
NAMESPACED: Final = ("ResourceClaim", "Pod")
_V1: Final = f"{GROUP}/v1"
_FLAT: Final = f"{GROUP}/v1beta1"
_VERSIONS: Final = {"": "", "v1": "v1"} | {
    f"{GROUP}/{version}": f"{GROUP}/{shape}"
    for version, shape in (("v1", "v1"), ("v1beta2", "v1"), ("v1beta1", "v1beta1"), ("v1alpha3", "v1beta1"))
}
"""The known versions with the version that has the same shape."""


class HeldClaim(Part, frozen=True, gc=False):
    """The relevant parts of a claim. ``allocation`` has only its results and its time, and consumers are names."""

    namespace: str
    name: str
    created: str
    allocation: AllocationResult | None
    pods: tuple[str, ...]
    groups: tuple[str, ...]
    """PodGroups."""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


class Health(NamedTuple):
    """What a kubelet says of a device of a pod. ``resource``: its first CDI id, or ``driver/pool/device``."""

    claim: str
    request: str
    resource: str
    health: str


class SeenPod(Part, frozen=True):
    """The relevant parts of a pod. ``claims`` are the names of its claims."""

    namespace: str
    name: str
    group: str
    is_done: bool
    claims: frozenset[str]
    health: tuple[Health, ...]

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


Kept = ResourceSlice | HeldClaim | DeviceClass | DeviceTaintRule | Node | SeenPod


class Read(NamedTuple):
    """One object of a source; ``is_gone``: an event says that it was deleted."""

    object: Kept | Malformed | Listed
    is_gone: bool = False


# --- decoded parts of claims and pods ---


class _Meta(Part, frozen=True):
    name: str = ""
    namespace: str = ""
    creation_timestamp: str | None = None


class _Named(Part, frozen=True):
    metadata: _Meta = _Meta()


class _Identity(Part, frozen=True):
    """The names of an object of which nothing else need be readable."""

    name: str = ""
    namespace: str = ""


class _Identified(Part, frozen=True):
    metadata: _Identity = _Identity()


class _Results(Part, frozen=True):
    results: tuple[DeviceRequestAllocationResult, ...] | None = None


class _Allocation(Part, frozen=True):
    devices: _Results = _Results()
    allocation_timestamp: str | None = None


class _ClaimStatus(Part, frozen=True):
    allocation: _Allocation | None = None
    reserved_for: tuple[ResourceClaimConsumerReference, ...] | None = None


class _Claim(_Named, frozen=True):
    status: _ClaimStatus | None = None


class _RuleSelector(Part, frozen=True):
    """Up to 1.34. A rule without them selects more."""

    device_class_name: Any = None
    selectors: Any = None


class _RuleSpec(Part, frozen=True):
    device_selector: _RuleSelector | None = None


class _Rule(Part, frozen=True):
    spec: _RuleSpec = _RuleSpec()


class _FlatDevice(Part, frozen=True):
    basic: Any = None
    """What v1 has beside the name, up to v1beta1."""


class _FlatSpec(Part, frozen=True):
    devices: tuple[_FlatDevice, ...] | None = None


class _FlatSlice(Part, frozen=True):
    spec: _FlatSpec = _FlatSpec()


class _Resource(Part, frozen=True):
    resource_id: str = msgspec.field(default="", name="resourceID")
    health: str = ""


class _ResourceStatus(Part, frozen=True):
    name: str = ""
    resources: tuple[_Resource, ...] | None = None


class _Container(Part, frozen=True):
    allocated_resources_status: tuple[_ResourceStatus, ...] | None = None


class _PodStatus(Part, frozen=True):
    container_statuses: tuple[_Container, ...] | None = None
    init_container_statuses: tuple[_Container, ...] | None = None


class _PodHealth(Part, frozen=True):
    status: _PodStatus | None = None


def read(source: object, kind: str = "") -> Iterator[Read]:
    """Yield the objects of a source; ``kind`` is that of objects without one. Raises DecodeError as ``documents``."""
    for found in documents(source, kind):
        if isinstance(found, Document):
            yield Read(_one(found.kind, found.version, found.data), found.is_gone)
        elif isinstance(found, Object):
            yield from _typed(found)
        else:
            yield Read(found)


def _typed(source: Object) -> Iterator[Read]:
    if isinstance(source, ResourceClaim):
        meta, given = source.metadata, source.status.allocation
        yield Read(
            HeldClaim(
                namespace=meta.namespace,
                name=meta.name,
                created=meta.creation_timestamp or "",
                allocation=_slim(given.results, given.allocation_timestamp) if given is not None else None,
                pods=_consumers(source.status.reserved_for, "pods"),
                groups=_consumers(source.status.reserved_for, "podgroups"),
            )
        )
    elif isinstance(source, Pod):
        yield Read(_seen(source, _PodStatus()))
    elif isinstance(source, ResourceSlice | DeviceClass | DeviceTaintRule | Node):
        yield Read(source)


def _one(kind: str, version: str, data: Any) -> Kept | Malformed:
    try:
        if version not in _VERSIONS:
            raise DecodeError(f"apiVersion {shortened(version)} is not known")
        found = _decoded(kind, _VERSIONS[version], data)
        named = found if isinstance(found, HeldClaim | SeenPod) else found.metadata
        if not named.name or not (named.namespace or kind not in NAMESPACED):
            raise DecodeError(f"it has no metadata.{'namespace' if named.name else 'name'}")
    except DecodeError as error:
        try:
            meta = decode(_Identified, data).metadata
        except DecodeError:
            meta = _Identity()
        return Malformed(
            f"{kind} {meta.namespace}/{meta.name}" if meta.namespace else f"{kind} {meta.name}", str(error)
        )
    return found


def _decoded(kind: str, shape: str, data: Any) -> Kept:
    if kind == "ResourceClaim":
        return _claim(decode(_Claim, data))
    if kind == "Pod":
        return _seen(decode(Pod, data), decode(_PodHealth, data).status or _PodStatus())
    if kind == "ResourceSlice":
        return _slice(shape, data)
    if kind == "DeviceTaintRule":
        former = decode(_Rule, data).spec.device_selector or _RuleSelector()
        if former.device_class_name or former.selectors:
            raise DecodeError("spec.deviceSelector has deviceClassName or selectors, which went with Kubernetes 1.35")
        return decode(DeviceTaintRule, data)
    return decode(DeviceClass, data) if kind == "DeviceClass" else decode(Node, data)


def _slice(shape: str, data: Any) -> ResourceSlice:
    if shape == _FLAT or (not shape and _is_flat(data)):
        found = convert(
            ResourceSlice, converted({**decode(dict, data), "apiVersion": _FLAT, "kind": "ResourceSlice"}, _V1)
        )
    else:
        found = decode(ResourceSlice, data)
    meta = found.metadata
    kept = ObjectMeta(name=meta.name, uid=meta.uid, creation_timestamp=meta.creation_timestamp)
    return structs.replace(found, metadata=kept)


def _is_flat(data: Any) -> bool:
    """Return whether a slice without a version, such as an item of a list, has the shape of v1beta1: read as v1, its
    devices would lack their taints and counters."""
    return any(device.basic is not None for device in decode(_FlatSlice, data).spec.devices or ())


def _claim(found: _Claim) -> HeldClaim:
    status, meta = found.status or _ClaimStatus(), found.metadata
    given = status.allocation
    return HeldClaim(
        namespace=intern(meta.namespace),
        name=meta.name,
        created=meta.creation_timestamp or "",
        allocation=_slim(given.devices.results or (), given.allocation_timestamp) if given is not None else None,
        pods=_consumers(status.reserved_for, "pods"),
        groups=_consumers(status.reserved_for, "podgroups"),
    )


def _slim(results: Iterable[DeviceRequestAllocationResult], since: str | None) -> AllocationResult:
    return AllocationResult(
        devices=DeviceAllocationResult(results=tuple(map(_shared, results))), allocation_timestamp=since
    )


def _shared(result: DeviceRequestAllocationResult) -> DeviceRequestAllocationResult:
    """The same with names of which there is one copy: thousands of claims name the same drivers and pools."""
    return DeviceRequestAllocationResult(
        request=intern(result.request),
        driver=intern(result.driver),
        pool=intern(result.pool),
        device=intern(result.device),
        admin_access=result.admin_access,
        share_id=result.share_id,
        consumed_capacity=result.consumed_capacity,
    )


def _consumers(reserved_for: Iterable[ResourceClaimConsumerReference] | None, resource: str) -> tuple[str, ...]:
    group = "" if resource == "pods" else SCHEDULING_GROUP
    return tuple(one.name for one in reserved_for or () if (one.api_group, one.resource) == (group, resource))


def _seen(pod: Pod, status: _PodStatus) -> SeenPod:
    meta, uses = pod.metadata, list(claims_of_pod(pod))
    names = {use.entry.name: use.name for use in uses if use.entry is not None}
    return SeenPod(
        namespace=meta.namespace,
        name=meta.name,
        group=group_name(pod) or "",
        is_done=pod_is_done(pod),
        claims=frozenset(use.name for use in uses),
        health=tuple(_health(status, names)),
    )


def _health(status: _PodStatus, claims: Mapping[str, str]) -> Iterator[Health]:
    """An entry is named ``claim:NAME`` or ``claim:NAME/REQUEST``, where NAME is that of the pod's own list."""
    for container in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        for one in container.allocated_resources_status or ():
            name, _, request = one.name.removeprefix("claim:").partition("/")
            for resource in one.resources or () if name in claims else ():
                yield Health(claims[name], request, resource.resource_id, resource.health)
