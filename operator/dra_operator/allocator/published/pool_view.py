"""What some nodes see of a pool: its devices, numbered in the order in which they are tried.

A view keeps everything that depends on the devices alone (selector verdicts, counters, sets of devices of
one kind), and lives as long as its slices stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import cached_property

from dra_api.resource import Device
from dra_api.values.quantity import Quantity

from dra_operator.allocator.basics.features import Features
from dra_operator.allocator.basics.ids import DeviceId, PoolId
from dra_operator.allocator.basics.memo import Memo
from dra_operator.wording import counted

from .capacity import Requests
from .compatibility_table import CompatibilityTable
from .counter_table import Charges, CounterGroups, CounterTable
from .kept_verdicts import Expressions
from .predicates import Compiled, Verdicts
from .slices import Slice

Quantities = dict[str, Quantity]


class Status(Enum):
    """Whether a pool may be used."""

    USABLE = "usable"
    INCOMPLETE = "currently being updated"
    INVALID = "currently invalid"


class PoolView:
    """The devices of a pool that some nodes see, numbered in the order in which they are tried."""

    def __init__(self, pool: PoolId, slices: Sequence[Slice], others: Sequence[Slice], *, counters: bool) -> None:
        self.pool = pool
        self.slices = sorted((s for s in slices if s.devices), key=lambda s: s.name)
        self.devices: tuple[Device, ...] = tuple(device for s in self.slices for device in s.devices)
        self.numbers = {device.name: number for number, device in enumerate(self.devices)}
        self.origin: tuple[Slice, ...] = tuple(s for s in self.slices for _ in s.devices)
        self.everywhere = (1 << len(self.devices)) - 1
        self.binding = self.consuming = self.shareable = self.has_request_policy = self.tainted = 0
        """Devices with such fields; request policies may forbid what a plain request consumes (section 9)."""
        self._sort_devices()
        self.skipping = self._of_slices(lambda slice_: bool(slice_.spec.skip_node_operations))
        """Devices without some calls of whose driver the node has to manage."""
        self.per_device = any(s.spec.per_device_node_selection for s in self.slices)
        self.last = any(device.binding_conditions is not None for device in self.devices)
        self._every_slice = (*slices, *others)
        self.counters = CounterTable(self._every_slice) if counters else CounterTable(())
        self._found = len(self._every_slice)
        self._announced = slices[0].spec.pool.resource_slice_count
        """If the slices disagree about their number, the first one that came counts."""
        self.status = self._status(len(slices))
        self.counter_groups = CounterGroups([name for _, name in self.counters.names], self._counter_groups())
        self.consumptions: Memo[Requests, dict[int, Quantities | None]] = Memo()
        """What a share of a device consumes, by what is requested; a cache for its users."""
        self._verdicts: Memo[Expressions, Verdicts] = Memo()

    @cached_property
    def compatibility(self) -> CompatibilityTable:
        """The compatibility groups of the pool's devices."""
        return CompatibilityTable(self._every_slice, self.devices)

    def _status(self, relevant: int) -> Status:
        if self._announced not in (relevant, self._found):
            return Status.INCOMPLETE
        if len(self.numbers) != len(self.devices) or self.counters.fault:
            return Status.INVALID
        return Status.USABLE

    @property
    def complaint(self) -> str:
        """Why the pool cannot be used, as a sentence that names it. It stays the same while slices arrive."""
        lead = f"resource pool {self.pool} is {self.status.value}, since"
        if self.status is Status.INCOMPLETE:
            announced = counted(self._announced, "slice")
            amount = "fewer" if self._found < self._announced else "more"
            return f"{lead} it announces {announced} of its newest generation and has {amount}"
        twice = next((name for name, count in Counter(d.name for d in self.devices).items() if count > 1), None)
        if twice is not None:
            return f"{lead} two devices are named {twice}"
        return f"{lead} {self.counters.fault}"

    def _sort_devices(self) -> None:
        for number, device in enumerate(self.devices):
            if device.binding_conditions:
                self.binding |= 1 << number
            if device.consumes_counters:
                self.consuming |= 1 << number
            if device.allow_multiple_allocations:
                self.shareable |= 1 << number
            if device.taints:
                self.tainted |= 1 << number
            if device.capacity and any(it.request_policy for it in device.capacity.values()):
                self.has_request_policy |= 1 << number

    def _of_slices(self, holds: Callable[[Slice], bool]) -> int:
        bits = shift = 0
        for slice_ in self.slices:
            if holds(slice_):
                bits |= (1 << len(slice_.devices)) - 1 << shift
            shift += len(slice_.devices)
        return bits

    def verdicts(self, expressions: Expressions, compiled: Compiled) -> Verdicts:
        """The selectors' verdicts over all devices of the view."""
        known = self._verdicts.get(expressions)
        if known is None:
            true = raised = shift = 0
            for slice_ in self.slices:
                part = slice_.verdicts(expressions, compiled)
                true |= part.true << shift
                raised |= part.raised << shift
                shift += len(slice_.devices)
            known = self._verdicts.put(expressions, Verdicts(true, raised))
        return known

    def faulty(self, requests: Requests, features: Features) -> int:
        """The devices of which these requests would consume a fatal amount."""
        bits = shift = 0
        for slice_ in self.slices:
            bits |= slice_.faulty(requests, features) << shift
            shift += len(slice_.devices)
        return bits

    def failure(self, expressions: Expressions, number: int) -> tuple[str, Exception] | None:
        """The costly selector that failed on a device, and how."""
        slice_ = self.origin[number]
        return slice_.failure(expressions, number - self.origin.index(slice_))

    def _counter_groups(self) -> list[tuple[Charges, int]]:
        groups: dict[Charges, int] = {}
        for number, device in enumerate(self.devices):
            charges = self.counters.charges.get(device.name)
            if charges:
                groups[charges] = groups.get(charges, 0) | 1 << number
        return list(groups.items())

    def id(self, number: int) -> DeviceId:
        """The identity of a device."""
        return DeviceId(self.pool.driver, self.pool.pool, self.devices[number].name)

    def bits(self, names: Iterable[str]) -> int:
        """Those devices of these names that the view has."""
        bits = 0
        numbers = self.numbers
        for name in names:
            number = numbers.get(name)
            if number is not None:
                bits |= 1 << number
        return bits
