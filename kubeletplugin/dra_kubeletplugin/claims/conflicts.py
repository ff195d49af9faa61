"""What a claim has of one driver, and which other claim has it already.

A driver's part of an allocation is its results and its configuration, with a fingerprint of both. Two allocations with
the same fingerprint are prepared alike. It covers the driver's own part only, by named fields: neither another driver's
device nor a field that a later version of the API adds makes a prepared claim look changed.

A device that another claim holds since this boot is refused until that claim is unprepared: its containers may still
run. Administrators' access and different shares of a device do not exclude each other. The same holds for the parts of
the host that devices own, such as device nodes: an adapter that is plugged in may get the node of another container.

Devices may be parts of each other: a whole GPU and its partitions have different names, and draw from the same
counters. Records keep the counters that the devices of prepared claims draw. A device that needs more than is left is
refused.

Pools are named like the node, or begin with its name. When the node gets another name, its devices are the same: the
record has the node's name of that time.

A record that cannot be read excludes others by the part of it that is still known, or from all devices: one damaged
file must not hand a device to a second container.

A device that moves owns other parts of the host. What it owned before, containers that run may still use, until the
claim is unprepared or the node starts again. So the record keeps it (``had``), and a new claim does not get it. Claims
that were prepared before do: their devices may have changed places, and each would wait for the other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from dra_api.quantity import Quantity
from dra_api.resource import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
)
from msgspec.structs import replace

from dra_kubeletplugin.driver import PreparedDevice, results_for
from dra_kubeletplugin.errors import CountersInUse, DeviceInUse, HostPartInUse
from dra_kubeletplugin.files.checkpoint import ClaimRecord, ClaimRecords, HeldDevice, Remainder
from dra_kubeletplugin.slices import PoolCounters

Counters = Callable[[str], PoolCounters | None]
"""The counters that a pool is published with, or None if it is not known."""


def held_devices(driver: str, claim: ResourceClaim, counters: Counters) -> tuple[HeldDevice, ...]:
    """Return the devices of a driver that a claim is allocated, with the counters that they draw."""
    held = []
    for item in results_for(driver, claim):
        published = counters(item.pool)
        draws = published.draws.get(item.device, {}) if published and not item.admin_access else {}
        held.append(
            HeldDevice(
                pool=item.pool,
                device=item.device,
                share_id=item.share_id,
                admin_access=bool(item.admin_access),
                draws={name: dict(of_set) for name, of_set in draws.items()},
            )
        )
    return tuple(held)


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


class Conflicts:
    """Compares a claim with the others of this boot."""

    def __init__(self, records: ClaimRecords) -> None:
        self._records = records

    def refuse_held(self, wanted: ClaimRecord) -> None:
        """Raise DeviceInUse if another claim holds a device of this one."""
        for other in self._others(wanted):
            for device in wanted.holds:
                if any(device.excludes(held) for held in _here(other.holds, other.node, wanted.node)):
                    raise DeviceInUse(device.pool, device.device, str(other.ref), self._records.path(other.uid))
        for uid, rest in self._unreadable(wanted):
            holder, path = (
                f"{uid} ({'by a newer version' if rest.newer else 'its record is damaged'})",
                self._records.path(uid),
            )
            for device in wanted.holds:
                if rest.holds is None and not device.admin_access:
                    raise DeviceInUse(device.pool, device.device, holder, path, is_certain=rest.newer)
                if any(device.excludes(held) for held in _here(rest.holds or (), rest.node, wanted.node)):
                    raise DeviceInUse(device.pool, device.device, holder, path)

    def refuse_drawn(self, wanted: ClaimRecord, counters: Counters) -> None:
        """Raise CountersInUse if the devices of other claims leave too little of a counter for this claim's devices."""
        for pool in dict.fromkeys(device.pool for device in wanted.holds if device.draws):
            published = counters(pool)
            if published is None:
                continue
            mine = {held.device: held for held in wanted.holds if held.pool == pool and not held.admin_access}
            theirs: dict[str, tuple[HeldDevice, str, Path]] = {}  # shares of a device draw once
            for held, holder, path in self._held_by_others(wanted):
                if held.pool == pool and not held.admin_access and held.device not in mine:
                    theirs.setdefault(held.device, (held, holder, path))
            for (name, counter), needed in _sums(mine.values(), published).items():
                available = published.available.get(name, {}).get(counter)
                drawn = _sums((held for held, *_ in theirs.values()), published).get((name, counter))
                if available is None or drawn is None or not Quantity(available) < needed + drawn:
                    continue
                using = [each for each in theirs.values() if (name, counter) in _sums([each[0]], published)]
                device = next(each for each in mine if (name, counter) in _sums([mine[each]], published))
                raise CountersInUse(pool, device, f"{name}/{counter}", str(needed), str(drawn), available, using)

    def _held_by_others(self, wanted: ClaimRecord) -> Iterator[tuple[HeldDevice, str, Path]]:
        """Yield the devices that other claims of this boot hold, with the claims and their records."""
        for other in self._others(wanted):
            for held in _here(other.holds, other.node, wanted.node):
                yield held, str(other.ref), self._records.path(other.uid)
        for uid, rest in self._unreadable(wanted):
            for held in _here(rest.holds or (), rest.node, wanted.node):
                yield held, f"{uid} (its record cannot be read)", self._records.path(uid)

    def refuse_owned(self, wanted: ClaimRecord, *, beside: Collection[str] = ()) -> None:
        """Raise HostPartInUse if another claim was given what a device of this one owns; ``beside`` do not count.

        For a claim that was never prepared they do, and also what another claim had before its device moved.
        """
        for other in self._others(wanted):
            if other.uid in beside and wanted.given:
                continue
            theirs = {part: device for device in other.exclusive() for part in device.owns}
            for mine in wanted.exclusive():
                for part in mine.owns:
                    if part in theirs and not _are_one(mine, theirs[part]):
                        raise HostPartInUse(mine.device, part, str(other.ref))
                    if part in other.had and not wanted.given:
                        raise HostPartInUse(mine.device, part, str(other.ref), moved=True)

        for uid, rest in self._unreadable(wanted):
            for mine in () if wanted.given else wanted.exclusive():
                for part in mine.owns:
                    if rest.denies(part, mine.pool, mine.device):
                        raise HostPartInUse(
                            mine.device, part, f"{uid} (its record is damaged)", record=self._records.path(uid)
                        )

    def _unreadable(self, wanted: ClaimRecord) -> Iterator[tuple[str, Remainder]]:
        """Yield what is known of records of this boot that cannot be read, with their uids."""
        for path, rest in self._records.unreadable().items():
            if path.stem != wanted.uid and rest.boot_id == wanted.boot_id:
                yield path.stem, rest

    def _others(self, wanted: ClaimRecord) -> Iterator[ClaimRecord]:
        for other in self._records.all().values():
            if other.uid != wanted.uid and other.boot_id == wanted.boot_id:
                yield other


