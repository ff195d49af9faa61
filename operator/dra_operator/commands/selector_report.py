"""Shows selectors beside what devices publish, so that a reader sees which of the two is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from dra_api.resource import Device, DeviceAttribute
from dra_cel import CompileError, Reference, compile, device_selectors

from dra_operator.allocator import Compiled, NodeView, RequestSelector, lookup
from dra_operator.wording import counted, listed

SHOWN_NAMES = 3  # values of an attribute, names of attributes


def selector_report(
    selectors: Sequence[RequestSelector], claim: str, view: NodeView, compiled: Compiled
) -> Iterator[str]:
    """How many devices of the node each selector of a claim matches, and what they publish of the names it reads."""
    total = len(view.devices)
    for selector in selectors:
        count = view.selected((selector.expression,), compiled).true.bit_count()
        text = " ".join(selector.expression.split())
        yield f"{selector.of(claim)} matches {count} of {counted(total, 'device')}: {text}"
    if any("device.driver" in selector.expression for selector in selectors):
        drivers = Counter(view.driver(number) for number in range(total))
        yield f"drivers of the devices: {_values(drivers)}"
    for reference in sorted({read for selector in selectors for read in _read(selector)}):
        yield _published(view, reference)


def _read(selector: RequestSelector) -> frozenset[Reference]:
    """The names in the selector; none if it does not compile, which another line says."""
    try:
        return compile(selector.expression, device_selectors(list_attributes=True)).references
    except CompileError:
        return frozenset()


def _published(view: NodeView, reference: Reference) -> str:
    kind, domain, _ = reference
    values: Counter[str] = Counter()
    names: dict[str, None] = {}
    for number, device in enumerate(view.devices):
        value = _value(device, view.driver(number), kind, str(reference))
        values.update(() if value is None else (value,))
        members = (device.attributes if kind == "attributes" else device.capacity) or {}
        names.update(
            (key.removeprefix(f"{domain}/"), None) for key in members if _is_in(key, domain, view.driver(number))
        )
    what = f"{'attribute' if kind == 'attributes' else 'capacity'} {reference}"
    if not values:
        there = (
            f"in {domain} they publish {listed(sorted(names), 2 * SHOWN_NAMES)}"
            if names
            else f"nor any other of {domain}"
        )
        return f"no device publishes {what}, {there}"
    absent = len(view.devices) - values.total()
    lacking = f"; {counted(absent, 'device lacks', 'devices lack')} it" if absent else ""
    return f"devices publish {what}: {_values(values)}{lacking}"


def _is_in(key: str, domain: str, driver: str) -> bool:
    return key.startswith(f"{domain}/") or ("/" not in key and driver == domain)


def _values(counts: Counter[str]) -> str:
    return listed((f"{value} ({count})" for value, count in counts.most_common()), SHOWN_NAMES)


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
