"""Claims that are too large to be allocated, and the little that is kept of them.

The API server admits claims of half a megabyte and more, which take four to eight times as much memory once they are
read. Labels, annotations and owners that the operator does not look at are dropped first, with what drivers say of
devices. If the spec alone has more than ``LARGEST_OBJECT_BYTES``, its requests are kept by their names and
classes: other schedulers may allocate such a claim. Its devices and consumers count as those of any other claim, so
that it is protected, released and deleted.
"""

from __future__ import annotations

from typing import Final

from dra_api.codec import encode
from dra_api.meta import ObjectMeta
from dra_api.resource import (
    EXTENDED_RESOURCE_ANNOTATION,
    FINALIZER,
    NULL,
    POD_CLAIM_NAME_ANNOTATION,
    DeviceClaim,
    DeviceClaimConfiguration,
    DeviceRequest,
    DeviceSubRequest,
    ExactDeviceRequest,
    OpaqueDeviceConfiguration,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
)
from msgspec import Raw
from msgspec.structs import replace

from .large import LARGEST_OBJECT_BYTES
from .placeholder import ANNOTATION, HOLD

_READ: Final = (ANNOTATION, EXTENDED_RESOURCE_ANNOTATION, POD_CLAIM_NAME_ANNOTATION)
_OURS: Final = (FINALIZER, HOLD)
_TOO_LARGE: Final = "dra.kopf.dev/too-large"
"""The driver of the configuration with which the claim is left. It is no valid name, so that no other claim has it."""


def claim_without_bulk(claim: ResourceClaim) -> ResourceClaim:
    """The claim itself, or what is kept of it if it is large."""
    if len(encode(claim)) <= LARGEST_OBJECT_BYTES:
        return claim
    spec = claim.spec
    size = len(encode(spec))
    return replace(
        claim,
        metadata=metadata_without_bulk(claim.metadata),
        spec=spec if size <= LARGEST_OBJECT_BYTES else spec_without_bulk(spec, size),
        status=_read(claim.status),
    )


def metadata_without_bulk(meta: ObjectMeta) -> ObjectMeta:
    """What is read of it."""
    finalizers = meta.finalizers or ()
    other = next((name for name in finalizers if name not in _OURS), None)
    kept = tuple([name for name in finalizers if name in _OURS or name is other])
    owner = meta.controller
    return replace(
        meta,
        labels=None,
        annotations={name: text for name, text in (meta.annotations or {}).items() if name in _READ} or None,
        finalizers=kept or None,
        owner_references=None if owner is None else (owner,),
    )


def spec_without_bulk(spec: ResourceClaimSpec, size: int) -> ResourceClaimSpec:
    """The names and classes of the requests, and the bytes of the whole."""
    mark = DeviceClaimConfiguration(opaque=OpaqueDeviceConfiguration(_TOO_LARGE, Raw(str(size).encode())))
    return ResourceClaimSpec(DeviceClaim(tuple(map(_named, spec.devices.requests or ())), None, (mark,)))


def bytes_of_large(spec: ResourceClaimSpec) -> int | None:
    """The bytes of a spec of which little is kept; None if it is whole."""
    for config in spec.devices.config or ():
        if config.opaque is not None and config.opaque.driver == _TOO_LARGE:
            return int(bytes(config.opaque.parameters))
    return None


def size_refusal(size: int) -> str:
    """What is said of a spec of so many bytes, as the end of a sentence about it."""
    return (
        f"has a spec of {-(-size // 1024)} KiB, and dra-operator allocates at most "
        f"{LARGEST_OBJECT_BYTES >> 10} KiB: shorten "
        "selectors, tolerations, opaque parameters and a template's annotations, put what all claims share into the "
        "DeviceClass, or ask for some of the devices by another claim"
    )


def _named(request: DeviceRequest) -> DeviceRequest:
    exactly = request.exactly
    subs = [DeviceSubRequest(it.name, it.device_class_name) for it in request.first_available or ()]
    return DeviceRequest(
        name=request.name,
        exactly=None if exactly is None else ExactDeviceRequest(exactly.device_class_name),
        first_available=None
        if subs is None
        else tuple([DeviceSubRequest(it.name, it.device_class_name) for it in subs]),
    )


def _read(status: ResourceClaimStatus) -> ResourceClaimStatus:
    """Without the configuration, which plugins read from the server, and what drivers say of networks."""
    allocation = status.allocation
    if allocation is not None:
        allocation = replace(allocation, devices=replace(allocation.devices, config=None))
    devices = status.devices
    if devices is not None:
        devices = tuple([replace(device, data=NULL, network_data=None) for device in devices])
    return replace(status, allocation=allocation, devices=devices)
