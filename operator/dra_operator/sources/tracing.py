"""What Kopf asks and gets, watched in the session that it is given: the source of ``streams``.

aiohttp's tracing tells when a request starts, is answered or fails. The content of a watch is read in chunks while it
comes in, which no signal tells, so the response gets its reader wrapped. The reader also leaves out what the cache has
already (``known``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
from dra_api.codec import DecodeError, RawList
from dra_kube import RESOURCE_CLAIMS, Resource
from dra_kube.http.pages import LATE_SECONDS, MOST_PAGES, PageSizes, largest_page, list_in

from dra_operator.kube import RIGHTS

from .known import SHOWN_BYTES, KnownEvents, Knows, News, unknown_items
from .streams import Stream, Streams

ANSWER_SECONDS = 0.005
"""Seconds that an event waits: the answer to the operator's own write, which often comes behind it, makes it known."""
CHUNK_BYTES = 64 * 2**10
"""Bytes that are read of a watch at once: some thirty pods."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0  # after an answer of no API server
_NEW = b'{"type":"ADDED",'
_EMPTY = b'{"items":[],"metadata":{"resourceVersion":"%s"}}'
_WRONG_VERSION_CODES = (
    410,
    504,
)  # the resourceVersion to watch from is too old, or of a future that the server does not know
KnowsOf = Callable[[Resource, News], bool]
"""As ``Knows``, of any kind."""
_REMEDIES = {401: "the credentials are no longer valid: renew them", 403: RIGHTS}
_REASON_CHARACTERS = 200  # characters of a refusal that are logged


def trace_of(streams: Streams, knows: KnowsOf = lambda *_: False) -> aiohttp.TraceConfig:
    """The configuration of a session whose requests ``streams`` is to know about.

    ``knows`` says of which versions of objects, and of which deletions, Kopf need not hear.
    """
    trace = aiohttp.TraceConfig()
    watcher = _Requests(streams, knows)
    trace.on_request_start.append(watcher.start)
    trace.on_request_end.append(watcher.end)
    trace.on_request_exception.append(watcher.fail)
    trace.on_response_chunk_received.append(watcher.read)
    return trace


class _Requests:
    """``ctx`` lives as long as a request: its resource and stream, what was asked, and the status of the answer."""

    def __init__(self, streams: Streams, knows: KnowsOf) -> None:
        self._streams, self._knows = streams, knows

    async def start(self, _: Any, ctx: SimpleNamespace, params: aiohttp.TraceRequestStartParams) -> None:
        ctx.found = next(self._streams.of_path(params.url.path), None) if params.method == "GET" else None
        ctx.watch = params.url.query.get("watch") == "true"
        ctx.status, ctx.retry_after = 0, 0.0
        if ctx.found is None:
            self._streams.busy()
        else:
            _, stream = ctx.found
            stream.asked(self._streams.clock())

    async def end(self, _: Any, ctx: SimpleNamespace, params: aiohttp.TraceRequestEndParams) -> None:
        if ctx.found is None:
            return
        resource, stream = ctx.found
        response = params.response
        ctx.status, now = response.status, self._streams.clock()
        if ctx.status >= 400:
            ctx.retry_after = _seconds(response.headers.get("Retry-After", ""))
            stream.refused(now, _refusal(ctx, response.reason or ""), ctx.retry_after)
            if ctx.watch and ctx.status in _WRONG_VERSION_CODES:
                self._streams.interrupted(resource)
        elif ctx.watch:
            self._watched(resource, stream, response)
        else:
            stream.listed(now)

    def _watched(self, resource: Resource, stream: Stream, response: aiohttp.ClientResponse) -> None:
        stream.watched(self._streams.clock(), response)
        knows = partial(self._knows, resource)
        is_ours = resource == RESOURCE_CLAIMS  # the only kind that is watched and created here
        response.content = _Reported(response, stream, self._streams, knows, is_ours)  # type: ignore[assignment]
        self._streams.interrupted(resource)

    async def fail(
        self, session: aiohttp.ClientSession, ctx: SimpleNamespace, params: aiohttp.TraceRequestExceptionParams
    ) -> None:
        """A session that is closed was replaced after a refusal, which is the reason that counts."""
        if ctx.found is not None and not session.closed:
            error = params.exception
            text = f"{_verb(ctx)} failed: {error or type(error).__name__}"
            ctx.found[1].refused(self._streams.clock(), text)

    async def read(self, _: Any, ctx: SimpleNamespace, params: aiohttp.TraceResponseChunkReceivedParams) -> None:
        """A whole body was read: a list, or the Status object of a refusal."""
        if ctx.found is None:
            return
        stream = ctx.found[1]
        if ctx.status < 400:
            stream.received(self._streams.clock())
        elif message := _message(params.chunk):
            stream.refused(self._streams.clock(), _refusal(ctx, message), ctx.retry_after)


class Lists:
    """Keeps the lists of Kopf small: a middleware of the session that it is given.

    Kopf asks for a fixed number of objects a page, and reads each page as a whole. Here a page has as many as fit
    (``dra_kube.http.pages``), and items are taken in or left out one by one. The first list after the operator's own
    brings nothing: Kopf watches from the version of that one, and the server is asked for one object only.

    An answer of 200 that is no list counts as a connection that failed, so Kopf tries again after a growing pause.
    """

    def __init__(self, streams: Streams, knows: KnowsOf) -> None:
        self._streams, self._knows = streams, knows
        self._sizes = PageSizes()
        self._slots = asyncio.Semaphore(MOST_PAGES)

    async def __call__(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Answer the request, by ``send`` or in place of it."""
        query = request.url.query
        found = next(self._streams.of_path(request.url.path), None) if request.method == "GET" else None
        if found is None or query.get("watch") == "true":
            return await send(request)
        resource, _ = found
        async with self._slots:
            loaded = "" if "continue" in query else self._streams.take_loaded(resource)
            response, page = await self._page(request, send, is_single=bool(loaded))
            if page is None:
                if loaded:
                    self._streams.loaded(resource, loaded)
                return response
            left = _EMPTY % loaded.encode() if loaded else await unknown_items(page, partial(self._knows, resource))
        response.content = _Content(response.content, left)  # type: ignore[assignment]
        return response

    async def _page(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType, *, is_single: bool
    ) -> tuple[aiohttp.ClientResponse, RawList | None]:
        """An answer, and the page that it is, of as much as fits; None for a refusal."""
        path, began = request.url.path, time.monotonic()
        while True:
            asked = 1 if is_single else self._sizes.asked(path)
            request.url = request.url.update_query(limit=str(asked))
            try:
                async with asyncio.timeout(None if asked == 1 else LATE_SECONDS):
                    response = await send(request)
                    if response.status >= 400:
                        return response, None
                    content = await _read(response, largest_page(asked))
            except TimeoutError:
                if asked == 1 or not self._sizes.late(path):
                    raise
                continue
            if content is not None:
                try:
                    page = list_in(content)
                except DecodeError as error:
                    raise aiohttp.ClientConnectionError(f"{error}: {content[:SHOWN_BYTES]!r}") from error
                if not is_single:
                    self._sizes.came(path, len(page.items or ()), len(content), time.monotonic() - began)
                return response, page
            if is_single or not self._sizes.too_large(path):
                raise aiohttp.ClientConnectionError(f"a page of one object has more than {largest_page(1) >> 20} MiB")


