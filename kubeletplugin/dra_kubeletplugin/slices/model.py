"""Pools, slices and devices as a driver describes them.

Devices from plain Python values.

``device("gpu-0", attributes={"model": "A100", "index": 0}, capacity={"memory": "80Gi"})`` is what most drivers need;
other fields of the API's Device are further keyword arguments.

What a driver wants published: pools of slices of devices, and who owns them.

The order of slices and of devices is the order in which the allocator considers them. A pool that has no devices now is
published as one empty slice: "no devices" is not "driver not running". Spec: plugin-helper.md sections 4.1 and 4.7.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from operator import is_
from typing import Any, Final, TypeVar

from dra_api.codec import convert
from dra_api.core import NodeSelector
from dra_api.resource import (
    SCHEDULER_KEY,
    Counter,
    CounterSet,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
)
from dra_api.validation.formats import ATTRIBUTE_VALUE_LIMIT
from dra_api.values import Quantity
from msgspec import Struct, structs

_INT64 = range(-(2**63), 2**63)
Given = TypeVar("Given")
Made = TypeVar("Made")

_FIELDS: Final = frozenset(Device.__struct_fields__) - {"name", "attributes", "capacity", "consumes_counters"}
AttributeValue = bool | int | str | Sequence[bool] | Sequence[int] | Sequence[str] | DeviceAttribute
CapacityValue = int | str | Quantity | DeviceCapacity


def device(
    name: str,
    *,
    attributes: Mapping[str, AttributeValue] | None = None,
    capacity: Mapping[str, CapacityValue] | None = None,
    consumes: Mapping[str, Mapping[str, int | str | Quantity]] | None = None,
    **others: Any,
) -> Device:
    """A Device; ``consumes`` maps counter set to counter to amount, ``others`` are further fields of Device.

    Attributes: bool, int or str, or a sequence of one of these; a version is ``DeviceAttribute(version="1.2.3")``.
    Raises TypeError for values of other types and ValueError for values that no API server takes: malformed quantities,
    numbers of more than 64 bits, texts of more than 64 bytes.
    """
    for field in others.keys() - _FIELDS:
        snake = re.sub("([A-Z])", r"_\1", field).lower()
        similar = get_close_matches(snake, [*_FIELDS, "attributes", "capacity", "consumes"], 1)
        fields = similar[0] if similar else f"attributes, capacity, consumes, {', '.join(sorted(_FIELDS))}"
        raise TypeError(f"device {name!r} has no field {field!r}: use {fields}")
    for what, amounts in (consumes or {}).items():
        if not isinstance(amounts, Mapping):
            raise TypeError(f"device {name!r}, consumes {what!r}: {amounts!r} is no dict of counters to amounts")
    return Device(
        name=name,
        attributes=_each(attribute, attributes, f"device {name!r}, attribute") or None,
        capacity=_each(_capacity, capacity, f"device {name!r}, capacity") or None,
        consumes_counters=tuple(
            DeviceCounterConsumption(counter_set=counter_set, counters=_counters(amounts))
            for counter_set, amounts in (consumes or {}).items()
        )
        or None,
        **others,
    )


def counter_set(name: str, counters: Mapping[str, int | str | Quantity]) -> CounterSet:
    """A set of counters that devices of the same pool draw from."""
    return CounterSet(name=name, counters=_counters(counters))


def attribute(value: AttributeValue) -> DeviceAttribute:
    """The attribute that holds a Python value. Raises TypeError when there is none, ValueError when it is too large."""
    items = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else ()
    for item in items or (value,):
        _check_size(item)
    match value:
        case DeviceAttribute():
            return value
        case bool():
            return DeviceAttribute(bool_=value)
        case int():
            return DeviceAttribute(int_=value)
        case str():
            return DeviceAttribute(string=value)
    for kind, field in ((bool, "bools"), (int, "ints"), (str, "strings")):
        if items and all(type(item) is kind for item in items):
            return convert(DeviceAttribute, {field: items})
    raise TypeError(
        f"{value!r} is not an attribute value: use bool, int, str, a list of one of these, or a DeviceAttribute"
    )


def _check_size(value: object) -> None:
    if type(value) is int and value not in _INT64:
        raise ValueError(f"{value} needs more than 64 bits: make it a string, or use a larger unit")
    if isinstance(value, str) and len(value.encode(errors="surrogatepass")) > ATTRIBUTE_VALUE_LIMIT:
        raise ValueError(f"{value!r} has more than {ATTRIBUTE_VALUE_LIMIT} bytes: shorten it")


def _each(make: Callable[[Given], Made], values: Mapping[str, Given] | None, what: str) -> dict[str, Made]:
    made = {}
    for key, value in (values or {}).items():
        try:
            made[key] = make(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{what} {key!r}: {error}") from error
    return made


def _capacity(value: CapacityValue) -> DeviceCapacity:
    return value if isinstance(value, DeviceCapacity) else DeviceCapacity(value=_quantity(value))


def _counters(amounts: Mapping[str, int | str | Quantity]) -> dict[str, Counter]:
    return {name: Counter(value=_quantity(amount)) for name, amount in amounts.items()}


def _quantity(value: int | str | Quantity) -> Quantity:
    return value if isinstance(value, Quantity) else Quantity(str(value))


DEVICES_PER_SLICE = 128
RICH_DEVICES_PER_SLICE = 64  # as soon as one of them has taints, counters or attributes with lists
COUNTER_SETS_PER_SLICE = 8

T = TypeVar("T")
_SHOWN_CHARACTERS = 200  # of what cannot be published


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One ResourceSlice to publish: devices, or counter sets that devices of the pool draw from.

    ``skip_node_operations`` names calls without which the devices are used, ``("*",)`` for all: from Kubernetes 1.37 on
    kubelets leave them out (K37-ONO-09).
    """

    devices: tuple[Device, ...] = ()
    shared_counters: tuple[CounterSet, ...] = ()
    per_device_node_selection: bool = False
    skip_node_operations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A named set of slices that readers see as a whole.

    ``generation`` raises the pool's generation to at least this; by itself it rises when readers could take a mixture
    of old and new slices for the pool. ``node_selector`` and ``all_nodes`` say which nodes reach the devices if no node
    owns the pool. With ``devices_per_slice`` the publisher keeps devices in the slices where they are, of at most so
    many devices (``plan``); None keeps the slices as they are given.
    """

    slices: tuple[Slice, ...] = (Slice(),)
    generation: int = 0
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    devices_per_slice: int | None = None

    @classmethod
    def of(
        cls,
        devices: Iterable[Device] = (),
        *,
        shared_counters: Iterable[CounterSet] = (),
        per_device_node_selection: bool = False,
        skip_node_operations: Sequence[str] = (),
        devices_per_slice: int = DEVICES_PER_SLICE,
        **others: Any,
    ) -> Pool:
        """Return a pool with as few slices as the limits of the API allow; ``others`` are fields of Pool.

        When the pool is published again with other devices, remaining ones keep their slices. A slice with
        a tainted device holds 64 devices: with ``devices_per_slice=64`` each has room for taints, and a taint is one
        write, in full slices of 128 it is two. Raises ValueError for a number that is not from 1 to 128.
        """
        if not 1 <= devices_per_slice <= DEVICES_PER_SLICE:
            raise ValueError(f"devices_per_slice is {devices_per_slice}: use 1 to {DEVICES_PER_SLICE}")
        if not isinstance(devices, Iterable):
            raise TypeError(f"{devices!r} is no list of devices: give a list, of one device as well")
        devices, counters = tuple(devices), tuple(shared_counters)
        for kind, items, made_by in ((Device, devices, "device(...)"), (CounterSet, counters, "counter_set(...)")):
            if wrong := [item for item in items if not isinstance(item, kind)]:
                raise TypeError(
                    f"{wrong[0]!r} is no {kind.__name__}: make each with {made_by}, and give a list of them"
                )
        limit = min(devices_per_slice, RICH_DEVICES_PER_SLICE if any(map(is_rich, devices)) else DEVICES_PER_SLICE)
        slices = [Slice(shared_counters=part) for part in _parts(counters, COUNTER_SETS_PER_SLICE)]
        slices += [Slice(devices=part) for part in _parts(devices, limit)]
        alike = partial(
            replace,
            per_device_node_selection=per_device_node_selection,
            skip_node_operations=tuple(skip_node_operations),
        )
        return cls(slices=tuple(map(alike, slices or [Slice()])), devices_per_slice=devices_per_slice, **others)


Resources = Mapping[str, Pool]
"""Everything that a driver publishes: pools by name."""


def check_type(resources: object) -> None:
    """Raise TypeError unless it is a dict of pools by name."""
    if not isinstance(resources, Mapping) or not all(isinstance(name, str) for name in resources):
        what = f"a dict with the name {next(iter(resources))!r}" if isinstance(resources, Mapping) else repr(resources)
        shown = what if len(what) <= _SHOWN_CHARACTERS else f"{what[:_SHOWN_CHARACTERS]}..."
        raise TypeError(
            f"{shown} cannot be published: give a dict of pools by name, such as {{node_name: Pool.of(devices)}}"
        )


def marked_for(scheduler: str, resources: Resources) -> Resources:
    """Return the pools with all devices given to one scheduler, by the taint ``dra.kopf.dev/scheduler``.

    kube-scheduler then leaves them to dra-operator with that ``--scheduler-name``, which tolerates the taint by itself;
    API server and kube-scheduler need the feature gate DRADeviceTaints (on by default from Kubernetes 1.36). Without a
    name the pools stay as they are. A slice of more devices than may have taints is cut in parts.
    """
    check_type(resources)
    if not scheduler:
        return resources
    taint = DeviceTaint(key=SCHEDULER_KEY, value=scheduler, effect="NoSchedule")

    def marked(device: Device) -> Device:
        others = tuple(it for it in device.taints or () if it.key != SCHEDULER_KEY)
        return structs.replace(device, taints=(*others, taint))

    def parts(slice_: Slice) -> Iterator[Slice]:
        devices = tuple(map(marked, slice_.devices))
        for index, part in enumerate(_parts(devices, RICH_DEVICES_PER_SLICE) if devices else [devices]):
            yield replace(slice_, devices=part, shared_counters=() if index else slice_.shared_counters)

    return {
        name: replace(pool, slices=tuple(part for slice_ in pool.slices for part in parts(slice_)))
        for name, pool in resources.items()
    }


@dataclass(frozen=True, slots=True)
class Owner:
    """The cluster-scoped object with which the slices are deleted. The uid of a Node is looked up if it is empty."""

    api_version: str
    kind: str
    name: str
    uid: str = ""

    @classmethod
    def node(cls, name: str, uid: str = "") -> Owner:
        """The node on which the plugin runs; its slices are local to that node."""
        return cls("v1", "Node", name, uid)

    @property
    def is_node(self) -> bool:
        """Whether the devices are local to a node."""
        return (self.api_version, self.kind) == ("v1", "Node")


def tidy(value: T) -> T:
    """A struct with every empty collection replaced by None: the API server stores both alike."""
    if not isinstance(value, Struct):
        return value
    changed = {}
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if isinstance(field, tuple | dict | Struct) and (tidied := _tidy_field(field)) is not field:
            changed[name] = tidied
    return structs.replace(value, **changed) if changed else value


def _tidy_field(value: Any) -> Any:
    """The value itself if there is nothing to tidy, which is the usual case and must be fast."""
    if isinstance(value, Struct):
        return tidy(value)
    if not value:
        return None
    if isinstance(value, tuple):
        items = tuple(map(tidy, value))
        return value if all(map(is_, items, value)) else items
    tidied = {key: tidy(item) for key, item in value.items()}
    return value if all(map(is_, tidied.values(), value.values())) else tidied


def is_rich(device: Device) -> bool:
    """Return whether a device has taints, counters or lists: 64 devices fit into a slice with one."""
    lists = (a.ints or a.bools or a.strings or a.versions for a in (device.attributes or {}).values())
    return bool(device.taints or device.consumes_counters or any(lists))


def _parts(items: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    for start in range(0, len(items), size):
        yield tuple(items[start : start + size])
