"""What the API server refuses in claims, their status and templates; and in pods, PodGroups and Workloads about claims.

An allocation is validated once, when it is set. Afterwards it can only be removed, so that stricter rules of later
versions never block the release of a device. Nothing else about pods is validated here.

Spec: api.md sections 6, 7 and 10, kubernetes-1.37.md section 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import fields, replace

from dra_api.core import (
    MIRROR_ANNOTATION,
    Container,
    ContainerClaim,
    Pod,
    PodExtendedResourceClaimStatus,
    PodResourceClaim,
    PodResourceClaimStatus,
    PodSpec,
)
from dra_api.gates import FeatureGates
from dra_api.meta import Part
from dra_api.releases import Release
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
from dra_api.scheduling import (
    GangWorkload,
    PodGroup,
    PodGroupSchedulingConstraints,
    PodGroupSchedulingPolicy,
    PodGroupSpec,
    PodGroupTemplate,
    TypedLocalObjectReference,
    WorkloadReference,
)
from dra_api.validation.device import toleration
from dra_api.validation.formats import (
    Errors,
    FieldError,
    checked,
    dns_label,
    dns_subdomain,
    driver_name,
    duplicate,
    forbidden,
    immutable,
    interface_address,
    invalid,
    label_key,
    node_selector,
    not_found,
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


def validate_pod_claims(new: Pod, old: Pod | None = None) -> list[FieldError]:
    """What is wrong with the claims of a new pod, or with an update, which must not change them."""
    claims = new.spec.resource_claims or ()
    if old is not None:
        unchanged = same(new.spec.resource_claims, old.spec.resource_claims)
        return [] if unchanged else [immutable("spec.resourceClaims", list(claims))]
    errors: list[FieldError] = []
    if claims and MIRROR_ANNOTATION in (new.metadata.annotations or {}):
        errors.append(forbidden("spec.resourceClaims", "static pods do not support resourceClaims"))
    names: set[str] = set()
    for index, claim in enumerate(claims):
        errors += claim_entry(claim, f"spec.resourceClaims[{index}]", names)
        names.add(claim.name)
    for container, path in _containers(new.spec):
        errors += _container_claims(container.resources.claims or (), f"{path}.resources.claims", names)
    return errors


def validate_pod_claim_status(new: Pod) -> list[FieldError]:
    """What is wrong with the claims that a pod's status records."""
    names = {claim.name for claim in new.spec.resource_claims or ()}
    errors = list(claim_statuses(new.status.resource_claim_statuses or (), "status.resourceClaimStatuses", names))
    if new.status.extended_resource_claim_status is not None:
        path = "status.extendedResourceClaimStatus"
        errors += _extended(new.status.extended_resource_claim_status, new.spec, path)
    return errors


def _containers(spec: PodSpec) -> Iterator[tuple[Container, str]]:
    for index, container in enumerate(spec.init_containers or ()):
        yield container, f"spec.initContainers[{index}]"
    for index, container in enumerate(spec.containers or ()):
        yield container, f"spec.containers[{index}]"


