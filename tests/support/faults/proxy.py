"""One request on its way to the server behind, or a watch, and the record of everything that passed.

The proxy itself: an HTTPS server on loopback that knows its clients by the tokens it gave them.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import aiohttp
import msgspec
from aiohttp import web
from aiohttp.web_runner import ServerRunner
from dra_devcluster.apiserver.identity import kubeconfig, make_identity, write_kubeconfig
from dra_kube import Connection
from dra_kube.door import open_door
from dra_kube.http.connections import Sockets
from yarl import URL

from faults.effects import Answer, AnyFault, ApiCall, Dice, Event, EventFault, Fault, Span, Target, api_call, refusal

EVERYTHING = Target()


@dataclass(slots=True)
class Entry:
    """One request: ``code`` is what the client got, ``carried_out`` what the server answered; None for nothing."""

    at: float
    client: str
    call: ApiCall
    faults: list[str] = field(default_factory=list)
    code: int | None = None
    carried_out: int | None = None
    carried_out_at: float | None = None


class Journal:
    """All requests in the order in which they came; times are those of the event loop."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def find(self, target: Target = EVERYTHING, since: float = 0.0) -> Iterator[Entry]:
        """Requests that came at this time or later."""
        return (entry for entry in self.entries if entry.at >= since and target.includes(entry.client, entry.call))

    def begun_since(self, woken: float, client: str) -> list[Entry]:
        """Writes, other than of leases, that a process began when it was woken from a pause at this time.

        The first write is the one that it was sending in the moment of the pause. Reads, questions about rights, and
        what the thread of the lease sends, may overtake it on their own connections.
        """
        found = self.find(Target(client=client), woken)
        return [entry for entry in found if entry.call.is_write and entry.call.resource != "leases"][1:]

    def count(self, target: Target = EVERYTHING, since: float = 0.0) -> int:
        return sum(1 for _ in self.find(target, since))

    def writes(self, since: float = 0.0) -> Counter[str]:
        """Writes by verb, resource and what the client got: ``update resourceclaims/status 409``."""
        return Counter(
            f"{entry.call.verb} {entry.call.resource} {entry.code or 'nothing'}"
            for entry in self.find(since=since)
            if entry.call.is_write
        )

    def about(self, names: set[str]) -> list[str]:
        """What was done to objects of these names, one line each, with the seconds since the first request."""
        lines = []
        for entry in self.entries:
            if entry.call.name in names:
                late = (
                    f", carried out at {entry.carried_out_at - self.entries[0].at:.2f} s"
                    if entry.carried_out_at
                    else ""
                )
                what = (
                    f"{entry.client} {entry.call}: {'+'.join(entry.faults) or 'no fault'}, {entry.code or 'no answer'}"
                )
                lines.append(f"{entry.at - self.entries[0].at:.2f} s {what} ({entry.carried_out}{late})")
        return lines

    def faults(self) -> Counter[str]:
        return Counter(fault for entry in self.entries for fault in entry.faults)


# --- The faults that strike at present ---


