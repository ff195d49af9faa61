"""Names of pools, devices and shares, sets of devices, and memories that forget.

Driver, pool and name together identify a device (scheduling.md 5.3): two drivers may use the same pool name, for
example that of the node. A set of devices is a whole number: bit i stands for the i-th device.

``KeptVerdicts`` decides which selectors' verdicts slices keep. They belong to the tenant (the namespace) whose claim
asked first. Verdicts of classes have room of their own. When there are too many, the tenant with the most gives up the
one that it has used least recently. So no tenant fills the memory or pushes out what another's selectors found.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from dra_api.resource import DeviceRequestAllocationResult, ResourceSlice


def each(bits: int) -> Iterator[int]:
    """The numbers of the devices in a set, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


class PoolId(NamedTuple):
    """One driver's pool; prints as ``driver/pool`` and sorts in the order in which pools are tried."""

    driver: str
    pool: str

    @classmethod
    def of(cls, slice_: ResourceSlice) -> PoolId:
        """The pool that a slice is part of."""
        return cls(slice_.spec.driver, slice_.spec.pool.name)

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}"


class DeviceId(NamedTuple):
    """One device; prints as ``driver/pool/device``."""

    driver: str
    pool: str
    device: str

    @classmethod
    def of(cls, result: DeviceRequestAllocationResult) -> DeviceId:
        """The device that a claim was given."""
        return cls(result.driver, result.pool, result.device)

    @property
    def pool_id(self) -> PoolId:
        """The pool that publishes the device."""
        return PoolId(self.driver, self.pool)

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


class ShareId(NamedTuple):
    """One share of a device that allows multiple allocations; ``share`` is a UUID."""

    device: DeviceId
    share: str

    def __str__(self) -> str:
        return f"{self.device}/{self.share}"


Key = TypeVar("Key")


class Journal(Generic[Key]):
    """Remembers the latest changes; older ones are forgotten, and ``since`` then says so."""

    _LIMIT = 20_000

    def __init__(self) -> None:
        self._entries: list[Key] = []
        self._forgotten = 0
        self.revision = 0
        """Number of changes so far."""

    def add(self, key: Key) -> None:
        """A key changed."""
        self._entries.append(key)
        self.revision += 1
        if len(self._entries) > self._LIMIT:
            dropped = self._LIMIT // 2
            del self._entries[:dropped]
            self._forgotten += dropped

    def since(self, revision: int) -> set[Key] | None:
        """The keys changed after a revision; None if the revision is too old."""
        if revision < self._forgotten:
            return None
        return set(self._entries[revision - self._forgotten :])


Value = TypeVar("Value")


LONG_CHARACTERS: Final = 2048
"""Selectors of more characters are not kept by a node or pool: tenants write them, and there are many of both."""


def are_short(expressions: Collection[str]) -> bool:
    """Return whether selectors are short enough to be the key of a memory that each node or pool has."""
    return sum(map(len, expressions)) <= LONG_CHARACTERS


class Memo(Generic[Key, Value]):
    """At most ``limit`` entries, of keys that ``keeps`` accepts."""

    __slots__ = ("_entries", "_keeps", "_limit")

    def __init__(self, limit: int = 64, keeps: Callable[[Key], bool] | None = None) -> None:
        self._entries: dict[Key, Value] = {}
        self._limit, self._keeps = limit, keeps

    def get(self, key: Key) -> Value | None:
        """The value of the key, if it is still there."""
        return self._entries.get(key)

    def put(self, key: Key, value: Value) -> Value:
        """Keeps a value, and returns it."""
        if self._keeps is not None and not self._keeps(key):
            return value
        if len(self._entries) >= self._limit:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = value
        return value


Expressions = tuple[str, ...]
"""The selectors of a request."""
KEPT_VERDICT_PAIRS: Final = 100_000
"""Pairs of a slice and the selectors of a request; some 300 bytes each."""
CLASSES: Final = ""
"""In the place of a tenant, for the selectors of classes alone."""
CLASS_PAIRS_FACTOR: Final = 5
"""How many times as many pairs they may have as all tenants together."""


class VerdictHolder(Protocol):
    """What a slice holds: it takes the verdicts along when it goes."""

    def drop(self, expressions: Expressions) -> None:
        """Forget them."""


class _Places:
    """Where the verdicts of some selectors are held."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.holders: list[Callable[[], VerdictHolder | None]] = []
        self._checked = 16

    def add(self, holder: VerdictHolder) -> int:
        """Note one more. Returns by how many there are more: slices that went are taken out now and then."""
        before = len(self.holders)
        if before >= 2 * self._checked:
            self.holders = [place for place in self.holders if place() is not None]
            self._checked = max(16, len(self.holders))
        self.holders.append(weakref.ref(holder))
        return len(self.holders) - before


class KeptVerdicts:
    """``limit``: how many pairs of a slice and selectors are kept."""

    def __init__(self, limit: int = KEPT_VERDICT_PAIRS) -> None:
        self._limit = limit
        self._places: dict[Expressions, _Places] = {}
        self._by_tenant: dict[str, dict[Expressions, None]] = {}
        self._held: dict[str, int] = {}
        self.total = 0

    def used_by(self, tenant: str, expressions: Expressions) -> None:
        """A claim of the tenant asks for these selectors."""
        places = self._places.get(expressions)
        if places is None:
            places = self._places[expressions] = _Places(tenant)
        mine = self._by_tenant.setdefault(places.tenant, {})
        mine.pop(expressions, None)
        mine[expressions] = None

    def tenant_of(self, expressions: Expressions) -> str:
        """Whose selectors they are."""
        places = self._places.get(expressions)
        return places.tenant if places is not None else CLASSES

    def added(self, expressions: Expressions, holder: VerdictHolder) -> None:
        """A slice holds their verdicts from now on."""
        if expressions not in self._places:
            self.used_by(CLASSES, expressions)
        places = self._places[expressions]
        more = places.add(holder)
        self._held[places.tenant] = self._held.get(places.tenant, 0) + more
        self.total += more
        while self._held.get(CLASSES, 0) > self._limit * CLASS_PAIRS_FACTOR:
            self._drop_of(CLASSES, but=expressions)
        while self.total - self._held.get(CLASSES, 0) > self._limit:
            tenants = self._held.keys() - {CLASSES}
            self._drop_of(max(sorted(tenants), key=self._held.__getitem__), but=expressions)

    def _drop_of(self, tenant: str, but: Expressions) -> None:
        """The selectors that the tenant has not used for longest; of the last ones, the older half of the slices."""
        mine = self._by_tenant[tenant]
        oldest = next(iter(mine))
        places = self._places[oldest]
        gone = places.holders if oldest != but else places.holders[: (len(places.holders) + 1) // 2]
        for place in gone:
            if (holder := place()) is not None:
                holder.drop(oldest)
        self._held[tenant] -= len(gone)
        self.total -= len(gone)
        if oldest != but:
            del mine[oldest], self._places[oldest]
        else:
            places.holders = places.holders[len(gone) :]
        if not mine:
            del self._by_tenant[tenant], self._held[tenant]
