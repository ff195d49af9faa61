"""Sets of fields in the form that managedFields stores (`FieldsV1`), and their algebra.

A set is a tree of dicts. Its keys are path elements: `f:<field name>`, `k:<key fields of a list item, as JSON>`,
`v:<scalar list item, as JSON>`. An empty node is a member of the set; a node with children is a member too if it
holds the key `.`. So `{"f:spec": {"f:nodeName": {}}}` holds one field, and the tree needs no second representation.
Trees are never changed once made: they are shared between versions of an object.
"""

from collections.abc import Iterator
from typing import Any

import orjson

Fields = dict[str, Any]
LEAF: Fields = {}  # shared by all trees


def union(one: Fields, other: Fields) -> Fields:
    """The root of a tree is never a member: an empty root is the empty set."""
    if not one or not other:
        return one or other
    return {key: _union(one.get(key), other.get(key)) for key in one | other}


def difference(one: Fields, other: Fields) -> Fields:
    """The members of `one` that are not members of `other`."""
    out = {}
    for key, node in one.items():
        left = node if key not in other else _difference(node, other[key])
        if left is not None:
            out[key] = left
    return out


def intersection(one: Fields, other: Fields) -> Fields:
    """The members of both."""
    out = {}
    for key in one.keys() & other.keys():
        both = _intersection(one[key], other[key])
        if both is not None:
            out[key] = both
    return out


def member(node: Fields) -> bool:
    """Whether the path that ends in this node belongs to the set."""
    return not node or "." in node


def paths(fields: Fields, prefix: str = "") -> Iterator[str]:
    """Every member as messages name it: `.spec.containers[name="c"].image`, in sorted order."""
    for key in sorted(fields):
        if key != ".":
            here = prefix + _display(key)
            if member(fields[key]):
                yield here
            yield from paths(fields[key], here)


def well_formed(fields: Any) -> bool:
    """Whether a client's data is such a tree."""
    return isinstance(fields, dict) and all(_is_element(key) and well_formed(node) for key, node in fields.items())


def _is_element(key: str) -> bool:
    kind, _, rest = key.partition(":")
    if kind != "k":
        return key == "." or (kind in ("f", "v") and bool(rest))
    try:
        return isinstance(orjson.loads(rest), dict)
    except orjson.JSONDecodeError:
        return False


def _display(element: str) -> str:
    kind, _, rest = element.partition(":")
    if kind == "f":
        return "." + rest
    if kind == "v":
        return f"[={rest}]"
    pairs = orjson.loads(rest)
    return "[" + ",".join(f"{key}={orjson.dumps(value).decode()}" for key, value in sorted(pairs.items())) + "]"


def _node(inside: bool, children: Fields) -> Fields | None:
    """A node from its parts; None when nothing is left of it."""
    if inside:
        return {".": LEAF, **children} if children else LEAF
    return children or None


def _children(node: Fields) -> Fields:
    return {key: value for key, value in node.items() if key != "."} if "." in node else node


def _union(one: Fields | None, other: Fields | None) -> Fields:
    if one is None or other is None or one is other:
        return one if one is not None else other or LEAF
    inside = member(one) or member(other)
    return _node(inside, union(_children(one), _children(other))) or LEAF


def _difference(one: Fields, other: Fields) -> Fields | None:
    inside = member(one) and not member(other)
    return _node(inside, difference(_children(one), _children(other)))


def _intersection(one: Fields, other: Fields) -> Fields | None:
    return _node(member(one) and member(other), intersection(_children(one), _children(other)))