class ActiveFaults:
    """Lists of faults, each with dice of its own."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._numbers = itertools.count()
        self._lists: list[tuple[Dice, Sequence[AnyFault]]] = []

    @contextmanager
    def suffering(self, faults: Sequence[AnyFault]) -> Iterator[None]:
        entry = (Dice(f"{self._seed}/{next(self._numbers)}"), faults)
        self._lists.append(entry)
        try:
            yield
        finally:
            self._lists.remove(entry)

    def for_request(self, entry: Entry) -> tuple[Fault, random.Random] | None:
        """The first fault that strikes this request, and the generator for its details."""
        for dice, number, fault in self._all():
            if not isinstance(fault, Fault) or (entry.call.verb == "watch" and not fault.for_watches):
                continue
            if generator := dice.strikes(number, fault, entry.client, entry.call):
                entry.faults.append(type(fault).__name__)
                return fault, generator
        return None

    def alter(self, entry: Entry, event_of: ApiCall, event: Event) -> None:
        """Everything that strikes an event of a watch, in order."""
        for dice, number, fault in self._all():
            if not isinstance(fault, EventFault):
                continue
            if generator := dice.strikes(number, fault, entry.client, event_of):
                entry.faults.append(type(fault).__name__)
                fault.alter(event, generator)

    def _all(self) -> Iterator[tuple[Dice, int, AnyFault]]:
        return ((dice, number, fault) for dice, faults in self._lists for number, fault in enumerate(faults))


# --- The API server behind the proxy: requests go there exactly once ---

_NOT_PASSED_ON = frozenset(
    {"host", "authorization", "connection", "content-length", "transfer-encoding", "accept-encoding", "keep-alive"}
)
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10)


@dataclass(frozen=True, slots=True)
class Request:
    """What the client sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Upstream:
    """An async context manager."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        sockets = Sockets()
        self._stack.push_async_callback(sockets.close)
        connector = aiohttp.TCPConnector(ssl=self._connection.tls or False, limit=0, socket_factory=sockets.make)
        self._session = await self._stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, timeout=_TIMEOUT, auto_decompress=False)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def send(self, request: Request) -> Answer:
        """The whole answer; 502 when there is none, since the proxy is not the one to be tested."""
        try:
            async with self.open(request) as response:
                return Answer(response.status, passed_on(response.headers), await response.read())
        except aiohttp.ClientError as error:
            return refusal(502, f"the API server behind the fault proxy does not answer: {error!r}")

    @asynccontextmanager
    async def open(self, request: Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer as a stream."""
        headers = {**passed_on(request.headers), "Accept-Encoding": "identity"}
        if authorization := self._connection.authorization():
            headers["Authorization"] = authorization
        async with self._session.request(
            request.method,
            URL(self._connection.host + request.path, encoded=True),
            headers=headers,
            data=request.body or None,
            middlewares=(_Once(),),
        ) as response:
            yield response


class _Once:
    """A middleware of one request: aiohttp calls it again when it is about to repeat the request."""

    def __init__(self) -> None:
        self._sent = False

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if self._sent:
            raise aiohttp.ServerDisconnectedError("the connection broke, and nothing is sent twice")
        self._sent = True
        return await handler(request)


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Those headers that do not belong to one connection or one set of credentials."""
    return {name: value for name, value in headers.items() if name.lower() not in _NOT_PASSED_ON}


# --- A watch on its way: every line may be altered, delayed, or be the last one ---

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


# --- One request on its way through the proxy ---


class Background:
    """Tasks that are not awaited; ``end`` cancels those that are left."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class Exchange:
    """One request on its way; a fault has it go another way."""

    def __init__(
        self, client: web.BaseRequest, request: Request, entry: Entry, upstream: Upstream, background: Background
    ) -> None:
        self.entry = entry
        self._client, self._request, self._upstream, self._background = client, request, upstream, background
        self._generator = random.Random(0)

    async def suffer(self, faults: ActiveFaults) -> web.StreamResponse:
        """Whatever befalls the request, or the way of every request."""
        struck = faults.for_request(self.entry)
        if struck is not None:
            fault, self._generator = struck
            return await fault.befall(self)
        if self.entry.call.verb == "watch":
            return await self._stream(faults)
        return self.answer(await self.forward())

    def seconds(self, span: Span) -> float:
        """A time within the span, by the dice of the fault that struck."""
        return self._generator.uniform(*span)

    async def forward(self) -> Answer:
        """Let the server carry out the request, whether or not the client stays; its answer goes nowhere yet."""
        return await asyncio.shield(self._start(0.0))

    def forward_later(self, seconds: float) -> None:
        self._start(seconds)

    def answer(self, answer: Answer) -> web.StreamResponse:
        self.entry.code = answer.code
        return web.Response(status=answer.code, headers=answer.headers, body=answer.body)

    def cut(self) -> web.StreamResponse:
        if self._client.transport is not None:
            self._client.transport.abort()
        return web.Response()  # which reaches no client

    def _start(self, seconds: float) -> asyncio.Task[Answer]:
        task = asyncio.create_task(self._carry_out(seconds))
        self._background.add(task)
        return task

    async def _carry_out(self, seconds: float) -> Answer:
        await asyncio.sleep(seconds)
        answer = await self._upstream.send(self._request)
        self.entry.carried_out = answer.code
        self.entry.carried_out_at = asyncio.get_running_loop().time()
        return answer

    async def _stream(self, faults: ActiveFaults) -> web.StreamResponse:
        async with self._upstream.open(self._request) as source:
            self.entry.code = self.entry.carried_out = source.status
            if source.status != 200:
                return web.Response(status=source.status, headers=passed_on(source.headers), body=await source.read())
            response = web.StreamResponse(headers=passed_on(source.headers))
            await response.prepare(self._client)
            try:
                is_over = await relay(
                    source, response.write, self.entry.call, lambda call, event: faults.alter(self.entry, call, event)
                )
            finally:
                if source.connection is not None and source.connection.transport is not None:
                    source.connection.transport.abort()  # otherwise it waits for a TLS goodbye
            return response if is_over else self.cut()


