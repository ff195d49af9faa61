"""The requests of a claim by the names that refusals use, and claims with one of them changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dra_api.resource import DeviceConstraint, DeviceRequest, DeviceSubRequest, ExactDeviceRequest, ResourceClaim
from msgspec.structs import replace

from .change import Edit

Wanted = ExactDeviceRequest | DeviceSubRequest
"""What a request, or one of its alternatives, asks for."""


def every_request(claim: ResourceClaim) -> Iterator[tuple[str, Wanted]]:
    """``request`` or ``request/subrequest``, and what it asks for."""
    for request in claim.spec.devices.requests or ():
        if request.exactly is not None:
            yield request.name, request.exactly
        for sub in request.first_available or ():
            yield f"{request.name}/{sub.name}", sub


def with_request(claim: ResourceClaim, name: str, change: Callable[[Wanted], Wanted]) -> Edit:
    """The claim with that request changed."""
    devices = claim.spec.devices
    requests = tuple(_changed(request, name, change) for request in devices.requests or ())
    return _edit(claim, replace(devices, requests=requests))


def with_fields(**fields: object) -> Callable[[Wanted], Wanted]:
    """Changes these fields of a request."""
    return lambda wanted: replace(wanted, **fields)


def without_constraint(claim: ResourceClaim, constraint: DeviceConstraint) -> Edit:
    """The claim without one of its constraints."""
    devices = claim.spec.devices
    left = tuple(one for one in devices.constraints or () if one is not constraint)
    return _edit(claim, replace(devices, constraints=left or None))


def _changed(request: DeviceRequest, name: str, change: Callable[[Wanted], Wanted]) -> DeviceRequest:
    if request.name == name and request.exactly is not None:
        return replace(request, exactly=change(request.exactly))
    subs = tuple(change(sub) if f"{request.name}/{sub.name}" == name else sub for sub in request.first_available or ())
    return replace(request, first_available=subs or None)


def _edit(claim: ResourceClaim, devices: object) -> Edit:
    spec = replace(claim.spec, devices=devices)
    return Edit(ResourceClaim, claim.key, replace(claim, spec=spec))
