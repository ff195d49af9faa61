"""Fields of built-in kinds that only some releases have, as far as gates do not tell: those that 1.37 added or removed.

``components.json`` has the fields of all releases. A server drops a field that its release does not know, as it drops
any other unknown field; a field that is behind a gate is dropped by the gate.
"""

from __future__ import annotations

from typing import Any, Final

from dra_api.releases.release import Release

Json = dict[str, Any]

_NEW: Final = frozenset(
    {
        ("BasicDevice", "nodeAllocatableResources"),
        ("Device", "nodeAllocatableResources"),
        ("DeviceCounterConsumption", "compatibilityGroups"),
        ("DeviceRequest", "derivedAttributes"),
        ("DeviceRequestAllocationResult", "skipNodeOperations"),
        ("DeviceSubRequest", "derivedAttributes"),
        ("ExactDeviceRequest", "derivedAttributes"),
        ("NodeAllocatableResourceClaimStatus", "mapping"),
        ("NodeAllocatableResourceClaimStatus", "overhead"),
        ("PoolStatus", "partitionSummary"),
        ("PoolStatus", "shareableSummary"),
        ("ResourcePoolStatusRequestSpec", "defaultPartitionTypeAttribute"),
        ("ResourceSliceSpec", "partitionTypeAttribute"),
        ("ResourceSliceSpec", "skipNodeOperations"),
    }
)
_GONE: Final = frozenset(
    {
        ("BasicDevice", "nodeAllocatableResourceMappings"),
        ("Device", "nodeAllocatableResourceMappings"),
        ("NodeAllocatableResourceClaimStatus", "resources"),
    }
)
"""By the kind of the part, in all versions, and the name of the field."""


def component_of(release: Release, name: str, component: Json) -> Json:
    """The component with the fields that the release has."""
    other, kind = _NEW if release < Release.V1_37 else _GONE, name.rpartition(".")[2]
    properties = component.get("properties", {})
    if not any((kind, field) in other for field in properties):
        return component
    kept = {field: schema for field, schema in properties.items() if (kind, field) not in other}
    required = [field for field in component.get("required", ()) if field in kept]
    return {**component, **({"required": required} if required else {}), "properties": kept}
