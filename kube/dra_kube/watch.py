"""A watch stream: one JSON object per line, ``{"type": ADDED|MODIFIED|DELETED|BOOKMARK|ERROR, "object": {...}}``.

Lines can be larger than the reader's buffer (a slice of 128 devices has 45 KB and more), so chunks are joined here, not
by ``readline``. An incomplete last line is dropped: the server died while it wrote, and the next watch brings the event
again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import aiohttp
import msgspec


class WatchEvent(NamedTuple):
    """One change: ``type`` is ADDED, MODIFIED, DELETED, or BOOKMARK (metadata.resourceVersion only)."""

    type: str
    object: dict[str, Any]


class _Line(msgspec.Struct):
    type: str
    object: dict[str, Any]


_decoder = msgspec.json.Decoder(_Line)


async def watch_events(stream: aiohttp.StreamReader) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The events of a stream, in order; a line that is no event is skipped."""
    rest = bytearray()
    async for chunk in stream.iter_any():
        rest += chunk
        if b"\n" not in chunk:
            continue
        *lines, tail = rest.split(b"\n")
        rest = tail
        for line in lines:
            try:
                event = _decoder.decode(line)
            except msgspec.DecodeError:
                continue
            yield event.type, event.object
