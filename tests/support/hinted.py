"""What the hints of a change name, whatever their urgency."""

from __future__ import annotations

from collections.abc import Iterable

from dra_operator.cache import Hint, Key


def keys_of(hints: Iterable[Hint]) -> list[Key]:
    """The keys, in the order of the hints."""
    return [hint if isinstance(hint, Key) else hint.key for hint in hints]
