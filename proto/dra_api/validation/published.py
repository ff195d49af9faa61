"""What the API server refuses in objects about published devices: slices, classes, taint rules, pool status requests.

Spec: api.md sections 4, 5 and 7; for skipped calls of drivers K37-ONO-01.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from dra_api.gates import POOL_RULES, FeatureGates, PoolRules
from dra_api.resource import (
    CounterSet,
    Device,
    DeviceClass,
    DeviceClassSpec,
    DeviceTaintRule,
    DeviceTaintSelector,
    PoolStatus,
    ResourcePool,
    ResourcePoolStatusRequest,
    ResourcePoolStatusRequestStatus,
    ResourceSlice,
    ResourceSliceSpec,
)
from dra_api.validation.device import counters, device, has_list_attributes, taint
from dra_api.validation.formats import (
    Errors,
    FieldError,
    checked,
    counter_name,
    dns_label,
    dns_subdomain,
    driver_name,
    duplicate,
    forbidden,
    fully_qualified_name,
    immutable,
    invalid,
    is_extended_resource,
    node_choice,
    not_supported,
    pool_name,
    required,
    size,
    too_long,
    too_many,
)
from dra_api.validation.metadata import conditions, limited, metadata, metadata_update, unique
from dra_api.validation.requests import CONFIGS_LIMIT, SelectorCheck, accept_selectors, configuration, selectors
from dra_api.values import same

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
            yield not_supported(f"{path}[{index}]", operation, {PREPARE, UNPREPARE, ALL})
        seen.add(operation)
    if PREPARE in seen and not seen & {UNPREPARE, ALL}:
        yield invalid(path, list(operations or ()), f"{PREPARE} requires {UNPREPARE} or {ALL}")


DEFAULT_GATES: Final = FeatureGates.of({})
_ONE_NODE_CHOICE: Final = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"


def validate_resource_slice(
    new: ResourceSlice, old: ResourceSlice | None = None, *, gates: FeatureGates = DEFAULT_GATES
) -> list[FieldError]:
    """What is wrong with a new slice, or with the change from ``old`` to ``new``."""
    if old is None:
        return [*metadata(new.metadata, namespaced=False), *_slice_spec(new.spec, None, gates)]
    errors = list(metadata_update(new.metadata, old.metadata))
    errors += _slice_spec(new.spec, old.spec, gates)
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


def _slice_spec(new: ResourceSliceSpec, old: ResourceSliceSpec | None, gates: FeatureGates) -> Errors:
    yield from driver_name(new.driver, "spec.driver")
    yield from _pool(new.pool, "spec.pool")
    yield from node_choice(new, "spec", _ONE_NODE_CHOICE)
    if new.node_selector is not None and len(new.node_selector.node_selector_terms or ()) != 1:
        # selectors of several slices are merged into one term
        terms = list(new.node_selector.node_selector_terms or ())
        yield invalid("spec.nodeSelector.nodeSelectorTerms", terms, "must have exactly one node selector term")
    rules = POOL_RULES[gates.release]
    if new.shared_counters is not None and new.devices is not None and not rules.counters_beside_devices:
        yield invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    stored = {item.name: item for item in (old.devices if old is not None else None) or ()}

    def one_device(item: Device, path: str) -> Errors:
        chooses_node = bool(new.per_device_node_selection)
        return device(item, path, old=stored.get(item.name), chooses_node=chooses_node, gates=gates)

    advanced = any(item.taints or item.consumes_counters or has_list_attributes(item) for item in new.devices or ())
    limit = rules.advanced_devices if advanced else rules.devices
    yield from unique(new.devices, "spec.devices", limit, one_device, lambda item: item.name)
    yield from skipped_operations(new.skip_node_operations, "spec.skipNodeOperations")
    yield from partition_type_attribute(new.partition_type_attribute, "spec.partitionTypeAttribute", gates)
    path, sets = "spec.sharedCounters", len(new.shared_counters or ())
    yield from unique(new.shared_counters, path, rules.counter_sets or sets, _counter_set, lambda item: item.name)
    if rules.counters_beside_devices:
        yield from _counters_beside_devices(new, rules)


def _counters_beside_devices(new: ResourceSliceSpec, rules: PoolRules) -> Errors:
    """Until 1.34 devices draw from the counters of their own slice."""
    sets = {item.name: item.counters or {} for item in new.shared_counters or ()}
    total = sum(map(len, sets.values()))
    if rules.counters is not None and total > rules.counters:
        detail = f"the total number of shared counters must not exceed {rules.counters}"
        yield invalid("spec.sharedCounters", total, detail)
    drawn = 0
    for index, item in enumerate(new.devices or ()):
        draws = sum(len(consumed.counters or {}) for consumed in item.consumes_counters or ())
        drawn += draws
        if rules.counters_of_device is not None and draws > rules.counters_of_device:
            detail = f"the total number of counters must not exceed {rules.counters_of_device}"
            yield invalid(f"spec.devices[{index}]", draws, detail)
        for at, consumed in enumerate(item.consumes_counters or ()):
            path = f"spec.devices[{index}].consumesCounters[{at}]"
            if consumed.counter_set not in sets:
                detail = "must reference a counterSet defined in the ResourceSlice sharedCounters"
                yield invalid(f"{path}.counterSet", consumed.counter_set, detail)
                continue
            for name in consumed.counters or {}:
                if name not in sets[consumed.counter_set]:
                    detail = "must reference a counter defined in the ResourceSlice sharedCounters"
                    yield invalid(f"{path}.counters", name, detail)
    if rules.drawn_counters is not None and drawn > rules.drawn_counters:
        detail = f"the total number of counters in devices must not exceed {rules.drawn_counters}"
        yield invalid("spec.devices", drawn, detail)


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


def validate_device_class(
    new: DeviceClass, old: DeviceClass | None = None, *, check_selector: SelectorCheck = accept_selectors
) -> list[FieldError]:
    """What is wrong with a new class, or with the change from ``old`` to ``new``.

    Unchanged lists are validated as stored ones, which is less strict.
    """
    errors = list(metadata(new.metadata, namespaced=False))
    if old is not None:
        errors = list(metadata_update(new.metadata, old.metadata))
    errors += _class_spec(new.spec, old.spec if old is not None else None, check_selector)
    return errors


def _class_spec(new: DeviceClassSpec, old: DeviceClassSpec | None, check_selector: SelectorCheck) -> Errors:
    stored = old is not None and same(new.selectors, old.selectors)
    yield from selectors(new.selectors, "spec.selectors", check_selector, stored=stored)
    stored = old is not None and same(new.config, old.config)
    yield from limited(new.config, "spec.config", CONFIGS_LIMIT, partial(configuration, stored=stored))
    name = new.extended_resource_name
    if name is not None and not is_extended_resource(name):
        yield invalid("spec.extendedResourceName", name, "must be a valid extended resource name")


RULE_CONDITIONS_LIMIT: Final = 8


def validate_device_taint_rule(new: DeviceTaintRule, old: DeviceTaintRule | None = None) -> list[FieldError]:
    """What is wrong with a new rule, or with the change from ``old`` to ``new``."""
    if old is None:
        errors = list(metadata(new.metadata, namespaced=False))
    else:
        errors = list(metadata_update(new.metadata, old.metadata))
    if new.spec.device_selector is not None:
        errors += _selector(new.spec.device_selector, "spec.deviceSelector")
    errors += taint(new.spec.taint, "spec.taint", old.spec.taint if old is not None else None)
    return errors


def validate_device_taint_rule_status(new: DeviceTaintRule, old: DeviceTaintRule) -> list[FieldError]:
    """What is wrong with the change of a rule's status."""
    errors = list(metadata_update(new.metadata, old.metadata))
    errors += conditions(new.status.conditions, "status.conditions")
    if len(new.status.conditions or ()) > RULE_CONDITIONS_LIMIT:
        errors.append(too_many("status.conditions", len(new.status.conditions or ()), RULE_CONDITIONS_LIMIT))
    return errors


