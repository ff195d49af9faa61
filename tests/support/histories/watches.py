"""How changes come to the operator: late, more than once, not in every version, and sometimes not at all.

Events about one object keep their order; those of different objects overtake each other. Within a kind they do so by
``OVERTAKING`` seconds at most: its watch brings them in order, and under ``kopf run`` workers hold them back briefly.
What is not the last version of an object may be skipped, because Kopf brings only the newest of several. After a gap
everything is listed again, which does not say what was deleted: the operator's own lists do, but Kopf's do not.

A rival whose claim people made comes without delay, and so does its claim, or when a watch is open that was not: the
operator cannot know that devices are contested by a pod, or wanted by a claim, which is late without a sign.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import copy_context

from dra_api.codec import convert
from dra_kube import PODS, RESOURCE_CLAIMS, Resource, Stream
from fake_store import key_of
from objects import Obj

from .incarnation import KINDS, Incarnation
from .script import NAMED_RIVAL
from .server import Server
from .weather import Weather

OVERTAKING = 0.5
LONGEST_GAP = 4.0
PROMPT = 0.001  # seconds, no more than an answer takes
RELIST = 0.2  # seconds from the break of a stream until the list, at least


def _streams(now: float) -> dict[Resource, Stream]:
    """What the operator knows of the streams by which it learns of other schedulers."""
    return {resource: Stream(now) for resource in (PODS, RESOURCE_CLAIMS)}


class Watches:
    """``begin`` for each incarnation, in its process; ``changed`` is told of every change at the server."""

    def __init__(self, weather: Weather, server: Server, kinds: Iterable[Resource]) -> None:
        self._weather, self._server, self._kinds = weather, server, tuple(kinds)
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._operator: Incarnation | None = None
        self._open: set[Resource] = set()
        self._last_at: dict[str, float] = {}
        self._last_of: dict[Resource, float] = {}
        self._streams = _streams(0.0)
        self.busy = 0
        """Events on their way, and streams that are not open."""

    def begin(self, operator: Incarnation) -> None:
        """Streams for this operator, and for no other any more."""
        self.end()
        self._operator, self._context = operator, copy_context()
        self._streams = _streams(self._loop.time())
        for resource in self._kinds:
            self._reopen(resource, RELIST * self._weather.chance("begin", resource.plural))

    def end(self) -> None:
        """The streams are closed; what is on its way does not arrive."""
        self._operator, self.busy = None, 0
        self._open.clear()
        self._last_at.clear()
        self._last_of.clear()

    def gap(self, resource: Resource, seconds: float) -> None:
        """The stream breaks, and after so many seconds the kind is listed again."""
        if self._operator is not None and resource in self._open:
            self._open.discard(resource)
            if (stream := self._streams.get(resource)) is not None:
                stream.ended(self._loop.time())
            self._reopen(resource, seconds + RELIST)

    def sees_others(self) -> bool:
        """Whether the streams of pods and claims are open, as the operator knows them."""
        return all(stream.sees(self._loop.time()) for stream in self._streams.values())

    def changed(self, event: str, resource: Resource, obj: Obj) -> None:
        """An event for an open stream."""
        if resource in self._open:
            self._send(event, resource, obj)

    def _reopen(self, resource: Resource, seconds: float) -> None:
        self.busy += 1
        self._loop.call_later(seconds, self._list, self._operator, resource, context=self._context)

    def _list(self, operator: Incarnation | None, resource: Resource) -> None:
        if operator is None or operator is not self._operator:
            return
        server = self._server
        if server.is_away or resource.plural in server.unserved:
            self._loop.call_later(RELIST, self._list, operator, resource, context=self._context)
            return
        self.busy -= 1
        self._open.add(resource)
        if resource in self._streams:
            self._streams[resource].opened(self._loop.time())
        for obj in server.of(resource):
            self._send("", resource, obj)
        operator.audit.call(resource)

    def _send(self, event: str, resource: Resource, obj: Obj) -> None:
        name = f"{event or 'LISTED'} {resource.plural} {key_of(obj)}"
        fate = self._weather.of_event(name)
        uid, now = obj["metadata"]["uid"], self._loop.time()
        last_of_kind = self._last_of.get(resource, 0.0)
        at = max(now + fate.before, last_of_kind - OVERTAKING)
        if resource in self._streams and obj["metadata"]["name"].startswith(NAMED_RIVAL):
            at = now + PROMPT
        self._last_at[uid] = at = max(at, self._last_at.get(uid, 0.0))
        self._last_of[resource] = max(at, last_of_kind)
        self._deliver_at(at, event, resource, obj, fate.strike == "skipped")
        if fate.strike == "doubled":
            self._deliver_at(at + fate.after, event, resource, obj, False)
        elif fate.strike == "last" and event:
            self.gap(resource, LONGEST_GAP * self._weather.chance("gap", name))

    def _deliver_at(self, at: float, event: str, resource: Resource, obj: Obj, may_skip: bool) -> None:
        self.busy += 1
        args = (self._operator, event, resource, obj, may_skip)
        self._loop.call_at(at, self._deliver, *args, context=self._context)

    def _deliver(self, operator: Incarnation | None, event: str, resource: Resource, obj: Obj, may_skip: bool) -> None:
        if operator is None or operator is not self._operator:
            return
        self.busy -= 1
        is_newest = self._server.objects.get((resource, *_where(obj))) is obj
        if event == "DELETED" or is_newest or not may_skip:
            operator.received(resource, event, convert(KINDS[resource], obj), obj)


def _where(obj: Obj) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
