"""What the API server refuses in a ResourcePoolStatusRequest. Spec: api.md section 7."""

from __future__ import annotations

from typing import Final

from dra_api.releases.gates import FeatureGates
from dra_api.resource import PoolStatus, ResourcePoolStatusRequest, ResourcePoolStatusRequestStatus
from dra_api.validation.errors import Errors, FieldError, immutable, invalid, required, too_long, too_many
from dra_api.validation.fields.conditions import conditions
from dra_api.validation.fields.metadata import metadata, metadata_update
from dra_api.validation.formats import checked, dns_subdomain, pool_name, size
from dra_api.validation.lists import limited
from dra_api.values.equality import same

from .resource_slice import DEFAULT_GATES, partition_type_attribute

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
        errors += _status(new.status, "status")
    return errors


def _status(status: ResourcePoolStatusRequestStatus, path: str) -> Errors:
    if status.pool_count is None:
        yield required(f"{path}.poolCount")
    else:
        yield from _at_least(0, status.pool_count, f"{path}.poolCount")
    yield from limited(status.pools, f"{path}.pools", POOLS_LIMIT, _pool)
    if len(status.conditions or ()) > POOL_STATUS_CONDITIONS_LIMIT:
        yield too_many(f"{path}.conditions", len(status.conditions or ()), POOL_STATUS_CONDITIONS_LIMIT)
    else:
        yield from conditions(status.conditions, f"{path}.conditions")


def _pool(pool: PoolStatus, path: str) -> Errors:
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