def _selector(selector: DeviceTaintSelector, path: str) -> Errors:
    if selector.driver is not None:
        yield from driver_name(selector.driver, f"{path}.driver")
    if selector.pool is not None:
        yield from pool_name(selector.pool, f"{path}.pool")
    if selector.device is not None:
        yield from checked(dns_label, selector.device, f"{path}.device")


POOLS_LIMIT: Final = 1000
POOL_STATUS_CONDITIONS_LIMIT: Final = 10
ERROR_BYTES: Final = 256


def validate_resource_pool_status_request(
    new: ResourcePoolStatusRequest,
    old: ResourcePoolStatusRequest | None = None,
    *,
    gates: FeatureGates = DEFAULT_GATES,
) -> list[FieldError]:
    """What is wrong with a new request, or with the change from ``old`` to ``new``; its spec never changes."""
    if old is not None:
        errors = list(metadata_update(new.metadata, old.metadata))
        return errors if same(new.spec, old.spec) else [*errors, immutable("spec", new.spec)]
    errors = list(metadata(new.metadata, namespaced=False))
    errors += _driver(new.spec.driver, "spec.driver")
    if new.spec.pool_name == "":
        errors.append(invalid("spec.poolName", "", "must not be empty"))
    elif new.spec.pool_name is not None:
        errors += pool_name(new.spec.pool_name, "spec.poolName")
    path = "spec.defaultPartitionTypeAttribute"
    errors += partition_type_attribute(new.spec.default_partition_type_attribute, path, gates)
    if new.spec.limit is not None:
        errors += _at_least(1, new.spec.limit, "spec.limit")
        if new.spec.limit > POOLS_LIMIT:
            errors.append(invalid("spec.limit", new.spec.limit, f"must be less than or equal to {POOLS_LIMIT}"))
    return errors


