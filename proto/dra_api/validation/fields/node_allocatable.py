"""What devices bring to their nodes, and cost there, from 1.37 on (second alpha of DRANodeAllocatableResources).

Spec: kubernetes-1.37.md section 12.
"""

from __future__ import annotations

from collections.abc import Mapping

from dra_api.resource import DeviceCapacity, NodeAllocatableMapping, NodeAllocatableResource
from dra_api.validation.errors import Errors, invalid, not_found, required
from dra_api.validation.formats import is_native_resource
from dra_api.values.quantity import Quantity


def node_allocatable_resource(
    name: str, item: NodeAllocatableResource, capacities: Mapping[str, DeviceCapacity], path: str
) -> Errors:
    """One resource of the node: a mapping, an overhead, or both."""
    if not is_native_resource(name):
        yield invalid(path, name, "must be a node allocatable resource name")
    if item.mapping is None and item.overhead is None:
        yield required(path, "at least one of `mapping` or `overhead` is required")
    if item.mapping is not None:
        yield from _mapping(item.mapping, capacities, f"{path}.mapping")
    if item.overhead is not None:
        amounts = {"perPod": item.overhead.per_pod, "perContainer": item.overhead.per_container}
        if not any(amount is not None for amount in amounts.values()):
            yield required(f"{path}.overhead", "at least one of `perPod` or `perContainer` is required")
        yield from _positive(amounts, f"{path}.overhead")


def _mapping(mapping: NodeAllocatableMapping, capacities: Mapping[str, DeviceCapacity], path: str) -> Errors:
    one_of = "exactly one of `capacityKey` or `deviceMultiplier` is required"
    if mapping.capacity_key is not None and mapping.device_multiplier is not None:
        yield invalid(path, mapping, f"{one_of}, but multiple fields are set")
    elif mapping.capacity_key is None and mapping.device_multiplier is None:
        yield required(path, one_of)
    if mapping.capacity_key is not None and mapping.capacity_multiplier is None:
        yield required(f"{path}.capacityMultiplier", "required when `capacityKey` is set")
    if mapping.capacity_key is None and mapping.capacity_multiplier is not None:
        yield required(f"{path}.capacityKey", "required when `capacityMultiplier` is set")
    if mapping.capacity_key is not None and mapping.capacity_key not in capacities:
        yield not_found(f"{path}.capacityKey", mapping.capacity_key)
    multipliers = {"capacityMultiplier": mapping.capacity_multiplier, "deviceMultiplier": mapping.device_multiplier}
    yield from _positive(multipliers, path)


def _positive(amounts: Mapping[str, Quantity | None], path: str) -> Errors:
    for name, amount in amounts.items():
        if amount is not None and amount.nanos <= 0:
            yield invalid(f"{path}.{name}", str(amount), "must be positive")
