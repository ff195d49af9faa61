"""The form in which an API server takes counters: in slices of their own, or beside the devices that draw from them.

Which of the two depends on the release (``dra_api.releases.pool_rules``). Drivers describe their pools as they like,
and the publisher brings them into the form of its API server. Until 1.34 all devices that draw from a counter set stand
in its slice. So devices and sets that hang together, directly or through others, must fit into one slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from dra_api.releases.pool_rules import POOL_RULES, PoolRules
from dra_api.releases.release import Release
from dra_api.resource import CounterSet, Device

from dra_kubeletplugin.errors import PoolInvalid

from .model import Pool, Slice, is_rich


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
