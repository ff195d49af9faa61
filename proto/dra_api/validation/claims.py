"""What the API server refuses in a ResourceClaim, in its status, and in a ResourceClaimTemplate.

An allocation is validated once, when it is set. Afterwards it can only be removed, so that stricter rules of later
versions never block the release of a device.

Spec: api.md sections 6 and 7.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from typing import Final, NamedTuple

from dra_api.releases import FeatureGates
from dra_api.resource import (
    MOST_CONSUMERS,
    MOST_RESULTS,
    NULL,
    AllocatedDeviceStatus,
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceRequestAllocationResult,
    NetworkDeviceData,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
    ResourceClaimTemplate,
)
from dra_api.validation.device import toleration
from dra_api.validation.formats import (
    Errors,
    FieldError,
    checked,
    dns_label,
    driver_name,
    forbidden,
    immutable,
    interface_address,
    invalid,
    node_selector,
    not_supported,
    pool_name,
    raw_object,
    required,
    share_id,
    size,
    too_long,
    too_many,
)
from dra_api.validation.metadata import (
    binding_conditions,
    conditions,
    each,
    limited,
    metadata,
    metadata_update,
    repeated,
    template_metadata,
    unique,
)
from dra_api.validation.published import skipped_operations
from dra_api.validation.requests import (
    CONFIGS_LIMIT,
    Checks,
    RequestNames,
    SelectorCheck,
    accept_selectors,
    configuration,
    device_claim,
    request_names,
    request_reference,
    request_references,
)
from dra_api.values import same

DEFAULT_GATES = FeatureGates.of({})


def validate_resource_claim(
    new: ResourceClaim,
    old: ResourceClaim | None = None,
    *,
    gates: FeatureGates = DEFAULT_GATES,
    check_selector: SelectorCheck = accept_selectors,
    check_derived: SelectorCheck = accept_selectors,
) -> list[FieldError]:
    """What is wrong with a new claim, or with the change from ``old`` to ``new``.

    The spec never changes, so an update does not validate it again: rules may be stricter by now.
    """
    if old is not None:
        errors = list(metadata_update(new.metadata, old.metadata))
        return errors if same(new.spec, old.spec) else [*errors, immutable("spec", new.spec)]
    errors = list(metadata(new.metadata, namespaced=True))
    errors += device_claim(new.spec.devices, "spec.devices", gates, Checks(check_selector, check_derived))
    return errors


def validate_resource_claim_template(
    new: ResourceClaimTemplate,
    old: ResourceClaimTemplate | None = None,
    *,
    gates: FeatureGates = DEFAULT_GATES,
    check_selector: SelectorCheck = accept_selectors,
    check_derived: SelectorCheck = accept_selectors,
) -> list[FieldError]:
    """What is wrong with a new template, or with the change from ``old`` to ``new``; its spec never changes either."""
    if old is not None:
        errors = list(metadata_update(new.metadata, old.metadata))
        return errors if same(new.spec, old.spec) else [*errors, immutable("spec", new.spec)]
    errors = list(metadata(new.metadata, namespaced=True))
    errors += template_metadata(new.spec.metadata, "spec.metadata")
    errors += device_claim(new.spec.spec.devices, "spec.spec.devices", gates, Checks(check_selector, check_derived))
    return errors


STATUS_CONDITIONS_LIMIT: Final = 8
ADDRESSES_LIMIT: Final = 16
INTERFACE_NAME_BYTES: Final = 256
HARDWARE_ADDRESS_BYTES: Final = 128
_SOURCES: Final = {"FromClass", "FromClaim"}


class AllocatedDevice(NamedTuple):
    """One device of a claim, or one share of it; prints as a path."""

    driver: str
    pool: str
    device: str
    share: str | None

    @classmethod
    def of(cls, item: AllocatedDeviceStatus | DeviceRequestAllocationResult) -> AllocatedDevice:
        return cls(item.driver, item.pool, item.device, item.share_id)

    def __str__(self) -> str:
        return "/".join(part for part in self if part is not None)


def validate_resource_claim_status(new: ResourceClaim, old: ResourceClaim) -> list[FieldError]:
    """What is wrong with the change of a claim's status from ``old`` to ``new``."""
    errors = list(metadata_update(new.metadata, old.metadata))
    errors += _status(new, old.status, "status")
    return errors


