"""What befalls requests and the events of watches.

A target says which are hit, and a dice decides whether it happens this time. ``ApiCall`` is what a request asks for:
verb, resource, namespace and name, as RBAC and audit logs name them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import parse_qs, unquote, urlsplit

import orjson
from aiohttp import web

if TYPE_CHECKING:
    from faults.proxy import Exchange

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_QUESTIONS = frozenset({"authentication.k8s.io", "authorization.k8s.io"})
"""Groups whose objects are posted to be answered: the server stores none of them."""


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One request: ``resource`` has its sub-resource with it (``pods/status``); for other paths it is the path."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""
    version: str = ""

    @property
    def is_write(self) -> bool:
        """Whether it may change something; the question which rights an account has is posted, and changes nothing."""
        return self.verb in WRITES and self.group not in _QUESTIONS

    def __str__(self) -> str:
        place = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.verb} {self.resource}{f' {place}' if place else ''}"


def api_call(method: str, target: str) -> ApiCall:
    """The call behind an HTTP request for ``target``, a path with its query."""
    url = urlsplit(target)
    parts = [unquote(part) for part in url.path.strip("/").split("/")]
    depth = {"api": 2, "apis": 3}.get(parts[0], len(parts))
    group, rest = parts[1] if parts[0] == "apis" and len(parts) > 1 else "", parts[depth:]
    version = parts[depth - 1] if parts[0] in ("api", "apis") and len(parts) >= depth else ""
    if not rest:
        return ApiCall("get" if method == "GET" else method.lower(), group, url.path, version=version)
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "")[:3]
    resource = f"{plural}/{subresource}" if subresource else plural
    return ApiCall(_verb(method, name, url.query), group, resource, namespace, name, version)


def _verb(method: str, name: str, query: str) -> str:
    if method == "GET":
        watches = parse_qs(query).get("watch", ["false"])[0] not in ("false", "0")
        return "watch" if watches else "get" if name else "list"
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    return _VERBS.get(method, method.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """All requests, unless narrowed. Resource, name and client are patterns: ``resourceclaims*`` has the status too."""

    verbs: tuple[str, ...] = ()
    resource: str = "*"
    name: str = "*"
    client: str = "*"
    group: str = "*"
    version: str = "*"

    def includes(self, client: str, call: ApiCall) -> bool:
        return (
            (not self.verbs or call.verb in self.verbs)
            and fnmatchcase(call.resource, self.resource)
            and fnmatchcase(call.name, self.name)
            and fnmatchcase(client, self.client)
            and fnmatchcase(call.group, self.group)
            and fnmatchcase(call.version, self.version)
        )


# --- Whether a fault strikes: always the same for the same seed, request and number of the request ---


@dataclass(frozen=True, slots=True)
class AnyFault:
    """It strikes with ``probability``, not the first ``skip`` times, at most ``count`` times."""

    on: Target
    probability: float = 1.0
    skip: int = 0
    count: int | None = None


class Dice:
    """Decisions about one list of faults."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._made: Counter[tuple[int, str, ApiCall]] = Counter()
        self._met: Counter[int] = Counter()
        self._struck: Counter[int] = Counter()

    def strikes(self, number: int, fault: AnyFault, client: str, call: ApiCall) -> random.Random | None:
        """A generator for the details if the fault, ``number`` in its list, strikes this request."""
        if not fault.on.includes(client, call):
            return None
        made = self._made[number, client, call]
        self._made[number, client, call] += 1
        generator = random.Random(f"{self._seed} {number} {client} {call} {made}")
        if generator.random() >= fault.probability:
            return None
        self._met[number] += 1
        if self._met[number] <= fault.skip or (fault.count is not None and self._struck[number] >= fault.count):
            return None
        self._struck[number] += 1
        return generator


# --- An answer on its way to the client: the server's, or one made up in its form ---

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Code, headers worth passing on, and the whole body."""

    code: int
    headers: Mapping[str, str]
    body: bytes


def status(code: int, message: str = "", reason: str = "", retry_after: int | None = None) -> dict[str, Any]:
    reason = reason or _REASONS.get(code, "")
    content: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    content |= {"message": message or f"the fault proxy says {code} {reason}", "reason": reason, "code": code}
    if retry_after is not None:
        content["details"] = {"retryAfterSeconds": retry_after}
    return content


def refusal(code: int, message: str = "", reason: str = "", retry_after: int | None = None) -> Answer:
    """An answer that says no as an API server does."""
    headers = {"Content-Type": "application/json"}
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
    return Answer(code, headers, orjson.dumps(status(code, message, reason, retry_after)))


# --- What may happen to a request: value objects, each of which says how an exchange goes ---

Span = tuple[float, float]
"""Seconds, from and to; the dice choose."""


@dataclass(frozen=True, slots=True)
class Fault(AnyFault):
    """A fault of requests."""

    for_watches: ClassVar[bool] = False
    """Whether it makes sense for the opening of a watch."""

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        """What happens instead of passing the request on."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(Fault):
    """The server is never asked; the client gets a Status with this code."""

    code: int
    message: str = ""
    reason: str = ""
    retry_after: int | None = None

    for_watches: ClassVar[bool] = True

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        return exchange.answer(refusal(self.code, self.message, self.reason, self.retry_after))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerWrongly(Fault):
    """The client gets a 200 with one of these bodies; ``carries_out``: after the server did its part."""

    bodies: tuple[bytes, ...]
    carries_out: bool = False

    for_watches: ClassVar[bool] = True

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        if self.carries_out:
            await exchange.forward()
        body = self.bodies[int(exchange.seconds((0, len(self.bodies) - 0.001)))]
        return exchange.answer(Answer(200, {"Content-Type": "application/json"}, body))


