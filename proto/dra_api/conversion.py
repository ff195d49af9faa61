"""What an API server makes of the objects that it reads and writes: other versions, and defaults.

Spec: api.md sections 11 and 12, kubernetes-1.37.md section 8.

Of ``resource.k8s.io`` there are v1, v1beta2, v1beta1 and v1alpha3.

v1 and v1beta2 look the same. v1beta1 is flatter in one place (the fields of ``requests[].exactly``
stand in the request itself) and deeper in another (all fields of a device but its name stand in
``basic``), and has no unset ``nodeName`` and ``allNodes``. DeviceTaintRule and
ResourcePoolStatusRequest look the same wherever they are served.

Of PodGroup and Workload (``scheduling.k8s.io``) there are v1beta1 and v1alpha2, which names the template of a group in
another way, and the mode in which it may be disrupted by a word.

Objects are plain dicts. Conversion never changes the given one; the result shares its unchanged parts. Unknown fields
are preserved: those of a flat request or of a device move along with the known ones. A part of the wrong shape is
passed on unchanged, and validation reports it.

``from_served`` and ``to_served`` convert between the shape we work with and that of a server, whatever version it
speaks.

``set_defaults`` fills in what the writer of an object left out. It changes the dict in place, in the shape of the
version in which the object was sent: v1beta1 has the fields of a request and of a device in other places, and fills in
the mode of a request only if the request names a class. The time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from dra_api.releases import Release

if TYPE_CHECKING:
    from dra_api.meta import Resource  # loads dataclasses, which a program that asks the ledger once need not


GROUP: Final = "resource.k8s.io"
SCHEDULING: Final = "scheduling.k8s.io"
VERSIONS: Final = {
    "DeviceClass": ("v1", "v1beta2", "v1beta1"),
    "ResourceSlice": ("v1", "v1beta2", "v1beta1"),
    "ResourceClaim": ("v1", "v1beta2", "v1beta1"),
    "ResourceClaimTemplate": ("v1", "v1beta2", "v1beta1"),
    "DeviceTaintRule": ("v1", "v1beta2", "v1alpha3"),
    "ResourcePoolStatusRequest": ("v1alpha3",),
    "PodGroup": ("v1beta1", "v1alpha2"),
    "Workload": ("v1beta1", "v1alpha2"),
}
_SINCE: Final = {"v1": Release.V1_34, "v1beta2": Release.V1_33, "v1beta1": Release.V1_32}
_SINCE_OF_KIND: Final = {
    ("v1", "devicetaintrules"): Release.V1_37,
    ("v1beta2", "devicetaintrules"): Release.V1_36,
    ("v1alpha3", "devicetaintrules"): Release.V1_33,
    ("v1alpha3", "resourcepoolstatusrequests"): Release.V1_36,
}
_ALIKE: Final = "kueue.x-k8s.io/"
"""A group whose structs read every version."""
_OF_SCHEDULING: Final = ("PodGroup", "Workload")
FLAT: Final = "v1beta1"
"""The version that has fields of requests and devices in other places."""
REQUESTS: Final = {
    "ResourceClaim": ("spec", "devices", "requests"),
    "ResourceClaimTemplate": ("spec", "spec", "devices", "requests"),
}
MOVED: Final = ("deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity")
_KEPT: Final = ("name", "firstAvailable")

JSON = dict[str, Any]


class ConversionError(ValueError):
    """The object cannot be converted, because its kind or one of the versions is unknown. The message names it."""


def convert(obj: JSON, api_version: str) -> JSON:
    """The object as ``api_version`` (``resource.k8s.io/v1``) shows it. Raises ConversionError."""
    kind = obj.get("kind")
    if all(isinstance(it, str) and it.startswith(_ALIKE) for it in (api_version, obj.get("apiVersion"))):
        return {**obj, "apiVersion": api_version}
    if kind not in VERSIONS:
        raise ConversionError(f"kind {kind!r} has no versions to convert between; set kind and apiVersion")
    source, target = _version(kind, obj.get("apiVersion")), _version(kind, api_version)
    if source == target:
        return obj
    if kind in _OF_SCHEDULING:
        obj = _rephrase(obj, kind, alpha=target == "v1alpha2")
    elif (source == FLAT) != (target == FLAT):
        obj = _reshape(obj, kind, flat=target == FLAT)
    return {**obj, "apiVersion": api_version}


def first_release(version: str, plural: str) -> Release | None:
    """Return the first release that serves a version of a kind of ``resource.k8s.io``, or None if it is unknown."""
    return _SINCE_OF_KIND.get((version, plural), _SINCE.get(version))


def _version(kind: str, api_version: object) -> str:
    group, _, version = api_version.partition("/") if isinstance(api_version, str) else ("", "", "")
    own = SCHEDULING if kind in _OF_SCHEDULING else GROUP
    if group != own or version not in VERSIONS[kind]:
        known = ", ".join(f"{own}/{version}" for version in VERSIONS[kind])
        raise ConversionError(f"{kind} has no version {api_version!r}; known: {known}")
    return version


def _reshape(obj: JSON, kind: str, *, flat: bool) -> JSON:
    reshaped: JSON = obj
    if kind in REQUESTS:
        reshaped = _within(obj, REQUESTS[kind], _each(_flat_request if flat else _nested_request))
    elif kind == "ResourceSlice":
        reshaped = _within(obj, ("spec",), _without_unset_node)
        change = _each(_device_with_basic if flat else _device_without_basic)
        reshaped = _within(reshaped, ("spec", "devices"), change)
    return reshaped


def _within(value: Any, path: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    """A copy of a nested dict with the part at the path changed; absent parts stay absent."""
    if not path:
        return change(value)
    name, *rest = path
    if not isinstance(value, dict) or name not in value:
        return value
    return {**value, name: _within(value[name], tuple(rest), change)}


def _each(change: Callable[[JSON], JSON]) -> Callable[[Any], Any]:
    def change_items(items: Any) -> Any:
        if not isinstance(items, list):
            return items
        return [change(item) if isinstance(item, dict) else item for item in items]

    return change_items


def _nested_request(request: JSON) -> JSON:
    """``exactly`` exists as soon as one of its fields is set, even next to ``firstAvailable``."""
    if not any(_is_set(request.get(name)) for name in MOVED):
        return {name: value for name, value in request.items() if name not in MOVED}
    kept = {name: value for name, value in request.items() if name in _KEPT}
    return kept | {"exactly": {name: value for name, value in request.items() if name not in _KEPT}}


def _flat_request(request: JSON) -> JSON:
    exactly = request.get("exactly")
    if not isinstance(exactly, dict):
        return request
    rest = {name: value for name, value in request.items() if name != "exactly"}
    return {name: value for name, value in exactly.items() if name not in _KEPT} | rest


def _is_set(value: Any) -> bool:
    """Texts and numbers are unset when they are empty or zero, all other values when they are missing."""
    return value is not None and (isinstance(value, bool | list | dict) or bool(value))


def _device_without_basic(device: JSON) -> JSON:
    rest = {name: value for name, value in device.items() if name != "basic"}
    basic = device.get("basic")
    return rest | basic if isinstance(basic, dict) else rest


def _device_with_basic(device: JSON) -> JSON:
    basic = {name: value for name, value in device.items() if name != "name"}
    return {name: value for name, value in device.items() if name == "name"} | {"basic": basic}


def _without_unset_node(spec: Any) -> Any:
    """In v1beta1 an empty node name and a false ``allNodes`` mean what a missing one means in v1."""
    if not isinstance(spec, dict):
        return spec
    unset = {"nodeName": "", "allNodes": False}
    return {name: value for name, value in spec.items() if name not in unset or value not in (unset[name], None)}


_MODES: Final = {"Pod": "single", "PodGroup": "all"}
_MODES_BACK: Final = {mode: word for word, mode in _MODES.items()}


def _rephrase(obj: JSON, kind: str, *, alpha: bool) -> JSON:
    """A PodGroup or Workload in the words of v1alpha2, or in those of v1beta1."""
    if kind == "Workload":
        return _within(obj, ("spec", "podGroupTemplates"), _each(lambda it: _with_mode(it, alpha=alpha)))  # type: ignore[no-any-return]
    return _within(obj, ("spec",), lambda spec: _with_template(_with_mode(spec, alpha=alpha), alpha=alpha))  # type: ignore[no-any-return]


def _with_mode(part: Any, *, alpha: bool) -> Any:
    mode = part.get("disruptionMode") if isinstance(part, dict) else None
    if alpha and isinstance(mode, dict):
        words = [_MODES_BACK[name] for name in mode if name in _MODES_BACK]
        return {**part, "disruptionMode": words[0]} if len(words) == 1 else part
    if not alpha and isinstance(mode, str) and mode in _MODES:
        return {**part, "disruptionMode": {_MODES[mode]: {}}}
    return part


def _with_template(spec: Any, *, alpha: bool) -> Any:
    if not isinstance(spec, dict):
        return spec
    if alpha:
        found = spec.get("workloadRef")
        if not isinstance(found, dict):
            return spec
        rest = {name: value for name, value in spec.items() if name != "workloadRef"}
        names = {_TEMPLATE_NAMES_BACK.get(name, name): value for name, value in found.items()}
        return {**rest, "podGroupTemplateRef": {"workload": names}}
    found = spec.get("podGroupTemplateRef")
    workload = found.get("workload") if isinstance(found, dict) else None
    if not isinstance(workload, dict):
        return spec
    rest = {name: value for name, value in spec.items() if name != "podGroupTemplateRef"}
    return {**rest, "workloadRef": {_TEMPLATE_NAMES.get(name, name): value for name, value in workload.items()}}


_TEMPLATE_NAMES: Final = {"podGroupTemplateName": "templateName"}
_TEMPLATE_NAMES_BACK: Final = {new: old for old, new in _TEMPLATE_NAMES.items()}


# --- Objects in the shape we work with, whatever version the server speaks ---

Object = dict[str, Any]


def from_served(resource: Resource, version: str, obj: Object) -> Object:
    """An object of the server in the shape of the resource's first version."""
    if version == resource.versions[0]:
        return obj
    return convert(obj, resource.api_version())


