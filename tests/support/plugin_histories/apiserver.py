"""The API server: objects in a dict, watches, and a network on which requests fare as the weather wants.

A request that was sent arrives whatever becomes of its sender. While the server ``is_away`` all fail, and watches end.

What a scheduler makes of the slices there, the ``Reader`` says: devices only of a pool that is complete, and no mixture
of two states.
"""

from __future__ import annotations

import asyncio
import marshal
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import copy_context
from types import TracebackType
from typing import Any, NamedTuple, Self

from dra_kube import (
    RESOURCE_SLICES,
    ApiError,
    Change,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    Resource,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from history_kit.game import Fate, Weather

Shown = tuple[tuple[str, ...], ...]
"""The names of the devices of each slice, in order; those with a taint end with an exclamation mark."""


class Reader:
    """``wanted`` are the states that some process wanted."""

    def __init__(self, find: Callable[[str], None], *, overlaps: bool) -> None:
        self._find, self._overlaps = find, overlaps
        self.has_late_writes: Callable[[], bool] = lambda: False
        self.wanted: set[Shown] = set()
        self._touched: set[str] = set()  # names of slices as others have changed them

    def touched(self, name: str) -> None:
        """Another client has changed or made a slice."""
        self._touched.add(name)

    def wrote(self, name: str) -> None:
        """The plugin has."""
        self._touched.discard(name)

    def looks(self, slices: Sequence[dict[str, Any]]) -> None:
        """At what the server has now."""
        newest = max((item["spec"]["pool"]["generation"] for item in slices), default=0)
        there = [item for item in slices if item["spec"]["pool"]["generation"] == newest]
        if len(there) != (there[0]["spec"]["pool"]["resourceSliceCount"] if there else -1):
            return
        if self._touched & {item["metadata"]["name"] for item in there}:
            return
        shown = tuple(shown_in(item) for item in sorted(there, key=lambda item: str(item["metadata"]["name"])))
        names = [name for devices in shown for name in devices]
        if self.has_late_writes() or (self._overlaps and len(set(names)) < len(names)):
            return
        if not self._may_be(shown, names):
            self._find(f"readers take {shown} for the whole pool, which no process wanted")

    def _may_be(self, shown: Shown, names: Sequence[str]) -> bool:
        """Return whether some process wanted this state, or is on its way from one to another, slice by slice.

        On the way each device is as it was wanted at some time, and never there twice. One that was always wanted is
        missing only while it moves to another slice, since it got a taint, or lost one.
        """
        if shown in self.wanted:
            return True
        states = [{name for part in state for name in part} for state in self.wanted]
        known = set[str]().union(*states)
        always = set[str].intersection(*({name.rstrip("!") for name in state} for state in states)) if states else set()
        moves = {name for name in always if {name, f"{name}!"} <= known}
        bare = [name.rstrip("!") for name in names]
        return len(set(bare)) == len(bare) and known >= set(names) and set(bare) >= always - moves


def copied(content: dict[str, Any]) -> dict[str, Any]:
    """A copy of JSON, in a tenth of the time of ``copy.deepcopy``."""
    copy: dict[str, Any] = marshal.loads(marshal.dumps(content))
    return copy


def shown_in(item: dict[str, Any]) -> tuple[str, ...]:
    """The devices of a slice."""
    return tuple(device["name"] + "!" * bool(device.get("taints")) for device in item["spec"].get("devices") or ())


Json = dict[str, Any]
TIMEOUT = 2.0  # seconds after which a client gives up
LATE = 9.0  # seconds within which each request has arrived
REFUSALS: tuple[Callable[[], ApiError], ...] = (
    lambda: Conflict(409, "Conflict", "the object has been modified"),
    lambda: ServerError(500, "InternalError", "etcd is on fire"),
    lambda: TooManyRequests(429, "TooManyRequests", "busy", retry_after=1.0),
    lambda: Forbidden(403, "Forbidden", "not allowed"),
)


class _Change(NamedTuple):
    version: int
    event: str
    obj: Json


class ApiServer:
    """``objects`` by plural, namespace and name."""

    def __init__(self, weather: Weather, tell: Callable[[str], None], reader: Reader) -> None:
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.is_away = False
        self.last_strike = -math.inf
        """When something has befallen a request."""
        self.reader = reader
        self._weather, self._tell = weather, tell
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._version = 100
        self._numbers = 0
        self._history: list[_Change] = []
        self._oldest = 0
        self._watches: list[asyncio.Queue[_Change | Exception]] = []
        odds = 0.0 if weather.chance("calm") < 0.2 else 0.1
        reads = (("lost", odds * weather.chance("lost")), ("refused", odds * weather.chance("refused")))
        writes = (("unanswered", odds * weather.chance("unanswered")), ("tardy", odds * weather.chance("tardy")))
        self._chances = {False: reads, True: (*reads, *writes)}

    # --- what others do ---

    def of(self, plural: str) -> list[Json]:
        """All objects of a kind."""
        return [obj for key, obj in sorted(self.objects.items()) if key[0] == plural]

    def put(self, resource: Resource, body: Json) -> None:
        """Create or replace an object."""
        key = _key(resource, body["metadata"])
        self._changed("MODIFIED" if key in self.objects else "ADDED", key, body)

    def remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        """Delete an object, if it is there."""
        if obj := self.objects.pop((resource.plural, namespace, name), None):
            self._changed("DELETED", (resource.plural, namespace, name), copied(obj))

    def forget(self) -> None:
        """Watches have to list again."""
        self._history.clear()
        self._oldest = self._version = self._version + 1
        self._end_watches(Gone(410, "Expired", "too old resource version"))

    def stop(self) -> None:
        """It is away."""
        self.is_away = True
        self._end_watches(Unreachable("connection reset"))

    def _end_watches(self, error: Exception) -> None:
        for queue in self._watches:
            queue.put_nowait(error)

    def _changed(self, event: str, key: tuple[str, str, str], obj: Json) -> None:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        if event != "DELETED":
            self.objects[key] = obj
        if key[0] == RESOURCE_SLICES.plural:
            self._tell(f"    {event} {key[2]} {obj['spec']['pool']['generation']}: {' '.join(shown_in(obj))}")
            self.reader.looks(self.of(key[0]))
        change = _Change(self._version, event, copied(obj))
        self._history.append(change)
        for queue in self._watches:
            queue.put_nowait(change)

    # --- what a client does ---

    async def request(self, name: str, effect: Callable[[], Any], *, is_write: bool) -> Any:
        """Takes a request to the server, and brings the answer."""
        fate = self._weather.fate(name, self._chances[is_write])
        answer: asyncio.Future[Any] = self._loop.create_future()
        before = fate.before
        if fate.strike:
            self.last_strike = self._loop.time()
        if fate.strike == "tardy":
            before = TIMEOUT + fate.before * 2
            self._later(TIMEOUT, _fail, answer, Unreachable("timed out"))
        self._later(before, self._arrive, name, effect, fate, answer)
        return await answer

    def _later(self, seconds: float, what: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_later(seconds, what, *arguments, context=self._context)

    def _arrive(self, name: str, effect: Callable[[], Any], fate: Fate, answer: asyncio.Future[Any]) -> None:
        try:
            if self.is_away or fate.strike == "lost":
                raise Unreachable("connection refused")
            if fate.strike == "refused":
                raise REFUSALS[int(fate.before * 1e6) % len(REFUSALS)]()
            result = effect()
            if fate.strike == "unanswered":
                raise Unreachable("connection reset")
        except (ApiError, Unreachable) as error:
            self._tell(f"    {name}: {fate.strike} {error}")
            self._later(fate.after, _fail, answer, error)
        else:
            self._later(fate.after, _answer, answer, result)

    def found(self, key: tuple[str, str, str]) -> Json:
        """The object. Raises NotFound."""
        if key not in self.objects:
            raise NotFound(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        return self.objects[key]

    def listed(self, plural: str, selectors: dict[str, str]) -> tuple[list[Json], str]:
        """Those that match, and as of which version."""
        found = [copied(obj) for obj in self.of(plural) if _selected(obj, selectors)]
        return found, str(self._version)

    def created(self, resource: Resource, body: Json) -> Json:
        """A new object, with a name of the server's; a review is answered, and says that no pod has asked."""
        if resource.plural == "selfsubjectreviews":
            return body
        self._numbers += 1
        meta = body["metadata"]
        meta["name"] = f"{meta['generateName']}{self._numbers:05}"
        meta["uid"] = f"uid-{self._numbers}"
        self.reader.wrote(meta["name"])
        self._changed("ADDED", _key(resource, meta), body)
        return copied(body)

    def updated(self, resource: Resource, body: Json) -> Json:
        """The object, replaced. Raises NotFound, Conflict."""
        key = _key(resource, body["metadata"])
        if self.found(key)["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "the object has been modified")
        self.reader.wrote(key[2])
        self._changed("MODIFIED", key, body)
        return copied(body)

    def deleted(self, resource: Resource, name: str, uid: str | None, version: str | None) -> None:
        """The object goes. Raises NotFound, Conflict."""
        meta = self.found((resource.plural, "", name))["metadata"]
        if uid not in (None, meta["uid"]) or version not in (None, meta["resourceVersion"]):
            raise Conflict(409, "Conflict", "the object has been modified")
        self.remove(resource, name)

    def begin_watch(self, version: int) -> asyncio.Queue[_Change | Exception]:
        """What changes from then on. Raises Gone."""
        if version < self._oldest:
            raise Gone(410, "Expired", "too old resource version")
        queue: asyncio.Queue[_Change | Exception] = asyncio.Queue()
        for change in self._history:
            if change.version > version:
                queue.put_nowait(change)
        self._watches.append(queue)
        return queue

    def end_watch(self, queue: asyncio.Queue[_Change | Exception]) -> None:
        """Its client is gone."""
        if queue in self._watches:
            self._watches.remove(queue)


class Client:
    """The part of ``dra_kube.Api`` that a plugin uses."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Any:
        key = (resource.plural, namespace or "", name)
        return await self._ask(f"get {resource.plural} {name}", lambda: copied(self._server.found(key)))

    async def list(self, resource: Resource, **selectors: str) -> Any:
        return await self._ask(f"list {resource.plural}", lambda: self._server.listed(resource.plural, selectors))

    async def listed(
        self, resource: Resource, namespace: str | None = None, **selectors: str
    ) -> AsyncIterator[tuple[Sequence[Change], str]]:
        objects, version = await self.list(resource, **selectors)
        yield [Change.of("LISTED", obj, resource) for obj in objects], version

    async def create(self, resource: Resource, body: Json) -> Any:
        body = copied(body)
        return await self._write(f"create {resource.plural}", lambda: self._server.created(resource, body))

    async def update(self, resource: Resource, body: Json) -> Any:
        body = copied(body)
        return await self._write(f"update {resource.plural}", lambda: self._server.updated(resource, body))

    async def delete(
        self, resource: Resource, name: str, *, uid: str | None = None, resource_version: str | None = None
    ) -> None:
        await self._write(
            f"delete {resource.plural}", lambda: self._server.deleted(resource, name, uid, resource_version)
        )

    async def changes(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        silence: float | None = None,
        **selectors: str,
    ) -> AsyncIterator[Sequence[Change]]:
        queue = await self._ask(f"watch {resource.plural}", lambda: self._server.begin_watch(int(resource_version)))
        try:
            while True:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item.obj["kind"] == resource.kind and _selected(item.obj, selectors):
                    yield [Change.of(item.event, copied(item.obj), resource)]
        finally:
            self._server.end_watch(queue)

    async def _ask(self, name: str, effect: Callable[[], Any]) -> Any:
        return await self._server.request(name, effect, is_write=False)

    async def _write(self, name: str, effect: Callable[[], Any]) -> Any:
        return await self._server.request(name, effect, is_write=True)


def _key(resource: Resource, meta: Json) -> tuple[str, str, str]:
    return resource.plural, meta.get("namespace", ""), meta["name"]


def _selected(obj: Json, selectors: dict[str, str]) -> bool:
    terms = dict(term.split("=", 1) for term in selectors.get("fieldSelector", "").split(",") if term)
    spec = obj.get("spec", {})
    return all((spec.get(field.removeprefix("spec.")) or "") == value for field, value in terms.items())


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _answer(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)
