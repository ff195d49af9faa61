"""Spares Kopf what the view already has.

Two of three events are echoes: the operator listed the object before Kopf did, or wrote it and took the answer in. Kopf
would start a task for each and call a handler, and the view would drop it. So this module filters what Kopf reads. It
removes known versions from a list. In a watch it turns them into bookmarks, which say where the watch continues after
an interruption and have no handler, and so it does with deletions that the answer to a write has already shown. All
else passes unchanged and in order: errors, unknown versions, and lines that cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

import msgspec
from dra_api.meta import ObjectMeta

BOOKMARK = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%s"}}}\n'


class Version(msgspec.Struct, rename="camel", frozen=True):
    """The metadata that names one version of an object."""

    name: str
    uid: str
    resource_version: str
    namespace: str = ""

    @classmethod
    def of(cls, meta: ObjectMeta) -> Self:
        """The version that the metadata belongs to."""
        return cls(meta.name, meta.uid, meta.resource_version, meta.namespace)

    @property
    def key(self) -> str:
        """The object among those of its kind."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


Knows = Callable[[Version, bool], bool]
"""Whether the view has this version of an object, or (True) its deletion, so that Kopf need not hear of it."""


class _Object(msgspec.Struct, frozen=True):
    metadata: Version


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: _Object


_EVENT, _OBJECT = msgspec.json.Decoder(_Event), msgspec.json.Decoder(_Object)
_PAGE, _ITEMS = msgspec.json.Decoder(dict[str, msgspec.Raw]), msgspec.json.Decoder(list[msgspec.Raw])


class KnownEvents:
    """The events of one watch, as they come in pieces of any size."""

    def __init__(self, knows: Knows) -> None:
        self._knows = knows
        self._rest = b""

    def passed_on(self, chunk: bytes) -> bytes:
        """What Kopf gets of the lines that are complete now."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return b"".join(map(self._line, lines))

    def end(self) -> bytes:
        """The line that the end of the watch cut off."""
        rest, self._rest = self._rest, b""
        return rest

    def _line(self, line: bytes) -> bytes:
        try:
            event = _EVENT.decode(line)
        except msgspec.MsgspecError:
            return line + b"\n"
        version = event.object.metadata
        if event.type in ("ADDED", "MODIFIED", "DELETED") and self._knows(version, event.type == "DELETED"):
            return BOOKMARK % version.resource_version.encode()
        return line + b"\n"


def unknown_items(page: bytes, knows: Knows) -> bytes:
    """A page of a list without the known versions; as it is, if it cannot be read."""
    try:
        content = _PAGE.decode(page)
        items = _ITEMS.decode(content["items"])
    except (msgspec.MsgspecError, KeyError):
        return page
    return msgspec.json.encode({**content, "items": list(_unknown(items, knows))})


def _unknown(items: list[msgspec.Raw], knows: Knows) -> Iterator[msgspec.Raw]:
    for item in items:
        try:
            version = _OBJECT.decode(item).metadata
        except msgspec.MsgspecError:
            yield item
        else:
            if not knows(version, False):
                yield item