def listed_item(resource: Resource, version: str, item: Object) -> Object:
    """Return an item of a list, which leaves out its kind, in the shape of the resource's first version."""
    return from_served(resource, version, {**item, "kind": resource.kind, "apiVersion": resource.api_version(version)})


def to_served(resource: Resource, version: str, obj: Object) -> Object:
    """One of our objects in the shape of the version that the server serves."""
    if version == resource.versions[0]:
        return obj
    return convert(obj, resource.api_version(version))


REPORTED_POOLS: Final = 100


def set_defaults(obj: JSON, *, now: str) -> None:
    """Fills in what is missing; ``now`` is an RFC 3339 time in whole seconds (``2026-01-02T03:04:05Z``)."""
    flat = str(obj.get("apiVersion")).endswith("/v1beta1")
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        spec = {}  # what is filled in there is lost, as nothing can be of a spec that is no object
    match obj.get("kind"):
        case "ResourceClaim":
            _claim_spec(spec, flat)
            for result in _dicts(obj, "status", "allocation", "devices", "results"):
                _tolerations(result)
        case "ResourceClaimTemplate":
            if isinstance(spec.get("spec"), dict):
                _claim_spec(spec["spec"], flat)
        case "ResourceSlice":
            for device in _dicts(spec, "devices"):
                _device(device.get("basic") if flat else device, now)
        case "DeviceTaintRule":
            if isinstance(spec.get("taint"), dict):
                _fill(spec["taint"], "timeAdded", now)
        case "PodGroup":
            is_alpha = str(obj.get("apiVersion")).endswith("/v1alpha2")
            _fill(spec, "disruptionMode", "Pod" if is_alpha else {"single": {}})
        case "ResourcePoolStatusRequest":
            _fill(spec, "limit", REPORTED_POOLS)


