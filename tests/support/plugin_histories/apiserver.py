"""The API server: the fake one behind a network (``history_kit.game``), with watches.

What a scheduler makes of the slices there, the ``Reader`` says: devices only of a pool that is complete, and no mixture
of two states.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from dra_kube import RESOURCE_SLICES, Change, Gone, Resource, Unreachable
from fake_api import Call, FakeApi, copied, key_of
from history_kit.game import Network, Weather
from objects import Obj

T = TypeVar("T")
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


def shown_in(item: dict[str, Any]) -> tuple[str, ...]:
    return tuple(device["name"] + "!" * bool(device.get("taints")) for device in item["spec"].get("devices") or ())


class _Change(NamedTuple):
    version: int
    event: str
    resource: Resource
    obj: Obj


class ApiServer(Network, FakeApi):
    """The fake server behind a network, with watches; its client sends one request at a time."""

    def __init__(self, weather: Weather, say: Callable[[str], None], reader: Reader) -> None:
        super().__init__()
        self.last_strike = -math.inf
        """When something has befallen a request."""
        self.reader = reader
        self.generate = lambda base: f"{base}{self._uids + 1:05}"
        self._weather, self._say = weather, say
        self._history: list[_Change] = []
        self._oldest = 0
        self._watches: list[asyncio.Queue[_Change | Exception]] = []
        odds = 0.0 if weather.chance("calm") < 0.2 else 0.1
        reads = (("lost", odds * weather.chance("lost")), ("refused", odds * weather.chance("refused")))
        writes = (("unanswered", odds * weather.chance("unanswered")), ("late", odds * weather.chance("tardy")))
        self._chances = {False: reads, True: (*reads, *writes)}

    # --- what others do ---

    def of(self, resource: Resource) -> list[Obj]:
        """All objects of a kind, by their names."""
        return sorted(super().of(resource), key=key_of)

    def put(self, resource: Resource, body: Obj) -> None:
        meta = body["metadata"]
        is_there = (resource, meta.get("namespace", ""), meta["name"]) in self.objects
        self.store("MODIFIED" if is_there else "ADDED", resource, body)

    def remove(self, resource: Resource, name: str, namespace: str = "") -> None:
        if (resource, namespace, name) in self.objects:
            self.drop(resource, f"{namespace}/{name}")

    def forget(self) -> None:
        """Watches have to list again."""
        self._history.clear()
        self.revision += 1
        self._oldest = self.revision
        self._end_watches(Gone(410, "Expired", "too old resource version"))

    def stop(self) -> None:
        """It is away."""
        self.is_away = True
        self._end_watches(Unreachable("connection reset"))

    def _end_watches(self, error: Exception) -> None:
        for queue in self._watches:
            queue.put_nowait(error)

    def _tell(self, event: str, resource: Resource, obj: Obj) -> None:
        if resource == RESOURCE_SLICES:
            generation = obj["spec"]["pool"]["generation"]
            self._say(f"    {event} {obj['metadata']['name']} {generation}: {' '.join(shown_in(obj))}")
            self.reader.looks(self.of(resource))
        told = copied(obj)
        told["metadata"]["resourceVersion"] = str(self.revision)
        change = _Change(self.revision, event, resource, told)
        self._history.append(change)
        for queue in self._watches:
            queue.put_nowait(change)

    # --- what its client does ---

    async def request(self, call: Call, effect: Callable[[], T]) -> T:  # lists as well
        """Take a request to the server, and bring the answer."""
        name = " ".join((call.verb, call.plural, *([call.name] if call.verb == "get" else ())))
        fate = self._weather.fate(name, self._chances[call.verb in ("create", "update", "delete")])
        if fate.strike:
            self.last_strike = self._loop.time()

        def arrived(outcome: T | Exception) -> None:
            if fate.strike or isinstance(outcome, Exception):
                self._say(f"    {name}: {fate.strike} {outcome if isinstance(outcome, Exception) else ''}".rstrip())

        return await self.ask(fate, effect, arrived)

    async def list(self, resource: Resource, **selectors: str) -> tuple[list[Obj], str]:
        """Objects that match, and as of which version."""

        def found() -> tuple[list[Obj], str]:
            return [copied(obj) for obj in self.of(resource) if _selected(obj, selectors)], str(self.revision)

        return await self.request(Call("list", resource.plural, None, ""), found)

    async def listed(
        self, resource: Resource, namespace: str | None = None, **selectors: str
    ) -> AsyncIterator[tuple[Sequence[Change], str]]:
        """The same for a reflector."""
        objects, version = await self.list(resource, **selectors)
        yield [Change.of("LISTED", obj, resource) for obj in objects], version

    def made(self, resource: Resource, obj: Obj) -> Obj:
        """A new object; a review is answered, and says that no pod has asked."""
        return obj if resource.plural == "selfsubjectreviews" else super().made(resource, obj)

    def replace(self, resource: Resource, body: Obj, subresource: str | None) -> Obj:
        meta = body["metadata"]
        if self.find(resource, "", meta["name"])["metadata"]["resourceVersion"] == meta["resourceVersion"]:
            self.reader.wrote(meta["name"])
        return super().replace(resource, body, subresource)

    async def changes(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        silence: float | None = None,
        **selectors: str,
    ) -> AsyncIterator[Sequence[Change]]:
        """A watch. Raises Gone."""
        call = Call("watch", resource.plural, None, "")
        queue = await self.request(call, lambda: self._begin_watch(int(resource_version)))
        try:
            while True:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item.resource == resource and _selected(item.obj, selectors):
                    yield [Change.of(item.event, copied(item.obj), resource)]
        finally:
            self._watches.remove(queue)

    def _begin_watch(self, version: int) -> asyncio.Queue[_Change | Exception]:
        if version < self._oldest:
            raise Gone(410, "Expired", "too old resource version")
        queue: asyncio.Queue[_Change | Exception] = asyncio.Queue()
        for change in self._history:
            if change.version > version:
                queue.put_nowait(change)
        self._watches.append(queue)
        return queue


def _selected(obj: Obj, selectors: dict[str, str]) -> bool:
    terms = dict(term.split("=", 1) for term in selectors.get("fieldSelector", "").split(",") if term)
    spec = obj.get("spec", {})
    return all((spec.get(field.removeprefix("spec.")) or "") == value for field, value in terms.items())