HOST = "127.0.0.1"


class FaultProxy:
    """A proxy on a free port; an async context manager. ``connection`` leads to the API server."""

    def __init__(self, connection: Connection, *, seed: int = 0) -> None:
        self.url = ""
        self.journal = Journal()
        self._faults = ActiveFaults(seed)
        self._upstream = Upstream(connection)
        self._background = Background()
        self._identity = make_identity(HOST)
        self._clients: dict[str, str] = {}
        self._streams: dict[asyncio.Task[Any], tuple[Entry, asyncio.Transport]] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._upstream)
            stack.push_async_callback(self._background.end)
            server = web.Server(self._handle, access_log=None, handler_cancellation=True)
            runner = ServerRunner(server, shutdown_timeout=1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            stack.callback(self.break_streams)
            seconds = {"life_seconds": math.inf, "head_seconds": 60.0}
            door = open_door(runner, HOST, 0, **seconds, tls=self._identity.tls, most=512, keeps_alive=True)
            _, port = await stack.enter_async_context(door)
            self.url = f"https://{HOST}:{port}"
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def write_kubeconfig(self, path: Path, client: str = "operator") -> Path:
        """A kubeconfig for a client whose requests carry this name in the journal and in targets."""
        token = secrets.token_hex(16)
        self._clients[token] = client
        write_kubeconfig(path, kubeconfig(self.url, self._identity.ca, token))
        return path

    @contextmanager
    def suffering(self, *faults: AnyFault) -> Iterator[None]:
        """These faults strike meanwhile: a request suffers the first that strikes it, an event all that do."""
        with self._faults.suffering(faults):
            yield

    def break_streams(self, resource: str = "") -> None:
        """Close the connections of all watches, or of those of one kind."""
        for entry, transport in tuple(self._streams.values()):
            if resource in ("", entry.call.resource):
                transport.abort()

    async def _handle(self, client: web.BaseRequest) -> web.StreamResponse:
        name = self._clients.get(client.headers.get("Authorization", "").removeprefix("Bearer "))
        if name is None:
            return web.Response(status=401, body=refusal(401).body, content_type="application/json")
        request = Request(client.method, client.raw_path, client.headers, await client.read())
        entry = Entry(asyncio.get_running_loop().time(), name, api_call(request.method, request.path))
        self.journal.entries.append(entry)
        exchange = Exchange(client, request, entry, self._upstream, self._background)
        task = asyncio.current_task()
        assert task is not None
        if entry.call.verb == "watch" and client.transport is not None:
            self._streams[task] = (entry, client.transport)
        try:
            return await exchange.suffer(self._faults)
        finally:
            self._streams.pop(task, None)
