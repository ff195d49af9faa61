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
from dra_api.codec import shallow

from dra_kube.errors import Unreachable

from .exchange import LARGEST_OBJECT_BYTES


class WatchEvent(NamedTuple):
    """One change: ``type`` is ADDED, MODIFIED, DELETED, or BOOKMARK (metadata.resourceVersion only)."""

    type: str
    object: dict[str, Any]


class _Line(msgspec.Struct):
    type: str
    object: dict[str, Any]


_decoder = msgspec.json.Decoder(_Line)


async def watch_events(
    stream: aiohttp.StreamReader, what: str = "the watch"
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The events of a stream, which errors call ``what``. ``TOO_DEEP`` replaces what nests too deep in an object.

    Raises Unreachable for what is no event, such as the page of a proxy, and for a line without end: at most one event
    of ``LARGEST_OBJECT_BYTES`` is in memory.
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
        for line in lines:
            if line.strip():
                yield _event(bytes(line), what)
    if rest.strip() and not _is_cut_off(bytes(rest)):
        yield _event(bytes(rest), what)


def _is_cut_off(line: bytes) -> bool:
    """Whether it may be the beginning of an event."""
    try:
        _decoder.decode(line)
    except msgspec.ValidationError:
        return False
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return "truncated" in str(error) and line.lstrip().startswith(b"{")
    return False


def _event(line: bytes, what: str) -> tuple[str, dict[str, Any]]:
    try:
        try:
            event = _decoder.decode(line)
        except RecursionError:
            event = _decoder.decode(shallow(line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _no_event(line, what, str(error)) from error
    return event.type, event.object


def _no_event(line: bytes, what: str, why: str) -> Unreachable:
    return Unreachable(f"{what} is not an API server: {why}: {line[:80]!r}")