def _status(claim: ResourceClaim, old: ResourceClaimStatus, path: str) -> Errors:
    new = claim.status
    results = new.allocation.devices.results if new.allocation is not None else None
    allocated = {AllocatedDevice.of(result) for result in results or ()}
    consumers_path = f"{path}.reservedFor"
    yield from unique(new.reserved_for, consumers_path, MOST_CONSUMERS, _consumer, lambda item: item.uid)
    yield from each(new.devices, f"{path}.devices", partial(_device_status, allocated=allocated))
    for error in repeated(map(AllocatedDevice.of, new.devices or ()), f"{path}.devices"):
        yield error._replace(bad_value=str(error.bad_value))
    if new.reserved_for and new.allocation is None:
        yield forbidden(consumers_path, "may not be specified when `allocated` is not set")
    elif claim.metadata.deletion_timestamp is not None and set(new.reserved_for or ()) - set(old.reserved_for or ()):
        detail = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        yield forbidden(consumers_path, detail)
    if new.allocation is not None and old.allocation is None:
        yield from _allocation(new.allocation, f"{path}.allocation", request_names(claim.spec.devices))
    elif new.allocation is not None and not same(new.allocation, old.allocation):
        yield immutable(f"{path}.allocation", new.allocation)


def _consumer(consumer: ResourceClaimConsumerReference, path: str) -> Errors:
    for name, value in (("resource", consumer.resource), ("name", consumer.name), ("uid", consumer.uid)):
        if not value:
            yield required(f"{path}.{name}")


def _allocation(allocation: AllocationResult, path: str, names: RequestNames) -> Errors:
    devices, path_of_devices = allocation.devices, f"{path}.devices"
    yield from limited(devices.results, f"{path_of_devices}.results", MOST_RESULTS, partial(_result, names=names))
    # the configurations of the classes and those of the claim
    yield from limited(
        devices.config, f"{path_of_devices}.config", 2 * CONFIGS_LIMIT, partial(_configuration, names=names)
    )
    if allocation.node_selector is not None:
        yield from node_selector(allocation.node_selector, f"{path}.nodeSelector")


def _result(result: DeviceRequestAllocationResult, path: str, names: RequestNames) -> Errors:
    yield from request_reference(result.request, f"{path}.request", names)
    yield from _device_names(result, path)
    yield from binding_conditions(result, path)
    yield from each(result.tolerations, f"{path}.tolerations", toleration)
    yield from skipped_operations(result.skip_node_operations, f"{path}.skipNodeOperations")


def _configuration(config: DeviceAllocationConfiguration, path: str, names: RequestNames) -> Errors:
    if not config.source:
        yield required(f"{path}.source")
    elif config.source not in _SOURCES:
        yield not_supported(f"{path}.source", config.source, _SOURCES)
    yield from request_references(config.requests, f"{path}.requests", names)
    yield from configuration(config, path)


def _device_names(item: AllocatedDeviceStatus | DeviceRequestAllocationResult, path: str) -> Errors:
    yield from driver_name(item.driver, f"{path}.driver")
    yield from pool_name(item.pool, f"{path}.pool")
    yield from checked(dns_label, item.device, f"{path}.device")
    if item.share_id is not None:
        yield from share_id(item.share_id, f"{path}.shareID")


def _device_status(status: AllocatedDeviceStatus, path: str, allocated: Set[AllocatedDevice]) -> Errors:
    yield from _device_names(status, path)
    device = AllocatedDevice.of(status)
    if device not in allocated:
        yield invalid(path, str(device), "must be an allocated device in the claim")
    if len(status.conditions or ()) > STATUS_CONDITIONS_LIMIT:
        yield too_many(f"{path}.conditions", len(status.conditions or ()), STATUS_CONDITIONS_LIMIT)
    yield from conditions(status.conditions, f"{path}.conditions")
    if bytes(status.data) not in (b"", bytes(NULL)):
        yield from raw_object(status.data, f"{path}.data")
    if status.network_data is not None:
        yield from _network_data(status.network_data, f"{path}.networkData")


def _network_data(data: NetworkDeviceData, path: str) -> Errors:
    if size(data.interface_name) > INTERFACE_NAME_BYTES:
        yield too_long(f"{path}.interfaceName", INTERFACE_NAME_BYTES)
    if size(data.hardware_address) > HARDWARE_ADDRESS_BYTES:
        yield too_long(f"{path}.hardwareAddress", HARDWARE_ADDRESS_BYTES)
    yield from unique(data.ips, f"{path}.ips", ADDRESSES_LIMIT, interface_address, lambda item: item)
