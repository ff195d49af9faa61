"""The devices that a driver published for a node, and which of them claims can hold side by side.

A scheduler looks at the newest generation of each pool, and at a pool only when all its slices are there. It gives a
device to one claim, a shared one (``allowMultipleAllocations``) to several, and of devices that draw on counters as
many as the counter sets of their pool allow. The kit gives devices to claims as a scheduler would:

    counters  board: memory 40Gi
    devices   gpu-0 (40Gi)   gpu-0-half-0 (20Gi)   gpu-0-half-1 (20Gi)     side by side: the two halves

Counter sets stand in slices of their own since Kubernetes 1.35, and beside their devices before.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dra_api.values import QuantityError, parse_quantity
from dra_devcluster.apiserver.selectors import selects

Json = dict[str, Any]
Amounts = dict[tuple[str, str], int]
"""Billionths by counter set and counter."""
KEEPING_AWAY = ("NoSchedule", "NoExecute")
"""Effects of taints that keep claims away from a device."""
UNLIMITED_COUNT = 1000
"""Parts of a shared device that has no capacity to be used up."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that the driver published. ``counters`` are the counters of its pool."""

    driver: str
    pool: str
    name: str
    spec: Json
    counters: Mapping[tuple[str, str], int] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_tainted(self) -> bool:
        return any(taint.get("effect") in KEEPING_AWAY for taint in self.spec.get("taints") or ())

    @property
    def is_shared(self) -> bool:
        """Whether several claims can have a part of it."""
        return bool(self.spec.get("allowMultipleAllocations"))

    @property
    def drawn(self) -> Amounts:
        """Its draws from counters, by set and counter."""
        return _amounts((use["counterSet"], use.get("counters")) for use in self.spec.get("consumesCounters") or ())

    @property
    def weight(self) -> Fraction:
        """The largest part of a counter that it draws: devices that weigh little leave room for others."""
        return max((_part(amount, self.counters.get(key)) for key, amount in self.drawn.items()), default=Fraction(0))

    @property
    def part(self) -> dict[str, str]:
        """The smallest part that a claim can have of each capacity of a shared device, as its policies say.

        Without a policy a claim has all of it.
        """
        return {name: _smallest(one) for name, one in (self.spec.get("capacity") or {}).items()}

    @property
    def shares(self) -> int:
        """How many claims can have a part at the same time."""
        if not self.is_shared:
            return 1
        fits = [UNLIMITED_COUNT]
        for name, one in (self.spec.get("capacity") or {}).items():
            whole, part = _number(one.get("value")), _number(self.part[name])
            fits.append(whole // part if part else UNLIMITED_COUNT)
        return min(fits)

    def result(self, request: str, fields: Mapping[str, Any]) -> Json:
        """As it stands in the status of a claim that holds it: a shared device in part, unless for an administrator."""
        found: Json = {"request": request, "driver": self.driver, "pool": self.pool, "device": self.name, **fields}
        if self.is_shared and not fields.get("adminAccess"):
            found.setdefault("shareID", str(uuid.uuid4()))
            if self.part:
                found.setdefault("consumedCapacity", self.part)
        for name in ("bindingConditions", "bindingFailureConditions"):
            if self.spec.get(name):
                found.setdefault(name, self.spec[name])
        return found


def _number(text: object) -> int:
    """Return the billionths of a quantity, or 0 for a malformed one: the API server would refuse it."""
    try:
        return parse_quantity(str(text)).nanos
    except QuantityError:
        return 0


def _amounts(sets: Iterable[tuple[str, Mapping[str, Json] | None]]) -> Amounts:
    found: Amounts = {}
    for name, counters in sets:
        for counter, amount in (counters or {}).items():
            found[name, counter] = found.get((name, counter), 0) + _number(amount.get("value"))
    return found


def _part(amount: int, whole: int | None) -> Fraction:
    """A device cannot be held if its counter has less, or does not exist."""
    return Fraction(amount, whole) if whole else Fraction(2 if amount else 0)


def _smallest(capacity: Json) -> str:
    policy = capacity.get("requestPolicy") or {}
    values = [*(policy.get("validValues") or ()), (policy.get("validRange") or {}).get("min")]
    return min((str(each) for each in (*values, policy.get("default")) if each), key=_number, default=capacity["value"])


# --- what a node has ---


def generation(one: Json) -> int:
    return int(one["spec"]["pool"].get("generation", 0))


def newest(slices: Sequence[Json]) -> dict[str, list[Json]]:
    """By pool, the slices of its newest generation, which are the ones that count."""
    pools: dict[str, list[Json]] = {}
    for one in slices:
        pools.setdefault(one["spec"]["pool"]["name"], []).append(one)
    generations = {name: max(generation(one) for one in members) for name, members in pools.items()}
    return {name: [one for one in members if generation(one) == generations[name]] for name, members in pools.items()}


def incomplete(slices: Sequence[Json]) -> str:
    """Which pools lack slices, in words; empty if none does."""
    return ", ".join(
        f"pool {name} has {len(members)} slices, and they say {members[0]['spec']['pool']['resourceSliceCount']}"
        for name, members in newest(slices).items()
        if len(members) != members[0]["spec"]["pool"]["resourceSliceCount"]
    )


def is_of_node(spec: Json, node: Json) -> bool:
    """Whether a slice, or a device that says for itself where it is, can be used on the node."""
    if "nodeName" in spec:
        return bool(spec["nodeName"] == node["metadata"]["name"])
    if "nodeSelector" in spec:
        return selects(spec["nodeSelector"], node)
    return True


def devices_of(slices: Sequence[Json], node: Json) -> list[Device]:
    """The devices in the newest generation of each pool that can be used on the node."""
    found = []
    for pool, members in newest(slices).items():
        sets = _amounts(
            (each["name"], each.get("counters")) for one in members for each in one["spec"].get("sharedCounters") or ()
        )
        found += [
            Device(one["spec"]["driver"], pool, device["name"], device, sets)
            for one in members
            for device in one["spec"].get("devices") or ()
            if not one["spec"].get("perDeviceNodeSelection") or is_of_node(device, node)
        ]
    return found


def side_by_side(devices: Sequence[Device], beside: Sequence[Device] = ()) -> list[Device]:
    """Return as many devices as different claims can hold at the same time, beside devices that claims hold already.

    Tainted devices are left out. Unshared ones come first, and among them devices without counters.
    """
    chosen: list[Device] = []
    drawn: dict[str, Amounts] = {}
    free = sorted((one for one in devices if not one.is_tainted), key=lambda one: (one.is_shared, one.weight))
    for device in (*beside, *free):
        of_pool = drawn.setdefault(device.pool, {})
        total = {key: of_pool.get(key, 0) + amount for key, amount in device.drawn.items()}
        if device in beside or all(amount <= device.counters.get(key, 0) for key, amount in total.items()):
            of_pool.update(total)
            chosen.append(device)
    return chosen[len(beside) :]


def too_much_together(devices: Sequence[Device]) -> tuple[Device, Device] | None:
    """Two devices of a pool that each fit alone, and not side by side: a whole and its partition, say."""
    fits = [one for one in devices if one.drawn and not one.is_shared and side_by_side([one])]
    for index, one in enumerate(fits):
        for other in fits[index + 1 :]:
            if one.pool == other.pool and len(side_by_side([one, other])) < 2:
                return one, other
    return None
