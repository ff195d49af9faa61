"""Which drivers, attributes and capacities a selector names: to explain why devices do not match."""

from __future__ import annotations

from typing import NamedTuple

from dra_cel.syntax.tree import Call, Fold, Ident, Node, Select, children, nodes, walk_chain

from .constants import Constants

Path = tuple[str, ...]
KINDS = ("attributes", "capacity")
DRIVER: Path = ("device", "driver")
COMPARISONS = ("_==_", "@in")


class Reference(NamedTuple):
    """An attribute or capacity by its qualified name."""

    kind: str
    """``attributes`` or ``capacity``, as in ``device.attributes``."""
    domain: str
    id: str

    def __str__(self) -> str:
        return f"{self.domain}/{self.id}"


def references(root: Node, constants: Constants) -> frozenset[Reference]:
    """Everything that is looked up, or tested with ``in``, under constant names, also through names of ``cel.bind``."""
    bound: dict[str, Path] = {}
    found: set[Reference] = set()
    for node in nodes(root):  # parents first, so that a name is bound before its uses are met
        if isinstance(node, Fold) and node.is_bind:
            bound[node.accu] = path_of(node.init, bound, constants)
        path = path_of(node, bound, constants)
        if isinstance(node, Call) and node.function == "@in":
            name = constants.get(node.args[0])
            path = (*path_of(node.args[1], bound, constants), name) if isinstance(name, str) else ()
        if len(path) >= 4 and path[0] == "device" and path[1] in KINDS:
            found.add(Reference(*path[1:4]))
    return frozenset(found)


def drivers(root: Node, constants: Constants) -> frozenset[str]:
    """Constants that the driver is compared with by ``==`` or ``in``; a negated comparison asks for no driver."""
    bound: dict[str, Path] = {}
    found: set[str] = set()
    pending = [root]
    while pending:  # parents first, as above
        node = pending.pop()
        if isinstance(node, Fold) and node.is_bind:
            bound[node.accu] = path_of(node.init, bound, constants)
        if isinstance(node, Call) and node.function == "!_":
            continue
        if isinstance(node, Call) and node.function in COMPARISONS:
            others = [side for side in node.args if path_of(side, bound, constants) != DRIVER]
            value = constants.get(others[0]) if len(others) == 1 else None
            found.update(name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str))
        pending.extend(reversed(children(node)))
    return frozenset(found)


def path_of(node: Node, bound: dict[str, Path], constants: Constants) -> Path:
    """The names on the way to a value, up to the first that is not constant."""
    start, selections = walk_chain(node)
    if not isinstance(start, Ident):
        return ()
    path = list(bound.get(start.name, (start.name,)))
    for selection in selections:
        key = selection.name if isinstance(selection, Select) else constants.get(selection.args[1])
        if not isinstance(key, str):
            break
        path.append(key)
    return tuple(path)
