"""What claims hold: devices, shares and capacity; and the only way to take a device (allocator.md section 1).

``Usage`` is kept incrementally: ``add`` an allocation when a claim gets it, ``remove`` the same allocation
when the claim loses it. ``remove`` undoes ``add`` exactly, whatever happened in between, because holders are counted: a
device that two claims hold stays in use until both have given it back.

The state lies in one immutable ``PoolUsage`` per pool that writes replace, so a ``snapshot`` is a shallow
copy, and two snapshots share all pools that were not touched since.

Between a decision and its arrival on the server, an allocation exists only in ``AllocatedDevices``: it is *in flight*.
The next decision already sees its devices as used. A claim counts once: by the allocation on the API server if there is
one, otherwise by the one in flight. So the end of the write and the watch event about it may come in either order, and
a device in use never looks free (scheduling.md 5.2 and 5.3).

Where a thousand pods wait, a device that comes free may help any of them, and it is gone when the first one has been
tried. The others need no attempt then: all that was in use when they were tried last is in use again
(``FreedDevices``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Final, NamedTuple, Protocol, TypeVar

from dra_api.core import Pod
from dra_api.resource import AllocationResult, Device, DeviceRequestAllocationResult, ResourceClaim

from dra_ledger.basics import DeviceId, Journal, PoolId, ShareId
from dra_ledger.features import Semantics

Key = TypeVar("Key")
Amounts = Mapping[str, int]
"""Capacity name -> billionths, as in ``Quantity.nanos``."""


class PoolUsage(NamedTuple):
    """The allocated part of one pool. Immutable; equal values mean equal use."""

    exclusive: Mapping[str, int]
    """Device name -> number of holders, more than one only if a scheduler broke the rules."""
    shares: Mapping[str, Mapping[str, int]]
    """Device name -> share id -> number of holders."""
    consumed: Mapping[str, Amounts]
    """Device name -> sum of the consumed capacity of all shares."""

    @property
    def charged(self) -> set[str]:
        """Devices whose counters are spent: allocated, shared, or with consumed capacity (allocator.md section 10)."""
        return {*self.exclusive, *self.shares, *self.consumed}

    def holds(self, device: Device, semantics: Semantics) -> bool:
        """Return whether nobody else gets the device: held whole, or held in shares though no longer shareable."""
        name = device.name
        if name in self.exclusive:
            return True
        return name in self.shares and not device.allow_multiple_allocations and semantics.shares_stay_held

    def __bool__(self) -> bool:
        return bool(self.exclusive or self.shares or self.consumed)


NOTHING: Final = PoolUsage({}, {}, {})


class Usage:
    """The allocated state that an attempt starts from.

    ``shares``: the gate DRAConsumableCapacity; without it a result with a share id counts as exclusive.
    ``revision`` grows with each change; ``touched_since`` tells which pools differ from another revision of the same
    ``lineage``, so that an index over nodes need not look at all pools. A snapshot shares the lineage of its original
    until both have changed.
    """

    def __init__(self, allocations: Iterable[AllocationResult] = (), *, shares: bool = True) -> None:
        self._shares = shares
        self._pools: dict[PoolId, PoolUsage] = {}
        self._journal: Journal[PoolId] = Journal()
        self.revision = 0
        """Number of changes so far."""
        for allocation in allocations:
            self.add(allocation)

    def add(self, allocation: AllocationResult) -> None:
        """Takes everything that the allocation names; results with admin access take nothing."""
        for result in allocation.results:
            self._apply(result, 1)

    def load(self, allocations: Iterable[AllocationResult]) -> None:
        """As ``add`` for each, with one ``PoolUsage`` per pool."""
        whole: dict[PoolId, dict[str, int]] = {}
        for allocation in allocations:
            for result in allocation.results:
                if result.admin_access or (self._shares and result.share_id is not None):
                    self._apply(result, 1)
                    continue
                held = whole.setdefault(PoolId(result.driver, result.pool), {})
                held[result.device] = held.get(result.device, 0) + 1
        for pool, held in whole.items():
            usage = self.pool(pool)
            for device, number in usage.exclusive.items():
                held[device] = held.get(device, 0) + number
            self._put(pool, PoolUsage(held, usage.shares, usage.consumed))

    def remove(self, allocation: AllocationResult) -> None:
        """Gives back what ``add`` took for the same allocation."""
        for result in allocation.results:
            self._apply(result, -1)

    def snapshot(self) -> Usage:
        """An independent copy."""
        copy = Usage(shares=self._shares)
        copy._pools = dict(self._pools)
        copy._journal, copy.revision = self._journal, self.revision
        return copy

    def pool(self, pool: PoolId) -> PoolUsage:
        """What is taken of one pool."""
        return self._pools.get(pool, NOTHING)

    def of(self, pools: Iterable[PoolId]) -> list[PoolUsage]:
        """What is taken of each of these pools."""
        known = self._pools.get
        return [known(pool, NOTHING) for pool in pools]

    @property
    def lineage(self) -> object:
        """Revisions of usages with the same lineage can be compared."""
        return self._journal

    def touched_since(self, revision: int) -> set[PoolId] | None:
        """The pools that may differ from another revision of the lineage; None if the revision is too old."""
        return self._journal.since(min(revision, self.revision))

    def devices(self) -> Iterator[DeviceId]:
        """All exclusively allocated devices."""
        for (driver, pool), usage in self._pools.items():
            for device in usage.exclusive:
                yield DeviceId(driver, pool, device)

    def is_free(self, device: DeviceId) -> bool:
        """No claim holds the device exclusively."""
        return device.device not in self.pool(device.pool_id).exclusive

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Usage) and self._pools == other._pools

    __hash__ = None  # type: ignore[assignment]  # mutable

    def take_device(self, device: DeviceId) -> None:
        """Marks one device as exclusively held, for states that do not come from claims."""
        usage = self.pool(device.pool_id)
        self._put(device.pool_id, PoolUsage(_count(usage.exclusive, device.device, 1), usage.shares, usage.consumed))

    def take_share(self, device: DeviceId, share: str | None, consumed: Amounts) -> None:
        """Records one share and what it consumes, for states that do not come from claims."""
        self._share(device, share, consumed, 1)

    def _apply(self, result: DeviceRequestAllocationResult, sign: int) -> None:
        if result.admin_access:
            return
        if self._shares and result.share_id is not None:
            consumed = {name: amount.nanos for name, amount in (result.consumed_capacity or {}).items()}
            self._share(DeviceId.of(result), result.share_id, consumed, sign)
            return
        pool = PoolId(result.driver, result.pool)
        usage = self._pools.get(pool, NOTHING)
        self._put(pool, PoolUsage(_count(usage.exclusive, result.device, sign), usage.shares, usage.consumed))

    def _share(self, device: DeviceId, share: str | None, consumed: Amounts, sign: int) -> None:
        usage = self.pool(device.pool_id)
        name = device.device
        shares, amounts = usage.shares, usage.consumed
        if share is not None:
            shares = _replace(shares, name, _count(shares.get(name, {}), share, sign))
        if consumed:
            total = amounts.get(name, {})
            for capacity, nanos in consumed.items():
                total = _count(total, capacity, sign * nanos)
            amounts = _replace(amounts, name, total)
        self._put(device.pool_id, PoolUsage(usage.exclusive, shares, amounts))

    def _put(self, pool: PoolId, usage: PoolUsage) -> None:
        if usage.exclusive or usage.shares or usage.consumed:
            self._pools[pool] = usage
        else:
            self._pools.pop(pool, None)
        if self._journal.revision != self.revision:
            self._journal, self.revision = Journal(), 0
        self._journal.add(pool)
        self.revision += 1


def _count(counts: Mapping[Key, int], key: Key, change: int) -> dict[Key, int]:
    """The counts after one change, without zeros, so that taking and giving back cancel."""
    changed = dict(counts)
    changed[key] = changed.get(key, 0) + change
    if not changed[key]:
        del changed[key]
    return changed


Inner = TypeVar("Inner", bound=Mapping[str, int])


def _replace(outer: Mapping[str, Inner], key: str, inner: Inner) -> dict[str, Inner]:
    changed = dict(outer)
    if inner:
        changed[key] = inner
    else:
        changed.pop(key, None)
    return changed


KEPT_FREED_DEVICES: Final = 10_000
"""The one that came free first is forgotten first; pods that were tried before count as helped then."""


class FreedDevices:
    """A device counts as free until a claim has all of it: whether a share was taken back in full is not looked at."""

    def __init__(self) -> None:
        self._free: OrderedDict[DeviceId, int] = OrderedDict()
        self._forgotten = 0
        self.number = 0
        """How often a device, or a share of one, came free."""

    def freed(self, allocation: AllocationResult) -> None:
        """A claim lost its devices, or a pod those that were kept for it; not those that it only looked at."""
        for result in allocation.results:
            if result.admin_access:
                continue
            self.number += 1
            device = DeviceId.of(result)
            self._free.pop(device, None)
            self._free[device] = self.number
        while len(self._free) > KEPT_FREED_DEVICES:
            _, self._forgotten = self._free.popitem(last=False)

    def taken(self, allocation: AllocationResult) -> None:
        """A claim got these devices."""
        for result in allocation.results:
            if result.share_id is None and not result.admin_access:
                self._free.pop(DeviceId.of(result), None)

    def any_since(self, number: int) -> bool:
        """Whether a device is free that came free after this number of times."""
        latest = next(reversed(self._free.values()), 0)
        return max(latest, self._forgotten) > number


class DeviceTaken(Exception):
    """A plan would take devices that are not free, or allocate a claim twice: a planning bug."""


class AssumedAllocation(NamedTuple):
    """An allocation on its way to the server, for the pod that needs it."""

    claim: ResourceClaim
    allocation: AllocationResult
    pod: Pod


class Publishing(Protocol):
    """Who is told which devices are in use: what they draw from counters stays drawn when it changes."""

    in_use: Callable[[PoolId], Set[str]]

    def given_back(self, allocation: AllocationResult) -> None:
        """Note that a claim holds this no more."""


class AllocatedDevices:
    """The sum of what claims hold. ``usage`` is what an allocation attempt starts from; do not write to it."""

    def __init__(self, inventory: Publishing, *, shares: bool = True) -> None:
        self.usage = Usage(shares=shares)
        self._inventory = inventory
        inventory.in_use = self._in_use
        self.freed_devices = FreedDevices()
        self._shares = shares
        self._counted: dict[str, AllocationResult] = {}
        self._stored: dict[str, AllocationResult] = {}
        self._assumed: dict[str, AssumedAllocation] = {}

    def assume(self, claim: ResourceClaim, allocation: AllocationResult, pod: Pod) -> None:
        """Take the devices for the claim, or take nothing and raise DeviceTaken."""
        uid = claim.metadata.uid
        if uid in self._assumed or uid in self._stored:
            raise DeviceTaken(f"claim {claim.key} has an allocation already")
        self._check_free(claim, allocation)
        self._assumed[uid] = AssumedAllocation(claim, allocation, pod)
        self._count(uid)

    def confirm(self, uid: str) -> AssumedAllocation | None:
        """The write of an in-flight allocation is over, with success or not: from now on the stored state counts."""
        entry = self._assumed.pop(uid, None)
        self._count(uid)
        return entry

    def follow(self, uid: str, claim: ResourceClaim) -> None:
        """The claim of an in-flight allocation, which did not exist yet, was created as ``claim`` with the same
        devices."""
        entry = self._assumed.pop(uid)
        self._assumed[claim.metadata.uid] = AssumedAllocation(claim, entry.allocation, entry.pod)
        self._count(uid)
        self._count(claim.metadata.uid)

    def stored(self, uid: str, allocation: AllocationResult | None) -> None:
        """The API server shows this allocation for the claim, or none."""
        if allocation is not None:
            self._stored[uid] = allocation
        else:
            self._stored.pop(uid, None)
        self._count(uid)

    def load(self, claims: Iterable[tuple[str, AllocationResult]]) -> None:
        """As ``stored`` for each UID and allocation."""
        fresh: list[AllocationResult] = []
        for uid, allocation in claims:
            if uid in self._counted or uid in self._assumed:
                self.stored(uid, allocation)
                continue
            self._stored[uid] = self._counted[uid] = allocation
            fresh.append(allocation)
        self.usage.load(fresh)

    def assumed(self, uid: str) -> AssumedAllocation | None:
        """The in-flight allocation of the claim, if there is one."""
        return self._assumed.get(uid)

    def flying(self) -> Iterator[tuple[str, AllocationResult]]:
        """Yield claim UID and allocation of each write that is under way and that the server does not show yet."""
        return ((uid, it.allocation) for uid, it in self._assumed.items() if uid not in self._stored)

    def assumed_for(self, pod: str) -> list[AssumedAllocation]:
        """What is in flight for pods of this name: a deleted pod may have left writes to its successor."""
        return [entry for entry in self._assumed.values() if entry.pod.key == pod]

    def assumed_with(self, devices: Iterable[DeviceId]) -> Iterator[AssumedAllocation]:
        """Yield the in-flight allocations that have one of the devices."""
        wanted = set(devices)
        for entry in self._assumed.values():
            if any(not it.admin_access and DeviceId.of(it) in wanted for it in entry.allocation.results):
                yield entry

    def clashes(self, claim: ResourceClaim) -> list[DeviceId]:
        """Devices of the stored allocation that another claim holds as well, which only another writer can cause."""
        allocation, found = self._stored.get(claim.metadata.uid), list[DeviceId]()
        for result in allocation.results if allocation is not None else ():
            device = DeviceId.of(result)
            if not result.admin_access and self._held_twice(device, result.share_id):
                found.append(device)
        return found

    def holds(self, uid: str) -> bool:
        """Whether the claim has devices, on the server or on the way there."""
        return uid in self._counted

    def holders(self) -> Iterator[tuple[str, AllocationResult]]:
        """Claim UID and allocation of everything that counts."""
        return iter(self._counted.items())

    def __len__(self) -> int:
        return len(self._assumed)

    def _count(self, uid: str) -> None:
        flying = self._assumed.get(uid)
        now = self._stored.get(uid) or (flying.allocation if flying else None)
        before = self._counted.get(uid)
        if now is before or now == before:
            return
        # The server's answer adds a time. The same devices are in use, so nothing is to be worked out anew.
        if now is not None and before is not None and now.results == before.results:
            self._counted[uid] = now
            return
        if before is not None:
            self.usage.remove(before)
            self.freed_devices.freed(before)
            del self._counted[uid]
        if now is not None:
            self.usage.add(now)
            self.freed_devices.taken(now)
            self._counted[uid] = now
        if before is not None:
            self._inventory.given_back(before)

    def _in_use(self, pool: PoolId) -> Set[str]:
        return self.usage.pool(pool).charged

    def _held_twice(self, device: DeviceId, share: str | None) -> bool:
        pool = self.usage.pool(device.pool_id)
        exclusive, shares = pool.exclusive.get(device.device, 0), pool.shares.get(device.device, {})
        if share is None or not self._shares:
            return exclusive > 1 or bool(shares)
        return exclusive > 0 or shares.get(share, 0) > 1

    def _check_free(self, claim: ResourceClaim, allocation: AllocationResult) -> None:
        own: set[DeviceId | ShareId] = set()
        for result in allocation.results:
            if result.admin_access:
                continue
            device = DeviceId.of(result)
            shares = self.usage.pool(device.pool_id).shares.get(device.device, {})
            part = device if result.share_id is None else ShareId(device, result.share_id)
            clashes = bool(shares) if result.share_id is None else result.share_id in shares
            if clashes or part in own or not self.usage.is_free(device):
                raise DeviceTaken(f"device {part} was to be given to claim {claim.key} but is in use")
            own.add(part)
