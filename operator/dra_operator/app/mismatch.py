"""Selectors beside what devices publish: that shows at once which of both is wrong.

Which attributes and capacities an expression reads is told from its text, for the usual ways of writing it. What is
written in another way is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from dra_api.resource import Device, DeviceAttribute

from dra_operator.allocator.columns import lookup
from dra_operator.allocator.node_view import NodeView
from dra_operator.allocator.selectors import Compiled, Selector
from dra_operator.allocator.wording import counted, listed

READ = re.compile(
    r"""device\.(?P<kind>attributes|capacity)\s*\[\s*\??\s*["'](?P<domain>[^"']+)["']\s*\]"""
    r"""\s*(?:\.\s*\??\s*|\[\s*\??\s*["'])(?P<name>[A-Za-z_][\w-]*)"""
)
ASKED = re.compile(
    r"""["'](?P<name>[A-Za-z_][\w-]*)["']\s+in\s+device\.(?P<kind>attributes|capacity)\s*\[\s*["'](?P<domain>[^"']+)["']"""
)
SHOWN = 3  # values of an attribute, names of attributes


def mismatch(selectors: Sequence[Selector], view: NodeView, compiled: Compiled) -> Iterator[str]:
    """For each selector how many devices of the node it matches; then what they publish of what it reads."""
    total = len(view.devices)
    for selector in selectors:
        count = view.selected((selector,), compiled).true.bit_count()
        text = " ".join(selector.expression.split())
        yield f"{selector} matches {count} of {counted(total, 'device')}: {text}"
    text = "\n".join(selector.expression for selector in selectors)
    if re.search(r"\bdevice\.driver\b", text):
        drivers = Counter(view.driver(number) for number in range(total))
        yield f"drivers of the devices: {_values(drivers)}"
    read = {
        found.group("kind", "domain", "name"): None for pattern in (READ, ASKED) for found in pattern.finditer(text)
    }
    for kind, domain, name in read:
        yield _published(view, kind, domain, name)


def _published(view: NodeView, kind: str, domain: str, name: str) -> str:
    values: Counter[str] = Counter()
    names: dict[str, None] = {}
    for number, device in enumerate(view.devices):
        value = _value(device, view.driver(number), kind, f"{domain}/{name}")
        values.update(() if value is None else (value,))
        members = (device.attributes if kind == "attributes" else device.capacity) or {}
        names.update(
            (key.removeprefix(f"{domain}/"), None) for key in members if _is_in(key, domain, view.driver(number))
        )
    what = f"{'attribute' if kind == 'attributes' else 'capacity'} {domain}/{name}"
    if not values:
        there = (
            f"in {domain} they publish {listed(sorted(names), 2 * SHOWN)}" if names else f"nor any other of {domain}"
        )
        return f"no device publishes {what}, {there}"
    absent = len(view.devices) - values.total()
    lacking = f"; {counted(absent, 'device lacks', 'devices lack')} it" if absent else ""
    return f"devices publish {what}: {_values(values)}{lacking}"


def _is_in(key: str, domain: str, driver: str) -> bool:
    return key.startswith(f"{domain}/") or ("/" not in key and driver == domain)


def _values(counts: Counter[str]) -> str:
    return listed((f"{value} ({count})" for value, count in counts.most_common()), SHOWN)


def _value(device: Device, driver: str, kind: str, name: str) -> str | None:
    if kind == "attributes":
        attribute = lookup(device, driver, name)
        return _text(attribute) if attribute is not None else None
    domain, _, bare = name.partition("/")
    capacities = device.capacity or {}
    found = capacities.get(name) or (capacities.get(bare) if driver == domain else None)
    return str(found.value) if found is not None else None


def _text(attribute: DeviceAttribute) -> str:
    fields = (attribute.string, attribute.version, attribute.int_, attribute.bool_)
    value = next((field for field in fields if field is not None), None)
    return "a list" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
