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

A node that gets another name has the same devices: a record has the node's name of its time. Pools are named like the
node, or begin with its name; the devices of a record are listed under the names that their pools have since.

A record that cannot be read excludes others by the part of it that is still known, or from all devices: one damaged
file must not hand a device to a second container.

A device that moves owns other parts of the host. What it owned before, containers that run may still use, until the
claim is unprepared or the node starts again. So the record keeps it (``had``), and a new claim does not get it. Claims
that were prepared before do: their devices may have changed places, and each would wait for the other.

A call may prepare 1,000 claims beside as many others. Whether a claim can have a device must not cost a look at each of
these: ``Holders`` lists what all claims hold by its name (devices, counters, and parts of the host), and a claim that
changes is listed anew. The lists keep the boots apart. Devices that an administrator only watches are in none.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from dra_api.resource import (
    AllocationResult,
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimStatus,
)
from dra_api.values import Quantity
from msgspec.structs import replace

from dra_kubeletplugin.driver import PreparedDevice, results_for
from dra_kubeletplugin.errors import CountersInUse, DeviceInUse, HostPartInUse
from dra_kubeletplugin.files.checkpoint import ClaimRecords
from dra_kubeletplugin.files.claim_record import ClaimRecord, HeldDevice, Remainder
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
    """Compares a claim with the others of this boot, as ``look`` found them last."""

    def __init__(self, records: ClaimRecords, node: str) -> None:
        self._records = records
        self._node = node
        self._holders = Holders(node)
        self._turn: int | None = None  # in which the holders were brought up to date last

    async def load(self) -> None:
        """Read and list the records of 1,000 claims in a thread; later only those that change. Raises ClaimError."""
        holders = Holders(self._node)
        await asyncio.to_thread(lambda: holders.replace(self._records.all()))
        if not len(self._holders):  # otherwise a claim was quicker, and knows what has changed since
            self._holders, self._turn = holders, None

    def look(self, turn: int | None) -> None:
        """Find what claims hold now. Raises ClaimError.

        Nobody else works on claims during a ``turn``: from the second time on it looks only at its own changes, unless
        the folder shows that somebody else was there. None stands for a turn beside others.
        """
        before, self._turn = self._turn, None  # until all is known
        own = self._records.own_changes() if turn is not None and turn == before else None
        if own is None:
            self._holders.replace(self._records.found_anew(follows=turn is not None))
        else:
            self._holders.update(own)
        self._turn = turn

    def refuse_held(self, wanted: ClaimRecord) -> None:
        """Raise DeviceInUse if another claim holds a device of this one."""
        boot = wanted.boot_id
        for device in wanted.holds:
            for uid in self._holders.of_device(boot, device):
                if uid != wanted.uid:
                    raise DeviceInUse(device.pool, device.device, self._holder(uid), self._records.path(uid))
            for uid in () if device.admin_access else self._holders.of_any_device(boot):
                if uid != wanted.uid:
                    raise DeviceInUse(
                        device.pool,
                        device.device,
                        self._holder(uid),
                        self._records.path(uid),
                        is_certain=self._is_newer(uid),
                    )

    def refuse_drawn(self, wanted: ClaimRecord, counters: Counters) -> None:
        """Raise CountersInUse if the devices of other claims leave too little of a counter for this claim's devices."""
        for pool in dict.fromkeys(device.pool for device in wanted.holds if device.draws):
            published = counters(pool)
            if published is None:
                continue
            mine = {held.device: held for held in wanted.holds if held.pool == pool and not held.admin_access}
            for (name, counter), needed in _sums(mine.values(), published).items():
                available = published.available.get(name, {}).get(counter)
                if available is None:
                    continue
                theirs: dict[str, tuple[HeldDevice, str]] = {}  # shares of a device draw once
                for uid, held in self._holders.drawing(wanted.boot_id, pool, (name, counter), published, beside=mine):
                    if uid != wanted.uid:
                        theirs.setdefault(held.device, (held, uid))
                drawn = _sums((held for held, _ in theirs.values()), published).get((name, counter))
                if drawn is None or not Quantity(available) < needed + drawn:
                    continue
                using = [(held, self._holder(uid), self._records.path(uid)) for held, uid in theirs.values()]
                device = next(each for each in mine if (name, counter) in _sums([mine[each]], published))
                raise CountersInUse(pool, device, f"{name}/{counter}", str(needed), str(drawn), available, using)

    def refuse_owned(self, wanted: ClaimRecord, *, beside: Collection[str] = ()) -> None:
        """Raise HostPartInUse if another claim was given what a device of this one owns; ``beside`` do not count.

        For a claim that was never prepared they do, and also what another claim had before its device moved.
        """
        for mine in wanted.exclusive():
            for part in mine.owns:
                for uid in self._holders.of_part(wanted.boot_id, part, beside=(mine.pool, mine.device)):
                    is_damaged = isinstance(self._holders[uid], Remainder)
                    if uid == wanted.uid or (wanted.given and (is_damaged or uid in beside)):
                        continue
                    self._refuse_part(mine, part, uid)
                for uid in () if wanted.given else self._holders.of_former_part(wanted.boot_id, part):
                    if uid != wanted.uid:
                        self._refuse_part(mine, part, uid, moved=True)

    def _refuse_part(self, mine: PreparedDevice, part: str, uid: str, *, moved: bool = False) -> NoReturn:
        record = self._records.path(uid) if isinstance(self._holders[uid], Remainder) else None
        raise HostPartInUse(mine.device, part, self._holder(uid), moved=moved, record=record)

    def _holder(self, uid: str) -> str:
        """Name a claim, or say why its name is not known."""
        entry = self._holders[uid]
        if isinstance(entry, Remainder):
            return f"{uid} ({'by a newer version' if entry.newer else 'its record is damaged'})"
        return str(entry.ref)

    def _is_newer(self, uid: str) -> bool:
        entry = self._holders[uid]
        return isinstance(entry, Remainder) and entry.newer


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


