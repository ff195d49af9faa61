"""The ``NoExecute`` taints that drivers publish, by device, kept up to date one slice at a time.

Only slices of a pool's highest generation count, wherever in the cluster they are; whether the pool is complete does
not matter (TE-01). So a slice with a new generation may change which taints of *another* slice count: ``replace``
returns the devices whose effective taints changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dra_api.resource import DeviceTaint, ResourceSlice

from dra_operator.allocator import DeviceId, PoolId

NO_EXECUTE = "NoExecute"


class TaintOfDevice(NamedTuple):
    """``place``: the index among the taints of the device."""

    place: int
    taint: DeviceTaint


_Taints = tuple[TaintOfDevice, ...]


class _Published(NamedTuple):
    """The part of one slice that counts."""

    generation: int
    devices: Mapping[str, _Taints]


class DeviceTaints:
    """Taints of devices that evict. For devices without one only the generation of their slice is kept."""

    def __init__(self) -> None:
        self._slices: dict[PoolId, dict[str, _Published]] = {}
        self._tainted: dict[PoolId, Mapping[str, _Taints]] = {}
        """The taints that count, only for pools that have some."""

    def replace(self, old: ResourceSlice | None, new: ResourceSlice | None) -> set[DeviceId]:
        """Note that a slice appeared (no ``old``), went (no ``new``) or changed.

        Return devices whose taints changed.
        """
        pools: set[PoolId] = set()
        if old is not None:
            pool = PoolId.of(old)
            del self._slices[pool][old.metadata.name]
            pools.add(pool)
        if new is not None:
            pool = PoolId.of(new)
            published = _Published(new.spec.pool.generation, _evicting(new))
            self._slices.setdefault(pool, {})[new.metadata.name] = published
            pools.add(pool)
        return {device for pool in pools for device in self._refresh(pool)}

    def of(self, device: DeviceId) -> _Taints:
        """Return the taints of a device, in the order of the slice; none if the device is not published."""
        return self._tainted.get(device.pool_id, {}).get(device.device, ())

    def __iter__(self) -> Iterator[DeviceId]:
        """Yield the devices that have taints which evict."""
        return (DeviceId(*pool, name) for pool, devices in self._tainted.items() for name in devices)

    def __bool__(self) -> bool:
        return bool(self._tainted)

    def _refresh(self, pool: PoolId) -> set[DeviceId]:
        slices = self._slices[pool]
        before = self._tainted.pop(pool, {})
        now: dict[str, _Taints] = {}
        if any(published.devices for published in slices.values()):
            newest = max(published.generation for published in slices.values())
            for _, published in sorted(slices.items()):
                if published.generation == newest:
                    now = {**published.devices, **now}  # of two devices of one name the first slice's counts
        if now:
            self._tainted[pool] = now
        if not slices:
            del self._slices[pool]
        names = before.keys() | now.keys()
        return {DeviceId(*pool, name) for name in names if before.get(name) != now.get(name)}


def _evicting(slice_: ResourceSlice) -> Mapping[str, _Taints]:
    tainted: dict[str, _Taints] = {}
    for device in slice_.spec.devices or ():
        if device.taints:
            found = (TaintOfDevice(place, taint) for place, taint in enumerate(device.taints))
            if evicting := tuple(entry for entry in found if entry.taint.effect == NO_EXECUTE):
                tainted[device.name] = evicting
    return tainted
