"""Which attributes and capacities a selector names: to explain why devices do not match."""

from __future__ import annotations

from .constants import Constants
from .tree import Fold, Ident, Node, Select, nodes, walk_chain

Path = tuple[str, ...]


def references(root: Node, constants: Constants) -> frozenset[str]:
    """``domain/id`` of everything that is looked up by a constant name, also through names that ``cel.bind`` gave."""
    bound: dict[str, Path] = {}
    found: set[str] = set()
    for node in nodes(root):  # parents first, so that a name is bound before its uses are met
        if isinstance(node, Fold) and node.is_bind:
            bound[node.accu] = _path(node.init, bound, constants)
        path = _path(node, bound, constants)
        if len(path) >= 4 and path[0] == "device" and path[1] in ("attributes", "capacity"):
            found.add(f"{path[2]}/{path[3]}")
    return frozenset(found)


def _path(node: Node, bound: dict[str, Path], constants: Constants) -> Path:
    """The names on the way to a value, as far as they are constant."""
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