async def _read(response: aiohttp.ClientResponse, largest: int) -> bytes | None:
    """The content, or None if it is larger; the connection then is closed."""
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > largest:
            response.close()
            return None
    return bytes(content)


class _Content:
    """What is left of a list, as a reader of it."""

    def __init__(self, reader: aiohttp.StreamReader, content: bytes) -> None:
        self._reader, self._content = reader, content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def read(self) -> bytes:
        """The whole of it."""
        return self._content


class _Reported:
    """The content of a watch: each chunk that is read is a sign of life; known versions are left out."""

    def __init__(
        self, response: aiohttp.ClientResponse, stream: Stream, streams: Streams, knows: Knows, is_ours: bool
    ) -> None:
        self._is_ours = is_ours
        self._watch, self._content, self._stream, self._streams = response, response.content, stream, streams
        self._events = KnownEvents(knows, streams.clock)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """As the reader's own, in whole lines. A full chunk means that more has come than was read in time."""
        most = min(size, CHUNK_BYTES)
        try:
            async for chunk in self._content.iter_chunked(most):
                self._stream.received(self._streams.clock())
                if len(chunk) == most:
                    await asyncio.sleep(0)
                elif not self._is_new(chunk):
                    await asyncio.sleep(ANSWER_SECONDS)
                if lines := self._events.passed_on(chunk):
                    yield lines
                if self._events.wrong:
                    await self._give_up(self._events.wrong)
                self._stream.wrong_answers = 0
        finally:
            self._stream.ended(self._streams.clock(), self._watch)

    async def _give_up(self, why: str) -> None:
        """End a watch that no API server answers, after a pause that grows, since Kopf makes none."""
        self._stream.refused(self._streams.clock(), f"WATCH is answered by no API server: {why}")
        self._stream.wrong_answers += 1
        await asyncio.sleep(min(FIRST_PAUSE_SECONDS * 2 ** min(self._stream.wrong_answers, 10), LONGEST_PAUSE_SECONDS))
        raise aiohttp.ClientPayloadError(why)

    def _is_new(self, chunk: bytes) -> bool:
        """Whether it holds nothing but an object that another writer created: no answer makes that known."""
        return not self._is_ours and chunk.startswith(_NEW) and chunk.find(b"\n") == len(chunk) - 1


def _refusal(ctx: SimpleNamespace, reason: str) -> str:
    remedy = _REMEDIES.get(ctx.status)
    return f"{_verb(ctx)} answered {ctx.status}: {reason}{f'; {remedy}' if remedy else ''}"


def _verb(ctx: SimpleNamespace) -> str:
    return "WATCH" if ctx.watch else "LIST"


def _message(content: bytes) -> str:
    try:
        status = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return str(status.get("message") or "")[:_REASON_CHARACTERS] if isinstance(status, dict) else ""


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() else 0.0
