"""Which devices belong to which scheduler: a *territory* is what a taint of a device gives to one scheduler alone.

Two schedulers that allocate the same device at the same moment cannot see each other's write, and no rule between them
mends that afterwards. So devices may be marked: the taint ``dra.kopf.dev/scheduler=NAME:NoSchedule``, from a
DeviceTaintRule or from the driver, keeps every scheduler from them that honours device taints, and the scheduler NAME
tolerates it by itself. Only the effect NoSchedule makes a territory: NoExecute would end the pods that use the devices.

The taint of our own territory is taken off the devices before anything else sees them: it keeps nothing of ours away.
A device with the taint of another scheduler stays tainted. A device with neither is *open* to all of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from dra_api.resource import Device, DeviceTaint, DeviceToleration, ResourceSlice
from msgspec import structs

from dra_operator.allocator.basics.ids import DeviceId, PoolId

from .taints import tolerates

SCHEDULER_KEY: Final = "dra.kopf.dev/scheduler"
"""Key of the taint; its value names the scheduler."""


def territory_taint(scheduler: str) -> DeviceTaint:
    """Return the taint that gives a device to a scheduler."""
    return DeviceTaint(key=SCHEDULER_KEY, value=scheduler, effect="NoSchedule")


def scheduler_of(taint: DeviceTaint) -> str | None:
    """Return the scheduler to which the taint gives its device; None for any other taint."""
    return taint.value if taint.key == SCHEDULER_KEY and taint.effect == "NoSchedule" else None


def schedulers_of(device: Device) -> tuple[str, ...]:
    """Return the schedulers to which taints give the device: usually none or one. Two exclude each other."""
    found = (scheduler_of(taint) for taint in device.taints or ())
    return tuple(dict.fromkeys(one for one in found if one is not None))


def enters(tolerations: Iterable[DeviceToleration], scheduler: str) -> bool:
    """Return whether these tolerations open the territory of a scheduler to any other one."""
    taint = territory_taint(scheduler)
    return any(tolerates(toleration, taint) for toleration in tolerations)


class _Share(NamedTuple):
    """What one slice has of a territory."""

    pool: PoolId
    every: frozenset[str]
    own: frozenset[str]
    open_: int


class Territory:
    """The devices of all slices, as they belong to ``scheduler``, to others, or to none.

    Until ``scheduler`` is set, no device is its own.
    """

    def __init__(self) -> None:
        self.scheduler = ""
        self.gains: Counter[str] = Counter()
        """By driver: how often known devices became our own. What others decided before may be on its way."""
        self._shares: dict[str, _Share] = {}
        self._pools: defaultdict[PoolId, dict[str, _Share]] = defaultdict(dict)
        self._own = 0
        self._open: Counter[str] = Counter()
        self._published: Counter[str] = Counter()

    def put(self, slice_: ResourceSlice, original: Sequence[Device], tainted: Sequence[Device]) -> tuple[Device, ...]:
        """Note the devices of a slice, with the taints of rules; return them without the taint of our own territory.

        ``original`` are the same without the taints of rules: a device that has only these left stays that object.
        """
        before = self._shares.get(slice_.metadata.name)
        self.remove(slice_.metadata.name)
        devices, own, open_ = [], [], 0
        for plain, device in zip(original, tainted, strict=True):
            schedulers = schedulers_of(device) if device.taints else ()
            if self.scheduler and schedulers == (self.scheduler,):
                own.append(device.name)
            open_ += not schedulers
            devices.append(self._without_own(plain, device) if self.scheduler in schedulers else device)
        pool, every = PoolId.of(slice_), frozenset(device.name for device in original)
        share = _Share(pool, every, frozenset(own), open_)
        self._shares[slice_.metadata.name] = self._pools[pool][slice_.metadata.name] = share
        self._count(share, 1)
        if before is not None and (share.own - before.own) & before.every:
            self.gains[pool.driver] += 1
        return tuple(devices)

    def remove(self, name: str) -> None:
        """Forget a slice; an unknown one is ignored."""
        share = self._shares.pop(name, None)
        if share is not None:
            self._count(share, -1)
            del self._pools[share.pool][name]
            if not self._pools[share.pool]:
                del self._pools[share.pool]

    def is_own(self, device: DeviceId) -> bool:
        """Return whether the device belongs to our scheduler alone, in every slice that names it."""
        shares = self._pools.get(device.pool_id, {}).values() if self._own else ()
        naming = [share for share in shares if device.device in share.every]
        return bool(naming) and all(device.device in share.own for share in naming)

    def has_open(self, driver: str) -> bool:
        """Return whether some device of the driver belongs to no scheduler, or none is published of which to tell."""
        return self._open[driver] > 0 or not self._published[driver]

    @property
    def has_any(self) -> bool:
        """Whether there is a device of our own."""
        return self._own > 0

    @property
    def drivers(self) -> Iterable[str]:
        """Those with published devices."""
        return self._published

    def _without_own(self, plain: Device, device: Device) -> Device:
        left = tuple(taint for taint in device.taints or () if scheduler_of(taint) != self.scheduler)
        return plain if left == (plain.taints or ()) else structs.replace(device, taints=left or None)

    def _count(self, share: _Share, change: int) -> None:
        driver = share.pool.driver
        for counter, number in ((self._open, share.open_), (self._published, len(share.every))):
            counter[driver] += change * number
            if not counter[driver]:
                del counter[driver]
        self._own += change * len(share.own)
