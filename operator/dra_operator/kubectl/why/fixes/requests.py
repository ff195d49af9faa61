"""The requests of claims by the names that refusals use, the devices that match them, and claims with one changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dra_api.resource import DeviceConstraint, DeviceRequest, DeviceSubRequest, ExactDeviceRequest, ResourceClaim
from msgspec.structs import replace

from dra_operator.scheduling import CycleState, PodFilter
from dra_operator.scheduling.state import LoadedNode

from .change import Patch

Wanted = ExactDeviceRequest | DeviceSubRequest
"""What a request, or one of its alternatives, asks for."""


def every_request(claim: ResourceClaim) -> Iterator[tuple[str, Wanted]]:
    """``request`` or ``request/subrequest``, and what it asks for."""
    for request in claim.spec.devices.requests or ():
        if request.exactly is not None:
            yield request.name, request.exactly
        for sub in request.first_available or ():
            yield f"{request.name}/{sub.name}", sub


def matching(cycle_state: CycleState, state: LoadedNode) -> dict[tuple[str, str], list[int]]:
    """The devices of the node that match each request, by claim and request, be they in use or not.

    Nothing matches a selector that fails.
    """
    view, program = cycle_state.allocator.inventory.view(state.node), PodFilter(cycle_state).demands.on(state).program
    found: dict[tuple[str, str], list[int]] = {}
    for stage in program.stages:
        for alternative in stage.alternatives:
            bits = view.selected(alternative.expressions, cycle_state.allocator.inventory.compiled).true & view.here
            key = program.claims[stage.claim].key, alternative.request
            found[key] = [number for number in range(len(view.devices)) if bits >> number & 1]
    return found


def with_request(claim: ResourceClaim, name: str, change: Callable[[Wanted], Wanted]) -> Patch:
    """The claim with that request changed."""

    def make(now: ResourceClaim) -> ResourceClaim:
        requests = tuple(_changed(request, name, change) for request in now.spec.devices.requests or ())
        return _with(now, requests=requests)

    return Patch(ResourceClaim, claim.key, make)


def with_fields(**fields: object) -> Callable[[Wanted], Wanted]:
    """Changes these fields of a request."""
    return lambda wanted: replace(wanted, **fields)


def without_constraint(claim: ResourceClaim, constraint: DeviceConstraint) -> Patch:
    """The claim without one of its constraints."""

    def make(now: ResourceClaim) -> ResourceClaim:
        left = tuple(one for one in now.spec.devices.constraints or () if one != constraint)
        return _with(now, constraints=left or None)

    return Patch(ResourceClaim, claim.key, make)


def _changed(request: DeviceRequest, name: str, change: Callable[[Wanted], Wanted]) -> DeviceRequest:
    if request.name == name and request.exactly is not None:
        return replace(request, exactly=change(request.exactly))
    subs = tuple(change(sub) if f"{request.name}/{sub.name}" == name else sub for sub in request.first_available or ())
    return replace(request, first_available=subs or None)


def _with(claim: ResourceClaim, **fields: Any) -> ResourceClaim:
    return replace(claim, spec=replace(claim.spec, devices=replace(claim.spec.devices, **fields)))
