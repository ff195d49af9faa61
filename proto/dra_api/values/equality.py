"""Equality as the API server defines it: an empty list or map equals an absent one, ``1000m`` equals ``1``.

Rules about immutable fields use it, so that a client may write ``[]`` for an absent list.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct


def same(one: Any, other: Any) -> bool:
    """Whether two structs (or parts of structs) mean the same."""
    if one is other:
        return True
    if isinstance(one, Struct) and type(one) is type(other):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__)
    if isinstance(one, tuple | None) and isinstance(other, tuple | None):
        one, other = one or (), other or ()
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict | None) and isinstance(other, dict | None):
        one, other = one or {}, other or {}
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, Raw) and isinstance(other, Raw):
        return bytes(one) == bytes(other)
    return bool(one == other)
