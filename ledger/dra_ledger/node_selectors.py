"""Node selectors: parsed once, matched often (allocator.md section 3).

Terms are ORed, the requirements of a term are ANDed, and a term without requirements matches nothing.
Operators are In, NotIn (true for a missing label), Exists, DoesNotExist, Gt and Lt (whole numbers);
``matchFields`` knows ``metadata.name`` with In and NotIn and exactly one value. Keys and values must be valid for
labels: any other, in any term, makes the selector malformed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Final

from dra_api.cache import Cache
from dra_api.codec import encode
from dra_api.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm

from .errors import NodeSelectionError

Labels = Mapping[str, str]
Check = Callable[[Labels], bool]


class NodeTerm:
    """One parsed term."""

    __slots__ = ("_fields", "_labels", "source")

    def __init__(self, source: NodeSelectorTerm) -> None:
        self.source = source
        self._labels = tuple(_label_check(requirement) for requirement in source.match_expressions or ())
        self._fields = tuple(_field_check(requirement) for requirement in source.match_fields or ())

    def matches(self, labels: Labels, fields: Labels) -> bool:
        """All requirements hold, and there is at least one."""
        for check in self._labels:  # loops, since terms are compared by the million
            if not check(labels):
                return False
        for check in self._fields:
            if not check(fields):
                return False
        return bool(self._labels or self._fields)


KEPT_SELECTOR_BYTES: Final = 8 << 20
_SELECTOR_BYTES_PER_CHARACTER: Final = 32
"""What a selector takes beside its terms for each character of its JSON, if all its names and values are short."""
_parsed: Final[Cache[NodeSelector, tuple[NodeTerm, ...]]] = Cache(
    KEPT_SELECTOR_BYTES, lambda selector, _: _SELECTOR_BYTES_PER_CHARACTER * len(encode(selector))
)


def parse(selector: NodeSelector) -> tuple[NodeTerm, ...]:
    """The terms of a selector. Raises NodeSelectionError naming the operator or values at fault."""
    terms = _parsed.get(selector)
    if terms is None:
        terms = _parsed.put(selector, tuple(NodeTerm(term) for term in selector.node_selector_terms or ()))
    return terms


def first_match(terms: tuple[NodeTerm, ...], node: Node) -> NodeTerm | None:
    """The first term that the node satisfies."""
    labels, fields = node.metadata.labels or {}, {"metadata.name": node.metadata.name}
    return next((term for term in terms if term.matches(labels, fields)), None)


def matches(selector: NodeSelector, node: Node) -> bool:
    """The node satisfies the selector. Raises NodeSelectionError when it cannot be parsed."""
    return first_match(parse(selector), node) is not None


_WHOLE_NUMBER: Final = re.compile(r"[-+]?[0-9]{1,63}", re.ASCII)
_LARGEST_NUMBER: Final = 2**63


def _whole_number(text: str) -> int | None:
    """A number of 64 bits without spaces or separators."""
    number = int(text) if _WHOLE_NUMBER.fullmatch(text) else _LARGEST_NUMBER
    return number if -_LARGEST_NUMBER <= number < _LARGEST_NUMBER else None


def _label_check(requirement: NodeSelectorRequirement) -> Check:
    # It comes with all of validation, and most clusters need nothing of that.
    from dra_api.validation.formats import label_key, label_value

    key, operator, values = requirement.key, requirement.operator, requirement.values or ()
    fault = next(chain(label_key(key), *map(label_value, values)), None)
    if fault is not None:
        raise NodeSelectionError(f"node selector: {key} {operator} {list(values)}: {fault}")
    if operator in ("In", "NotIn"):
        if not values:
            raise NodeSelectionError(f"node selector: {key} {operator} needs at least one value")
        allowed = frozenset(values)
        if operator == "In":
            return lambda labels: labels.get(key) in allowed
        return lambda labels: labels.get(key) not in allowed
    if operator in ("Exists", "DoesNotExist"):
        if values:
            raise NodeSelectionError(f"node selector: {key} {operator} must not have values")
        wanted = operator == "Exists"
        return lambda labels: (key in labels) is wanted
    if operator in ("Gt", "Lt"):
        return _comparison(key, operator, values)
    raise NodeSelectionError(
        f"node selector: {key} has the unsupported operator {operator!r}: use In, NotIn, Exists, DoesNotExist, Gt or Lt"
    )


def _comparison(key: str, operator: str, values: tuple[str, ...]) -> Check:
    bound = _whole_number(values[0]) if len(values) == 1 else None
    if bound is None:
        raise NodeSelectionError(f"node selector: {key} {operator} needs exactly one whole number, got {list(values)}")
    above = operator == "Gt"

    def check(labels: Labels) -> bool:
        number = _whole_number(labels.get(key, ""))
        return number is not None and (number > bound if above else number < bound)

    return check


def _field_check(requirement: NodeSelectorRequirement) -> Check:
    key, operator, values = requirement.key, requirement.operator, requirement.values or ()
    if operator not in ("In", "NotIn") or len(values) != 1:
        raise NodeSelectionError(f"node selector: field {key} supports In and NotIn with exactly one value")
    value, wanted = values[0], operator == "In"
    return lambda fields: (fields.get(key, "") == value) is wanted
