"""What a claim asks for: requests, constraints, configurations. Spec: api.md section 6."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from dra_api.releases.gates import FeatureGates
from dra_api.resource import (
    DeviceClaim,
    DeviceClaimConfiguration,
    DeviceConstraint,
    DeviceRequest,
    DeviceSubRequest,
    ExactDeviceRequest,
)
from dra_api.validation.errors import Errors, invalid, not_supported, required
from dra_api.validation.formats import checked, class_name, dns_label, fully_qualified_name
from dra_api.validation.lists import each, limited, unique

from .derived_attributes import derived_attributes
from .selectors import CONFIGS_LIMIT, SelectorCheck, configuration, selectors
from .taints import toleration

REQUESTS_LIMIT: Final = 32
CONSTRAINTS_LIMIT: Final = 32
SUBREQUESTS_LIMIT: Final = 8

RequestNames = Mapping[str, Set[str]]
"""The names of all requests of a claim, each with the names of its subrequests."""


def request_names(claim: DeviceClaim) -> RequestNames:
    return {
        request.name: {alternative.name for alternative in request.first_available or ()}
        for request in claim.requests or ()
    }


def device_claim(
    claim: DeviceClaim, path: str, gates: FeatureGates, check_selector: SelectorCheck, check_derived: SelectorCheck
) -> Errors:
    """``spec.devices`` of a new claim or template."""
    names = request_names(claim)

    def request(item: DeviceRequest, path: str) -> Errors:
        yield from _request(item, path, check_selector)

    def constraint(item: DeviceConstraint, path: str) -> Errors:
        yield from request_references(item.requests, f"{path}.requests", names)
        yield from _constrained_attribute(item, path, gates)

    def config(item: DeviceClaimConfiguration, path: str) -> Errors:
        yield from request_references(item.requests, f"{path}.requests", names)
        yield from configuration(item, path)

    yield from unique(claim.requests, f"{path}.requests", REQUESTS_LIMIT, request, lambda item: item.name)
    yield from derived_attributes(claim, path, check_derived)
    yield from limited(claim.constraints, f"{path}.constraints", CONSTRAINTS_LIMIT, constraint)
    yield from limited(claim.config, f"{path}.config", CONFIGS_LIMIT, config)


def request_references(references: tuple[str, ...] | None, path: str, names: RequestNames) -> Errors:
    """At most 32 references to requests of the claim, all different."""
    yield from unique(
        references, path, REQUESTS_LIMIT, lambda item, path: request_reference(item, path, names), lambda item: item
    )


def request_reference(reference: str, path: str, names: RequestNames) -> Errors:
    """``REQUEST`` or ``REQUEST/SUBREQUEST`` of the claim."""
    parts = reference.split("/")
    if len(parts) <= 2:
        for part in parts:
            yield from checked(dns_label, part, path)
        if parts[0] in names and (len(parts) == 1 or parts[1] in names[parts[0]]):
            return
    detail = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
    yield invalid(path, reference, detail)


def _request(request: DeviceRequest, path: str, check_selector: SelectorCheck) -> Errors:
    yield from checked(dns_label, request.name, f"{path}.name")
    one_of = "exactly one of `exactly` or `firstAvailable` is required"
    if request.exactly is not None and request.first_available:
        yield invalid(path, None, f"{one_of}, but multiple fields are set")
    elif request.exactly is not None:
        yield from _wanted_devices(request.exactly, f"{path}.exactly", check_selector)
    elif request.first_available:

        def alternative(item: DeviceSubRequest, path: str) -> Errors:
            yield from checked(dns_label, item.name, f"{path}.name")
            yield from _wanted_devices(item, path, check_selector)

        path = f"{path}.firstAvailable"
        yield from unique(request.first_available, path, SUBREQUESTS_LIMIT, alternative, lambda item: item.name)
    else:
        yield required(path, one_of)


def _wanted_devices(request: ExactDeviceRequest | DeviceSubRequest, path: str, check_selector: SelectorCheck) -> Errors:
    yield from class_name(request.device_class_name, f"{path}.deviceClassName")
    yield from selectors(request.selectors, f"{path}.selectors", check_selector)
    match request.allocation_mode:
        case "ExactCount":
            if request.count <= 0:
                yield invalid(f"{path}.count", request.count, "must be greater than zero")
        case "All":
            if request.count:
                detail = "must not be specified when allocationMode is 'All'"
                yield invalid(f"{path}.count", request.count, detail)
        case mode:
            yield not_supported(f"{path}.allocationMode", mode, ("All", "ExactCount"))
    yield from each(request.tolerations, f"{path}.tolerations", toleration)


def _constrained_attribute(constraint: DeviceConstraint, path: str, gates: FeatureGates) -> Errors:
    if constraint.match_attribute is not None:
        yield from fully_qualified_name(constraint.match_attribute, f"{path}.matchAttribute")
    elif constraint.distinct_attribute is not None:
        yield from fully_qualified_name(constraint.distinct_attribute, f"{path}.distinctAttribute")
    elif gates.consumable_capacity:
        yield required(path, 'exactly one of "matchAttribute" or "distinctAttribute" is required')
    else:
        yield required(f"{path}.matchAttribute")
