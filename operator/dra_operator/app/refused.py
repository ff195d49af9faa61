"""The answers of many nodes for a reader: equal ones once, and the node that comes closest in full.

Where no device matches, the selectors stand beside what the devices publish: that shows at once which of both is wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from dra_api.core import Node
from dra_api.resource import DeviceAttribute

from dra_operator.allocator import Inventory, Plan, Refusal, Rule

SHOWN = 8  # names of nodes, values of an attribute


def grouped(refusals: Iterable[tuple[Node, Refusal]], inventory: Inventory, plan: Plan) -> Iterator[str]:
    """Lines for each request and rule that stopped nodes: the closest node in full, the others by name."""
    groups: dict[tuple[str, str, Rule], list[tuple[Node, Refusal]]] = {}
    for node, refusal in refusals:
        groups.setdefault((refusal.claim, refusal.request, refusal.rule), []).append((node, refusal))
    for members in sorted(groups.values(), key=len, reverse=True):
        node, best = max(members, key=lambda member: member[1].closeness)
        yield from best.explain().splitlines()
        if best.rule is Rule.SELECTOR:
            yield from _selectors(best, node, inventory, plan)
        others = [other.metadata.name for other, _ in members if other is not node]
        if others:
            yield f"  likewise {len(others)} more, none of them closer: {names(others)}"


def names(nodes: list[str]) -> str:
    """The first names, and how many there are besides."""
    hidden = len(nodes) - SHOWN
    return ", ".join(nodes[:SHOWN]) + (f" and {hidden} others" if hidden > 0 else "")


def _selectors(refusal: Refusal, node: Node, inventory: Inventory, plan: Plan) -> Iterator[str]:
    """The selectors that have to match, and the values of the attributes that they mention."""
    alternatives = (alternative for step in plan.steps for alternative in step.alternatives)
    found = next((alternative for alternative in alternatives if alternative.request == refusal.request), None)
    if found is None:
        return
    text = ""
    for selector in found.selectors:
        yield f"    selector #{selector.position} of {selector.owner}: {selector.expression}"
        text += selector.expression
    view = inventory.view(node)
    values: dict[str, Counter[str]] = {}
    for number, device in enumerate(view.devices):
        for name, attribute in (device.attributes or {}).items():
            if re.search(rf"\b{re.escape(name.rpartition('/')[2])}\b", text):
                full = name if "/" in name else f"{view.driver(number)}/{name}"
                values.setdefault(full, Counter())[_value(attribute)] += 1
    for name, counts in sorted(values.items()):
        told = ", ".join(f"{value} ({count})" for value, count in counts.most_common(SHOWN))
        yield f"    devices publish {name}: {told}"


def _value(attribute: DeviceAttribute) -> str:
    fields = (attribute.string, attribute.version, attribute.int_, attribute.bool_)
    value = next((field for field in fields if field is not None), None)
    return "a list" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