def claim_entry(claim: PodResourceClaim, path: str, names: Set[str]) -> Errors:
    """What is wrong with an entry of a pod or of a PodGroup, beside those with these names."""
    if not claim.name:
        yield required(f"{path}.name")
    elif claim.name in names:
        yield duplicate(f"{path}.name", claim.name)
    else:
        yield from checked(dns_label, claim.name, f"{path}.name")
    if claim.resource_claim_name is not None and claim.resource_claim_template_name is not None:
        detail = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
        yield invalid(path, claim, detail)
    if claim.resource_claim_name is None and claim.resource_claim_template_name is None:
        yield invalid(path, claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
    for name, value in (
        ("resourceClaimName", claim.resource_claim_name),
        ("resourceClaimTemplateName", claim.resource_claim_template_name),
    ):
        if value is not None:
            yield from checked(dns_subdomain, value, f"{path}.{name}")


def _container_claims(claims: tuple[ContainerClaim, ...], path: str, names: Set[str]) -> Errors:
    """Each entry means a whole claim or one of its requests; no entry stands twice."""
    whole = {claim.name for claim in claims if not claim.request}
    seen = set()

    def one(claim: ContainerClaim, path: str) -> Errors:
        if not claim.name:
            yield required(path)
            return
        if claim.request:
            yield from checked(dns_label, claim.request, f"{path}.request")
        twice = (claim.name, claim.request) in seen or (claim.request and claim.name in whole)
        seen.add((claim.name, claim.request))
        if twice:
            yield duplicate(path, f"{claim.name}/{claim.request}" if claim.request else claim.name)
        if claim.name not in names:
            known = ": " + ", ".join(sorted(names)) if names else " which is empty"
            yield not_found(path, claim.name, f"must be one of the names in pod.spec.resourceClaims{known}")

    yield from each(claims, path, one)


def claim_statuses(statuses: tuple[PodResourceClaimStatus, ...], path: str, names: Set[str]) -> Errors:
    """What is wrong with the names of claims that a status records for entries of these names."""
    seen = set()
    for index, status in enumerate(statuses):
        item_path = f"{path}[{index}]"
        if status.name not in names:
            detail = "must match the name of an entry in `spec.resourceClaims`"
            yield invalid(f"{item_path}.name", status.name, detail)
        if status.name in seen:
            yield duplicate(f"{item_path}.name", status.name)
        seen.add(status.name)
        if status.resource_claim_name is not None:
            yield from checked(dns_subdomain, status.resource_claim_name, f"{item_path}.resourceClaimName")


def _extended(status: PodExtendedResourceClaimStatus, spec: PodSpec, path: str) -> Errors:
    if status.resource_claim_name:
        yield from checked(dns_subdomain, status.resource_claim_name, f"{path}.resourceClaimName")
    else:
        yield required(f"{path}.resourceClaimName")
    if not status.request_mappings:
        yield required(f"{path}.requestMappings", "at least one request mapping is required")
    containers = {container.name: container for container, _ in _containers(spec)}
    seen = set()
    for index, mapping in enumerate(status.request_mappings or ()):
        item_path = f"{path}.requestMappings[{index}]"
        container = containers.get(mapping.container_name)
        if container is None:
            detail = "must match the name of an entry in `spec.initContainers` or `spec.containers`"
            yield invalid(f"{item_path}.containerName", mapping.container_name, detail)
        elif mapping.resource_name not in (container.resources.requests or {}):
            detail = "must be one of the resources that the container requests"
            yield invalid(f"{item_path}.resourceName", mapping.resource_name, detail)
        yield from checked(dns_label, mapping.request_name, f"{item_path}.requestName")
        if mapping in seen:
            names = (mapping.container_name, mapping.resource_name, mapping.request_name)
            yield duplicate(item_path, "/".join(names))
        seen.add(mapping)


CLAIMS_LIMIT: Final = 4
TEMPLATES_LIMIT: Final = 8
HIGHEST_PRIORITY: Final = 1_000_000_000
_POLICIES: Final = ("Never", "PreemptLowerPriority")


def validate_pod_group(new: PodGroup, old: PodGroup | None = None, *, gates: FeatureGates) -> list[FieldError]:
    """What is wrong with a new group, or with the change from ``old`` to ``new``.

    From 1.37 on ``minCount`` may change; everything else of the spec stays as it was made.
    """
    if old is None:
        return [*metadata(new.metadata, namespaced=True), *_group(new.spec, "spec")]
    before = old.spec
    gang, had = new.spec.scheduling_policy.gang, before.scheduling_policy.gang
    if gates.release >= Release.V1_37 and gang is not None and had is not None:
        before = replace(before, scheduling_policy=replace(before.scheduling_policy, gang=gang))
    errors = [*metadata_update(new.metadata, old.metadata), *_unchanged(new.spec, before, "spec")]
    return errors or [*_policy(new.spec.scheduling_policy, "spec.schedulingPolicy")]


def validate_pod_group_status(new: PodGroup, old: PodGroup) -> list[FieldError]:
    """What is wrong with the change of a group's status."""
    statuses: tuple[PodResourceClaimStatus, ...] = new.status.resource_claim_statuses or ()
    path, names = "status.resourceClaimStatuses", {entry.name for entry in new.spec.resource_claims or ()}
    errors = list(metadata_update(new.metadata, old.metadata))
    errors += conditions(new.status.conditions, "status.conditions")
    if len(statuses) > CLAIMS_LIMIT:
        return [*errors, too_many(path, len(statuses), CLAIMS_LIMIT)]
    return [*errors, *claim_statuses(statuses, path, names)]


def validate_workload(new: GangWorkload, old: GangWorkload | None = None, *, gates: FeatureGates) -> list[FieldError]:
    """What is wrong with a new workload, or with the change from ``old`` to ``new``; its templates neither come nor
    go, and stay as they are but for ``minCount`` from 1.37 on."""
    templates, path = new.spec.pod_group_templates or (), "spec.podGroupTemplates"
    if old is None:
        errors = list(metadata(new.metadata, namespaced=True))
        if new.spec.controller_ref is not None:
            errors += _controller(new.spec.controller_ref, "spec.controllerRef")
        if not templates:
            errors.append(required(path))
        return [*errors, *unique(templates, path, TEMPLATES_LIMIT, _template, lambda it: it.name)]
    errors = list(metadata_update(new.metadata, old.metadata))
    if not same(new.spec.controller_ref, old.spec.controller_ref):
        errors.append(immutable("spec.controllerRef", new.spec.controller_ref))
    before = {template.name: template for template in old.spec.pod_group_templates or ()}
    if {template.name for template in templates} != before.keys() or len(templates) != len(before):
        return [*errors, immutable(path, list(templates))]
    for index, template in enumerate(templates):
        known, gang = before[template.name], template.scheduling_policy.gang
        if gates.release >= Release.V1_37 and gang is not None and known.scheduling_policy.gang is not None:
            known = replace(known, scheduling_policy=replace(known.scheduling_policy, gang=gang))
        errors += _unchanged(template, known, f"{path}[{index}]")
        errors += _policy(template.scheduling_policy, f"{path}[{index}].schedulingPolicy")
    return errors


def _template(template: PodGroupTemplate, path: str) -> Errors:
    if not template.name:
        yield required(f"{path}.name")
    else:
        yield from checked(dns_label, template.name, f"{path}.name")
    yield from _shared(template, path)


def _group(spec: PodGroupSpec, path: str) -> Errors:
    if spec.workload_ref is not None:
        yield from _workload(spec.workload_ref, f"{path}.workloadRef")
    yield from _shared(spec, path)


def _shared(spec: PodGroupSpec | PodGroupTemplate, path: str) -> Errors:
    """What groups and their templates have in common."""
    yield from _policy(spec.scheduling_policy, f"{path}.schedulingPolicy")
    if spec.scheduling_constraints is not None:
        yield from _constraints(spec.scheduling_constraints, f"{path}.schedulingConstraints")
    claims = spec.resource_claims or ()
    if len(claims) > CLAIMS_LIMIT:
        yield too_many(f"{path}.resourceClaims", len(claims), CLAIMS_LIMIT)
    names: set[str] = set()
    for index, claim in enumerate(claims[:CLAIMS_LIMIT]):
        yield from claim_entry(claim, f"{path}.resourceClaims[{index}]", names)
        names.add(claim.name)
    mode = spec.disruption_mode
    if mode is not None and (mode.single is None) == (mode.all is None):
        yield invalid(f"{path}.disruptionMode", mode, "must specify exactly one of: `single`, `all`")
    if spec.priority_class_name:
        yield from checked(dns_subdomain, spec.priority_class_name, f"{path}.priorityClassName")
    if spec.priority is not None and spec.priority > HIGHEST_PRIORITY:
        yield invalid(f"{path}.priority", spec.priority, f"must be less than or equal to {HIGHEST_PRIORITY}")
    if spec.preemption_policy is not None and spec.preemption_policy not in _POLICIES:
        yield not_supported(f"{path}.preemptionPolicy", spec.preemption_policy, _POLICIES)


def _policy(policy: PodGroupSchedulingPolicy, path: str) -> Errors:
    if (policy.basic is None) == (policy.gang is None):
        yield invalid(path, policy, "must specify exactly one of: `basic`, `gang`")
    if policy.gang is not None and policy.gang.min_count < 1:
        yield invalid(f"{path}.gang.minCount", policy.gang.min_count, "must be greater than or equal to 1")


def _constraints(constraints: PodGroupSchedulingConstraints, path: str) -> Errors:
    yield from limited(
        constraints.topology, f"{path}.topology", 1, lambda it, at: checked(label_key, it.key, f"{at}.key")
    )


def _workload(reference: WorkloadReference, path: str) -> Errors:
    for name, value, form in (
        ("workloadName", reference.workload_name, dns_subdomain),
        ("templateName", reference.template_name, dns_label),
    ):
        if not value:
            yield required(f"{path}.{name}")
        else:
            yield from checked(form, value, f"{path}.{name}")


def _controller(reference: TypedLocalObjectReference, path: str) -> Errors:
    if reference.api_group:
        yield from checked(dns_subdomain, reference.api_group, f"{path}.apiGroup")
    for name, value in (("kind", reference.kind), ("name", reference.name)):
        if not value:
            yield required(f"{path}.{name}")
        elif value in (".", "..") or "/" in value or "%" in value:
            yield invalid(
                f"{path}.{name}", value, "must be a segment of a path: neither '.' nor '..', without '/' and '%'"
            )


def _unchanged(new: Part, old: Part, path: str) -> Iterator[FieldError]:
    """Every field that differs."""
    for field in fields(new):
        value = getattr(new, field.name)
        if not same(value, getattr(old, field.name)):
            yield immutable(f"{path}.{field.encode_name}", value)
