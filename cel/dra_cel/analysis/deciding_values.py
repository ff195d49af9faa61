"""The values of a device on which the answer of a selector depends, so that devices alike in them are asked once.

Thousands of devices share their model, memory and driver, and most selectors read nothing else. Of a selector that may
read more than constant names, such as all names of a domain, nothing is said, nor of a device that may have a fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dra_api.resource import Device, DeviceAttribute

from dra_cel.basics.errors import EvaluationError
from dra_cel.libraries import semver
from dra_cel.syntax.tree import Call, Ident, Node, children, walk_chain

from .constants import Constants
from .references import KINDS, Reference, path_of

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
        semver.parse(attribute.version)
    except EvaluationError:
        return False
    return True
