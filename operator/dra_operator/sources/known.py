"""Spares Kopf what the cache already has.

Most events are echoes: the operator listed the object before Kopf did, or wrote it and took the answer in. Kopf would
start a task for each and call a handler, and the cache would drop it. So this module filters what Kopf reads. It
removes known versions from a list, and from a watch, and so it does with deletions that the answer to a write has
already shown. Once a second one of them becomes a bookmark, which says where the watch continues after an interruption
and has no handler. News is taken in where it is read, in the order of the watch, and left out as well. All else passes
unchanged and in order: errors, and what could not be taken in. What is no event at all (the page of a proxy) ends the
watch, and so does a line of more than ``LARGEST_OBJECT_BYTES``.

Two kinds of lines are changed. An object that nests deeper than Python's decoders go would end Kopf's watch of all
others. It gets a text in the place of its spec, so that the operator finds it malformed. And a large pod, claim or
template is cut to what is read of it (``cut``).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec
from dra_api.codec import TOO_DEEP, RawList, shallow, was_cut
from dra_api.meta import ObjectVersion
from dra_kube.http.exchange import LARGEST_OBJECT_BYTES

from .cut import CUT, LARGE_BYTES, cut_large

BOOKMARK_SECONDS = 1.0
"""Seconds between two bookmarks. After an interruption what came since the last one comes again, and is known."""
BOOKMARK = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%s"}}}\n'


class News(NamedTuple):
    """What a watch or a list says of an object."""

    version: ObjectVersion
    content: msgspec.Raw
    is_deleted: bool = False


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
_CHANGES = ("ADDED", "MODIFIED", "DELETED")
SHOWN_BYTES = 80
"""Of a line that is no event."""


class KnownEvents:
    """The events of one watch, as they come in pieces of any size. ``clock`` gives seconds.

    ``wrong`` says why the other side is no API server, once it has sent what is no event; empty until then.
    """

    def __init__(self, knows: Knows, clock: Callable[[], float]) -> None:
        self._knows, self._clock = knows, clock
        self._rest = bytearray()  # a line of a megabyte comes in many chunks
        self._marked_at = -math.inf
        self.wrong = ""

    def passed_on(self, chunk: bytes) -> bytes:
        """What Kopf gets of the lines that are complete now."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > LARGEST_OBJECT_BYTES:
            self._rest.clear()
            self.wrong = f"an event is longer than {LARGEST_OBJECT_BYTES >> 20} MiB"
        return b"".join([self._line(line) for line in lines if not self.wrong])

    def _line(self, line: bytes) -> bytes:
        if not line.strip():
            return b""
        try:
            event = _EVENT.decode(line)
            if event.type not in _CHANGES and bytes(event.object).startswith(b"{"):
                return line + b"\n"  # a bookmark, or an error of the server
            obj = _OBJECT.decode(event.object)
        except RecursionError:
            cut = _unreadable(shallow(line))
            if cut != line:
                return self._line(cut)
            self.wrong = f"an event never closes: {line[:SHOWN_BYTES]!r}"
            return b""
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self.wrong = f"no event: {error}: {line[:SHOWN_BYTES]!r}"
            return b""
        version = obj.metadata
        if not self._knows(News(version, event.object, event.type == "DELETED")):
            return (_cut(event, obj) if obj.kind in CUT and len(line) > LARGE_BYTES else line) + b"\n"
        now = self._clock()
        if now - self._marked_at < BOOKMARK_SECONDS:
            return b""
        self._marked_at = now
        return BOOKMARK % version.resource_version.encode()


async def unknown_items(found: RawList, knows: Knows) -> bytes:
    """A page of a list without the known versions. The event loop turns after each large item."""
    kind, version = found.kind.removesuffix("List"), found.api_version
    left: list[msgspec.Raw] = []
    for item in found.items or ():
        try:
            news = News(_OBJECT.decode(item).metadata, item)
        except msgspec.MsgspecError:
            left.append(item)
        else:
            if not knows(news):
                raw = _without_spec(bytes(item)) if was_cut(bytes(item)) else bytes(item)
                left.append(msgspec.Raw(cut_large(raw, kind, version)))
        if len(item) > LARGE_BYTES:
            await asyncio.sleep(0)
    return msgspec.json.encode({"kind": found.kind, "apiVersion": version, "metadata": found.metadata, "items": left})


def _cut(event: _Event, obj: _Object) -> bytes:
    cut = cut_large(bytes(event.object), obj.kind, obj.api_version)
    return msgspec.json.encode({"type": event.type, "object": msgspec.Raw(cut)})


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