def _here(holds: Iterable[HeldDevice], node: str, now: str) -> Iterable[HeldDevice]:
    """Return devices with the names that their pools have since the node has another name: they are the same."""
    if not node or node == now:
        return holds
    return (replace(held, pool=now + held.pool[len(node) :]) if _is_of(held.pool, node) else held for held in holds)


def _is_of(pool: str, node: str) -> bool:
    """Return whether a pool is that of a node, or one of several of it, such as ``node-1/gpus``."""
    return pool == node or pool.startswith(f"{node}/")


def _sums(devices: Iterable[HeldDevice], published: PoolCounters) -> dict[tuple[str, str], Quantity]:
    """Return how much devices draw of each counter; records of a former version do not say it, the pool may."""
    sums: dict[tuple[str, str], Quantity] = {}
    for device in devices:
        for name, of_set in (device.draws or published.draws.get(device.device, {})).items():
            for counter, text in of_set.items():
                before = sums.get((name, counter))
                sums[name, counter] = Quantity(text) if before is None else before + Quantity(text)
    return sums


def with_answer(record: ClaimRecord, devices: tuple[PreparedDevice, ...]) -> ClaimRecord:
    """The record with the devices as the driver answers now, which remembers what they owned before."""
    changed = replace(record, devices=devices)
    had = {*record.had, *record.owned()} - changed.owned()
    return replace(changed, had=tuple(sorted(had)))


def _are_one(device: PreparedDevice, other: PreparedDevice) -> bool:
    """Whether they are shares of one device."""
    return (device.pool, device.device) == (other.pool, other.device)
