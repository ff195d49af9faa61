"""What is taken: devices, shares and capacity held by allocated claims (allocator.md section 1).

``Usage`` is kept incrementally: ``add`` an allocation when a claim gets it, ``remove`` the same allocation
when the claim loses it. ``remove`` undoes ``add`` exactly, whatever happened in between, because holders are counted: a
device that two claims hold stays in use until both have given it back.

The state lies in one immutable ``PoolUsage`` per pool that writes replace, so a ``snapshot`` is a shallow
copy, and two snapshots share all pools that were not touched since.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

from dra_api.resource import AllocationResult, Device, DeviceRequestAllocationResult

from .basics import DeviceId, Journal, PoolId
from .features import Semantics

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
        """Devices whose counters are spent: allocated, shared, or with consumed capacity (section 10)."""
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
        self._revision = 0
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
        copy._journal, copy._revision = self._journal, self._revision
        return copy

    def pool(self, pool: PoolId) -> PoolUsage:
        """What is taken of one pool."""
        return self._pools.get(pool, NOTHING)

    @property
    def revision(self) -> int:
        """Number of changes so far."""
        return self._revision

    @property
    def lineage(self) -> object:
        """Revisions of usages with the same lineage can be compared."""
        return self._journal

    def touched_since(self, revision: int) -> set[PoolId] | None:
        """The pools that may differ from another revision of the lineage; None if the revision is too old."""
        return self._journal.since(min(revision, self._revision))

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
        device = DeviceId.of(result)
        if self._shares and result.share_id is not None:
            consumed = {name: amount.nanos for name, amount in (result.consumed_capacity or {}).items()}
            self._share(device, result.share_id, consumed, sign)
            return
        usage = self.pool(device.pool_id)
        self._put(device.pool_id, PoolUsage(_count(usage.exclusive, device.device, sign), usage.shares, usage.consumed))

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
        if usage:
            self._pools[pool] = usage
        else:
            self._pools.pop(pool, None)
        if self._journal.revision != self._revision:
            self._journal, self._revision = Journal(), 0
        self._journal.add(pool)
        self._revision += 1


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