def _claim_spec(spec: JSON, flat: bool) -> None:
    for request in _dicts(spec, "devices", "requests"):
        wanted = request if flat else request.get("exactly")
        if isinstance(wanted, dict):
            if not flat or wanted.get("deviceClassName"):
                _allocation_mode(wanted)
            _tolerations(wanted)
        for alternative in _dicts(request, "firstAvailable"):
            _allocation_mode(alternative)
            _tolerations(alternative)


def _allocation_mode(request: JSON) -> None:
    _fill(request, "allocationMode", "ExactCount")
    if request["allocationMode"] == "ExactCount":
        _fill(request, "count", 1)


def _tolerations(item: JSON) -> None:
    for toleration in _dicts(item, "tolerations"):
        _fill(toleration, "operator", "Equal")


def _device(device: Any, now: str) -> None:
    for taint in _dicts(device, "taints"):
        _fill(taint, "timeAdded", now)
    mappings = device.get("nodeAllocatableResourceMappings") if isinstance(device, dict) else None
    for mapping in mappings.values() if isinstance(mappings, dict) else ():
        if isinstance(mapping, dict):
            _fill(mapping, "allocationMultiplier", "1")


def _fill(item: JSON, name: str, value: object) -> None:
    """Sets what is missing, null, empty or zero, which are the same to the API."""
    current = item.get(name)
    if current is None or current == "" or (name == "count" and current == 0):
        item[name] = value


def _dicts(value: Any, *path: str) -> Iterator[JSON]:
    """The dicts in the list at the path; none if there is no such list, which validation reports."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict):
            yield item
