"""Which slice of a pool has which devices, and the writes that turn the stored slices into the wanted ones; pure.

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

A slice knows its place in the pool by the hexadecimal index in front of its name. Slices of an older
generation, without such an index, with one out of range or taken, are obsolete. The generation rises
when readers could otherwise see a mixture of old and new slices as a complete pool. A create that had no answer may
still add a slice, so what is created after it is of a newer generation.

A mixture is a pool that the driver might have published, if the publisher arranges devices (``arranged``) and none
draws from counters: each device is there as before, as wanted, or for a moment not at all, and never twice. So several
slices change without a new generation: that would write them all. A slice that takes over a device is written after
the one that had it. Spec: plugin-helper.md section 4.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from dra_api.codec import to_dict
from dra_api.gates import POOL_RULES, PoolRules
from dra_api.releases import Release
from dra_api.resource import CounterSet, Device, DeviceTaint, ResourcePool, ResourceSlice, ResourceSliceSpec
from dra_api.values import format_time
from msgspec import structs

from dra_kubeletplugin.errors import PoolInvalid
from dra_kubeletplugin.slices.model import RICH_DEVICES_PER_SLICE, Owner, Pool, Slice, is_rich, tidy

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


_INDEX_DIGITS = 5
_LARGEST_GENERATION_NUMBER = 2**63 - 1
_MOST_SLICES = 100_000  # of a pool; a slice of another client may say any number


@dataclass(frozen=True, slots=True)
class Stored:
    """A slice in the API server, raw and decoded."""

    raw: dict[str, Any]
    slice: ResourceSlice

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.slice.metadata.name


@dataclass(frozen=True, slots=True)
class Write:
    """A slice to create (``stored`` is None) or to update; ``index`` is its place in the pool."""

    index: int
    spec: ResourceSliceSpec
    stored: Stored | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Writes in their order: deletions, updates, creations."""

    generation: int
    delete: tuple[Stored, ...] = ()
    update: tuple[Write, ...] = ()
    create: tuple[Write, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Nothing is to be done."""
        return not (self.delete or self.update or self.create)


@dataclass(frozen=True, slots=True)
class Publication:
    """What the slices of a pool have in common: their driver and owner, and the node they are local to, if any."""

    driver: str
    pool: str
    owner: Owner | None
    node_name: str = ""

    def generate_name(self, index: int, count: int) -> str:
        """``<index>-<driver>-<owner>-``, to which the API server appends random characters."""
        owner = f"{self.owner.name}-" if self.owner else ""
        return f"{index:0{index_width(count)}x}-{self.driver}-{owner}"


def index_width(count: int) -> int:
    """Digits of the index in the names of a pool of ``count`` slices."""
    return max(_INDEX_DIGITS, len(f"{max(count - 1, 0):x}"))


def plan_pool(publication: Publication, pool: Pool | None, existing: Iterable[Stored], unanswered: int = 0) -> Plan:
    """The writes that turn ``existing`` into ``pool``; None means that the pool is no longer wanted.

    ``unanswered`` is the newest generation of a create of which nothing is known.
    """
    stored = sorted(existing, key=lambda item: item.name)
    newest = max((item.slice.spec.pool.generation for item in stored), default=0)
    if pool is None:
        return Plan(newest, delete=tuple(stored))
    current = _current(stored, newest, len(pool.slices))
    changed = [
        index
        for index, item in sorted(current.items())
        if not _same_spec(_spec(publication, pool, index, newest, item), item.slice.spec)
    ]
    missing = [index for index in range(len(pool.slices)) if index not in current]
    order = _one_by_one(pool, current, changed)
    generation = _generation(pool, newest, unanswered, is_mixed=bool(missing) or order is None)
    if generation > _LARGEST_GENERATION_NUMBER:
        # The API server takes no larger number, and another client has written this one. Without slices none is newer.
        first = max(pool.generation, 1)
        anew = (Write(index, _spec(publication, pool, index, first, None)) for index in range(len(pool.slices)))
        return Plan(first, delete=tuple(stored), create=tuple(anew))
    updated = sorted(current) if generation > newest or order is None else order
    kept = {item.name for item in current.values()}
    return Plan(
        generation,
        delete=tuple(item for item in stored if item.name not in kept),
        update=tuple(
            Write(index, _spec(publication, pool, index, generation, current[index]), current[index])
            for index in updated
        ),
        create=tuple(Write(index, _spec(publication, pool, index, generation, None)) for index in missing),
    )


def body(publication: Publication, pool: Pool, write: Write) -> dict[str, Any]:
    """The object to send; an update preserves all other fields of the stored object."""
    if write.stored:
        return {**write.stored.raw, "spec": to_dict(write.spec)}
    meta: dict[str, Any] = {"generateName": publication.generate_name(write.index, len(pool.slices))}
    if owner := publication.owner:
        meta["ownerReferences"] = [
            {
                "apiVersion": owner.api_version,
                "kind": owner.kind,
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
            }
        ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": meta,
        "spec": to_dict(write.spec),
    }


def same_slice(wanted: Slice, stored: Slice) -> bool:
    """Whether the stored slice has the wanted devices in the wanted order."""
    return (
        wanted.per_device_node_selection == stored.per_device_node_selection
        and wanted.skip_node_operations == stored.skip_node_operations
        and wanted.shared_counters == stored.shared_counters
        and len(wanted.devices) == len(stored.devices)
        and all(map(same_device, wanted.devices, stored.devices))
    )


def content(spec: ResourceSliceSpec) -> Slice:
    """The content of a stored slice, in the form of a wanted one."""
    return Slice(
        devices=spec.devices or (),
        shared_counters=spec.shared_counters or (),
        per_device_node_selection=bool(spec.per_device_node_selection),
        skip_node_operations=spec.skip_node_operations or (),
    )


def _current(stored: Sequence[Stored], generation: int, count: int) -> dict[int, Stored]:
    """By index, the slices that take a place in the pool."""
    current: dict[int, Stored] = {}
    for item in stored:
        index = _index(item.name, index_width(count))
        if _is_of(item, generation) and index is not None and index < count:
            current.setdefault(index, item)
    return current


def _index(name: str, width: int) -> int | None:
    prefix = name.partition("-")[0]
    if len(prefix) != width or not set(prefix) <= set("0123456789abcdef"):
        return None
    return int(prefix, 16)


def stay_in_place(pool: Pool | None, existing: Sequence[Stored]) -> Pool | None:
    """Return the pool with devices in the slices where they are, if the driver leaves that to the publisher."""
    newest = max((item.slice.spec.pool.generation for item in existing), default=0)
    stored = sorted(existing, key=lambda item: item.name)
    count = max((item.slice.spec.pool.resource_slice_count for item in stored if _is_of(item, newest)), default=0)
    if pool is None or not 0 < count <= _MOST_SLICES:
        return pool
    current = _current(stored, newest, count)
    return arranged(
        pool, [content(tidy(current[index].slice.spec)) if index in current else None for index in range(count)]
    )


def _is_of(item: Stored, generation: int) -> bool:
    return item.slice.spec.pool.generation == generation


def _one_by_one(pool: Pool, current: Mapping[int, Stored], changed: Sequence[int]) -> list[int] | None:
    """Return the order in which slices can change without a new generation, or None if readers would see a mixture."""
    if len(changed) <= 1:
        return list(changed)
    before = {index: tidy(current[index].slice.spec) for index in changed}
    counted = any(part.shared_counters for part in pool.slices)
    if pool.devices_per_slice is None or counted or not all(_same_frame(pool, i, before[i]) for i in changed):
        return None
    had = {index: {device.name for device in before[index].devices or ()} for index in changed}
    gains = {index: {device.name for device in pool.slices[index].devices} - had[index] for index in changed}
    order: list[int] = []
    left = list(changed)
    while left:
        ready = [index for index in left if not any(gains[index] & had[other] for other in left if other != index)]
        if not ready:
            return None
        order += ready
        left = [index for index in left if index not in ready]
    return order


def _same_frame(pool: Pool, index: int, stored: ResourceSliceSpec) -> bool:
    """Return whether a slice differs in its devices alone."""
    wanted = pool.slices[index]
    return (
        pool.node_selector == stored.node_selector
        and pool.all_nodes == bool(stored.all_nodes)
        and stored.pool.resource_slice_count == len(pool.slices)
        and same_slice(replace(wanted, devices=()), replace(content(stored), devices=()))
    )


def _generation(pool: Pool, newest: int, unanswered: int, *, is_mixed: bool) -> int:
    if pool.generation > max(newest, unanswered):
        return pool.generation
    return max(newest, unanswered) + 1 if is_mixed else newest


def _spec(
    publication: Publication, pool: Pool, index: int, generation: int, stored: Stored | None
) -> ResourceSliceSpec:
    wanted = pool.slices[index]
    before = {device.name: device for device in (stored.slice.spec.devices if stored else None) or ()}
    devices: tuple[Device, ...] = tuple(keep_times(device, before.get(device.name)) for device in wanted.devices)
    return ResourceSliceSpec(
        driver=publication.driver,
        pool=ResourcePool(name=publication.pool, generation=generation, resource_slice_count=len(pool.slices)),
        node_name=publication.node_name or None,
        node_selector=pool.node_selector,
        all_nodes=pool.all_nodes or None,
        per_device_node_selection=wanted.per_device_node_selection or None,
        devices=devices or None,
        shared_counters=wanted.shared_counters or None,
        skip_node_operations=wanted.skip_node_operations or None,
    )


def _same_spec(wanted: ResourceSliceSpec, stored: ResourceSliceSpec) -> bool:
    stored = tidy(stored)
    return (
        wanted.pool == stored.pool
        and wanted.node_selector == stored.node_selector
        and bool(wanted.all_nodes) == bool(stored.all_nodes)
        and same_slice(content(wanted), content(stored))
    )
