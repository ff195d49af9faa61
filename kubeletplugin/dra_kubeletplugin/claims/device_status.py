"""What a driver reports of the devices of a claim, in ``status.devices`` of the ResourceClaim.

Others read it there: network plugins the addresses, the scheduler binding conditions, people all of them. A driver may
have several writers: its plugin on each node that uses the claim, and a controller that attaches devices of a network.
Each owns its report, by server-side apply under a field manager of its own (``<driver>/<node>``,
``<driver>/<part>``). The API server merges devices by name and conditions by type: a condition of one writer survives
the report of another one, and what a writer reports no more is removed. A repeated report writes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec
from dra_api.codec import DecodeError, convert, to_dict
from dra_api.meta import Condition
from dra_api.resource import AllocatedDeviceStatus, DeviceRequestAllocationResult, NetworkDeviceData, ResourceClaim
from dra_api.values import now
from dra_kube import RESOURCE_CLAIMS, Api, NotFound

from dra_kubeletplugin.driver import ClaimRef, results_for
from dra_kubeletplugin.errors import ClaimError, ClaimNotAllocated, ClaimReplaced

_LONGEST_MANAGER_CHARACTERS = 128
"""Characters of the name of a field manager that an API server takes."""

_Key = tuple[str, str, str | None]
_Json = dict[str, Any]


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


async def fetch_claim(api: Api, ref: ClaimRef) -> ResourceClaim:
    """Return the allocated claim as it is in the API server. Raises ClaimError or KubeError."""
    return (await _fetched(api, ref))[1]


async def _fetched(api: Api, ref: ClaimRef) -> tuple[_Json, ResourceClaim]:
    try:
        raw = await api.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
        claim = convert(ResourceClaim, raw)
    except NotFound as error:
        raise ClaimError(f"claim {ref} does not exist any more") from error
    except DecodeError as error:
        raise ClaimError(f"claim {ref} is malformed: {error}") from error
    if claim.status.allocation is None:
        raise ClaimNotAllocated(f"claim {ref} not allocated")
    if claim.metadata.uid != ref.uid:
        raise ClaimReplaced(f"claim {ref} got replaced")
    return raw, claim


async def report_devices(
    api: Api, driver: str, claim: ClaimRef, statuses: Iterable[DeviceStatus], *, part: str = "controller"
) -> None:
    """Say in the claim's status how its devices of a driver do, in place of what this part of the driver said before.

    ``part`` names the writer within the driver: two writers of one name erase each other's reports. The node of a
    plugin is one; controllers of the driver that report different conditions need different names. The write has the
    claim's uid, so that the server refuses it for another claim of that name. Raises ClaimError for a claim that is
    gone, replaced or not allocated to the device, or KubeError.
    """
    raw, found = await _fetched(api, claim)
    allocated = {(result.pool, result.device, result.share_id) for result in results_for(driver, found)}
    before = {_key(entry): entry for entry in found.status.devices or () if entry.driver == driver}
    wanted: dict[_Key, _Json] = {}
    for status in statuses:
        key = (status.pool, status.device, status.share_id)
        if key not in allocated:
            raise ClaimError(
                f"claim {claim} does not hold the device {status.device} of pool {status.pool}: "
                "report those of results_for(...)"
            )
        wanted[key] = _entry(driver, status, before.get(key))
    manager = _manager(driver, part)
    if _owned(raw, driver, manager) == {key: _fields(entry) for key, entry in wanted.items()} and all(
        key in before and _says(to_dict(before[key]), entry) for key, entry in wanted.items()
    ):
        return
    body = {
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {"devices": list(wanted.values())},
    }
    answer = await api.patch(
        RESOURCE_CLAIMS,
        claim.name,
        body,
        claim.namespace,
        kind="apply",
        subresource="status",
        field_manager=manager,
        force=True,
    )
    if wanted and not answer.get("status", {}).get("devices"):
        raise ClaimError(
            f"the API server dropped the status of the devices of claim {claim}: "
            "enable its feature gate DRAResourceClaimDeviceStatus"
        )


def _manager(driver: str, part: str) -> str:
    """Return the field manager of a writer; the name of a node may be too long for one."""
    name = f"{driver}/{part}"
    if len(name) <= _LONGEST_MANAGER_CHARACTERS:
        return name
    return f"{driver}/{hashlib.sha256(part.encode()).hexdigest()[:32]}"


def _owned(claim: _Json, driver: str, manager: str) -> dict[_Key, frozenset[str]]:
    """Return what a manager owns of the status of a driver's devices, as ``_fields`` names it."""
    owned: dict[_Key, frozenset[str]] = {}
    for entry in claim["metadata"].get("managedFields") or ():
        if (entry.get("manager"), entry.get("operation"), entry.get("subresource")) == (manager, "Apply", "status"):
            devices = entry.get("fieldsV1", {}).get("f:status", {}).get("f:devices", {})
            for keys, fields in _entries(devices):
                if keys.get("driver") == driver:
                    types = [f"condition {keys['type']}" for keys, _ in _entries(fields.get("f:conditions", {}))]
                    others = [name for name in ("data", "networkData") if f"f:{name}" in fields]
                    owned[keys["pool"], keys["device"], keys.get("shareID")] = frozenset([*types, *others])
    return owned


def _entries(fields: _Json) -> Iterator[tuple[_Json, _Json]]:
    """Yield the entries of a list that is merged by keys: the keys, and the fields below."""
    return ((json.loads(name[2:]), below) for name, below in fields.items() if name.startswith("k:"))


def _fields(entry: _Json) -> frozenset[str]:
    types = [f"condition {condition['type']}" for condition in entry.get("conditions", ())]
    return frozenset([*types, *(name for name in ("data", "networkData") if name in entry)])


def _says(stored: _Json, wanted: _Json) -> bool:
    """Return whether an entry has the wanted fields. It may have more, of other writers."""
    known = {condition["type"]: condition for condition in stored.get("conditions", ())}
    return all(known.get(condition["type"]) == condition for condition in wanted.get("conditions", ())) and all(
        stored.get(name) == wanted[name] for name in ("data", "networkData") if name in wanted
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
    return msgspec.structs.replace(condition, last_transition_time=kept or now())


def _key(entry: AllocatedDeviceStatus) -> _Key:
    return entry.pool, entry.device, entry.share_id
