"""What a driver reports of the devices of a claim, in ``status.devices`` of the ResourceClaim.

Others read it there: network plugins the addresses, people the conditions. A driver owns the entries of its own
devices, by server-side apply under its name: an entry that it reports no more is removed, those of other drivers stay.
A repeated report writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import msgspec
from dra_api.codec import to_dict
from dra_api.meta import Condition
from dra_api.resource import AllocatedDeviceStatus, DeviceRequestAllocationResult, NetworkDeviceData, ResourceClaim
from dra_api.values.times import format_time
from dra_kube import RESOURCE_CLAIMS, Api

from dra_kubeletplugin.driver import results_for
from dra_kubeletplugin.errors import ClaimError

_Key = tuple[str, str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """What is to be known of one device of a claim; ``data`` is a JSON object of the driver's own, up to 10 KiB.

    The time of a condition may be left out: it is when the condition's status last changed.
    """

    pool: str
    device: str
    share_id: str | None = None
    conditions: Sequence[Condition] = ()
    data: Mapping[str, Any] | None = None
    network: NetworkDeviceData | None = None

    @classmethod
    def of(cls, result: DeviceRequestAllocationResult, **fields: Any) -> Self:
        """The status of the device of an allocation result."""
        return cls(pool=result.pool, device=result.device, share_id=result.share_id, **fields)


async def report_devices(api: Api, driver: str, claim: ResourceClaim, statuses: Iterable[DeviceStatus]) -> None:
    """Make these the driver's entries of a claim that was just read. Raises ClaimError or KubeError.

    The write has the claim's uid, so that the server refuses it for another claim of that name.
    """
    allocated = {(result.pool, result.device, result.share_id) for result in results_for(driver, claim)}
    before = {_key(entry): entry for entry in claim.status.devices or () if entry.driver == driver}
    wanted: dict[_Key, dict[str, Any]] = {}
    for status in statuses:
        key = (status.pool, status.device, status.share_id)
        if key not in allocated:
            raise ClaimError(
                f"claim {claim.key} does not hold the device {status.device} of pool {status.pool}: "
                "report those of results_for(...)"
            )
        wanted[key] = _entry(driver, status, before.get(key))
    if wanted == {key: to_dict(entry) for key, entry in before.items()}:
        return
    body = {
        "metadata": {"name": claim.metadata.name, "namespace": claim.metadata.namespace, "uid": claim.metadata.uid},
        "status": {"devices": list(wanted.values())},
    }
    answer = await api.patch(
        RESOURCE_CLAIMS,
        claim.metadata.name,
        body,
        claim.metadata.namespace,
        kind="apply",
        subresource="status",
        field_manager=driver,
        force=True,
    )
    if wanted and not answer.get("status", {}).get("devices"):
        raise ClaimError(
            f"the API server dropped the status of the devices of claim {claim.key}: "
            "enable its feature gate DRAResourceClaimDeviceStatus"
        )


def _entry(driver: str, status: DeviceStatus, before: AllocatedDeviceStatus | None) -> dict[str, Any]:
    """The entry in the API's form."""
    known = {condition.type: condition for condition in (before.conditions if before else None) or ()}
    fields = {
        "driver": driver,
        "pool": status.pool,
        "device": status.device,
        "shareID": status.share_id,
        "conditions": [to_dict(_timed(condition, known.get(condition.type))) for condition in status.conditions],
        "data": status.data,
        "networkData": to_dict(status.network) if status.network else None,
    }
    return {name: value for name, value in fields.items() if value not in (None, [])}


def _timed(condition: Condition, before: Condition | None) -> Condition:
    """The condition with the time of its last transition."""
    if condition.last_transition_time:
        return condition
    kept = before.last_transition_time if before and before.status == condition.status else None
    return msgspec.structs.replace(condition, last_transition_time=kept or format_time(datetime.now(UTC)))


def _key(entry: AllocatedDeviceStatus) -> _Key:
    return entry.pool, entry.device, entry.share_id
