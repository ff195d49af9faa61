"""YAML within limits, for every file and body that a user writes.

A few lines of YAML can stand for gigabytes, end the process instead of raising, or fail with errors of any class. So
all readers of YAML derive their loader here:

- Nesting is limited: libyaml's composer is recursive, and ends the process when the stack is full.
- Aliases may repeat values, but what they stand for in sum is limited, and nothing may contain itself.
- A timestamp without quotes is text, as for kubectl, and so is a number of base 60 (``1:30``): Go's readers of YAML
  know neither. Reading one takes time that grows with the square of its length, so tagged ones are refused.
- Every fault is a YAMLError: PyYAML itself passes on what ``int`` or ``datetime`` say of a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

YAML_LEVELS: Final = 100
"""Levels of nesting; the deepest field of the kinds of Kubernetes that matter here is at level 12."""
REPEATED_VALUES: Final = 100_000
"""Values that a document with aliases may stand for."""
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"
_INT: Final = "tag:yaml.org,2002:int"
_FLOAT: Final = "tag:yaml.org,2002:float"
_ANY_LOADER: Final[Any] = object
"""What ``loader`` derives from in the end, for the checker of types."""


class _Limited(_ANY_LOADER):  # type: ignore[misc]
    """The composer calls ``descend_resolver`` on its way into each node, ``ascend_resolver`` on its way out."""

    depth = 0

    def __init__(self, stream: str | bytes) -> None:
        try:
            super().__init__(stream)
        except ValueError as error:  # half of a surrogate pair
            raise yaml.YAMLError(str(error)) from error
        self._may_repeat = (b"*" if isinstance(stream, bytes) else "*") in stream  # type: ignore[operator]

    def descend_resolver(self, _: object, __: object) -> None:
        self.depth += 1
        if self.depth > YAML_LEVELS:
            raise yaml.YAMLError(f"nested more than {YAML_LEVELS} levels deep")

    def ascend_resolver(self) -> None:
        self.depth -= 1

    def construct_yaml_int(self, node: yaml.Node) -> Any:
        return super().construct_yaml_int(_in_one_part(node))

    def construct_yaml_float(self, node: yaml.Node) -> Any:
        return super().construct_yaml_float(_in_one_part(node))

    def construct_document(self, node: yaml.Node) -> Any:
        if self._may_repeat:
            _measure(node, {})
        try:
            return super().construct_document(node)
        except (ValueError, OverflowError, TypeError, LookupError, AttributeError) as error:
            raise yaml.YAMLError(  # without the value, which may be a password
                "a value cannot be read: it does not fit its tag, such as !!int, or has too many digits"
            ) from error


def loader(base: Any) -> Any:
    """A loader derived from one of PyYAML's safe ones, within the limits."""
    resolvers = base.yaml_implicit_resolvers.items()

    class Loader(_Limited, base):  # type: ignore[misc]
        yaml_implicit_resolvers: Final = {
            first: [
                (tag, _decimal(pattern) if tag in (_INT, _FLOAT) else pattern)
                for tag, pattern in found
                if tag != _TIMESTAMP
            ]
            for first, found in resolvers
        }

    Loader.add_constructor(_INT, Loader.construct_yaml_int)
    Loader.add_constructor(_FLOAT, Loader.construct_yaml_float)
    return Loader


def _decimal(number: re.Pattern[str]) -> re.Pattern[str]:
    """The pattern of a number without those of base 60."""
    return re.compile(f"(?![^:]*:)(?:{number.pattern})", number.flags)


def _in_one_part(node: yaml.Node) -> yaml.Node:
    """The node, unless its text is a number of base 60. Raises ValueError."""
    if isinstance(node, yaml.ScalarNode) and ":" in node.value:
        raise ValueError("a number of base 60")
    return node


SAFE: Final = loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader))
"""In C where PyYAML was built with libyaml."""


def load(text: str | bytes) -> Any:
    """The one document of a text. Raises YAMLError."""
    return yaml.load(text, SAFE)


def load_all(text: str | bytes) -> list[Any]:
    """The documents of a text, empty ones as None. Raises YAMLError."""
    return list(yaml.load_all(text, SAFE))


def _measure(node: yaml.Node, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """How many values a node stands for, and how deep. Each node is looked at once. Raises YAMLError."""
    if id(node) in known:
        found = known[id(node)]
        if found is None:
            raise yaml.YAMLError("a value contains itself by an alias: write it out")
        return found
    known[id(node)] = None
    count, depth = 1, 0
    for child in _children(node):
        more, below = _measure(child, known)
        count, depth = count + more, max(depth, below)
    if count > REPEATED_VALUES:
        raise yaml.YAMLError(f"aliases make it more than {REPEATED_VALUES} values: write fewer of them")
    if depth >= YAML_LEVELS:
        raise yaml.YAMLError(f"nested more than {YAML_LEVELS} levels deep by aliases")
    known[id(node)] = count, depth + 1
    return count, depth + 1


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def repeated_keys(text: str | bytes) -> Iterator[tuple[int, int, str]]:
    """Yield keys that stand twice in one mapping, with document and line, each from 1: the last one counts.

    Raises YAMLError.
    """
    for number, document in enumerate(yaml.compose_all(text, SAFE), 1):
        seen: set[int] = set()
        left = [document] if document is not None else []
        while left:
            node = left.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            left += _children(node)
            keys: set[str] = set()
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                if isinstance(key, yaml.ScalarNode) and key.value in keys and key.value != "<<":
                    yield number, key.start_mark.line + 1, key.value
                keys.add(key.value if isinstance(key, yaml.ScalarNode) else "")
