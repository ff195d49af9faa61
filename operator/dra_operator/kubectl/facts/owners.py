"""To which scheduler each published device belongs: by taints of the device, of DeviceTaintRules and of its node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dra_api.core import Node, Taint
from dra_api.resource import SCHEDULER_KEY, DeviceTaint, DeviceTaintRule, ResourceSlice

from dra_operator.allocator import DeviceId, schedulers_of
from dra_operator.cache import newest_slices
from dra_operator.eviction import selects
from dra_operator.kubectl.observed.observed import Observed

Marks = Mapping[DeviceId, Sequence[DeviceTaint | Taint]]


def marks_of(seen: Observed) -> Marks:
    """Return the taints with the key of territories, of every published device."""
    rules = marking_rules(seen)
    found: dict[DeviceId, list[DeviceTaint | Taint]] = {}
    for pool, slices in newest_slices(seen.every(ResourceSlice)).items():
        for slice_ in slices:
            node = seen.one(Node, slice_.spec.node_name) if slice_.spec.node_name else None
            of_node = (node.spec.taints or ()) if node is not None else ()
            for device in slice_.spec.devices or ():
                id_ = DeviceId(*pool, device.name)
                by_rules = (rule.spec.taint for rule in rules if selects(rule, id_))
                every: list[DeviceTaint | Taint] = [*(device.taints or ()), *by_rules, *of_node]
                found[id_] = [it for it in every if it.key == SCHEDULER_KEY]
    return found


def marking_rules(seen: Observed) -> list[DeviceTaintRule]:
    """Return the DeviceTaintRules with the key of territories, by name."""
    rules = sorted(seen.every(DeviceTaintRule), key=lambda rule: rule.metadata.name)
    return [rule for rule in rules if rule.spec.taint.key == SCHEDULER_KEY]


def owner_text(marks: Marks, device: DeviceId) -> str:
    """Return the scheduler of a device; several exclude each other; empty if it is open to all."""
    return " and ".join(schedulers_of(marks.get(device, ())))


def belonging(marks: Marks, devices: Sequence[DeviceId]) -> Iterator[str]:
    """Yield ``device d/p/x belongs to the scheduler s`` for each of the devices that does."""
    for device in dict.fromkeys(devices):
        if owner := owner_text(marks, device):
            yield f"device {device} belongs to the scheduler {owner}"
