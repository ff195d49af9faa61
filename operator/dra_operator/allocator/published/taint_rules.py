"""ResourceSlices with the taints of DeviceTaintRules merged in (allocator.md section 13, scheduling.md 9).

A rule selects the devices whose driver, pool and name equal those of its selector that are set; its taint
is appended behind the device's own. A slice without selected devices stays the same object.

A rule *without* a selector selects nothing, as the API documents and taint eviction does (scheduling.md 9, PRJ-010).
The reference's slice tracker applies it to all devices (``Semantics.rule_without_selector_selects_nothing``).

The taint of our own territory is taken off again, wherever it came from (``territory``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dra_api.core import Taint
from dra_api.resource import Device, DeviceTaint, DeviceTaintRule, ResourceSlice
from msgspec import structs

from dra_operator.allocator.basics.semantics import Semantics

from .territory import Territory


class SliceChange(NamedTuple):
    """One merged slice appeared (no ``old``), disappeared (no ``new``), or became another."""

    old: ResourceSlice | None
    new: ResourceSlice | None


class TaintedSlices:
    """Takes slices and rules, gives changes of merged slices. Each method returns what its call changed.

    ``territory`` is told of all devices.
    """

    def __init__(self, semantics: Semantics, territory: Territory | None = None) -> None:
        self._territory = territory or Territory()
        self._select_all = not semantics.rule_without_selector_selects_nothing
        self._rules: dict[str, DeviceTaintRule] = {}
        self._original: dict[str, ResourceSlice] = {}
        self._merged: dict[str, ResourceSlice] = {}
        """Only slices that differ from their original."""

    def put_slice(self, slice_: ResourceSlice) -> list[SliceChange]:
        """A slice was added or changed; always passed on."""
        name = slice_.metadata.name
        old = self.get(name)
        self._original[name] = slice_
        return [SliceChange(old, self._merge(name))]

    def remove_slice(self, name: str) -> list[SliceChange]:
        """A slice is gone; an unknown one changes nothing."""
        old = self.get(name)
        self._original.pop(name, None)
        self._merged.pop(name, None)
        self._territory.remove(name)
        return [SliceChange(old, None)] if old is not None else []

    def put_rule(self, rule: DeviceTaintRule) -> list[SliceChange]:
        """A rule was added or changed."""
        before = self._rules.get(rule.metadata.name)
        self._rules[rule.metadata.name] = rule
        return self._again(before, rule)

    def remove_rule(self, name: str) -> list[SliceChange]:
        """A rule is gone."""
        return self._again(self._rules.pop(name, None))

    def put_node(self, name: str, taints: Sequence[Taint], labels: Mapping[str, str]) -> list[SliceChange]:
        """A node was added or changed; without taints and labels: it is gone."""
        changes = []
        for slice_ in self._territory.put_node(name, taints, labels):
            old = self.get(slice_)
            changes.append(SliceChange(old, self._merge(slice_)))
        return changes

    def get(self, name: str) -> ResourceSlice | None:
        """The merged slice of a name."""
        return self._merged.get(name) or self._original.get(name)

    def _again(self, *rules: DeviceTaintRule | None) -> list[SliceChange]:
        """Merges again the slices that one of the rules may select."""
        changes = []
        for name, slice_ in self._original.items():
            if any(rule is not None and self._concerns(rule, slice_) for rule in rules):
                old = self._merged.get(name) or slice_
                new = self._merge(name)
                if new is not old and any(map(_differ, old.spec.devices or (), new.spec.devices or ())):
                    changes.append(SliceChange(old, new))
        return changes

    def _concerns(self, rule: DeviceTaintRule, slice_: ResourceSlice) -> bool:
        selector = rule.spec.device_selector
        if selector is None:
            return self._select_all
        return selector.driver in (None, slice_.spec.driver) and selector.pool in (None, slice_.spec.pool.name)

    def _merge(self, name: str) -> ResourceSlice:
        slice_ = self._original[name]
        rules = [rule for _, rule in sorted(self._rules.items()) if self._concerns(rule, slice_)]
        old = slice_.spec.devices or ()
        new = _with_taints(old, rules) if rules else old
        new = self._territory.put(slice_, old, new)
        if all(before is after for before, after in zip(old, new, strict=True)):
            self._merged.pop(name, None)
            return slice_
        merged = structs.replace(slice_, spec=structs.replace(slice_.spec, devices=new))
        self._merged[name] = merged
        return merged


def _differ(device: Device, other: Device) -> bool:
    return device.taints != other.taints


def _with_taints(devices: tuple[Device, ...], rules: list[DeviceTaintRule]) -> tuple[Device, ...]:
    """A rule that names no device taints all of a slice, which may be all of the cluster."""
    if any(rule.spec.device_selector is not None and rule.spec.device_selector.device is not None for rule in rules):
        return tuple([_tainted(device, rules) for device in devices])
    added = tuple([rule.spec.taint for rule in rules])
    return tuple([structs.replace(device, taints=(*(device.taints or ()), *added)) for device in devices])


def _tainted(device: Device, rules: list[DeviceTaintRule]) -> Device:
    added: list[DeviceTaint] = []
    for rule in rules:
        selector = rule.spec.device_selector
        if selector is None or selector.device in (None, device.name):
            added.append(rule.spec.taint)
    return structs.replace(device, taints=(*(device.taints or ()), *added)) if added else device
