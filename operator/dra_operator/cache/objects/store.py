"""The newest version of each object of one kind (scheduling.md section 5.1).

Three sources feed a store, in any order: our own LIST at start, the watch (late, repeated), and the answers to
our own writes (the assume cache: a write is visible at once, before the watch reports it). So

* a newer resourceVersion wins, an older or equal one is dropped;
* the UIDs of deleted objects are remembered: an answer that arrives after the deletion does not bring the
  object back, and neither does a listing that was made before it (CC-02, CC-03);
* a deletion names the UID, so a late one does not hit a successor of the same name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, KeysView, ValuesView
from typing import Generic, NamedTuple, TypeVar

from dra_api.meta import Object

T = TypeVar("T", bound=Object)


class UidMemory:
    """The last ``limit`` UIDs that were put in; the oldest is forgotten first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._uids: OrderedDict[str, None] = OrderedDict()

    def add(self, uid: str) -> None:
        """Remember ``uid`` as the newest."""
        self._uids[uid] = None
        self._uids.move_to_end(uid)
        if len(self._uids) > self._limit:
            self._uids.popitem(last=False)

    def discard(self, uid: str) -> None:
        """Forget it; one that is not remembered is ignored."""
        self._uids.pop(uid, None)

    def __contains__(self, uid: str) -> bool:
        return uid in self._uids

    def __iter__(self) -> Iterator[str]:
        return iter(self._uids)

    def __len__(self) -> int:
        return len(self._uids)


class Change(NamedTuple, Generic[T]):
    """A change of a store: ``old`` is None for a new object, ``new`` for a deleted one."""

    old: T | None
    new: T | None


class Store(Generic[T]):
    """Objects by ``namespace/name``."""

    def __init__(self, memory: int = 10_000) -> None:
        self._objects: dict[str, T] = {}
        self.deleted = UidMemory(memory)

    def put(self, obj: T) -> Change[T] | None:
        """Take ``obj`` in; None if that is no news."""
        key, meta = obj.key, obj.metadata
        old = self._objects.get(key)
        if (old is not None or self.deleted) and self.knows(key, meta.uid, meta.resource_version):
            return None
        if old is not None and old.metadata.uid != meta.uid:
            self.deleted.add(old.metadata.uid)
        self._objects[key] = obj
        return Change(old, obj)

    def knows(self, key: str, uid: str, resource_version: str) -> bool:
        """Whether the store has seen this version of the object, a newer one, or its end."""
        old = self._objects.get(key)
        is_older = old is not None and not _is_newer(resource_version, old.metadata.resource_version)
        return is_older or bool(uid and uid in self.deleted)

    def remove(self, key: str, uid: str | None = None) -> Change[T] | None:
        """Forget the object; None if it is not there, or has another UID than ``uid``."""
        if uid:
            self.deleted.add(uid)
        old = self._objects.get(key)
        if old is None or (uid and old.metadata.uid != uid):
            return None
        del self._objects[key]
        self.deleted.add(old.metadata.uid)
        return Change(old, None)

    def get(self, key: str, uid: str | None = None) -> T | None:
        """The newest known version; None if there is none, or if it has another UID than ``uid``."""
        found = self._objects.get(key)
        return found if uid is None or found is None or found.metadata.uid == uid else None

    def keys(self) -> KeysView[str]:
        """All keys, in the order of arrival."""
        return self._objects.keys()

    def values(self) -> ValuesView[T]:
        """All objects, in the order of arrival."""
        return self._objects.values()

    def __iter__(self) -> Iterator[T]:
        return iter(self._objects.values())

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: str) -> bool:
        return key in self._objects


def revision(resource_version: str) -> int | None:
    """A resourceVersion as a number, to compare two; None if the versions of this server are no numbers."""
    return int(resource_version) if resource_version.isascii() and resource_version.isdigit() else None


def _is_newer(new: str, old: str) -> bool:
    if new == old:
        return False
    after, before = revision(new), revision(old)
    if after is None or before is None:  # versions are opaque here: they can only be compared for equality
        return True
    return after > before
