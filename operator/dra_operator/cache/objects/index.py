"""A look-up kept up to date instead of a scan: value -> keys of the objects that have it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

V = TypeVar("V", bound=Hashable)
_NONE: Final[frozenset[Any]] = frozenset()


class Index(Generic[V]):
    """Each object key is filed under any number of values; filing it again replaces what was there.

    Keys come out in the order in which they were filed, so that everything built on it is reproducible.
    """

    def __init__(self) -> None:
        self._values: dict[str, frozenset[V]] = {}
        self._keys: dict[V, dict[str, None]] = {}

    def file(self, key: str, values: Iterable[V]) -> None:
        """File ``key`` under exactly these values; under none to forget it."""
        new, old = frozenset(values), self._values.get(key, _NONE)
        if new == old:
            return
        for value in old - new if old else ():
            keys = self._keys[value]
            del keys[key]
            if not keys:
                del self._keys[value]
        for value in new - old if old else new:
            self._keys.setdefault(value, {})[key] = None
        if new:
            self._values[key] = new
        else:
            self._values.pop(key, None)

    def keys(self, value: V) -> tuple[str, ...]:
        """The keys filed under ``value``."""
        return tuple(self._keys.get(value, ()))

    def count(self, value: V) -> int:
        """How many keys are filed under ``value``."""
        return len(self._keys.get(value, ()))

    def has(self, value: V) -> bool:
        """Whether anything is filed under ``value``."""
        return value in self._keys

    def values_of(self, key: str) -> frozenset[V]:
        """The values under which ``key`` is filed."""
        return self._values.get(key, _NONE)

    def values(self) -> Iterable[V]:
        """The values under which anything is filed."""
        return self._keys

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
