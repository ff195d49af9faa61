"""What concerns pods with certain labels, filed so that a pod finds it by its own labels instead of trying all.

Most selectors name one value of one label (``app: web``). What goes by such a selector is filed under that label, its
anchor; the rest is looked at for every pod.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Anchor = tuple[str, str] | None


class Anchors(Generic[K]):
    """Keys under their anchors, in the order of their coming."""

    def __init__(self) -> None:
        self._keys: dict[Anchor, dict[K, None]] = {}

    def add(self, anchor: Anchor, key: K) -> None:
        """File a key."""
        self._keys.setdefault(anchor, {})[key] = None

    def discard(self, anchor: Anchor, key: K) -> None:
        """Take a key out again; one that is not there is ignored."""
        keys = self._keys.get(anchor, {})
        keys.pop(key, None)
        if not keys:
            self._keys.pop(anchor, None)

    def near(self, labels: Mapping[str, str] | None) -> Iterator[K]:
        """What may concern a pod with these labels. Nothing must be filed or taken out meanwhile."""
        if not self._keys:
            return
        yield from self._keys.get(None, ())
        for label in (labels or {}).items():
            yield from self._keys.get(label, ())
