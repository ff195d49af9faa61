"""The objects of the cluster as encoded bytes, one revision counter, and a log of changes per resource.

An object is kept as the JSON that clients get, without its first two members (apiVersion and kind). So a list of
thousands is a join of bytes, the same bytes serve every API version of equal shape, and 10,000 slices do not fill
the memory with dicts. The parts that selectors and the collector need are extracted once, at the write.

Everything here runs in one thread and never waits, so a check followed by a write needs no lock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import orjson

from dra_devcluster.apiserver.errors import expired

Json = dict[str, Any]
Key = tuple[str, str]  # namespace ("" for cluster-scoped objects) and name

# A watch can resume from any change that is still in the log; real servers keep about five minutes.
LOGGED_CHANGES = 20_000
LOG_BYTES = 128 * 2**20
# A watcher with this many unread changes is disconnected: a new list is faster for it.
UNREAD_CHANGES = 50_000


_BULK: Final = ("labels", "annotations", "managedFields")
_LARGE_BYTES: Final = 64 << 10
_BRIEF_BYTES: Final = 4 << 10


class Stored:
    """One version of an object. Immutable: a write makes a new one."""

    __slots__ = (
        "_brief",
        "_has_spec",
        "data",
        "fields",
        "finalizing",
        "labels",
        "name",
        "namespace",
        "owners",
        "revision",
        "uid",
    )

    def __init__(self, obj: Json, revision: int, fields: dict[str, str]) -> None:
        meta = obj["metadata"]
        self.namespace: str = meta.get("namespace", "")
        self.name: str = meta["name"]
        self.uid: str = meta.get("uid", "")
        self.revision = revision
        self.labels: dict[str, str] = meta.get("labels") or {}
        self.fields = fields
        self.owners = tuple(owner.get("uid", "") for owner in meta.get("ownerReferences") or ())
        self.finalizing = "deletionTimestamp" in meta
        rest = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
        self.data: bytes = orjson.dumps(rest)[1:]
        self._brief = orjson.dumps(_brief(rest)) if len(self.data) > _LARGE_BYTES else b""
        self._has_spec = len(self._brief) <= _BRIEF_BYTES
        if not self._has_spec:
            self._brief = orjson.dumps(_brief({**rest, "spec": {}}))
        if len(self._brief) > _BRIEF_BYTES:
            self._brief = b""

    @property
    def key(self) -> Key:
        return (self.namespace, self.name)

    def at(self, revision: int) -> Stored:
        """The same content under another revision."""
        obj = self.decode()
        obj["metadata"]["resourceVersion"] = str(revision)
        return Stored(obj, revision, self.fields)

    def decode(self) -> Json:
        """A fresh copy of the object, without apiVersion and kind."""
        decoded: Json = orjson.loads(b"{" + self.data)
        return decoded

    def brief_bytes(self, *, with_spec: bool) -> int:
        return len(self._brief if self._brief and (self._has_spec or not with_spec) else self.data)

    def brief(self, *, with_spec: bool) -> Json:
        """As ``decode``, without labels, annotations and managed fields. Of a large object that is kept if it is short.

        A list of rows would otherwise decode megabytes of labels for each, every time.
        """
        if self._brief and (self._has_spec or not with_spec):
            brief: Json = orjson.loads(self._brief)
            return brief
        return _brief(self.decode())


def _brief(obj: Json) -> Json:
    return {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key not in _BULK}}


class Change(NamedTuple):
    """One entry of the log; ``previous`` is what was there before, with its labels and fields."""

    type: str  # ADDED, MODIFIED, DELETED
    stored: Stored
    previous: Stored | None


class Watcher:
    """One reader of a collection's changes; ``wait`` until there are some, then ``take`` them all."""

    def __init__(self, collection: Collection, pending: deque[Change]) -> None:
        self._collection = collection
        self._pending = pending
        self._wake = asyncio.Event()
        self.overrun = False
        self.ended = False
        if pending:
            self._wake.set()

    def feed(self, change: Change) -> None:
        if len(self._pending) >= UNREAD_CHANGES:
            self.expire()
        if not self.overrun:
            self._pending.append(change)
        self._wake.set()

    def expire(self) -> None:
        """The changes that this reader has not seen are no longer known."""
        self.overrun = True
        self._pending.clear()
        self._wake.set()

    def end(self) -> None:
        """No more changes will come: the resource is no longer served, or the server stops."""
        self.ended = True
        self._wake.set()

    async def wait(self) -> None:
        await self._wake.wait()

    def take(self) -> list[Change]:
        changes = list(self._pending)
        self._pending.clear()
        if not self.ended:
            self._wake.clear()
        return changes

    def close(self) -> None:
        self._collection.watchers.discard(self)


