"""What of an allocation concerns one driver: its results, its configuration, and a fingerprint of both.

Two allocations with the same fingerprint are prepared alike. It covers the driver's own part only, by named fields:
neither another driver's device nor a field that a later version of the API adds makes a prepared claim look changed.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dra_api.resource import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
)
from msgspec.structs import replace

from dra_kubeletplugin.driver import results_for
from dra_kubeletplugin.files.checkpoint import HeldDevice


def held_devices(driver: str, claim: ResourceClaim) -> tuple[HeldDevice, ...]:
    """The devices of a driver that a claim is allocated."""
    return tuple(
        HeldDevice(pool=item.pool, device=item.device, share_id=item.share_id, admin_access=bool(item.admin_access))
        for item in results_for(driver, claim)
    )


def own_part(driver: str, claim: ResourceClaim) -> ResourceClaim:
    """The claim with what concerns the driver: names, uid, its results and its configuration."""
    allocation = claim.status.allocation or AllocationResult()
    devices = DeviceAllocationResult(results=tuple(results_for(driver, claim)), config=_configs(driver, claim))
    metadata = claim.metadata
    return ResourceClaim(
        metadata=type(metadata)(namespace=metadata.namespace, name=metadata.name, uid=metadata.uid),
        status=ResourceClaimStatus(allocation=replace(allocation, devices=devices)),
    )


def fingerprint(driver: str, claim: ResourceClaim) -> str:
    """Equal for allocations that a driver prepares alike."""
    content = {
        "results": [_result(item) for item in results_for(driver, claim)],
        "configs": [_config(item) for item in _configs(driver, claim)],
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return "1-" + hashlib.sha256(text.encode()).hexdigest()


def _configs(driver: str, claim: ResourceClaim) -> tuple[DeviceAllocationConfiguration, ...]:
    allocation = claim.status.allocation
    configs = (allocation.devices.config if allocation else None) or ()
    return tuple(item for item in configs if item.opaque and item.opaque.driver == driver)


def _result(item: DeviceRequestAllocationResult) -> dict[str, Any]:
    consumed = {name: quantity.text for name, quantity in (item.consumed_capacity or {}).items()}
    return {
        "request": item.request,
        "pool": item.pool,
        "device": item.device,
        "share": item.share_id,
        "admin": bool(item.admin_access),
        "consumed": consumed,
    }


def _config(item: DeviceAllocationConfiguration) -> dict[str, Any]:
    raw = bytes(item.opaque.parameters) if item.opaque else b"null"
    return {"source": item.source, "requests": list(item.requests or ()), "parameters": json.loads(raw or b"null")}
