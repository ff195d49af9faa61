"""What the API server changes in an object before it validates a write. Spec: api.md sections 2, 6 and 7.

It restores fields that the caller may not set in this request, and drops fields of features that are off unless the
stored object already uses the feature. Changes plain dicts in place, in the shape of v1 (v1beta2, v1alpha3 for the
kinds that have no v1).
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

from .conversion import JSON
from .gates import FeatureGates
from .validation.requests import REQUEST_FIELDS

_STATUS_KINDS: Final = ("ResourceClaim", "DeviceTaintRule", "ResourcePoolStatusRequest", "PodGroup")
_METADATA_OF_SPEC: Final = (
    "deletionTimestamp",
    "generation",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
)
_RESULTS: Final = "status.allocation.devices.results.*"


def _claim_fields(devices: str) -> dict[str, tuple[str, ...]]:
    """Return the gated fields of requests, from their registry, and of constraints and the status."""
    found = {
        "consumable_capacity": (
            f"{devices}.constraints.*.distinctAttribute",
            f"{_RESULTS}.shareID",
            f"{_RESULTS}.consumedCapacity",
            "status.devices.*.shareID",
        ),
        "optional_node_operations": (f"{_RESULTS}.skipNodeOperations",),
        "device_status": ("status.devices",),
        "binding_conditions": (
            f"{_RESULTS}.bindingConditions",
            f"{_RESULTS}.bindingFailureConditions",
            "status.allocation.allocationTimestamp",
        ),
    }
    for field in REQUEST_FIELDS:
        found[field.gate] = (*found.get(field.gate, ()), *field.paths(devices))
    return found


def _group_fields(group: str) -> dict[str, tuple[str, ...]]:
    return {
        "workload_resource_claims": (f"{group}.resourceClaims", "status.resourceClaimStatuses"),
        "topology_aware_scheduling": (f"{group}.schedulingConstraints",),
        "groups_end_as_one": tuple(f"{group}.{name}" for name in ("disruptionMode", "priority", "priorityClassName")),
        "pod_group_preemption_policy": (f"{group}.preemptionPolicy",),
    }


_DEVICE: Final = "spec.devices.*"
GATED_FIELDS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "ResourceClaim": _claim_fields("spec.devices"),
    "ResourceClaimTemplate": _claim_fields("spec.spec.devices"),
    "PodGroup": _group_fields("spec"),
    "Workload": _group_fields("spec.podGroupTemplates.*"),
    "DeviceClass": {"extended_resources": ("spec.extendedResourceName",)},
    "ResourceSlice": {
        "device_taints": (f"{_DEVICE}.taints",),
        "partitionable_devices": (
            "spec.sharedCounters",
            "spec.perDeviceNodeSelection",
            *(f"{_DEVICE}.{name}" for name in ("consumesCounters", "nodeName", "nodeSelector", "allNodes")),
        ),
        "binding_conditions": tuple(
            f"{_DEVICE}.{name}" for name in ("bindsToNode", "bindingConditions", "bindingFailureConditions")
        ),
        "consumable_capacity": (f"{_DEVICE}.allowMultipleAllocations", f"{_DEVICE}.capacity.*.requestPolicy"),
        "compatibility_groups": (f"{_DEVICE}.consumesCounters.*.compatibilityGroups",),
        "optional_node_operations": ("spec.skipNodeOperations",),
        "node_allocatable_resources": (
            f"{_DEVICE}.nodeAllocatableResourceMappings",
            f"{_DEVICE}.nodeAllocatableResources",
        ),
        "list_attributes": tuple(f"{_DEVICE}.attributes.*.{name}" for name in ("bools", "ints", "strings", "versions")),
    },
}
"""Per kind and feature gate the fields that exist only with it; ``*`` stands for every entry of a list or map."""


def prepare_for_create(obj: JSON, *, gates: FeatureGates) -> None:
    """A new object has no status, whatever the caller sent."""
    if obj.get("kind") in _STATUS_KINDS:
        obj.pop("status", None)
    drop_disabled_fields(obj, None, gates)


def prepare_for_update(obj: JSON, old: JSON, *, gates: FeatureGates, now: str) -> None:
    """The main endpoint keeps the stored status; ``now`` is the time of a taint whose effect changes."""
    if obj.get("kind") in _STATUS_KINDS:
        _put_back(obj, old, "status")
    if obj.get("kind") == "DeviceTaintRule":
        new_taint, old_taint = _part(obj, "spec", "taint"), _part(old, "spec", "taint")
        unchanged_time = new_taint.get("timeAdded") == old_taint.get("timeAdded")
        if new_taint and unchanged_time and new_taint.get("effect") != old_taint.get("effect"):
            new_taint["timeAdded"] = now
    drop_disabled_fields(obj, old, gates)


def prepare_for_status_update(obj: JSON, old: JSON, *, gates: FeatureGates) -> None:
    """The status endpoint changes only the status, and drops reports of devices that are no longer allocated."""
    _put_back(obj, old, "spec")
    metadata, old_metadata = obj.setdefault("metadata", {}), old.get("metadata") or {}
    for name in _METADATA_OF_SPEC:
        _put_back(metadata, old_metadata, name)
    if obj.get("kind") == "ResourceClaim":
        drop_deallocated_devices(obj, old)
    drop_disabled_fields(obj, old, gates)


def drop_disabled_fields(obj: JSON, old: JSON | None, gates: FeatureGates) -> None:
    """Removes the fields of features that are off, unless the stored object uses the feature."""
    for gate, paths in GATED_FIELDS.get(obj.get("kind", ""), {}).items():
        if getattr(gates, gate) or (old is not None and any(_in_use(old, path) for path in paths)):
            continue
        for path in paths:
            for owner, name in _places(obj, path):
                owner.pop(name, None)


def disabled_fields(obj: JSON, gates: FeatureGates) -> Iterator[tuple[str, str]]:
    """Yield each gate that is off, by its attribute, with a field that the object uses and a new one would lose."""
    for gate, paths in GATED_FIELDS.get(obj.get("kind", ""), {}).items():
        for path in () if getattr(gates, gate) else paths:
            if any(owner[name] not in (None, False, [], {}) for owner, name in _places(obj, path)):
                yield gate, path


def drop_deallocated_devices(claim: JSON, old: JSON) -> None:
    """Removes the reports (``status.devices``) about devices that this write takes from the claim."""
    status = _part(claim, "status")
    if not isinstance(status.get("devices"), list):
        return
    gone = _allocated(old) - _allocated(claim)
    kept = [report for report in status["devices"] if _device_key(report) not in gone]
    if kept:
        status["devices"] = kept
    else:
        del status["devices"]


def _part(obj: JSON, *path: str) -> JSON:
    """The dict at the path; an empty one when there is none."""
    for name in path:
        part = obj.get(name)
        obj = part if isinstance(part, dict) else {}
    return obj


def _put_back(obj: JSON, old: JSON, name: str) -> None:
    if name in old:
        obj[name] = deepcopy(old[name])
    else:
        obj.pop(name, None)


def _allocated(claim: JSON) -> set[tuple[Any, ...]]:
    return {_device_key(owner[name]) for owner, name in _places(claim, _RESULTS)}


def _device_key(item: Any) -> tuple[Any, ...]:
    return tuple(item.get(name) for name in ("driver", "pool", "device")) if isinstance(item, dict) else ()


def _in_use(obj: JSON, path: str) -> bool:
    return any(owner.get(name) not in (None, [], {}) for owner, name in _places(obj, path) if isinstance(owner, dict))


def _places(obj: Any, path: str) -> Iterator[tuple[Any, Any]]:
    """Every container and key that a path leads to in the object."""
    name, _, rest = path.partition(".")
    if name == "*":
        keys = list(obj) if isinstance(obj, dict) else range(len(obj)) if isinstance(obj, list) else ()
    else:
        keys = [name] if isinstance(obj, dict) and name in obj else ()
    for key in keys:
        if rest:
            yield from _places(obj[key], rest)
        else:
            yield obj, key
