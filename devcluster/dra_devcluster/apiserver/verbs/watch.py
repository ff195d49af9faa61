"""Watches: the changes of a resource as a stream of JSON lines.

A watch starts from a revision, or with the whole state as ADDED events. With selectors, an object that comes to match
is ADDED and one that ceases to is DELETED. Bookmarks tell the client the current revision when no change concerns it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import orjson

from dra_devcluster.apiserver.errors import Json, StatusError, expired
from dra_devcluster.apiserver.served.registry import Registry
from dra_devcluster.apiserver.storage.store import Change, Stored, Watcher
from dra_devcluster.apiserver.structure import Resource
from dra_devcluster.apiserver.verbs.read import check_watch, number, revision
from dra_devcluster.apiserver.wire.bodies import flag

from .read import Matches, matcher

BOOKMARK_SECONDS = 60.0
_SHORTEST_WATCH_SECONDS = 1800
_INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_WATCH_PART_BYTES = 512 * 1024

Encode = Callable[[Stored], bytes]


@dataclass(frozen=True, slots=True)
class WatchQuery:
    """What a watch asks for."""

    namespace: str
    matches: Matches | None
    since: int | None
    initial: bool
    bookmarks: bool
    initial_bookmark: bool
    timeout: float

    @classmethod
    def parse(cls, registry: Registry, resource: Resource, namespace: str, query: Json) -> WatchQuery:
        """Raises 400, 410 and 422."""
        check_watch(query)
        bookmarks = flag(query, "allowWatchBookmarks")
        initial = flag(query, "sendInitialEvents")
        since = revision(query)
        if since > registry.store.revision:
            # A revision of another server, or of this one before it was started anew: only a new list helps.
            raise expired(f"too old resource version: {since} ({registry.store.revision})")
        whole_state = initial or (not since and "sendInitialEvents" not in query)
        return cls(
            namespace=namespace,
            matches=matcher(registry, resource, query),
            since=None if whole_state or not since else since,
            initial=whole_state,
            bookmarks=bookmarks,
            initial_bookmark=bookmarks and initial,
            timeout=number(query, "timeoutSeconds")
            or random.uniform(_SHORTEST_WATCH_SECONDS, 2 * _SHORTEST_WATCH_SECONDS),
        )


async def stream(registry: Registry, resource: Resource, query: WatchQuery, encode: Encode) -> AsyncIterator[bytes]:
    """Chunks of whole lines until the watch ends."""
    collection = registry.collection(resource)
    try:
        watcher = collection.watch(query.since)
    except StatusError as error:
        yield _line(b"ERROR", orjson.dumps(error.status))
        return
    try:
        if query.initial:
            for chunk in _state(registry, resource, query, encode):
                yield chunk
        async for chunk in _changes(registry, resource, query, encode, watcher):
            yield chunk
    finally:
        watcher.close()


def _state(registry: Registry, resource: Resource, query: WatchQuery, encode: Encode) -> list[bytes]:
    """All objects as ADDED, taken at one revision, so that the changes follow exactly."""
    revision = registry.store.revision
    found = [
        stored
        for stored in registry.collection(resource).all(query.namespace)
        if query.matches is None or query.matches(stored)
    ]
    lines = [_line(b"ADDED", encode(stored)) for stored in found]
    if query.initial_bookmark:
        lines.append(_bookmark(resource, revision, {_INITIAL_EVENTS_END: "true"}))
    return _joined(lines)


def _joined(lines: list[bytes]) -> list[bytes]:
    chunks, current, size = [], [], 0
    for line in lines:
        current.append(line)
        size += len(line)
        if size >= _WATCH_PART_BYTES:
            chunks.append(b"".join(current))
            current, size = [], 0
    return [*chunks, b"".join(current)]


async def _changes(
    registry: Registry, resource: Resource, query: WatchQuery, encode: Encode, watcher: Watcher
) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    end = loop.time() + query.timeout
    while (left := end - loop.time()) > 0:
        try:
            async with asyncio.timeout(min(left, BOOKMARK_SECONDS)):
                await watcher.wait()
        except TimeoutError:
            if query.bookmarks:
                yield _bookmark(resource, registry.store.revision, {})
            continue
        changes = watcher.take()
        if watcher.overrun:
            yield _line(b"ERROR", orjson.dumps(expired("too old resource version: changes are forgotten").status))
            return
        for chunk in _joined([line for change in changes if (line := _event(change, query, encode))]):
            if chunk:
                yield chunk
        if watcher.ended:
            return


def _event(change: Change, query: WatchQuery, encode: Encode) -> bytes:
    """One line, empty when the change does not concern the watch."""
    stored, previous = change.stored, change.previous
    shown = stored
    if query.namespace and stored.namespace != query.namespace:
        return b""
    kind = change.type
    if query.matches is not None:
        is_in = kind != "DELETED" and query.matches(stored)
        was_in = previous is not None and query.matches(previous)
        if not is_in and not was_in:
            return b""
        if previous is not None and not is_in:
            kind, shown = "DELETED", previous.at(stored.revision)  # as it was while it still matched
        else:
            kind = "MODIFIED" if was_in else "ADDED"
    return _line(kind.encode(), encode(shown))


def _line(kind: bytes, obj: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind, obj)


def _bookmark(resource: Resource, revision: int, annotations: Json) -> bytes:
    meta: Json = {"resourceVersion": str(revision)}
    if annotations:
        meta["annotations"] = annotations
    obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
    return _line(b"BOOKMARK", orjson.dumps(obj))
