"""The slices of a driver as the watch reports them, with our own writes on top for a while.

The watch reports a write late. Without the overlay the next sync would create again the slice that the last one has
created. A write of ours counts until the watch reports the same or a newer version of the slice, or its deletion; until
a newer list lacks the slice, which was then deleted while no watch saw it; or until a minute has passed. Spec: RS-03.

An answer may be late as well: the slice that it shows was deleted, and the watch has said so. A slice that is unknown,
and of a version that the watch has passed, is one of those.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from dra_api.codec import DecodeError, convert
from dra_api.meta import ObjectMeta
from dra_api.resource import ResourcePool, ResourceSlice, ResourceSliceSpec

from .plan import Stored

log = logging.getLogger(__name__)


class SliceView:
    """Slices by name. Times are seconds of any one clock; ``overlay_seconds`` is how long our own writes count."""

    def __init__(self, overlay_seconds: float) -> None:
        self._overlay_seconds = overlay_seconds
        self._reported: dict[str, Stored] = {}
        self._written: dict[str, tuple[float, Stored]] = {}
        self._passed = 0  # the version of the newest list or event

    def replace(self, items: Iterable[Stored], resource_version: str) -> None:
        """Take in a new list, of that version."""
        self._reported = {item.name: item for item in items if item.name}
        newest = self._passed = _number(resource_version)
        self._written = {
            name: entry
            for name, entry in self._written.items()
            if name in self._reported or _version(entry[1]) > newest
        }

    def see(self, event: str, obj: dict[str, Any]) -> str:
        """Take in a watch event; returns the name of its pool."""
        item = stored(obj)
        if event == "DELETED":
            self._reported.pop(item.name, None)
            self.forget(item)
        elif item.name and not self._is_older(item):
            self._reported[item.name] = item
        self._passed = max(self._passed, _version(item))
        return item.slice.spec.pool.name

    def read(self, obj: dict[str, Any]) -> None:
        """Take in the answer to a read, which may be newer than what the watch has brought, or older."""
        item = stored(obj)
        if item.name and not (self._is_older(item) or self._is_gone(item)):
            self._reported[item.name] = item

    def _is_older(self, item: Stored) -> bool:
        """Whether we know a newer version of the slice: we have read it, and the watch is behind."""
        known = self._reported.get(item.name)
        if known is None or known.slice.metadata.uid != item.slice.metadata.uid:
            return False
        return _version(item) < _version(known)

    def _is_gone(self, item: Stored) -> bool:
        """Whether the slice was deleted after this version: the watch has passed it, and does not know it."""
        return item.name not in self._reported and _version(item) <= self._passed

    def wrote(self, obj: dict[str, Any], now: float) -> Stored:
        """Put the answer to our own create or update on top of what the watch reports."""
        item = stored(obj)
        if not self._is_gone(item):
            self._written[item.name] = (now + self._overlay_seconds, item)
        return item

    def forget(self, item: Stored) -> None:
        """The slice is gone: we deleted it, or the watch reported its deletion."""
        written = self._written.get(item.name)
        if written and written[1].slice.metadata.uid == item.slice.metadata.uid:
            del self._written[item.name]
        reported = self._reported.get(item.name)
        if reported and reported.slice.metadata.uid == item.slice.metadata.uid:
            del self._reported[item.name]

    def pool(self, name: str, now: float) -> list[Stored]:
        """The slices of a pool."""
        return [item for item in self._all(now).values() if item.slice.spec.pool.name == name]

    def pools(self, now: float) -> set[str]:
        """Names of the pools that have slices."""
        return {item.slice.spec.pool.name for item in self._all(now).values()}

    def _all(self, now: float) -> dict[str, Stored]:
        self._written = {name: entry for name, entry in self._written.items() if entry[0] > now}
        merged = dict(self._reported)
        for name, (_, item) in self._written.items():
            if name not in merged or _version(item) > _version(merged[name]):
                merged[name] = item
        return merged


def stored(obj: dict[str, Any]) -> Stored:
    """Decode a slice. A malformed one keeps name, uid and pool only, so that a sync corrects or deletes it."""
    try:
        return Stored(obj, convert(ResourceSlice, obj))
    except DecodeError as error:
        name = text_at(obj, "metadata", "name")
        log.warning("ResourceSlice %s is malformed and will be replaced: %s", name, error)
        bare = ObjectMeta(name=name, uid=text_at(obj, "metadata", "uid"))
        pool = ResourcePool(name=text_at(obj, "spec", "pool", "name"))
        return Stored(obj, ResourceSlice(metadata=bare, spec=ResourceSliceSpec(pool=pool)))


def text_at(obj: Any, *path: str) -> str:
    """The text at a place of an object that may have any shape; empty if there is none."""
    for key in path:
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj if isinstance(obj, str) else ""


def _version(item: Stored) -> int:
    return _number(text_at(item.raw, "metadata", "resourceVersion"))


def _number(resource_version: str) -> int:
    return int(resource_version) if resource_version.isdecimal() else 0
