"""Plans the writes that turn the stored slices into the wanted ones; pure.

A slice knows its place in the pool by the hexadecimal index in front of its name. Slices of an older
generation, without such an index, with one out of range or taken, are obsolete. The generation rises
when readers could otherwise see a mixture of old and new slices as a complete pool. A create that had no answer may
still add a slice, so what is created after it is of a newer generation.

A mixture is a pool that the driver might have published, if the publisher arranges devices (``layout``) and none
draws from counters: each device is there as before, as wanted, or for a moment not at all, and never twice. So several
slices change without a new generation: that would write them all. A slice that takes over a device is written after
the one that had it.
Spec: plugin-helper.md section 4.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dra_api.codec import to_dict
from dra_api.resource import Device, ResourcePool, ResourceSlice, ResourceSliceSpec

from .layout import arranged, keep_times, same_device
from .model import Owner, Pool, Slice, tidy

_INDEX_DIGITS = 5
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
