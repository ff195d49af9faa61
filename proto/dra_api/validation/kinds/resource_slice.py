"""Calls to drivers that the kubelet may skip (DRAOptionalNodeOperations, K37-ONO-01).

What the API server refuses in a ResourceSlice. Spec: api.md section 4.
"""

from __future__ import annotations

from typing import Final

from dra_api.releases.gates import FeatureGates
from dra_api.resource import CounterSet, Device, ResourcePool, ResourceSlice, ResourceSliceSpec
from dra_api.validation.errors import Errors, FieldError, duplicate, forbidden, immutable, invalid, not_supported
from dra_api.validation.fields.device import counters, device, has_list_attributes
from dra_api.validation.fields.metadata import metadata, metadata_update
from dra_api.validation.fields.node_selector import node_choice
from dra_api.validation.formats import counter_name, driver_name, fully_qualified_name, pool_name
from dra_api.validation.lists import unique

PREPARE: Final = "NodePrepareResources"
UNPREPARE: Final = "NodeUnprepareResources"
ALL: Final = "*"


def skipped_operations(operations: tuple[str, ...] | None, path: str) -> Errors:
    """A set of known names; to skip preparing without the undoing would undo what was never done."""
    seen: set[str] = set()
    for index, operation in enumerate(operations or ()):
        if operation in seen:
            yield duplicate(f"{path}[{index}]", operation)
        elif operation not in (PREPARE, UNPREPARE, ALL):
            yield not_supported(f"{path}[{index}]", operation, (PREPARE, UNPREPARE, ALL))
        seen.add(operation)
    if PREPARE in seen and not seen & {UNPREPARE, ALL}:
        yield invalid(path, list(operations or ()), f"{PREPARE} requires {UNPREPARE} or {ALL}")


DEFAULT_GATES: Final = FeatureGates.of({})
DEVICES_LIMIT: Final = 128
ADVANCED_DEVICES_LIMIT: Final = 64
COUNTER_SETS_LIMIT: Final = 8
_ONE_NODE_CHOICE: Final = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"


def validate_resource_slice(
    new: ResourceSlice, old: ResourceSlice | None = None, *, gates: FeatureGates = DEFAULT_GATES
) -> list[FieldError]:
    """What is wrong with a new slice, or with the change from ``old`` to ``new``."""
    if old is None:
        return [*metadata(new.metadata, namespaced=False), *_spec(new.spec, None, gates)]
    errors = list(metadata_update(new.metadata, old.metadata))
    errors += _spec(new.spec, old.spec, gates)
    errors += _identity(new.spec, old.spec)
    return errors


def driver_warnings(slice_: ResourceSlice) -> list[str]:
    """What the API server warns about: names of drivers that are valid but not wise."""
    name = slice_.spec.driver
    if name == name.lower():
        return []
    return [f'spec.driver: driver names should be lowercase; "{name}" contains uppercase characters']


def _identity(new: ResourceSliceSpec, old: ResourceSliceSpec) -> Errors:
    """A slice stays with its driver, its pool and its node."""
    for path, value, stored in (
        ("spec.pool.name", new.pool.name, old.pool.name),
        ("spec.driver", new.driver, old.driver),
        ("spec.nodeName", new.node_name, old.node_name),
    ):
        if value != stored:
            yield immutable(path, value)


def _spec(new: ResourceSliceSpec, old: ResourceSliceSpec | None, gates: FeatureGates) -> Errors:
    yield from driver_name(new.driver, "spec.driver")
    yield from _pool(new.pool, "spec.pool")
    yield from node_choice(new, "spec", _ONE_NODE_CHOICE)
    if new.node_selector is not None and len(new.node_selector.node_selector_terms or ()) != 1:
        # selectors of several slices are merged into one term
        terms = list(new.node_selector.node_selector_terms or ())
        yield invalid("spec.nodeSelector.nodeSelectorTerms", terms, "must have exactly one node selector term")
    if new.shared_counters is not None and new.devices is not None:
        yield invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    stored = {item.name: item for item in (old.devices if old is not None else None) or ()}

    def one_device(item: Device, path: str) -> Errors:
        chooses_node = bool(new.per_device_node_selection)
        return device(item, path, old=stored.get(item.name), chooses_node=chooses_node, gates=gates)

    advanced = any(item.taints or item.consumes_counters or has_list_attributes(item) for item in new.devices or ())
    limit = ADVANCED_DEVICES_LIMIT if advanced else DEVICES_LIMIT
    yield from unique(new.devices, "spec.devices", limit, one_device, lambda item: item.name)
    yield from skipped_operations(new.skip_node_operations, "spec.skipNodeOperations")
    yield from partition_type_attribute(new.partition_type_attribute, "spec.partitionTypeAttribute", gates)
    path = "spec.sharedCounters"
    yield from unique(new.shared_counters, path, COUNTER_SETS_LIMIT, _counter_set, lambda item: item.name)


def partition_type_attribute(name: str | None, path: str, gates: FeatureGates) -> Errors:
    """Needs its gate, and is the full name of an attribute."""
    if name is not None and not gates.partition_types:
        yield forbidden(path, "may only be set when the feature gate DRAPartitionableDevicesType is enabled")
    elif name is not None:
        yield from fully_qualified_name(name, path)


def _pool(pool: ResourcePool, path: str) -> Errors:
    yield from pool_name(pool.name, f"{path}.name")
    if pool.resource_slice_count <= 0:
        yield invalid(f"{path}.resourceSliceCount", pool.resource_slice_count, "must be greater than zero")
    if pool.generation < 0:
        yield invalid(f"{path}.generation", pool.generation, "must be greater than or equal to zero")


def _counter_set(counter_set: CounterSet, path: str) -> Errors:
    yield from counter_name(counter_set.name, f"{path}.name")
    yield from counters(counter_set.counters, f"{path}.counters")
