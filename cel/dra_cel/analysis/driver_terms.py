"""The conditions of a selector that ask for nothing but the driver.

``device.driver == "gpu.example.com" && ...`` is false on every device of another driver, whatever the rest says: a
false term makes a conjunction false, also beside terms that fail. So such terms tell which drivers a selector can mean.

Selectors come from users. A term with more than ``TERM_NODES`` nodes is left alone, and so are terms after the first
``MOST_TERMS``: then the selector may mean more drivers than it says.
"""

from __future__ import annotations

from typing import Final

from dra_cel.syntax.tree import Call, Fold, Ident, Node, Select, children

TERM_NODES: Final = 64
MOST_TERMS: Final = 8


def driver_terms(root: Node) -> list[Node]:
    """The terms of the conjunction that depend on the driver alone."""
    found: list[Node] = []
    pending = [root]
    while pending and len(found) < MOST_TERMS:
        node = pending.pop()
        if isinstance(node, Call) and node.function == "_&&_":
            pending.extend(reversed(node.args))
        elif _asks_for_driver_alone(node):
            found.append(node)
    return found


def _asks_for_driver_alone(term: Node) -> bool:
    pending, seen, asks = [term], 0, False
    while pending:
        node = pending.pop()
        seen += 1
        if seen > TERM_NODES or isinstance(node, Fold):
            return False
        if isinstance(node, Select) and node.name == "driver" and not node.test and _is_device(node.operand):
            asks = True
        elif isinstance(node, Ident) and node.constant is None:
            return False
        else:
            pending.extend(children(node))
    return asks


def _is_device(node: Node) -> bool:
    return isinstance(node, Ident) and node.name == "device"
