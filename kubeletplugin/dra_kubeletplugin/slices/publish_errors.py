"""Says what an API server has against a slice in the words of a driver: which device, which attribute, what to do.

The API server names a place by its path, ``spec.devices[3].attributes[model].string``. The driver knows no third
device, it knows ``gpu-3``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dra_api.resource import Device

_SHOWN_DEVICES = 5
_DEVICE = re.compile(r"spec\.devices\[(?P<index>\d+)\](?:\.(?P<list>attributes|capacity)\[(?P<key>[^\]]*)\])?")
_KINDS = {"attributes": "attribute", "capacity": "capacity"}

_SPLIT = "let Pool.of split them into slices"
_REMEDIES = [
    (r"spec\.devices: Too many", _SPLIT),
    (r"spec\.sharedCounters: Too many", _SPLIT),
    (r"only one of `sharedCounters` or `devices`", _SPLIT),
    (r"`perDeviceNodeSelection`", "choose one way to say which nodes reach the devices"),
    (r"attributes and capacities must not exceed", "leave out what no selector asks for"),
    (r"attribute values must not exceed", "shorten its lists"),
    (r"\.version: Invalid", 'write it as in "1.2.3", or make it a string'),
    (r"DNS|RFC 1123|C identifier", "rename it"),
    (r"int64", "make it a string, or use a larger unit"),
    (r"Too long", "shorten it"),
    (r"Too many", "leave some out"),
    (r"Duplicate", "give each its own name"),
    (r"Required", "set it"),
]
_OTHERWISE = "change what the driver publishes"
_WITHOUT_FIELD = "change what the driver publishes, or the policy that refuses it"


class PublishError(NamedTuple):
    """One thing that is wrong: the path of a field, and what is wrong with it."""

    field: str
    message: str


def described(pool: str, index: int, devices: Sequence[Device], faults: Iterable[PublishError]) -> str:
    """One sentence for a slice of a pool with faults."""
    texts = list(dict.fromkeys(_described(devices, fault) for fault in faults))
    if len(texts) > _SHOWN_DEVICES:
        texts[_SHOWN_DEVICES:] = [f"and {len(texts) - _SHOWN_DEVICES} more"]
    return f'pool "{pool}", slice #{index}: {"; ".join(texts)}'


def _described(devices: Sequence[Device], fault: PublishError) -> str:
    if not fault.field:
        return f"{fault.message} ({_WITHOUT_FIELD})"
    text = f"{fault.field}: {fault.message}"
    remedy = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, text)), _OTHERWISE)
    return f"{_place(devices, fault.field)}{text} ({remedy})"


def _place(devices: Sequence[Device], field: str) -> str:
    match = _DEVICE.match(field)
    if match is None or int(match["index"]) >= len(devices):
        return ""
    part = f', {_KINDS[match["list"]]} "{match["key"]}"' if match["list"] else ""
    return f'device "{devices[int(match["index"])].name}"{part}: '
