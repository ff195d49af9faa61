"""Reading: one object, lists in pages, and watches; and the parameters that lists and watches take.

A list is joined from the encoded objects. A page's continue token names the revision of the first page and the last
key: later pages show the current state, so that the list and a watch from that revision miss nothing together. The
token expires when the log no longer reaches back to the revision, as on a real server after compaction.

A watch is a stream of JSON lines. It starts from a revision, or with the whole state as ADDED events. With selectors,
an object that comes to match is ADDED and one that ceases to is DELETED. Bookmarks tell the client the current revision
when no change concerns it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile

import orjson
from dra_api.releases import Release
from dra_api.validation.formats import Errors, forbidden, not_supported

from dra_devcluster.apiserver.errors import Json, StatusError, bad_request, expired, invalid_options, not_found
from dra_devcluster.apiserver.kinds import kind_of
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.selectors import field_test, label_test
from dra_devcluster.apiserver.store import Change, Collection, Key, Stored, Watcher
from dra_devcluster.apiserver.structure import Resource
from dra_devcluster.apiserver.wire import flag

_MATCH = "resourceVersionMatch"
_INITIAL = "sendInitialEvents"
_WITH_CONTINUE = forbidden(_MATCH, f"{_MATCH} is forbidden when continue is provided")


def number(query: Json, name: str) -> int:
    """A number of the query; 0 if it is missing. Raises a 400."""
    text = query.get(name, "0")
    if not re.fullmatch("[+-]?[0-9]+", text, re.ASCII):
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    if not re.fullmatch("[+-]?0*[0-9]{1,19}", text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": value out of range')
    return int(text)


def revision(query: Json) -> int:
    """The resourceVersion; 0 if it is missing. Raises a 400."""
    text = query.get("resourceVersion", "")
    if text and not re.fullmatch("[0-9]{1,18}", text, re.ASCII):
        why = f'strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f'invalid resource version: resourceVersion: Invalid value: "{text}": {why}')
    return int(text or "0")


def _list_faults(query: Json) -> Errors:
    if match := query.get(_MATCH, ""):
        if not query.get("resourceVersion"):
            yield forbidden(_MATCH, f"{_MATCH} is forbidden unless resourceVersion is provided")
        if query.get("continue"):
            yield _WITH_CONTINUE
        if match not in ("Exact", "NotOlderThan"):
            yield not_supported(_MATCH, match, ["Exact", "NotOlderThan", ""])
        if match == "Exact" and query.get("resourceVersion") == "0":
            yield forbidden(_MATCH, f'{_MATCH} "exact" is forbidden for resourceVersion "0"')
    if _INITIAL in query:
        yield forbidden(_INITIAL, f"{_INITIAL} is forbidden for list")


def _watch_faults(query: Json) -> Errors:
    match = query.get(_MATCH, "")
    if _INITIAL in query and match != "NotOlderThan":
        yield forbidden(_MATCH, f"{_INITIAL} requires setting {_MATCH} to NotOlderThan")
    if match and _INITIAL not in query:
        yield forbidden(_MATCH, f"{_MATCH} is forbidden for watch unless {_INITIAL} is provided")
    if match not in ("", "NotOlderThan"):
        yield not_supported(_MATCH, match, ["NotOlderThan"])
    if query.get("continue"):
        yield _WITH_CONTINUE


_CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results."
)

Matches = Callable[[Stored], bool]


@dataclass(frozen=True, slots=True)
class Page:
    """The objects of one list answer, and what its metadata says."""

    items: list[Stored]
    revision: int
    continue_token: str = ""
    remaining: int = 0

    @property
    def metadata(self) -> Json:
        meta: Json = {"resourceVersion": str(self.revision)}
        if self.continue_token:
            meta["continue"] = self.continue_token
        if self.remaining:
            meta["remainingItemCount"] = self.remaining
        return meta


def get(registry: Registry, resource: Resource, namespace: str, name: str) -> Stored:
    """The object. Raises a 404."""
    stored = registry.collection(resource).get(namespace, name)
    if stored is None:
        raise not_found(resource.group, resource.plural, name)
    return stored


def matcher(registry: Registry, resource: Resource, query: Json) -> Matches | None:
    """The test of the selectors in a query; None when every object passes. Raises a 400."""
    kind = kind_of(resource)
    labels = label_test(query.get("labelSelector", ""))
    known = [name for name in kind.selectable if registry.release >= kind.selectable_since.get(name, Release.V1_32)]
    fields = field_test(query.get("fieldSelector", ""), ("metadata.name", "metadata.namespace", *known))
    if labels is None and fields is None:
        return None
    if fields is None:
        return lambda stored: labels is not None and labels(stored.labels)
    # Each version of a custom resource selects by fields of its own; only built-in kinds have them taken out already.
    values = (lambda stored: kind.fields(stored.decode())) if resource.definition else (lambda stored: stored.fields)
    if labels is None:
        return lambda stored: fields(values(stored))
    return lambda stored: labels(stored.labels) and fields(values(stored))


def list_page(registry: Registry, resource: Resource, namespace: str, query: Json) -> Page:
    """One page of objects. Raises 400, 410, 422 and 504 (a resourceVersion of the future)."""
    number(query, "timeoutSeconds")
    if faults := list(_list_faults(query)):
        raise invalid_options("List", *faults)
    collection = registry.collection(resource)
    matches = matcher(registry, resource, query)
    limit = max(0, number(query, "limit"))
    token = query.get("continue", "")
    current = registry.store.revision
    objects: Iterator[Stored] = collection.all(namespace)
    if token:
        if query.get("resourceVersion") not in (None, "", "0"):
            raise bad_request("specifying resource version is not allowed when using continue")
        current, last = _read_token(token, collection)
        objects = dropwhile(lambda stored: stored.key <= last, objects)
    else:
        wanted = revision(query)
        if wanted > current:
            raise too_large_revision(wanted, current)
        if query.get(_MATCH) == "Exact" and wanted != current:
            raise expired(f"The resourceVersion for the provided list is too old: {wanted} ({current})")
    found = [stored for stored in objects if matches is None or matches(stored)]
    if not limit or len(found) <= limit:
        return Page(found, current)
    page = found[:limit]
    content = orjson.dumps({"v": "meta.k8s.io/v1", "rv": current, "start": list(page[-1].key)})
    rest = base64.urlsafe_b64encode(content).decode().rstrip("=")
    return Page(page, current, rest, 0 if matches else len(found) - limit)


def too_large_revision(wanted: int, current: int) -> StatusError:
    """The answer to a future revision: the client has it from another server, or from this one before a restart."""
    message = f"Too large resource version: {wanted}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return StatusError(
        504, "Timeout", f"Timeout: {message}", {"causes": [cause], "retryAfterSeconds": 1}, {"Retry-After": "1"}
    )


def _read_token(token: str, collection: Collection) -> tuple[int, Key]:
    try:
        content = orjson.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        revision, (namespace, name) = int(content["rv"]), content["start"]
    except (binascii.Error, ValueError, KeyError, TypeError):
        raise bad_request("continue key is not valid: start the list again without it") from None
    if revision < collection.forgotten:
        raise expired(_CONTINUE_EXPIRED)
    return revision, (str(namespace), str(name))


BOOKMARK_SECONDS = 60.0
_SHORTEST_WATCH_SECONDS = 1800
_INITIAL_EVENTS_END = "k8s.io/initial-events-end"
_WATCH_PART_BYTES = 512 * 1024

Encode = Callable[[Stored], bytes]


@dataclass(frozen=True, slots=True)
class WatchQuery:
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
        if faults := list(_watch_faults(query)):
            raise invalid_options("List", *faults)
        bookmarks = flag(query, "allowWatchBookmarks")
        initial = flag(query, _INITIAL)
        since = revision(query)
        if since > registry.store.revision:
            # A revision of another server, or of this one before it was started anew: only a new list helps.
            raise expired(f"too old resource version: {since} ({registry.store.revision})")
        whole_state = initial or (not since and _INITIAL not in query)
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
    lines = [
        _line(b"ADDED", encode(stored))
        for stored in registry.collection(resource).all(query.namespace)
        if query.matches is None or query.matches(stored)
    ]
    if query.initial_bookmark:
        lines.append(_bookmark(resource, registry.store.revision, {_INITIAL_EVENTS_END: "true"}))
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
        with suppress(TimeoutError):
            async with asyncio.timeout(min(left, BOOKMARK_SECONDS)):
                await watcher.wait()
        changes = watcher.take()
        if watcher.overrun:
            yield _line(b"ERROR", orjson.dumps(expired("too old resource version: changes are forgotten").status))
            return
        for chunk in _joined([line for change in changes if (line := _event(change, query, encode))]):
            if chunk:
                yield chunk
        if watcher.ended:
            return
        # A change may come as the time is over, and a bookmark says that all changes before it were sent.
        if query.bookmarks and not changes:
            yield _bookmark(resource, registry.store.revision, {})


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
