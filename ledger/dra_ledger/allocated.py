"""Devices that claims hold, devices that came free, and the only way to take one (scheduling.md 5.2 and 5.3).

Between a decision and its arrival on the server, an allocation exists only here: it is *in flight*. The next decision
already sees its devices as used. A claim counts once: by the allocation on the API server if there is one, otherwise by
the one in flight. So the end of the write and the watch event about it may come in either order, and a device in use
never looks free.

Where a thousand pods wait, a device that comes free may help any of them, and it is gone when the first one has been
tried. The others need no attempt then: all that was in use when they were tried last is in use again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Set
from typing import Final, NamedTuple

from dra_api.core import Pod
from dra_api.resource import AllocationResult, ResourceClaim

from .basics import DeviceId, PoolId, ShareId
from .inventory import Inventory
from .usage import Usage

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


class AllocatedDevices:
    """The sum of what claims hold. ``usage`` is what an allocation attempt starts from; do not write to it.

    ``inventory`` is told which devices are in use: what they draw from counters stays drawn when it changes.
    """

    def __init__(self, inventory: Inventory, *, shares: bool = True) -> None:
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
        allocation = self._stored.get(claim.metadata.uid)
        results = allocation.results if allocation is not None else ()
        whole = [result for result in results if not result.admin_access]
        return [device for result in whole if self._held_twice(device := DeviceId.of(result), result.share_id)]

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
