"""Which values of an attribute published devices have: on which nodes, and how many of these devices are free."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from dra_api.resource import Device
from dra_ledger.basics import DeviceId
from dra_ledger.columns import (
    UNKNOWN,
    Values,
    lookup,
    values_of,
)
from dra_ledger.inventory import Inventory
from dra_ledger.usage import Usage

from dra_operator.allocator.request.claim_program import AttributeValue

from .incremental import COUNTED_POOLS


@dataclass(slots=True)
class ValueSupply:
    """One value. ``anywhere``: devices that several nodes may use have it, beside those of the ``nodes``."""

    value: AttributeValue
    nodes: set[str] = field(default_factory=set)
    anywhere: bool = False
    free: int = 0


def value_supplies(inventory: Inventory, attribute: str, usage: Usage) -> Generator[None, None, list[ValueSupply]]:
    """See ``Allocator.supplies``."""
    found: dict[tuple[str, object], ValueSupply] = {}
    for number, id_ in enumerate(list(inventory.pools())):
        if number % COUNTED_POOLS == COUNTED_POOLS - 1:
            yield
        pool = inventory.pool(id_)
        view = pool.own_view() if pool is not None else None
        if pool is None or view is None:
            continue
        node, in_use = pool.owning_node, usage.pool(id_).exclusive
        for device in view.devices:
            published = lookup(device, id_.driver, attribute)
            values = values_of(published, lists=inventory.features.list_attributes) if published is not None else ()
            for value in values if values is not UNKNOWN else ():
                supply = found.get(value)
                if supply is None:
                    supply = found[value] = ValueSupply(AttributeValue(attribute, value))
                supply.free += device.name not in in_use
                if node is None:
                    supply.anywhere = True
                else:
                    supply.nodes.add(node)
    return sorted(found.values(), key=lambda it: (it.free, it.value.value[0], str(it.value.value[1])))


def published_device(inventory: Inventory, device: DeviceId) -> Device | None:
    """See ``Allocator.published``."""
    pool = inventory.pool(device.pool_id)
    view = pool.own_view() if pool is not None else None
    number = view.numbers.get(device.device) if view is not None else None
    return view.devices[number] if view is not None and number is not None else None


def published_values(inventory: Inventory, device: DeviceId, attribute: str) -> Values | None:
    """See ``Allocator.values``."""
    found = published_device(inventory, device)
    if found is None:
        return None
    published = lookup(found, device.driver, attribute)
    if published is None:
        return frozenset()
    values = values_of(published, lists=inventory.features.list_attributes)
    return frozenset() if values is UNKNOWN else values
