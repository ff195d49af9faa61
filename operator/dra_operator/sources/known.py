"""Spares Kopf what the cache already has.

Most events are echoes: the operator listed the object before Kopf did, or wrote it and took the answer in. Kopf would
start a task for each and call a handler, and the cache would drop it. So this module filters what Kopf reads. It
removes known versions from a list, and from a watch, and so it does with deletions that the answer to a write has
already shown. Once a second one of them becomes a bookmark, which says where the watch continues after an interruption
and has no handler. News that can be taken in where it is read is left out as well. All else passes unchanged and in
order: errors, what could not be taken in, and lines that cannot be read.

Two kinds of lines are changed. An object that nests deeper than Python's decoders go would end Kopf's watch of all
others. It gets a text in the place of its spec, so that the operator finds it malformed. And a large pod, claim or
template is cut to what is read of it (``cut``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
from dra_api.meta import ObjectVersion
from dra_api.nesting import TOO_DEEP, shallow, was_cut

from .cut import CUT, LARGE_BYTES, cut_large

BOOKMARK_SECONDS = 1.0
"""Seconds between two bookmarks. After an interruption what came since the last one comes again, and is known."""
BOOKMARK = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%s"}}}\n'


class News(NamedTuple):
    """What a watch or a list says of an object."""

    version: ObjectVersion
    content: msgspec.Raw
    is_deleted: bool = False
    at_once: bool = False
    """It may be taken in where it is read: an event that is not to be cut."""


Knows = Callable[[News], bool]
"""Whether Kopf need not hear of it: the cache has this version of the object or its deletion, or takes it in now."""


class _Object(msgspec.Struct, frozen=True):
    metadata: ObjectVersion
    kind: str = ""
    api_version: str = msgspec.field(default="", name="apiVersion")


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


_EVENT, _OBJECT = msgspec.json.Decoder(_Event), msgspec.json.Decoder(_Object)
_PAGE, _ITEMS = msgspec.json.Decoder(dict[str, msgspec.Raw]), msgspec.json.Decoder(list[msgspec.Raw])


class KnownEvents:
    """The events of one watch, as they come in pieces of any size. ``clock`` gives seconds."""

    def __init__(self, knows: Knows, clock: Callable[[], float]) -> None:
        self._knows, self._clock = knows, clock
        self._rest = bytearray()  # a line of a megabyte comes in many chunks
        self._marked_at = -math.inf

    def passed_on(self, chunk: bytes) -> bytes:
        """What Kopf gets of the lines that are complete now."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        return b"".join([self._line(line) for line in lines])

    def end(self) -> bytes:
        """The line that the end of the watch cut off."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest

    def _line(self, line: bytes) -> bytes:
        try:
            event = _EVENT.decode(line)
            obj = _OBJECT.decode(event.object)
        except RecursionError:
            return _unreadable(shallow(line)) + b"\n"
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return line + b"\n"
        is_change = event.type in ("ADDED", "MODIFIED", "DELETED")
        version, is_large = obj.metadata, len(line) > LARGE_BYTES
        news = News(version, event.object, event.type == "DELETED", at_once=not is_large)
        if not is_change or not self._knows(news):
            return (_cut(event, obj) if is_change and obj.kind in CUT and is_large else line) + b"\n"
        now = self._clock()
        if now - self._marked_at < BOOKMARK_SECONDS:
            return b""
        self._marked_at = now
        return BOOKMARK % version.resource_version.encode()


def unknown_items(page: bytes, knows: Knows) -> bytes:
    """A page of a list without the known versions; as it is, if it cannot be read."""
    try:
        content = _PAGE.decode(page)
        items = _ITEMS.decode(content["items"])
    except RecursionError:
        cut = shallow(page)
        return page if cut == page else unknown_items(cut, knows)
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError):
        return page
    left = list(_unknown(items, knows))
    if len(page) > LARGE_BYTES:
        kind, version = _text(content, "kind").removesuffix("List"), _text(content, "apiVersion")
        left = [msgspec.Raw(cut_large(bytes(item), kind, version)) for item in left]
    return msgspec.json.encode({**content, "items": left})


def _unknown(items: list[msgspec.Raw], knows: Knows) -> Iterator[msgspec.Raw]:
    for item in items:
        try:
            version = _OBJECT.decode(item).metadata
        except msgspec.MsgspecError:
            yield item
        else:
            if not knows(News(version, item)):
                yield msgspec.Raw(_without_spec(bytes(item))) if was_cut(bytes(item)) else item


def _cut(event: _Event, obj: _Object) -> bytes:
    cut = cut_large(bytes(event.object), obj.kind, obj.api_version)
    return msgspec.json.encode({"type": event.type, "object": msgspec.Raw(cut)})


def _text(content: dict[str, msgspec.Raw], field: str) -> str:
    """A field of a list; empty if it is no text."""
    return bytes(content.get(field, b"")).decode(errors="replace").strip('"')


def _unreadable(line: bytes) -> bytes:
    """An event about an object that nests too deep, which then is no object of its kind any more."""
    try:
        event = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        return msgspec.json.encode({**event, "object": msgspec.Raw(_without_spec(bytes(event["object"])))})
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, RecursionError):  # the last: it never closes
        return line


def _without_spec(item: bytes) -> bytes:
    """What is left says which object it is and what it holds; a spec that was cut must not be taken for the whole."""
    return msgspec.json.encode({**msgspec.json.decode(item), "spec": TOO_DEEP})
