"""What a claim asks for: requests, constraints, configurations, and the selectors that classes have as well.

``REQUEST_FIELDS`` is the registry of fields that exist only with a feature gate. Validation, the fields that a server
drops or does not know, and the words of an allocator that refuses one all follow from its rows. Spec: api.md sections
5, 6 and 9.

``dra_cel`` knows whether a CEL expression compiles and what it may cost. It comes in as a function, so that neither
package imports the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Set
from enum import StrEnum
from typing import Any, Final, NamedTuple

from dra_api.gates import FeatureGates
from dra_api.releases import Release
from dra_api.resource import (
    DeviceAllocationConfiguration,
    DeviceClaim,
    DeviceClaimConfiguration,
    DeviceClassConfiguration,
    DeviceConstraint,
    DeviceDerivedAttribute,
    DeviceRequest,
    DeviceSelector,
    DeviceSubRequest,
    ExactDeviceRequest,
)
from dra_api.validation.device import toleration
from dra_api.validation.formats import (
    Errors,
    checked,
    class_name,
    dns_label,
    driver_name,
    forbidden,
    fully_qualified_name,
    invalid,
    not_supported,
    raw_object,
    required,
    size,
    too_long,
)
from dra_api.validation.metadata import each, limited, unique

SELECTORS_LIMIT: Final = 32
CONFIGS_LIMIT: Final = 32
EXPRESSION_BYTES: Final = 10 * 1024
COST_LIMIT: Final = 1_000_000


class SelectorVerdict(NamedTuple):
    """What the compiler answers: ``error`` if the expression does not compile, otherwise its highest possible cost."""

    error: str | None = None
    max_cost: int = 0


SelectorCheck = Callable[[str, bool], SelectorVerdict]
"""Compiles an expression; True as second argument selects the less strict environment of stored expressions."""


def accept_selectors(expression: str, stored: bool) -> SelectorVerdict:
    """The check without a compiler: only length limits apply."""
    return SelectorVerdict()


def selectors(
    items: tuple[DeviceSelector, ...] | None, path: str, check: SelectorCheck, *, stored: bool = False
) -> Errors:
    """At most 32 selectors; each is a CEL expression of at most 10 KiB that compiles and is not too costly."""

    def selector(item: DeviceSelector, path: str) -> Errors:
        if item.cel is None:
            yield required(f"{path}.cel")
            return
        path, expression = f"{path}.cel.expression", item.cel.expression
        if size(expression) > EXPRESSION_BYTES:
            yield too_long(path, EXPRESSION_BYTES)
            return
        verdict = check(expression, stored)
        if verdict.error is not None:
            yield invalid(path, expression, verdict.error)
        elif verdict.max_cost > COST_LIMIT:
            yield forbidden(path, "too complex, exceeds cost limit")

    yield from limited(items, path, SELECTORS_LIMIT, selector)


def configuration(
    config: DeviceClassConfiguration | DeviceClaimConfiguration | DeviceAllocationConfiguration,
    path: str,
    *,
    stored: bool = False,
) -> Errors:
    """A driver and its parameters; ``stored`` ones are exempt from the size limit."""
    if config.opaque is None:
        yield required(f"{path}.opaque")
        return
    yield from driver_name(config.opaque.driver, f"{path}.opaque.driver")
    yield from raw_object(config.opaque.parameters, f"{path}.opaque.parameters", stored=stored)


class Checks(NamedTuple):
    """Compilers of expressions, by what these yield: a truth value, or the value of an attribute."""

    selector: SelectorCheck = accept_selectors
    attribute: SelectorCheck = accept_selectors


DERIVED_ATTRIBUTES_LIMIT: Final = 32


def derived_attributes(claim: DeviceClaim, path: str, checks: Checks) -> Errors:
    """Check the derived attributes of all requests and alternatives of a claim (K37-DA-01 to -03).

    Each must be compared by a constraint that applies there. Together they may cost as much as one selector.
    """
    costs: list[int] = []
    for place, names, items in _places(claim, path):
        compared = {
            attribute
            for constraint in claim.constraints or ()
            if not constraint.requests or names.intersection(constraint.requests)
            for attribute in (constraint.match_attribute, constraint.distinct_attribute)
        }

        def one(item: DeviceDerivedAttribute, path: str, compared: set[str | None] = compared) -> Errors:
            yield from fully_qualified_name(item.name, f"{path}.name")
            if not item.expression:
                yield required(f"{path}.expression")
            elif size(item.expression) > EXPRESSION_BYTES:
                yield too_long(f"{path}.expression", EXPRESSION_BYTES)
            else:
                verdict = checks.attribute(item.expression, False)
                costs.append(verdict.max_cost)
                if verdict.error is not None:
                    yield invalid(f"{path}.expression", item.expression, verdict.error)
            if item.name not in compared:
                detail = "must be the matchAttribute or distinctAttribute of a constraint that applies to the request"
                yield invalid(f"{path}.name", item.name, detail)

        yield from unique(items, place, DERIVED_ATTRIBUTES_LIMIT, one, lambda item: item.name)
    if sum(costs) > COST_LIMIT:
        yield forbidden(f"{path}.requests", "derived attributes are too complex together, exceed cost limit")


def _places(claim: DeviceClaim, path: str) -> Iterator[tuple[str, set[str], tuple[DeviceDerivedAttribute, ...] | None]]:
    """Each list with its path and the names by which constraints mean its request."""
    for index, request in enumerate(claim.requests or ()):
        where = f"{path}.requests[{index}]"
        if request.exactly is not None:
            yield f"{where}.exactly.derivedAttributes", {request.name}, request.exactly.derived_attributes
        for number, sub in enumerate(request.first_available or ()):
            names = {request.name, f"{request.name}/{sub.name}"}
            yield f"{where}.firstAvailable[{number}].derivedAttributes", names, sub.derived_attributes


class Place(StrEnum):
    """Place of a field, as a path below ``spec.devices`` of a claim. Results are below the claim itself."""

    REQUEST = "requests.*"
    EXACTLY = "requests.*.exactly"
    ALTERNATIVE = "requests.*.firstAvailable.*"
    RESULT = "status.allocation.devices.results.*"


class RequestField(NamedTuple):
    """A field of requests that exists only with a feature gate, with all that depends on the gate or the release.

    A server drops it while the gate is off (``strategy``) and does not know it in a release before ``since``; an
    allocator refuses a stored request that has it, in the words of ``refusal``.
    """

    name: str
    """As in JSON."""
    gate: str
    """The attribute of FeatureGates."""
    places: tuple[Place, ...]
    refusal: str = ""
    """What an allocator says of a request that has it while the gate is off. Empty if it goes on without the field."""
    is_ignored_by_stable: bool = False
    """The reference's stable allocator goes on without it, and only the newer ones refuse."""
    since: Release = Release.V1_32
    check: Callable[[Any, str], Errors] | None = None
    """Return the faults of one value, at its path."""
    check_claim: Callable[[DeviceClaim, str, Checks], Errors] | None = None
    """Return the faults of all values of a claim together. The path is the path of ``devices``."""

    @property
    def attribute(self) -> str:
        """The attribute of structs, such as ``admin_access``."""
        return re.sub("([A-Z])", lambda letter: f"_{letter[1].lower()}", self.name)

    def paths(self, devices: str) -> tuple[str, ...]:
        """Return all paths to the field in an object whose requests are below this one."""
        return tuple(f"{it}.{self.name}" if it is Place.RESULT else f"{devices}.{it}.{self.name}" for it in self.places)


