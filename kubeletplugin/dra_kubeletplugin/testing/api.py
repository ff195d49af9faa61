"""An API server in memory as a plugin sees it: objects, watches, and faults to order."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, cast

from dra_api.releases import NEWEST
from dra_kube import Api, Change, Conflict, Gone, NotFound, Resource
from dra_kube import WatchEvent as Event

Json = dict[str, Any]


class PluginApi:
    """The part of ``dra_kube.Api`` that a plugin uses.

    ``store`` changes what the server keeps of a written slice; ``release`` is the one that the server says it has,
    and ``user`` whom it takes the plugin for.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.faults: dict[str, list[Exception]] = {}
        self.requests: list[tuple[str, str]] = []
        self.release = NEWEST
        self.user: Json = {"username": "tester"}
        self.store: Callable[[Json], None] = lambda obj: None
        self._applied: dict[str, dict[str, list[Json]]] = {}
        """Devices applied to the status, the latest last, by the claim's uid and the field manager."""
        self._history: list[Event] = []
        self._oldest = 0
        self._numbers = itertools.count(1)
        self._changed = asyncio.Condition()
        self._watched: dict[object, int] = {}
        """For each watch the latest change that its reader has dealt with."""

    @property
    def client(self) -> Api:
        """This, as what a plugin takes for its client."""
        return cast("Api", self)

    # --- what tests do ---

    def slices(self) -> list[Json]:
        """The stored slices by name."""
        return [obj for key, obj in sorted(self.objects.items()) if key[0] == "resourceslices"]

    async def put(self, resource: Resource, body: Json) -> Json:
        """Create or replace an object, as another client would; returns when all watches have brought it."""
        meta = body.setdefault("metadata", {})
        meta.setdefault("uid", str(uuid.uuid4()))
        kind = "MODIFIED" if self._key(resource, meta) in self.objects else "ADDED"
        made = await self._put(resource, body, kind)
        number = int(made["metadata"]["resourceVersion"])
        await self.until(lambda: all(seen >= number for seen in self._watched.values()))
        return made

    async def remove(self, resource: Resource, name: str) -> None:
        """Delete an object, as another client would."""
        await self._announce("DELETED", self.objects.pop((resource.plural, "", name)))

    async def forget_history(self) -> None:
        """Let watches fail with Gone, so that clients list again."""
        async with self._changed:
            self._history.clear()
            self._oldest = next(self._numbers)
            self._changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the stored objects, or the requests, satisfy a condition."""
        async with self._changed:
            async with asyncio.timeout(30):
                await self._changed.wait_for(condition)

    # --- what the plugin does ---

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        await self._request("get", resource)
        return copy.deepcopy(self._find(resource, name, namespace))

    async def list(self, resource: Resource, **selectors: str) -> tuple[list[Json], str]:
        await self._request("list", resource)
        found = [obj for key, obj in self.objects.items() if key[0] == resource.plural and _selected(obj, selectors)]
        return copy.deepcopy(found), str(next(self._numbers))

    async def listed(
        self, resource: Resource, namespace: str | None = None, **selectors: str
    ) -> AsyncIterator[tuple[Sequence[Change], str]]:
        objects, version = await self.list(resource, **selectors)
        yield [Change.of("LISTED", obj, resource) for obj in objects], version

    def forget(self, resource: Resource) -> None:
        """The version that is served never changes."""

    async def raw_get(self, path: str) -> Json:
        """What ``/version`` answers; ``release`` says which it is."""
        if path != "/version":
            raise NotFound(404, "NotFound", f"the path {path} is not known here")
        major, _, minor = str(self.release).partition(".")
        return {"major": major, "minor": minor}

    async def create(self, resource: Resource, body: Json) -> Json:
        if resource.plural == "selfsubjectreviews":
            return {"status": {"userInfo": copy.deepcopy(self.user)}}
        await self._request("create", resource)
        body = copy.deepcopy(body)
        meta = body["metadata"]
        meta["name"] = f"{meta['generateName'][:58]}{next(self._numbers):05}"
        meta["uid"] = str(uuid.uuid4())
        self.store(body)
        return await self._put(resource, body, "ADDED")

    async def update(self, resource: Resource, body: Json) -> Json:
        await self._request("update", resource)
        body = copy.deepcopy(body)
        stored = self._find(resource, body["metadata"]["name"], None)
        if body["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "the object has been modified")
        self.store(body)
        return await self._put(resource, body, "MODIFIED")

    async def patch(  # noqa: PLR0913  # what a PATCH may say
        self,
        resource: Resource,
        name: str,
        patch: Json,
        namespace: str | None = None,
        *,
        kind: str = "merge",
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
    ) -> Json:
        """What a driver reports of the devices of a claim, by server-side apply."""
        await self._request("patch", resource)
        if (kind, subresource, force) != ("apply", "status", True):
            raise NotImplementedError("only what KubeletPlugin.report_devices sends is known here")
        body = copy.deepcopy(self._find(resource, name, namespace))
        if patch["metadata"].get("uid", body["metadata"]["uid"]) != body["metadata"]["uid"]:
            raise Conflict(409, "Conflict", "the uid in the precondition is not that of the object")
        manager = field_manager or ""
        applied = self._applied.setdefault(body["metadata"]["uid"], {})
        applied[manager] = copy.deepcopy(patch["status"]["devices"])
        body["status"]["devices"] = _merged(applied.values())
        body["metadata"]["managedFields"] = [_managed(name, devices) for name, devices in applied.items()]
        return await self._put(resource, body, "MODIFIED")

    async def delete(
        self, resource: Resource, name: str, *, uid: str | None = None, resource_version: str | None = None
    ) -> None:
        await self._request("delete", resource)
        stored = self._find(resource, name, None)
        meta = stored["metadata"]
        if uid not in (None, meta["uid"]) or resource_version not in (None, meta["resourceVersion"]):
            raise Conflict(409, "Conflict", "the object has been modified")
        await self.remove(resource, name)

    def _has_news(self, seen: int) -> bool:
        return self._oldest > seen or any(_number(event) > seen for event in self._history)

    async def changes(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        silence: float | None = None,
        **selectors: str,
    ) -> AsyncIterator[Sequence[Change]]:
        events = self.watch(resource, resource_version=resource_version, **selectors)
        async with aclosing(events):  # type: ignore[type-var]  # declared as an iterator, is a generator
            async for event in events:
                yield [Change.of(event.type, event.object, resource)]

    async def watch(self, resource: Resource, *, resource_version: str, **selectors: str) -> AsyncIterator[Event]:
        await self._request("watch", resource)
        seen, reader = int(resource_version), object()
        try:
            while True:
                async with self._changed:
                    self._watched[reader] = seen
                    self._changed.notify_all()
                    await self._changed.wait_for(partial(self._has_news, seen))
                    if self._oldest > seen:
                        raise Gone(410, "Expired", "too old resource version")
                    news = [event for event in self._history if _number(event) > seen]
                for event in news:
                    seen = _number(event)
                    if event.object["kind"] == resource.kind and _selected(event.object, selectors):
                        yield copy.deepcopy(event)
        finally:
            self._watched.pop(reader, None)

    async def _request(self, verb: str, resource: Resource) -> None:
        async with self._changed:
            self.requests.append((verb, resource.plural))
            self._changed.notify_all()
        if self.faults.get(verb):
            raise self.faults[verb].pop(0)

    def _key(self, resource: Resource, meta: Json) -> tuple[str, str, str]:
        return resource.plural, meta.get("namespace", ""), meta["name"]

    def _find(self, resource: Resource, name: str, namespace: str | None) -> Json:
        try:
            return self.objects[resource.plural, namespace or "", name]
        except KeyError:
            raise NotFound(404, "NotFound", f'{resource} "{name}" not found') from None

    async def _put(self, resource: Resource, body: Json, kind: str) -> Json:
        body.setdefault("kind", resource.kind)
        self.objects[self._key(resource, body["metadata"])] = body
        await self._announce(kind, body)
        return copy.deepcopy(body)

    async def _announce(self, kind: str, obj: Json) -> None:
        obj["metadata"]["resourceVersion"] = str(next(self._numbers))
        async with self._changed:
            self._history.append(Event(kind, copy.deepcopy(obj)))
            self._changed.notify_all()


def _number(event: Event) -> int:
    return int(event.object["metadata"]["resourceVersion"])


def _selected(obj: Json, selectors: dict[str, str]) -> bool:
    terms = dict(term.split("=", 1) for term in selectors.get("fieldSelector", "").split(",") if term)
    spec = obj.get("spec", {})
    return all((spec.get(field.removeprefix("spec.")) or "") == value for field, value in terms.items())


_KEYS = ("driver", "pool", "device", "shareID")


def _merged(applied: Iterable[list[Json]]) -> list[Json]:
    """The devices of all field managers: merged by their keys, and conditions by type."""
    devices: dict[tuple[str | None, ...], Json] = {}
    for entry in (entry for entries in applied for entry in entries):
        merged = devices.setdefault(tuple(map(entry.get, _KEYS)), {})
        conditions = {each["type"]: each for each in (*merged.get("conditions", ()), *entry.get("conditions", ()))}
        merged |= copy.deepcopy(entry) | ({"conditions": list(conditions.values())} if conditions else {})
    return list(devices.values())


def _managed(manager: str, devices: list[Json]) -> Json:
    """The entry of ``metadata.managedFields`` for devices that a manager has applied."""
    fields: Json = {}
    for device in devices:
        keys = {key: device[key] for key in _KEYS if key in device}
        types = [json.dumps({"type": each["type"]}) for each in device.get("conditions", ())]
        conditions: Json = {f"k:{name}": {".": {}} for name in types}
        below: Json = {f"f:{name}": {} for name in device if name != "conditions"}
        fields[f"k:{json.dumps(keys)}"] = below | ({"f:conditions": conditions} if conditions else {})
    return {
        "manager": manager,
        "operation": "Apply",
        "subresource": "status",
        "fieldsV1": {"f:status": {"f:devices": fields}},
    }
