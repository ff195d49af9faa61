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

from dra_kube.errors import Unreachable


class WatchEvent(NamedTuple):
    """One change: ``type`` is ADDED, MODIFIED, DELETED, or BOOKMARK (metadata.resourceVersion only)."""

    type: str
    object: dict[str, Any]


class _Line(msgspec.Struct):
    type: str
    object: dict[str, Any]


_decoder = msgspec.json.Decoder(_Line)
_LONGEST_EVENT_BYTES = 64 * 2**20
"""Bytes of one event. etcd takes objects of up to 1.5 MB, kube-apiserver requests of up to 3 MB."""


async def watch_events(stream: aiohttp.StreamReader) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The events of a stream, in order; a line that cannot be read is skipped. Raises Unreachable for a line without
    end."""
    rest = bytearray()
    async for chunk in stream.iter_any():
        rest += chunk
        if b"\n" not in chunk:
            if len(rest) > _LONGEST_EVENT_BYTES:
                raise Unreachable(f"a watch event is longer than {_LONGEST_EVENT_BYTES >> 20} MiB")
            continue
        *lines, tail = rest.split(b"\n")
        rest = tail
        for line in lines:
            try:
                event = _decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            yield event.type, event.object
