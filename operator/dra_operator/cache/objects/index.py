"""A look-up kept up to date instead of a scan: value -> keys of the objects that have it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

V = TypeVar("V", bound=Hashable)
_NONE: Final[frozenset[Any]] = frozenset()
_MOST_LATE_PIECES: Final = 64
"""Batches of filings that may wait."""


class Index(Generic[V]):
    """Each object key is filed under any number of values; filing it again replaces what was there.

    Keys come out in the order in which they were filed, so that everything built on it is reproducible. What is filed
    late waits for the first look-up: an answer about one pod needs few of the indexes over all.
    """

    def __init__(self) -> None:
        self._filed: dict[str, frozenset[V]] = {}
        self._found: dict[V, dict[str, None]] = {}
        self._late: list[Iterable[tuple[str, Iterable[V]]]] = []

    def file(self, key: str, values: Iterable[V]) -> None:
        """File ``key`` under exactly these values; under none to forget it."""
        if self._late:
            self.file_late([(key, frozenset(values))])
        else:
            self._file(key, values)

    def file_late(self, filings: Iterable[tuple[str, Iterable[V]]]) -> None:
        """As ``file`` for each, at the next look-up. What the filings are made of must not change until then."""
        if len(self._late) == _MOST_LATE_PIECES:
            self._catch_up()
        self._late.append(filings)

    def _catch_up(self) -> None:
        late, self._late = self._late, []
        for filings in late:
            for key, values in filings:
                self._file(key, values)

    @property
    def _values(self) -> dict[str, frozenset[V]]:
        if self._late:
            self._catch_up()
        return self._filed

    @property
    def _keys(self) -> dict[V, dict[str, None]]:
        if self._late:
            self._catch_up()
        return self._found

    def _file(self, key: str, values: Iterable[V]) -> None:
        new, old = frozenset(values), self._filed.get(key, _NONE)
        if new == old:
            return
        for value in old - new if old else ():
            keys = self._found[value]
            del keys[key]
            if not keys:
                del self._found[value]
        for value in new - old if old else new:
            self._found.setdefault(value, {})[key] = None
        if new:
            self._filed[key] = new
        else:
            self._filed.pop(key, None)

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
