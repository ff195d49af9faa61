"""Renders refusals: the answers of many nodes, equal ones once, and the claims that hold devices in use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dra_api.core import Node
from dra_api.resource import ResourceClaim

from dra_operator.allocator import ClaimProgram, DeviceId, Inventory, Refusal, RefusedClaim, RequestSelector, Rule
from dra_operator.wording import counted, listed

from .selector_report import selector_report

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
    """The refusal's own lines, with selectors and devices if no device matches, and holders if devices are in use."""
    more = [f"{device} is held by {held[device]}" for device in refusal.held if device in held]
    view = inventory.view(node)
    is_of_others = refusal.rule is Rule.NO_DEVICES and refusal.names_driver and view.devices
    if refusal.rule is Rule.SELECTOR or is_of_others:
        more += selector_report(_selectors(refusal, program), refusal.claim.key, view, inventory.compiled)
    yield from refusal.explain(more).splitlines()


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
