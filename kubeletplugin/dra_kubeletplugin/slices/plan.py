"""Plans the writes that turn the stored slices into the wanted ones; pure.

A slice knows its place in the pool by the hexadecimal index in front of its name. Slices of an older
generation, without such an index, with one out of range or taken, are obsolete. The generation rises
when readers could otherwise see a mixture of old and new slices as a complete pool. A create that had no answer may
still add a slice, so what is created after it is of a newer generation.
Spec: plugin-helper.md section 4.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dra_api.codec import to_dict
from dra_api.resource import Device, ResourcePool, ResourceSlice, ResourceSliceSpec

from .model import Owner, Pool, Slice, tidy
from .taints import keep_times, same_device

_INDEX_DIGITS = 5


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
    changed = {
        index
        for index, item in current.items()
        if not _same_spec(_spec(publication, pool, index, newest, item), item.slice.spec)
    }
    missing = [index for index in range(len(pool.slices)) if index not in current]
    generation = _generation(pool, newest, unanswered, missing=len(missing), changed=len(changed))
    updated = sorted(current) if generation > newest else sorted(changed)
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
        if item.slice.spec.pool.generation == generation and index is not None and index < count:
            current.setdefault(index, item)
    return current


def _index(name: str, width: int) -> int | None:
    prefix = name.partition("-")[0]
    if len(prefix) != width or not set(prefix) <= set("0123456789abcdef"):
        return None
    return int(prefix, 16)


def _generation(pool: Pool, newest: int, unanswered: int, *, missing: int, changed: int) -> int:
    if pool.generation > max(newest, unanswered):
        return pool.generation
    return newest if not missing and changed <= 1 else max(newest, unanswered) + 1


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
