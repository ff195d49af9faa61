"""Names of pools, devices and shares, sets of devices, and memories that forget.

Driver, pool and name together identify a device (scheduling.md 5.3): two drivers may use the same pool name, for
example that of the node. A set of devices is a whole number: bit i stands for the i-th device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

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
