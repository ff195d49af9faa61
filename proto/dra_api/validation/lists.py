"""Lists and maps: their length, repeated entries, and each entry.

A list that is too long gets only that error, so that no request can make the server check (or print) thousands of
entries. Spec: api.md section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from .errors import Errors, duplicate, too_many

Item = TypeVar("Item")


def each(items: Iterable[Item] | None, path: str, check: Callable[[Item, str], Errors]) -> Errors:
    """Check every entry at its own path."""
    for index, item in enumerate(items or ()):
        yield from check(item, f"{path}[{index}]")


def limited(items: Sequence[Item] | None, path: str, limit: int, check: Callable[[Item, str], Errors]) -> Errors:
    """At most ``limit`` entries, each of which passes the check."""
    if items and len(items) > limit:
        yield too_many(path, len(items), limit)
    else:
        yield from each(items, path, check)


def repeated(items: Iterable[Hashable] | None, path: str) -> Errors:
    """Every entry that repeats an earlier one."""
    seen = set()
    for index, item in enumerate(items or ()):
        if item in seen:
            yield duplicate(f"{path}[{index}]", item)
        seen.add(item)


def unique(
    items: Sequence[Item] | None,
    path: str,
    limit: int,
    check: Callable[[Item, str], Errors],
    key: Callable[[Item], Hashable],
) -> Errors:
    """At most ``limit`` entries, each of which passes the check, and no two with the same key."""
    if items and len(items) > limit:
        yield too_many(path, len(items), limit)
        return
    yield from each(items, path, check)
    yield from repeated(map(key, items or ()), path)


def mapping(
    items: Mapping[str, Item] | None,
    path: str,
    check_key: Callable[[str, str], Errors],
    check: Callable[[Item, str], Errors],
) -> Errors:
    """Check every key (errors at the map's path) and every value (errors at the key's path)."""
    for key, value in (items or {}).items():
        yield from check_key(key, path)
        yield from check(value, f"{path}[{_shortened(key)}]")


def _shortened(key: str) -> str:
    """A key as it appears in paths: a long one is cut in the middle."""
    return key if len(key) <= 96 else f"{key[:47]}...{key[-46:]}"
