"""Which drivers, attributes and capacities a selector names, and on which values its answer depends.

An explanation names them. Terms that ask for nothing but the driver tell which drivers a selector can mean:
``device.driver == "gpu.example.com" && ...`` is false on every device of another driver. A false term makes a
conjunction false, also beside terms that fail.

Selectors come from users. A term with more than ``TERM_NODES`` nodes is left alone, and so are terms after the first
``MOST_TERMS``: then the selector may mean more drivers than it says.

Devices that are alike in all values on which a selector depends are asked once. Thousands of devices share their
model, memory and driver, and most selectors read nothing else. There is no answer for a selector that may read more
than constant names, such as all names of a domain, nor for a device that may have a fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from dra_api.resource import Device, DeviceAttribute

from dra_cel.analysis.constants import Constants
from dra_cel.basics.errors import EvaluationError
from dra_cel.libraries import scalars
from dra_cel.syntax.tree import Call, Fold, Ident, Node, Select, children, nodes, walk_chain

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


MOST_NAMES: Final = 4
_FIELDS: Final = ("driver", "allowMultipleAllocations")
Values = tuple[object, ...]


class DecidingValues:
    """Of one selector, whose answers depend on these names, and on fields of the device."""

    def __init__(self, names: Iterable[Reference]) -> None:
        self._names = [(one.kind == "attributes", one.domain, one.id, str(one)) for one in sorted(names)]

    @property
    def number(self) -> int:
        """How many values there are."""
        return len(_FIELDS) + len(self._names)

    def of(self, driver: str, device: Device) -> Values | None:
        """Equal for devices that get the same answer. None if that is not certain."""
        attributes, capacity = device.attributes or {}, device.capacity or {}
        for attribute in attributes.values():
            if (attribute.string is None and not _is_sound(attribute)) or attribute.versions is not None:
                return None
        found: list[object] = [driver, device.allow_multiple_allocations is True]
        for is_attribute, domain, name, qualified in self._names:
            value = attributes.get(qualified) if is_attribute else capacity.get(qualified)
            if domain == driver:
                own = attributes.get(name) if is_attribute else capacity.get(name)
                if own is not None and value is not None:
                    return None  # one of the two counts
                value = own or value
            found.append(value if isinstance(value, DeviceAttribute) or value is None else value.value.text)
        return tuple(found)


def deciding_values(root: Node, constants: Constants) -> DecidingValues | None:
    """Those of an expression. None if it may read any value, or reads more than ``MOST_NAMES``."""
    found: set[Reference] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, Call) and node.function == "@in":
            name, path = constants.get(node.args[0]), path_of(node.args[1], {}, constants)
            if isinstance(name, str) and len(path) == 3 and path[0] == "device" and path[1] in KINDS:
                found.add(Reference(*path[1:], name))
                continue
        start, selections = walk_chain(node)
        if not isinstance(start, Ident) or start.name != "device":
            pending.extend(children(node))
            continue
        path = path_of(node, {}, constants)
        if len(path) >= 4 and path[1] in KINDS:
            found.add(Reference(*path[1:4]))
        elif len(path) < 2 or path[1] not in _FIELDS:
            return None
        pending.extend(each.args[1] for each in selections if isinstance(each, Call))
    if len(found) > MOST_NAMES or any("/" in one.domain or "/" in one.id for one in found):
        return None  # no attribute is published under a name with a second slash
    return DecidingValues(found)


def _is_sound(attribute: DeviceAttribute) -> bool:
    """Whether a selector can read it under any feature gates."""
    if attribute.int_ is not None or attribute.bool_ is not None:
        return True
    if attribute.version is None:
        return False
    try:
        scalars.parse_version(attribute.version)
    except EvaluationError:
        return False
    return True