def validate_resource_pool_status_request_status(
    new: ResourcePoolStatusRequest, old: ResourcePoolStatusRequest
) -> list[FieldError]:
    """What is wrong with the status that ``new`` sets; a status that is set never changes."""
    errors = list(metadata_update(new.metadata, old.metadata))
    if old.status is not None:
        return errors if same(new.status, old.status) else [*errors, immutable("status", new.status)]
    if new.status is not None:
        errors += _request_status(new.status, "status")
    return errors


def _request_status(status: ResourcePoolStatusRequestStatus, path: str) -> Errors:
    if status.pool_count is None:
        yield required(f"{path}.poolCount")
    else:
        yield from _at_least(0, status.pool_count, f"{path}.poolCount")
    yield from limited(status.pools, f"{path}.pools", POOLS_LIMIT, _pool_status)
    if len(status.conditions or ()) > POOL_STATUS_CONDITIONS_LIMIT:
        yield too_many(f"{path}.conditions", len(status.conditions or ()), POOL_STATUS_CONDITIONS_LIMIT)
    else:
        yield from conditions(status.conditions, f"{path}.conditions")


def _pool_status(pool: PoolStatus, path: str) -> Errors:
    yield from _driver(pool.driver, f"{path}.driver")
    yield from pool_name(pool.pool_name, f"{path}.poolName")
    yield from _at_least(0, pool.generation, f"{path}.generation")
    yield from _at_least(1, pool.resource_slice_count, f"{path}.resourceSliceCount")
    yield from _at_least(0, pool.total_devices, f"{path}.totalDevices")
    yield from _at_least(0, pool.allocated_devices, f"{path}.allocatedDevices")
    yield from _at_least(0, pool.available_devices, f"{path}.availableDevices")
    yield from _at_least(0, pool.unavailable_devices, f"{path}.unavailableDevices")
    if pool.node_name is not None:
        yield from checked(dns_subdomain, pool.node_name, f"{path}.nodeName")
    if size(pool.validation_error or "") > ERROR_BYTES:
        yield too_long(f"{path}.validationError", ERROR_BYTES)


def _driver(name: str, path: str) -> Errors:
    """Unlike elsewhere, the length of a driver name is that of any DNS subdomain."""
    if not name:
        yield required(path)
    for fault in dns_subdomain(name.lower()) if name else ():
        yield invalid(path, name, fault)


def _at_least(lowest: int, number: int | None, path: str) -> Errors:
    if number is not None and number < lowest:
        yield invalid(path, number, f"must be greater than or equal to {lowest}")