@dataclass(frozen=True, slots=True)
class Unserved(Fault):
    """The server does not know the path, as after the API was switched off: no Status, only a page."""

    for_watches: ClassVar[bool] = True

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        return exchange.answer(Answer(404, {"Content-Type": "text/plain"}, b"404 page not found\n"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay(Fault):
    """The request takes its time before it reaches the server, its answer before it reaches the client."""

    before: Span = (0.0, 0.0)
    after: Span = (0.0, 0.0)

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        await asyncio.sleep(exchange.seconds(self.before))
        answer = await exchange.forward()
        await asyncio.sleep(exchange.seconds(self.after))
        return exchange.answer(answer)


@dataclass(frozen=True, slots=True)
class CutBefore(Fault):
    """The connection breaks before the request reaches the server: nothing happens there."""

    for_watches: ClassVar[bool] = True

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        return exchange.cut()


@dataclass(frozen=True, slots=True)
class CutAfter(Fault):
    """The server carries out the request; the connection breaks before the answer reaches the client."""

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        await exchange.forward()
        return exchange.cut()


@dataclass(frozen=True, slots=True)
class HangAfter(Fault):
    """The server carries out the request; the answer never comes, and the connection stays open."""

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        await exchange.forward()
        await asyncio.Event().wait()
        raise AssertionError("unreachable: the client's leaving cancels the waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverLate(Fault):
    """The connection breaks first; the request reaches the server when its client has long given it up."""

    seconds: Span

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        exchange.forward_later(exchange.seconds(self.seconds))
        return exchange.cut()


@dataclass(frozen=True, slots=True)
class Hang(Fault):
    """The request reaches no server, and the connection stays open until the client leaves."""

    for_watches: ClassVar[bool] = True

    async def befall(self, exchange: Exchange) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError("unreachable: the client's leaving cancels the waiting")


# --- What may happen to an event of a watch: value objects that alter it on its way ---


@dataclass(slots=True)
class Event:
    """What the client gets for one line of the server: lines after a delay, and perhaps the stream's end."""

    lines: list[bytes] = field(default_factory=list)
    delay: float = 0.0
    ends: bool = False
    """The stream ends properly after the lines."""
    breaks: bool = False
    """The connection is closed in the middle of things after the lines."""


@dataclass(frozen=True, slots=True)
class EventFault(AnyFault):
    """A fault of watches; name and resource of ``on`` are those of the event's object."""

    def alter(self, event: Event, generator: random.Random) -> None:
        """Change what the client gets."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayEvents(EventFault):
    """The event comes late, and so do all that follow it: a stream keeps its order."""

    seconds: Span

    def alter(self, event: Event, generator: random.Random) -> None:
        event.delay += generator.uniform(*self.seconds)


@dataclass(frozen=True, slots=True)
class DropEvents(EventFault):
    """The event never comes, the stream stays open; also bookmarks, so that the stream looks dead."""

    def alter(self, event: Event, generator: random.Random) -> None:
        event.lines.clear()


@dataclass(frozen=True, slots=True)
class DoubleEvents(EventFault):
    """The event comes twice."""

    def alter(self, event: Event, generator: random.Random) -> None:
        event.lines *= 2


@dataclass(frozen=True, slots=True)
class BreakStream(EventFault):
    """The connection breaks instead of bringing the event."""

    def alter(self, event: Event, generator: random.Random) -> None:
        event.lines.clear()
        event.breaks = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent(EventFault):
    """An ERROR event comes instead of the event, and ends the stream."""

    code: int

    def alter(self, event: Event, generator: random.Random) -> None:
        event.lines[:] = [b'{"type":"ERROR","object":%s}\n' % orjson.dumps(status(self.code))]
        event.ends = True


DEEP: Final = b"[" * 20_000 + b"]" * 20_000

NO_OBJECT: Final[dict[str, bytes]] = {
    "nothing": b"",
    "a blank": b" \n",
    "a list": b"[]",
    "a list of objects": b'[{"kind":"Pod","metadata":{"name":"p"}}]',
    "a text": b'"ok"',
    "a number": b"3",
    "null": b"null",
    "true": b"true",
    "a page": b"<html><body>please log in</body></html>",
    "half an object": b'{"kind":"Pod","metadata":{"name":',
    "no UTF-8": b'\xff\xfe{"kind":"Pod"}',
    "half of a pair": b'"\\ud800"',
    "what never closes": b"[" * 20_000,
    "what nests deep": DEEP,
}
"""What is no JSON object at all."""
NO_KUBERNETES: Final[dict[str, bytes]] = {
    "an empty object": b"{}",
    "an object of another API": b'{"status":"ok","items":3}',
    "an error of a proxy": b'{"error":{"code":503,"message":"upstream is away"}}',
    "metadata that are none": b'{"kind":"%s","metadata":3}',
    "metadata without a name": b'{"kind":"%s","metadata":{}}',
    "a name that is none": b'{"kind":"%s","metadata":{"name":["p"]}}',
    "another kind": b'{"kind":"Odd","metadata":{"name":"p","resourceVersion":"1"}}',
    "a refusal": b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":503}',
    "a list in place of an object": b'{"kind":"%sList","items":{},"metadata":{"resourceVersion":"1"}}',
}
"""Objects that are not what was asked for; ``%s`` stands for the kind."""


def wrong_answers(kind: str) -> dict[str, bytes]:
    return NO_OBJECT | {name: body.replace(b"%s", kind.encode()) for name, body in NO_KUBERNETES.items()}