_List = dict[tuple[str, ...], dict[Hashable, dict[str, HeldDevice | None]]]
"""The uids of the claims: by the name of a device, counter or part, and by the thing that tells its holders apart."""


class Holders:
    """The claims as their records were found last: records, and the rest of damaged ones."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._entries: dict[str, ClaimRecord | Remainder] = {}
        self._places: dict[str, list[tuple[_List, tuple[str, ...], Hashable]]] = {}
        self._held: _List = {}  # by boot, pool and device; by share
        self._drawn: _List = {}  # by boot, pool, counter set and counter; by device
        self._undrawn: _List = {}  # by boot and pool, held devices of which no draw is recorded; by device
        self._owned: _List = {}  # by boot and part of the host; by pool and device
        self._had: _List = {}  # by boot and part of the host
        self._unknown: _List = {}  # by boot, the claims that may hold any device

    def replace(self, found: Mapping[str, ClaimRecord | Remainder]) -> None:
        """Take these for all claims; a record that is the one from before is listed already."""
        for uid in self._entries.keys() - found.keys():
            self._put(uid, None)
        for uid, entry in found.items():
            if self._entries.get(uid) is not entry:
                self._put(uid, entry)

    def update(self, changed: Mapping[str, ClaimRecord | Remainder | None]) -> None:
        """Take these for what is known of some claims; None is one without a record."""
        for uid, entry in changed.items():
            self._put(uid, entry)

    def __len__(self) -> int:
        """Return how many claims are known."""
        return len(self._entries)

    def __getitem__(self, uid: str) -> ClaimRecord | Remainder:
        """Return what is known of a claim that one of the methods named."""
        return self._entries[uid]

    def of_device(self, boot: str, device: HeldDevice) -> Iterator[str]:
        """Yield the claims that hold a device, or the same share of it."""
        if device.admin_access:
            return
        shares = self._held.get((boot, device.pool, device.device), {})
        for share in shares if device.share_id is None else (None, device.share_id):
            yield from shares.get(share, ())

    def of_any_device(self, boot: str) -> Iterator[str]:
        """Yield the claims that may hold any device."""
        for uids in self._unknown.get((boot,), {}).values():
            yield from uids

    def drawing(
        self, boot: str, pool: str, counter: tuple[str, str], published: PoolCounters, *, beside: Collection[str]
    ) -> Iterator[tuple[str, HeldDevice]]:
        """Yield, with its claim, each of the held devices that draw from a counter, once for each of its claims.

        Records of a former version do not say what their devices draw; the pool as it is published may.
        """
        undrawn = self._undrawn.get((boot, pool), {})
        without = {device: undrawn[device] for device in published.draws.keys() & undrawn.keys()}
        name, key = counter
        drawn = self._drawn.get((boot, pool, name, key), {})
        for device, claims in [*drawn.items(), *without.items()]:
            if device in beside:
                continue
            for uid, held in claims.items():
                if held and (held.draws or key in published.draws[held.device].get(name, {})):
                    yield uid, held

    def of_part(self, boot: str, part: str, *, beside: tuple[str, str]) -> Iterator[str]:
        """Yield the claims that own a part of the host, but by another device than that ``beside``."""
        for device, uids in self._owned.get((boot, part), {}).items():
            if device != beside:
                yield from uids

    def of_former_part(self, boot: str, part: str) -> Iterator[str]:
        """Yield the claims that owned a part of the host before their devices moved."""
        for uids in self._had.get((boot, part), {}).values():
            yield from uids

    def _put(self, uid: str, entry: ClaimRecord | Remainder | None) -> None:
        for by_name, name, kind in self._places.pop(uid, ()):
            kinds = by_name[name]
            kinds[kind].pop(uid, None)
            if not kinds[kind]:
                del kinds[kind]
            if not kinds:
                del by_name[name]
        self._entries.pop(uid, None)
        if entry is None:
            return
        self._entries[uid] = entry
        places = self._places[uid] = []
        for by_name, name, kind, held in self._listed(entry if isinstance(entry, Remainder) else Remainder.of(entry)):
            claims = by_name.setdefault(name, {}).setdefault(kind, {})
            if uid not in claims:
                places.append((by_name, name, kind))
            claims[uid] = held

    def _listed(self, rest: Remainder) -> Iterator[tuple[_List, tuple[str, ...], Hashable, HeldDevice | None]]:
        """Yield where a claim belongs."""
        boot = rest.boot_id
        if rest.holds is None:
            yield self._unknown, (boot,), "", None
        for held in _here(rest.holds or (), rest.node, self._node):
            if held.admin_access:
                continue
            yield self._held, (boot, held.pool, held.device), held.share_id, held
            for name, of_set in held.draws.items():
                for counter in of_set:
                    yield self._drawn, (boot, held.pool, name, counter), held.device, held
            if not held.draws:
                yield self._undrawn, (boot, held.pool), held.device, held
        if isinstance(rest.owned, tuple):  # a former version did not say by which device
            for part in rest.owned:
                yield self._had, (boot, part), "", None
        else:
            for part, device in rest.owned.items():
                yield self._owned, (boot, part), device, None
        for part in rest.had:
            yield self._had, (boot, part), "", None


def _here(holds: Iterable[HeldDevice], node: str, now: str) -> Iterable[HeldDevice]:
    """Return devices with the names that their pools have since the node has another name: they are the same."""
    if not node or node == now:
        return holds
    return (replace(held, pool=now + held.pool[len(node) :]) if _is_of(held.pool, node) else held for held in holds)


def _is_of(pool: str, node: str) -> bool:
    """Return whether a pool is that of a node, or one of several of it, such as ``node-1/gpus``."""
    return pool == node or pool.startswith(f"{node}/")
