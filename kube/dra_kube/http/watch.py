"""A watch stream: one JSON object per line, ``{"type": ADDED|MODIFIED|DELETED|BOOKMARK|ERROR, "object": {...}}``.

Lines can be larger than the reader's buffer (a slice of 128 devices has 45 KB and more), so chunks are joined here, not
by ``readline``. An incomplete last line is dropped: the server died while it wrote, and the next watch brings the event
again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

import aiohttp
import msgspec
from dra_api.codec import decode, decode_item, shallow
from dra_api.conversion import Object, listed_item
from dra_api.meta import ObjectVersion, Resource

from dra_kube.errors import Unreachable

from .connections import LARGEST_OBJECT_BYTES

T = TypeVar("T")


class WatchEvent(NamedTuple):
    """One change: ``type`` is ADDED, MODIFIED, DELETED, or BOOKMARK (metadata.resourceVersion only)."""

    type: str
    object: dict[str, Any]


class WatchLine(NamedTuple):
    """An event whose object is still JSON."""

    type: str
    object: msgspec.Raw


class Change(NamedTuple):
    """One object of a list or an event of a watch, decoded only on demand.

    ``event`` is ADDED, MODIFIED or DELETED; LISTED for an item of a list, MISSED for one that a list lacks; BOOKMARK
    where only the resourceVersion counts. ``version`` has empty texts for missing fields. ``content`` has
    the shape of the API version ``served``.
    """

    event: str
    version: ObjectVersion
    content: msgspec.Raw
    resource: Resource
    served: str

    @property
    def is_end(self) -> bool:
        """Whether the object is gone."""
        return self.event in ("DELETED", "MISSED")

    @classmethod
    def of(cls, event: str, obj: Object, resource: Resource) -> Self:
        """Return the change that an object in JSON's types says of itself, in the API version that it names."""
        content = msgspec.Raw(msgspec.json.encode(obj))
        served = str(obj.get("apiVersion") or "").rpartition("/")[2] or resource.versions[0]
        return cls(event, head_of(content).version, content, resource, served)

    def object(self) -> Object:
        """Return the object in the shape of the resource's first version. Raises DecodeError, ConversionError."""
        obj: Object = decode(dict, self.content)
        if self.served != self.resource.versions[0]:
            return listed_item(self.resource, self.served, obj)
        obj.setdefault("kind", self.resource.kind)  # an item of a list leaves them out
        obj.setdefault("apiVersion", self.resource.api_version(self.served))
        return obj

    def decoded(self, type_: type[T]) -> T:
        """Return the object as a struct. Raises DecodeError, also for what nests too deep, and ConversionError."""
        reshape = None if self.served == self.resource.versions[0] else partial(listed_item, self.resource, self.served)
        return decode_item(type_, self.content, is_cut=True, reshape=reshape)


class Head(msgspec.Struct, frozen=True):
    """The part of an object that identifies it. Malformed fields are empty."""

    kind: str | None = None
    metadata: _Metadata | None = None

    @property
    def version(self) -> ObjectVersion:
        """The version of the object, of which any part may be missing."""
        meta = self.metadata or _Metadata()
        return ObjectVersion(meta.name or "", meta.uid or "", meta.resource_version or "", meta.namespace or "")


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    namespace: str | None = None


_heads = msgspec.json.Decoder(Head)


def head_of(content: msgspec.Raw) -> Head:
    """Return the head of an object, empty if it is no object or nests too deep."""
    try:
        return _heads.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Head()


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


_decoder = msgspec.json.Decoder(_Line)


async def watch_lines(stream: aiohttp.StreamReader, what: str) -> AsyncIterator[list[WatchLine]]:
    """Yield the events that have come since the last time, of the stream that errors call ``what``.

    ``TOO_DEEP`` replaces what nests too deep in an object. Raises Unreachable for what is no event, such as the page of
    a proxy, and for a line without end: at most one event of ``LARGEST_OBJECT_BYTES`` is in memory.
    """
    rest = bytearray()
    async for chunk in stream.iter_any():
        rest += chunk
        if b"\n" not in chunk:
            if len(rest) > LARGEST_OBJECT_BYTES:
                raise Unreachable(f"{what}: a watch event is longer than {LARGEST_OBJECT_BYTES >> 20} MiB")
            continue
        *lines, tail = rest.split(b"\n")
        rest = tail
        events: list[WatchLine] = []
        try:
            events.extend(_event(bytes(line), what) for line in lines if line.strip())
        except Unreachable:  # what came before it counts: the next watch may begin with the same line
            yield events
            raise
        if events:
            yield events
        del chunk, lines, events  # or each watch would hold its last burst until it brings something again
    if rest.strip() and not _is_cut_off(bytes(rest)):
        yield [_event(bytes(rest), what)]


def _is_cut_off(line: bytes) -> bool:
    """Return whether it may be the beginning of an event."""
    try:
        _decoder.decode(line)
    except msgspec.ValidationError:
        return False
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return "truncated" in str(error) and line.lstrip().startswith(b"{")
    return False


def _event(line: bytes, what: str) -> WatchLine:
    try:
        try:
            event = _decoder.decode(line)
        except RecursionError:
            event = _decoder.decode(shallow(line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise no_event(line, what, str(error)) from error
    return WatchLine(event.type, event.object)


def no_event(line: bytes | msgspec.Raw, what: str, why: str) -> Unreachable:
    """Return the error for what no API server sends."""
    return Unreachable(f"{what} is not an API server: {why}: {bytes(line)[:80]!r}")
