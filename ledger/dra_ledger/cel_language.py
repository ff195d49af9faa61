"""The language of device selectors: CEL, as in Kubernetes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from dra_api.cache import Cache
from dra_api.releases import Release
from dra_api.resource import Device, DeviceAttribute
from dra_cel import (
    DerivedAttribute,
    Environment,
    PreparedDevice,
    compile,
    derived_attributes,
    device_selectors,
    prepare,
)

from .features import Features
from .predicates import Weighed

KEPT_PREPARED_DEVICES = 256
"""How many prepared devices are kept. The selectors of a claim see the devices of a slice, at most 128, one after the
other. Each run of the garbage collector would take 30 ms longer for thousands of prepared devices."""
KEPT_DERIVED_BYTES = 4 << 20
"""What compiled expressions of derived attributes may take in sum."""


class CelSelectors:
    """The language of the allocator's inventory. A device is prepared once for selectors that follow each other.

    ``kept``: how many prepared devices are kept. One for each device of the cluster suits a process that ends soon.
    """

    def __init__(self, features: Features, kept: int = KEPT_PREPARED_DEVICES) -> None:
        self._kept = kept
        # From 1.37 on a selector reads lists whatever the gate says, which then is about constraints (K37-ALLOC-03).
        self._lists = features.list_attributes or features.release >= Release.V1_37
        self._environment: Environment = device_selectors(
            consumable_capacity=features.consumable_capacity, list_attributes=self._lists
        )
        self._derived_environment: Environment = derived_attributes(
            consumable_capacity=features.consumable_capacity, list_attributes=self._lists
        )
        self._derived: Cache[str, DerivedAttribute] = Cache(KEPT_DERIVED_BYTES, lambda _, program: program.memory)
        self._prepared: OrderedDict[int, tuple[Device, PreparedDevice]] = OrderedDict()

    def compile(self, expression: str) -> Weighed:
        """A predicate on devices. Raises CompileError."""
        selector = compile(expression, self._environment)
        return Weighed(
            lambda driver, device: selector.selects(driver, device, self._prepare),
            selector.worst,
            lambda driver, device: selector.matches_in_parts(self._prepare(driver, device)),
            selector,
        )

    def attribute(self, expression: str) -> tuple[Callable[[str, Device], DeviceAttribute], int]:
        """An expression whose value is an attribute of a device, and the most that it may cost. Raises CompileError."""
        program = self._derived.get(expression)
        if program is None:
            program = self._derived.put(expression, DerivedAttribute(expression, self._derived_environment))
        return lambda driver, device: program.of(self._prepare(driver, device)), program.max_cost

    def _prepare(self, driver: str, device: Device) -> PreparedDevice:
        known = self._prepared.get(id(device))  # the entry keeps the device alive, so its id is not used again
        if known is not None and known[1].driver == driver:
            return known[1]
        prepared = prepare(driver, device, list_attributes=self._lists)
        self._prepared[id(device)] = (device, prepared)
        if len(self._prepared) > self._kept:
            self._prepared.popitem(last=False)
        return prepared
