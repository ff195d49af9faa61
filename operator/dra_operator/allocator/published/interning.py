"""Keeps equal parts of devices once.

The devices of a cluster repeat a few hundred attribute values and capacities a million times.
Decoding makes new objects for all of them; most of the memory of an inventory would be copies.
"""

from __future__ import annotations

from dra_api.resource import Device, DeviceAttribute, DeviceCapacity, ResourceSlice
from msgspec import structs

Capacity = dict[str, DeviceCapacity]


class Interner:
    """Hands out slices whose parts are shared with those of earlier slices."""

    _LIMIT = 100_000

    def __init__(self) -> None:
        self._attributes: dict[DeviceAttribute, DeviceAttribute] = {}
        self._capacities: dict[tuple[tuple[str, str], ...], Capacity] = {}

    def slice(self, source: ResourceSlice) -> ResourceSlice:
        """An equal slice."""
        devices = source.spec.devices
        if not devices:
            return source
        if len(self._attributes) + len(self._capacities) > self._LIMIT:  # parts in use are kept alive by their slices
            self._attributes.clear()
            self._capacities.clear()
        return structs.replace(source, spec=structs.replace(source.spec, devices=tuple(map(self._device, devices))))

    def _device(self, device: Device) -> Device:
        attributes = device.attributes
        return structs.replace(
            device,
            attributes={name: self._attribute(value) for name, value in attributes.items()} if attributes else None,
            capacity=self._capacity(device.capacity),
        )

    def _attribute(self, value: DeviceAttribute) -> DeviceAttribute:
        return self._attributes.setdefault(value, value)

    def _capacity(self, capacity: Capacity | None) -> Capacity | None:
        """The whole map, which is mostly equal for all devices of a model. Quantities keep their text."""
        if not capacity or any(entry.request_policy is not None for entry in capacity.values()):
            return capacity
        key = tuple((name, entry.value.text) for name, entry in capacity.items())
        return self._capacities.setdefault(key, capacity)
