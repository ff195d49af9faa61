"""Files keys by the labels of the pods that they concern, so that a pod finds them by its own labels.

Most selectors name one value of one label (``app: web``). A key with such a selector is filed under that label, its
anchor; all other keys concern every pod.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
Anchor = tuple[str, str] | None


class Anchors(Generic[K]):
    """Keys under their anchors, in the order in which they came."""

    def __init__(self) -> None:
        self._keys: dict[Anchor, dict[K, None]] = {}

    def add(self, anchor: Anchor, key: K) -> None:
        """File a key."""
        self._keys.setdefault(anchor, {})[key] = None

    def discard(self, anchor: Anchor, key: K) -> None:
        """Remove a key; an unknown one is ignored."""
        keys = self._keys.get(anchor, {})
        keys.pop(key, None)
        if not keys:
            self._keys.pop(anchor, None)

    def number(self, anchor: Anchor) -> int:
        """How many keys are filed under the anchor."""
        return len(self._keys.get(anchor, ()))

    def all_near(self, labels: Mapping[str, str] | None) -> dict[K, None]:
        """As ``near``, at one moment: without a look at any of the keys, so fast also if they are many."""
        found = dict(self._keys.get(None, ()))
        for label in (labels or {}).items():
            found.update(self._keys.get(label, ()))
        return found

    def near(self, labels: Mapping[str, str] | None) -> Iterator[K]:
        """The keys that may concern a pod with these labels. No key must be added or removed during the iteration."""
        if not self._keys:
            return
        yield from self._keys.get(None, ())
        for label in (labels or {}).items():
            yield from self._keys.get(label, ())