class Collection:
    def __init__(self, store: Store, group: str, resource: str) -> None:
        self._store = store
        self.group = group
        self.resource = resource
        self.watchers: set[Watcher] = set()
        self._spaces: dict[str, dict[str, Stored]] = {}
        self._log: deque[Change] = deque()
        self._log_bytes = 0
        self.forgotten = store.revision  # changes up to here are not in the log

    def count(self, namespace: str = "") -> int:
        """How many objects there are; in one namespace if given."""
        spaces = [self._spaces.get(namespace, {})] if namespace else self._spaces.values()
        return sum(len(space) for space in spaces)

    def get(self, namespace: str, name: str) -> Stored | None:
        return self._spaces.get(namespace, {}).get(name)

    def all(self, namespace: str = "") -> Iterator[Stored]:
        """Objects in the order of their keys; of one namespace if given."""
        for space in [namespace] if namespace else sorted(self._spaces):
            objects = self._spaces.get(space, {})
            for name in sorted(objects):
                yield objects[name]

    def put(self, obj: Json, fields: dict[str, str]) -> Stored:
        """Store a new version under the next revision, which is written into ``obj`` as well."""
        revision = self._store.next_revision()
        obj["metadata"]["resourceVersion"] = str(revision)
        stored = Stored(obj, revision, fields)
        previous = self.get(*stored.key)
        self._spaces.setdefault(stored.namespace, {})[stored.name] = stored
        self._record(Change("MODIFIED" if previous else "ADDED", stored, previous))
        return stored

    def remove(self, key: Key, obj: Json) -> Stored:
        """Remove the object; ``obj`` is its last state, which the log gets under the revision of the removal."""
        namespace, name = key
        previous = self._spaces[namespace].pop(name)
        if not self._spaces[namespace]:
            del self._spaces[namespace]
        revision = self._store.next_revision()
        obj["metadata"]["resourceVersion"] = str(revision)
        gone = Stored(obj, revision, previous.fields)
        self._record(Change("DELETED", gone, previous))
        return gone

    def _record(self, change: Change) -> None:
        self._log.append(change)
        self._log_bytes += len(change.stored.data)
        while len(self._log) > LOGGED_CHANGES or self._log_bytes > LOG_BYTES:
            oldest = self._log.popleft().stored
            self._log_bytes -= len(oldest.data)
            self.forgotten = oldest.revision
        for watcher in self.watchers:
            watcher.feed(change)
        self._store.changed(self, change)

    def watch(self, since: int | None) -> Watcher:
        """Changes after a revision (None: from now on). Raises 410 when the log does not reach back so far."""
        pending: deque[Change] = deque()
        if since is not None:
            if since < self.forgotten:
                raise expired(f"too old resource version: {since} ({self.forgotten})")
            for change in reversed(self._log):
                if change.stored.revision <= since:
                    break
                pending.appendleft(change)
        watcher = Watcher(self, pending)
        self.watchers.add(watcher)
        return watcher

    def restore(self, stored: Stored) -> None:
        """Put an object of a snapshot back as it was."""
        self._spaces.setdefault(stored.namespace, {})[stored.name] = stored
        self.forgotten = self._store.revision

    def end_watches(self) -> None:
        for watcher in list(self.watchers):
            watcher.end()

    def expire(self) -> None:
        """Forget the changes so far, as a compaction does: watches end with 410."""
        self._log.clear()
        self._log_bytes = 0
        self.forgotten = self._store.revision
        for watcher in list(self.watchers):
            watcher.expire()


Listener = Callable[[Collection, Change], None]


class Store:
    def __init__(self) -> None:
        self.revision = 1
        self._collections: dict[tuple[str, str], Collection] = {}
        self._listeners: list[Listener] = []

    def next_revision(self) -> int:
        self.revision += 1
        return self.revision

    def collection(self, group: str, resource: str) -> Collection:
        """The collection of that resource, made at the first call."""
        found = self._collections.get((group, resource))
        if found is None:
            found = self._collections[group, resource] = Collection(self, group, resource)
        return found

    def collections(self) -> list[Collection]:
        return list(self._collections.values())

    def drop(self, group: str, resource: str) -> None:
        """Forget a collection, because its custom resource is no longer defined."""
        dropped = self._collections.pop((group, resource), None)
        if dropped is not None:
            dropped.end_watches()

    def listen(self, listener: Listener) -> None:
        """Call this for every change, within the write that makes it."""
        self._listeners.append(listener)

    def changed(self, collection: Collection, change: Change) -> None:
        for listener in self._listeners:
            listener(collection, change)