WANTED: Final = (Place.EXACTLY, Place.ALTERNATIVE)
REQUEST_FIELDS: Final = (
    RequestField(
        "firstAvailable",
        "prioritized_list",
        (Place.REQUEST,),
        "has subrequests, but the DRAPrioritizedList feature is disabled",
    ),
    RequestField(
        "derivedAttributes",
        "derived_attributes",
        WANTED,
        "has derived attributes, but the DRADerivedAttributes feature is disabled",
        since=Release.V1_37,
        check_claim=derived_attributes,
    ),
    RequestField(
        "capacity",
        "consumable_capacity",
        WANTED,
        "has capacity requests, but the DRAConsumableCapacity feature is disabled",
        is_ignored_by_stable=True,
    ),
    RequestField(
        "adminAccess",
        "admin_access",
        (Place.EXACTLY, Place.RESULT),
        "admin access is requested, but the feature is disabled",
    ),
    RequestField(
        "tolerations",
        "device_taints",
        (*WANTED, Place.RESULT),
        check=lambda tolerations, path: each(tolerations, path, toleration),
    ),
)
"""Every gated field of a request, in the order in which an allocator refuses them.

A new one is a row here, with its check above; its type in ``resource``; its gate in ``gates`` and in the
ledger's ``features``; and its use by the allocator in ``claim_program`` and a ledger or filter.
"""
# Made once: a validation of thousands of claims asks for them with each request.
_CHECKED_ALONE: Final = [(it.attribute, it.name, it.check) for it in REQUEST_FIELDS if it.check is not None]


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
    claim: DeviceClaim,
    path: str,
    gates: FeatureGates,
    checks: Checks,
) -> Errors:
    """``spec.devices`` of a new claim or template."""
    names = request_names(claim)

    def request(item: DeviceRequest, path: str) -> Errors:
        yield from _request(item, path, checks.selector)

    def constraint(item: DeviceConstraint, path: str) -> Errors:
        yield from request_references(item.requests, f"{path}.requests", names)
        yield from _constrained_attribute(item, path, gates)

    def config(item: DeviceClaimConfiguration, path: str) -> Errors:
        yield from request_references(item.requests, f"{path}.requests", names)
        yield from configuration(item, path)

    yield from unique(claim.requests, f"{path}.requests", REQUESTS_LIMIT, request, lambda item: item.name)
    for field in REQUEST_FIELDS:
        if field.check_claim is not None:
            yield from field.check_claim(claim, path, checks)
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
    for attribute, name, check in _CHECKED_ALONE:
        yield from check(getattr(request, attribute), f"{path}.{name}")


def _constrained_attribute(constraint: DeviceConstraint, path: str, gates: FeatureGates) -> Errors:
    if constraint.match_attribute is not None:
        yield from fully_qualified_name(constraint.match_attribute, f"{path}.matchAttribute")
    elif constraint.distinct_attribute is not None:
        yield from fully_qualified_name(constraint.distinct_attribute, f"{path}.distinctAttribute")
    elif gates.consumable_capacity:
        yield required(path, 'exactly one of "matchAttribute" or "distinctAttribute" is required')
    else:
        yield required(f"{path}.matchAttribute")
