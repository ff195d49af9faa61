"""Say in words why a node refuses a claim: the requests, devices and selectors concerned, and the holders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dra_api.core import Node
from dra_api.resource import Device, DeviceAttribute, ResourceClaim
from dra_cel import CompileError, Reference, compile, device_selectors

from dra_operator.allocator import (
    ClaimProgram,
    Compiled,
    DeviceId,
    Inventory,
    NodeView,
    Refusal,
    RefusedClaim,
    RequestSelector,
    Rule,
    lookup,
)
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


SHOWN_LINES = 8  # names of nodes, lines about devices
Holders = Mapping[DeviceId, str]
"""Device -> the claim that holds it, and its consumers, in words."""


def holders(claims: Iterable[ResourceClaim]) -> dict[DeviceId, str]:
    """The holders of the allocated devices; of one that is shared, all."""
    found: dict[DeviceId, str] = {}
    for claim in claims:
        for given in claim.results:
            if not given.admin_access:
                users = listed((consumer.name for consumer in claim.status.reserved_for or ()), 3)
                reserved = f"reserved for {users}" if users else "not reserved"
                device, holder = DeviceId.of(given), f"claim {claim.key}, {reserved}"
                found[device] = f"{found[device]}; {holder}" if device in found else holder
    return found


def grouped(
    refusals: Iterable[tuple[Node, Refusal]],
    inventory: Inventory,
    program: ClaimProgram,
    held: Holders,
    full: Callable[[Refusal], Refusal] = lambda refusal: refusal,
) -> Iterator[str]:
    """Lines for each request and rule that stopped nodes: the closest node in full, the others by name.

    ``full`` gives what is shown of that node if the refusals are outlines.
    """
    groups: dict[tuple[RefusedClaim, str, Rule], list[tuple[Node, Refusal]]] = {}
    for node, refusal in refusals:
        groups.setdefault((refusal.claim, refusal.request, refusal.rule), []).append((node, refusal))
    for members in sorted(groups.values(), key=len, reverse=True):
        node, best = max(members, key=lambda member: member[1].closeness)
        yield from in_full(full(best), node, inventory, program, held)
        others = [other.metadata.name for other, _ in members if other is not node]
        if others:
            more = counted(len(others), "other node fails", "other nodes fail")
            yield f"  {more} for the same reason: {names(others)}"


def in_full(refusal: Refusal, node: Node, inventory: Inventory, program: ClaimProgram, held: Holders) -> Iterator[str]:
    """The refusal's own lines, and its details."""
    yield from refusal.explain(details(refusal, node, inventory, program, held)).splitlines()


def details(refusal: Refusal, node: Node, inventory: Inventory, program: ClaimProgram, held: Holders) -> Sequence[str]:
    """Selectors and what devices publish if no device matches, and holders if devices are in use."""
    more = [f"{device} is held by {held[device]}" for device in refusal.held if device in held]
    view = inventory.view(node)
    is_of_others = refusal.rule is Rule.NO_DEVICES and refusal.names_driver and view.devices
    if refusal.rule is Rule.SELECTOR or is_of_others:
        more += selector_report(_selectors(refusal, program), refusal.claim.key, view, inventory.compiled)
    return more


def _selectors(refusal: Refusal, program: ClaimProgram) -> Sequence[RequestSelector]:
    """The selectors of the refused request. Two claims may have requests of one name."""
    found = (
        alternative.selectors
        for stage in program.stages
        if program.claims[stage.claim].key == refusal.claim.key
        for alternative in stage.alternatives
        if alternative.request == refusal.request
    )
    return next(found, ())


def names(nodes: list[str]) -> str:
    """The first names, and the number of the others."""
    return listed(nodes, SHOWN_LINES)
