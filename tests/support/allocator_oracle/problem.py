"""What the oracle is asked: plain objects, in plain containers (terms of allocator.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_api.codec import convert
from dra_api.core import Node
from dra_api.quantity import Quantity
from dra_api.resource import Device, DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_cel import compile, device_selectors, prepare
from msgspec.structs import replace

Id = tuple[str, str, str]
"""Driver, pool, device."""


class Fault(Exception):
    """The claims cannot be decided. ``of_node``: because of what this node sees (section 15)."""

    def __init__(self, text: str, *, of_node: bool = False) -> None:
        super().__init__(text)
        self.of_node = of_node


class OutOfSteps(Exception):
    """The search was stopped before it came to an end."""


@dataclass(frozen=True)
class Gates:
    """Feature gates by their names, and which of the reference's mistakes to repeat."""

    names: frozenset[str]
    newest_generation_only: bool = True
    admin_ignores_allocations: bool = True
    errors_stay_on_node: bool = True
    release: tuple[int, int] = (1, 36)

    @property
    def counters_apart(self) -> bool:
        """A slice with counters has no devices."""
        return self.partitionable and self.release >= (1, 35)

    @property
    def incomplete_pools_do(self) -> bool:
        """A request for a number of devices gets those of incomplete pools (section 3)."""
        return self.release < (1, 35)

    @property
    def nothing_is_all(self) -> bool:
        """A request for all devices is served where there is none (section 7)."""
        return self.release == (1, 32)

    @property
    def admin(self) -> bool:
        return "DRAAdminAccess" in self.names

    @property
    def prioritized(self) -> bool:
        return "DRAPrioritizedList" in self.names

    @property
    def partitionable(self) -> bool:
        return "DRAPartitionableDevices" in self.names

    @property
    def taints(self) -> bool:
        return "DRADeviceTaints" in self.names

    @property
    def capacity(self) -> bool:
        return "DRAConsumableCapacity" in self.names

    @property
    def lists(self) -> bool:
        return "DRAListTypeAttributes" in self.names

    @property
    def binding(self) -> bool:
        return {"DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"} <= self.names

    @property
    def stable(self) -> bool:
        """The oldest implementation answers, which knows less (section 14)."""
        return not (self.binding or self.capacity or self.lists)


@dataclass(frozen=True)
class Taken:
    """The allocated state (section 1)."""

    devices: frozenset[Id] = frozenset()
    shares: frozenset[tuple[Id, str]] = frozenset()
    capacity: Mapping[Id, Mapping[str, int]] = field(default_factory=dict)
    """Consumed billionths."""

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Taken:
        """From ``allocatedState`` of a corpus case."""

        def identity(entry: Mapping[str, str]) -> Id:
            return entry["driver"], entry["pool"], entry["device"]

        capacity: dict[Id, dict[str, int]] = {}
        for entry in state.get("aggregatedCapacity") or []:
            sums = capacity.setdefault(identity(entry), {})
            for name, text in entry["capacity"].items():
                sums[name] = sums.get(name, 0) + Quantity(text).nanos
        return cls(
            frozenset(identity(entry) for entry in state.get("allocatedDevices") or []),
            frozenset((identity(entry), entry["shareID"]) for entry in state.get("allocatedSharedDeviceIDs") or []),
            capacity,
        )

    def charged(self, device: Id) -> bool:
        """A claim holds the device in some way, so its counters are spent."""
        return device in self.devices or device in self.capacity or any(held == device for held, _ in self.shares)


@dataclass(frozen=True)
class Problem:
    """One call: claims of a pod, one node, and everything published. The order of slices counts."""

    node: Node
    claims: tuple[ResourceClaim, ...]
    classes: tuple[DeviceClass, ...]
    slices: tuple[ResourceSlice, ...]
    taken: Taken
    gates: Gates

    @classmethod
    def from_case(
        cls, case: Mapping[str, Any], node: Mapping[str, Any], release: tuple[int, int] = (1, 36), /, **mistakes: bool
    ) -> Problem:
        """From a corpus case and one of its nodes."""
        slices = tuple(convert(ResourceSlice, slice_) for slice_ in case["slices"])
        rules = [convert(DeviceTaintRule, rule) for rule in case.get("rules") or []]
        return cls(
            node=convert(Node, node),
            claims=tuple(convert(ResourceClaim, claim) for claim in case["claims"]),
            classes=tuple(convert(DeviceClass, class_) for class_ in case["classes"]),
            slices=tuple(with_taints(slice_, rules) for slice_ in slices),
            taken=Taken.from_json(case.get("allocatedState") or {}),
            gates=Gates(frozenset(case["features"]), release=release, **mistakes),
        )

    def selects(self, expression: str, driver: str, device: Device) -> bool:
        """One evaluation of one selector. Raises whatever is wrong with it."""
        environment = device_selectors(consumable_capacity=self.gates.capacity, list_attributes=self.gates.lists)
        prepared = prepare(driver, device, list_attributes=self.gates.lists)
        return compile(expression, environment).matches(prepared)

    def compiles(self, expression: str) -> bool:
        """Whether a selector is one, whatever it says of devices."""
        environment = device_selectors(consumable_capacity=self.gates.capacity, list_attributes=self.gates.lists)
        try:
            compile(expression, environment)
        except Exception:
            return False
        return True


def with_taints(slice_: ResourceSlice, rules: Iterable[DeviceTaintRule]) -> ResourceSlice:
    """The taint of each rule that applies to a device stands behind the device's own (section 13)."""
    devices = []
    for device in slice_.spec.devices or ():
        taints = list(device.taints or ())
        for rule in rules:
            wanted = rule.spec.device_selector
            if wanted is None:
                continue
            pairs = (
                (wanted.driver, slice_.spec.driver),
                (wanted.pool, slice_.spec.pool.name),
                (wanted.device, device.name),
            )
            if all(want is None or want == have for want, have in pairs):
                taints.append(rule.spec.taint)
        devices.append(replace(device, taints=tuple(taints) or None))
    return replace(slice_, spec=replace(slice_.spec, devices=tuple(devices) or None))
