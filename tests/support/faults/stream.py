"""A watch on its way: every line may be altered, delayed, or be the last one.

One task reads and decides, the other waits and writes, so that a delay holds up what comes behind it but not the
reading. Streams that are no JSON lines (protobuf) pass as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import aiohttp
import msgspec
from api_call import ApiCall

from .event_fault import Event

Alter = Callable[[ApiCall, Event], None]


class _Meta(msgspec.Struct):
    name: str = ""
    namespace: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _Line(msgspec.Struct):
    object: _Object


_decoder = msgspec.json.Decoder(_Line)


async def relay(
    source: aiohttp.ClientResponse, write: Callable[[bytes], Awaitable[None]], call: ApiCall, alter: Alter
) -> bool:
    """Write until the stream ends; whether its end is a proper one."""
    if not source.headers.get("Content-Type", "").startswith("application/json"):
        async for chunk in source.content.iter_any():
            await write(chunk)
        return True
    due: asyncio.Queue[tuple[float, Event]] = asyncio.Queue()
    reading = asyncio.create_task(_read(source, call, alter, due))
    try:
        return await _write(due, write)
    finally:
        reading.cancel()
        await asyncio.wait((reading,))


async def _read(
    source: aiohttp.ClientResponse, call: ApiCall, alter: Alter, due: asyncio.Queue[tuple[float, Event]]
) -> None:
    clock = asyncio.get_running_loop().time
    last = 0.0
    try:
        async for line in _lines(source.content):
            meta = _decoder.decode(line).object.metadata
            event = Event([line])
            alter(replace(call, namespace=meta.namespace, name=meta.name), event)
            last = max(last, clock() + event.delay)
            due.put_nowait((last, event))
        due.put_nowait((last, Event(ends=True)))
    except (aiohttp.ClientError, msgspec.DecodeError):
        due.put_nowait((last, Event(breaks=True)))  # what happened to the server's stream happens to the client's


async def _write(due: asyncio.Queue[tuple[float, Event]], write: Callable[[bytes], Awaitable[None]]) -> bool:
    clock = asyncio.get_running_loop().time
    while True:
        at, event = await due.get()
        if (wait := at - clock()) > 0:
            await asyncio.sleep(wait)
        if event.lines:
            await write(b"".join(event.lines))
        if event.breaks or event.ends:
            return event.ends


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines; they can be longer than the reader's buffer."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"
