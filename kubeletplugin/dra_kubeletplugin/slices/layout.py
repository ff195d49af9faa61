"""Which slice of a pool has which devices, in the form that the API server takes, and when two devices count as equal.

A change of one device writes all devices of its slice, and a pool of another number of slices is written as a whole,
since each slice says how many there are. So devices stay in the slice where they are, when their place in the
driver's list changes: a device that is gone leaves a gap, and a new one fills a gap. A slice that has a device with
taints, counters or lists holds 64 devices, others 128: a device that is tainted in a larger slice moves to one that has
room. The number of slices changes only when there is no room, or when half of them would do. The driver's order counts
within a slice, and for a pool that has no slices yet.

Counters stand in slices of their own, or beside the devices that draw from them; the release decides
(``POOL_RULES``). Drivers describe their pools as they like. Until 1.34 all devices that draw from a
counter set stand in its slice, so devices and sets that hang together, directly or through others, must fit into one.

A taint published without a time gets the time of the write from the API server. Publishing it again must keep that
time, and must not look like a change. Spec: plugin-helper.md 4.1, 4.4 (steps 5 and 8).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from dra_api.releases import POOL_RULES, PoolRules, Release
from dra_api.resource import CounterSet, Device, DeviceTaint
from dra_api.values import format_time
from msgspec import structs

from dra_kubeletplugin.errors import PoolInvalid
from dra_kubeletplugin.slices.model import RICH_DEVICES_PER_SLICE, Pool, Slice, is_rich

_TOLERANCE = timedelta(seconds=1)


def round_times(device: Device) -> Device:
    """The device with the times of its taints rounded to seconds. Raises ValueError for a malformed time."""
    return _with_taints(device, tuple(_rounded(taint) for taint in device.taints or ()))


def keep_times(wanted: Device, stored: Device | None) -> Device:
    """``wanted`` with the stored times of those taints that are the same and have no time of their own."""
    times = {_identity(taint): taint.time_added for taint in (stored.taints if stored else None) or ()}
    return _with_taints(
        wanted,
        tuple(
            structs.replace(taint, time_added=times.get(_identity(taint))) if taint.time_added is None else taint
            for taint in wanted.taints or ()
        ),
    )


def same_device(wanted: Device, stored: Device) -> bool:
    """Whether the stored device is the wanted one; a missing time equals any, others may differ by a second."""
    times = zip(wanted.taints or (), stored.taints or (), strict=False)
    return _without_times(wanted) == _without_times(stored) and all(_same_time(a, b) for a, b in times)


def _rounded(taint: DeviceTaint) -> DeviceTaint:
    if taint.time_added is None:
        return taint
    exact = _time(taint.time_added)
    full = exact.replace(microsecond=0) + timedelta(seconds=exact.microsecond >= 500_000)
    return structs.replace(taint, time_added=format_time(full))


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone: write it as in 2026-01-31T12:00:00Z")
    return moment.astimezone(UTC)


def _same_time(wanted: DeviceTaint, stored: DeviceTaint) -> bool:
    if wanted.time_added is None or wanted.time_added == stored.time_added:
        return True
    if stored.time_added is None:
        return False
    return abs(_time(wanted.time_added) - _time(stored.time_added)) < _TOLERANCE


def _identity(taint: DeviceTaint) -> tuple[str, str, str]:
    return taint.key, taint.value, taint.effect


def _with_taints(device: Device, taints: tuple[DeviceTaint, ...]) -> Device:
    return structs.replace(device, taints=taints) if taints else device


def _without_times(device: Device) -> Device:
    return _with_taints(device, tuple(structs.replace(taint, time_added=None) for taint in device.taints or ()))


_EMPTIER_FACTOR = 2
"""Up to this multiple of the needed slices may stay. With fewer a pool would grow and shrink in turn."""


def arranged(pool: Pool, before: Sequence[Slice | None]) -> Pool:
    """Return the pool with its devices in the slices where they are; ``before`` has those by their place.

    A pool whose slices are the driver's own choice (``devices_per_slice`` is None) stays as it is.
    """
    fixed = [part for part in pool.slices if part.shared_counters]
    if pool.devices_per_slice is None or not _is_alike(fixed, before):
        return pool
    devices = [device for part in pool.slices for device in part.devices]
    place = {device.name: index for index, device in enumerate(devices)}
    slots = [_Slot(pool.devices_per_slice, part) for part in before[len(fixed) :]]
    homes = {device.name: slot for slot in slots for device in (slot.before.devices if slot.before else ())}
    homeless: list[Device] = []
    for device in devices:
        (homes[device.name].devices if device.name in homes else homeless).append(device)
    for slot in slots:
        homeless += slot.overflow()
    _house(sorted(homeless, key=lambda device: place[device.name]), slots, pool.devices_per_slice)
    while slots and slots[-1].before is None and not slots[-1].devices:
        slots.pop()  # another client has changed the number of slices
    fewest = len(pool.slices) - len(fixed)
    if len(slots) > _EMPTIER_FACTOR * fewest or (len(slots) > len(before) - len(fixed) and len(slots) >= fewest):
        return pool
    template = next(part for part in pool.slices if not part.shared_counters)
    for slot in slots:
        slot.devices.sort(key=lambda device: place[device.name])
    return replace(pool, slices=(*fixed, *(replace(template, devices=tuple(slot.devices)) for slot in slots)))


def _is_alike(fixed: Sequence[Slice], before: Sequence[Slice | None]) -> bool:
    """Return whether the slices that are there have the counters in front, in as many slices, and devices behind."""
    if not any(before) or len(before) <= len(fixed) or any(part.devices for part in fixed):
        return False
    return all(
        bool(part.shared_counters) == (index < len(fixed)) for index, part in enumerate(before) if part is not None
    )


@dataclass(eq=False)
class _Slot:
    """A slice of at most ``most`` devices; ``before`` is None if it has to be made."""

    most: int
    before: Slice | None = None
    devices: list[Device] = field(default_factory=list)
    is_written: bool = True
    """Whether it is written anyway, so that another device in it costs nothing."""

    @property
    def is_rich(self) -> bool:
        """Whether a device in it has what makes slices small."""
        return any(map(is_rich, self.devices))

    def overflow(self) -> list[Device]:
        """Take out as few devices as possible, until the rest is a slice that the API takes."""
        kept = self.before.devices if self.before else ()
        self.is_written = len(self.devices) != len(kept) or not all(map(same_device, self.devices, kept))
        rich = [device for device in self.devices if is_rich(device)]
        plain = [device for device in self.devices if not is_rich(device)]
        small = min(self.most, RICH_DEVICES_PER_SLICE)
        if not rich or len(self.devices) <= small:
            out = self.devices[self.most :]
        elif len(plain) <= self.most and len(rich) <= len(self.devices) - small:
            out = rich
        else:
            out = [*plain, *rich][: len(self.devices) - small]
        gone = {device.name for device in out}
        self.devices = [device for device in self.devices if device.name not in gone]
        return out

    def room(self, rich: bool) -> int:
        """Return how many devices more it takes."""
        most = min(self.most, RICH_DEVICES_PER_SLICE) if rich or self.is_rich else self.most
        return most - len(self.devices)


def _house(homeless: Iterable[Device], slots: list[_Slot], most: int) -> None:
    """Put devices into slots with room, those first that are written anyway, or else into new ones."""
    kinds: dict[bool, list[Device]] = {True: [], False: []}
    for device in homeless:
        kinds[is_rich(device)].append(device)
    for rich, devices in kinds.items():
        while devices:
            rooms = {slot: slot.room(rich) for slot in slots}
            if not any(room > 0 for room in rooms.values()):
                slots.append(_Slot(most))
                rooms[slots[-1]] = slots[-1].room(rich)
            # Small slices for what makes them small, and the largest gap, so that few slices are written.
            best = max(slots, key=lambda it: (rooms[it] > 0, it.is_written, it.is_rich == rich, rooms[it]))
            best.is_written = True
            count = max(1, best.room(rich))
            best.devices += devices[:count]
            del devices[:count]


def in_form_of(name: str, pool: Pool, release: Release) -> Pool:
    """Return the pool as an API server of a release takes it; a pool without counters stays as it is.

    Raises PoolInvalid if the devices that draw from the same counters do not fit into one slice.
    """
    rules = POOL_RULES[release]
    if not any(part.shared_counters for part in pool.slices):
        return pool
    if rules.counters_beside_devices:
        return _beside(name, pool, rules)
    return _apart(pool, rules) if any(part.shared_counters and part.devices for part in pool.slices) else pool


def _apart(pool: Pool, rules: PoolRules) -> Pool:
    """Put counters into slices in front of those with devices."""
    most = rules.counter_sets or 1
    sets = [each for part in pool.slices for each in part.shared_counters]
    frame = replace(pool.slices[0], devices=(), shared_counters=())
    counters = [replace(frame, shared_counters=tuple(sets[at : at + most])) for at in range(0, len(sets), most)]
    devices: list[Slice] = []
    for part in pool.slices:
        limit = rules.advanced_devices if any(map(is_rich, part.devices)) else rules.devices
        parts = (part.devices[at : at + limit] for at in range(0, len(part.devices), limit))
        devices += [replace(part, devices=each, shared_counters=()) for each in parts]
    return replace(pool, slices=(*counters, *devices))


@dataclass
class _Group:
    """Counter sets, and the devices that draw from them."""

    sets: list[CounterSet] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)

    def fits(self, other: _Group, rules: PoolRules) -> bool:
        """Return whether both together are a slice that the API server takes."""
        devices, sets = [*self.devices, *other.devices], [*self.sets, *other.sets]
        most = rules.advanced_devices if any(map(is_rich, devices)) else rules.devices
        counters = sum(len(each.counters or {}) for each in sets)
        drawn = sum(len(each.counters or {}) for device in devices for each in device.consumes_counters or ())
        return (
            len(devices) <= most
            and len(sets) <= (rules.counter_sets or len(sets))
            and counters <= (rules.counters or counters)
            and drawn <= (rules.drawn_counters or drawn)
        )


def _beside(name: str, pool: Pool, rules: PoolRules) -> Pool:
    """Put each counter set into the slice with its devices, in the order of the devices."""
    slices: list[_Group] = []
    for group in _groups(pool.slices):
        if not _Group().fits(group, rules):
            first, last = group.devices[0].name, group.devices[-1].name
            raise PoolInvalid(
                f'pool "{name}": the devices from "{first}" to "{last}" draw from the same counters, and do not fit '
                f"into one slice, as API servers before Kubernetes {Release.V1_35} want it: such a slice has at most "
                f"{rules.devices} devices, {rules.counters} counters, and {rules.drawn_counters} counters that devices "
                "draw from"
            )
        if not slices or not slices[-1].fits(group, rules):
            slices.append(_Group())
        slices[-1].sets += group.sets
        slices[-1].devices += group.devices
    frame = replace(pool.slices[0], devices=(), shared_counters=())
    parts = (replace(frame, devices=tuple(it.devices), shared_counters=tuple(it.sets)) for it in slices)
    return replace(pool, slices=tuple(parts), devices_per_slice=None)  # devices cannot stay without their counters


def _groups(slices: Iterable[Slice]) -> Iterator[_Group]:
    """Yield devices and sets that hang together, in the order of their first devices; sets without devices last."""
    slices = list(slices)
    sets = {each.name: each for part in slices for each in part.shared_counters}
    group_of = {name: _Group([each]) for name, each in sets.items()}
    order: dict[int, _Group] = {}
    for device in (device for part in slices for device in part.devices):
        drawn = [group_of[each.counter_set] for each in device.consumes_counters or () if each.counter_set in group_of]
        group = drawn[0] if drawn else _Group()
        for other in drawn[1:]:
            if other is not group:
                group.sets += other.sets
                group.devices += other.devices
                order.pop(id(other), None)
                for each in other.sets:
                    group_of[each.name] = group
        group.devices.append(device)
        order.setdefault(id(group), group)
    yield from order.values()
    yield from (group for group in {id(each): each for each in group_of.values()}.values() if not group.devices)
