"""An API server in a dict, for controllers.

The fake has the semantics that matter for correctness: optimistic concurrency, status as a sub-resource, server-side
apply with field ownership, finalizers, UID preconditions, bindings. What happened is in ``calls``; ``before`` and
``after`` make single calls fail before or after they take effect.

``FakeStore`` is what it keeps: objects, who owns which fields of them, and the events that watches would bring.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import orjson
from dra_api.codec import DecodeError, convert
from dra_api.meta import Object, ObjectVersion
from dra_api.values import format_time
from dra_devcluster.apiserver.verbs.patch import PatchRefused, json_patch
from dra_kube import (
    RESOURCE_CLAIMS,
    AlreadyExists,
    ApiError,
    Conflict,
    Invalid,
    NotFound,
    Resource,
    ServerError,
    TypedList,
    Unreachable,
)
from dra_operator.sources.kinds import WATCHED
from objects import Obj, results_of

Event = tuple[str, Resource, Obj]
"""What a watch reports: ``ADDED``, ``MODIFIED`` or ``DELETED``, of which kind, and the object."""
T = TypeVar("T")
LIST_KEYS = {"resourceClaimStatuses": "name", "conditions": "type"}


class FakeStore:
    """Changes objects as a server does; tests use it to change them behind the operator's back."""

    def __init__(self) -> None:
        self.objects: dict[tuple[Resource, str, str], Obj] = {}
        self.managed: dict[tuple[str, str], dict[str, set[str]]] = {}
        self.events: list[Event] = []
        self.conflicts = 0
        self.revision = 100
        self._uids = 0

    # --- what tests use ---

    def add(self, resource: Resource, obj: Obj) -> Obj:
        """Put an object there as another client would."""
        obj = copied(obj)
        meta = obj["metadata"]
        meta.setdefault("uid", self.new_uid())
        return self.store("ADDED", resource, obj)

    def change(self, resource: Resource, key: str, edit: Callable[[Obj], object]) -> Obj:
        """Change an object as another client would."""
        obj = copied(self[resource, key])
        edit(obj)
        return self.store("MODIFIED", resource, obj)

    def drop(self, resource: Resource, key: str) -> None:
        """Remove an object at once, whatever finalizers say."""
        obj = self.objects.pop((resource, *_split(key)))
        self.revision += 1
        self._tell("DELETED", resource, obj)

    def of(self, resource: Resource) -> list[Obj]:
        return [obj for (kind, _, _), obj in self.objects.items() if kind is resource]

    def __getitem__(self, where: tuple[Resource, str]) -> Obj:
        resource, key = where
        return self.objects[(resource, *_split(key))]

    # --- what the server does ---

    def find(self, resource: Resource, namespace: str | None, name: str) -> Obj:
        """The stored object itself. Raises NotFound."""
        try:
            return self.objects[(resource, namespace or "", name)]
        except KeyError:
            details = {"group": resource.group, "kind": resource.plural, "name": name}
            raise NotFound(404, "NotFound", f'{resource} "{name}" not found', details) from None

    def replace(self, resource: Resource, body: Obj, subresource: str | None) -> Obj:
        """An update of the object, or of its status. Raises Conflict and Invalid."""
        meta = body["metadata"]
        old = self.find(resource, meta.get("namespace"), meta["name"])
        if meta.get("resourceVersion") not in (None, old["metadata"]["resourceVersion"]):
            self.conflicts += 1
            raise Conflict(409, "Conflict", "the object has been modified")
        new = copied(old)
        if subresource == "status":
            new["status"] = copied(body.get("status", {}))
            _validate(new)
            _drop_reports(new["status"])
        else:
            new = copied(body) | ({"status": old["status"]} if "status" in old else {})
        return self.store("MODIFIED", resource, new)

    def apply(self, obj: Obj, manager: str, status: Obj) -> None:
        """Server-side apply of the lists in a status: a manager's missing entries go, unless another owns them."""
        for field, entries in status.items():
            by = LIST_KEYS[field]
            owned = self.managed.setdefault((obj["metadata"]["uid"], field), {})
            before, now = owned.get(manager, set()), {entry[by] for entry in entries}
            theirs = set().union(*(names for other, names in owned.items() if other != manager))
            kept = {entry[by]: entry for entry in obj.setdefault("status", {}).get(field, [])}
            for name in before - now - theirs:
                kept.pop(name, None)
            for entry in entries:
                kept[entry[by]] = {**kept.get(entry[by], {}), **entry}
            owned[manager] = now
            obj["status"][field] = list(kept.values())

    def store(self, event: str, resource: Resource, obj: Obj) -> Obj:
        """Keep the object under a new revision; a deleted claim goes with its last finalizer."""
        meta = obj["metadata"]
        self.revision += 1
        meta["resourceVersion"] = str(self.revision)
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and resource == RESOURCE_CLAIMS:
            self.objects.pop((resource, meta.get("namespace", ""), meta["name"]), None)
            self._tell("DELETED", resource, obj)
            return copied(obj)
        self.objects[(resource, meta.get("namespace", ""), meta["name"])] = obj
        self._tell(event, resource, obj)
        return copied(obj)

    def _tell(self, event: str, resource: Resource, obj: Obj) -> None:
        if resource in WATCHED:
            self.events.append((event, resource, copied(obj)))

    def new_uid(self) -> str:
        self._uids += 1
        return f"uid-{self._uids}"


def copied(obj: T) -> T:
    """A copy of what is JSON, an order of magnitude faster than ``deepcopy``."""
    copy: T = orjson.loads(orjson.dumps(obj))
    return copy


def merged(old: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    kept = dict(old) if isinstance(old, dict) else {}
    kept |= {name: merged(kept.get(name), value) for name, value in patch.items()}
    return {name: value for name, value in kept.items() if value is not None}


def _validate(obj: Obj) -> None:
    status = obj["status"]
    if status.get("reservedFor") and not status.get("allocation"):
        raise Invalid(422, "Invalid", "status.reservedFor: Forbidden: may not be specified when not allocated")
    if len(status.get("reservedFor") or ()) > 256:
        raise Invalid(422, "Invalid", "status.reservedFor: Too many: 257: must have at most 256 items")


def _drop_reports(status: Obj) -> None:
    """What drivers reported of devices that are no longer allocated goes with them (claim-controller.md 6.2)."""
    if "devices" in status:
        allocated = [_device(it) for it in results_of({"status": status})]
        status["devices"] = [it for it in status["devices"] if _device(it) in allocated]


def _device(entry: Obj) -> tuple[str | None, ...]:
    return tuple(entry.get(name) for name in ("driver", "pool", "device", "shareID"))


def _split(key: str) -> tuple[str, str]:
    namespace, _, name = key.rpartition("/")
    return namespace, name


def key_of(obj: Obj) -> str:
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


ERRORS: dict[str, Callable[[], Exception]] = {
    "conflict": lambda: Conflict(409, "Conflict", "the object has been modified"),
    "server error": lambda: ServerError(500, "InternalError", "etcd is on fire"),
    "no answer": lambda: Unreachable("connection reset"),
    "forbidden": lambda: ApiError(403, "Forbidden", "not allowed"),
}
"""What a server may answer, or not answer."""


class Call(NamedTuple):
    """One request: ``verb`` as in RBAC, ``sub`` the sub-resource."""

    verb: str
    plural: str
    sub: str | None
    name: str


Known = TypeVar("Known", bound=Object)
Fault = Callable[[Call], Exception | None]
Effect = Callable[[], Obj]
"""What a request does at the server, and the answer. Raises ApiError."""


class Nth:
    """A fault that hits the n-th write (events aside) once; after a ``crash`` nothing gets through any more."""

    def __init__(self, number: int, make: Callable[[], Exception], *, crash: bool = False) -> None:
        self.left, self.make, self.crash = number, make, crash
        self.hit = self.down = False

    def __call__(self, call: Call) -> Exception | None:
        if self.down:
            return Unreachable("the operator is gone")
        if call.verb == "get" or call.plural == "events":
            return None
        self.left -= 1
        if self.left == 0:
            self.hit, self.down = True, self.crash
            return self.make()
        return None

    def is_down(self, call: Call) -> Exception | None:
        """For the other side of the calls: a crashed operator sends nothing more."""
        return Unreachable("the operator is gone") if self.down else None


class FakeApi(FakeStore):
    """Implements the client protocol of ``dra_operator.kube``."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.before: Fault = lambda call: None
        self.after: Fault = lambda call: None
        self.landing: Callable[[Call], bool] = lambda call: False
        """Which requests get no answer, and take effect only with ``land``, if then the server still takes them."""
        self.underway: list[Effect] = []
        self.way: Callable[[], Awaitable[None]] = at_once
        """How long a request takes to the server, and an answer back; what happened can be seen by watches before."""
        self.generate: Callable[[str], str] = lambda base: f"{base}{len(self.calls):05d}"
        self.now = "2026-01-01T00:00:00Z"

    def ending(self, obj: Obj) -> Obj:
        """What the metadata say of an object that is being deleted: pods have the time for which they ask."""
        grace = obj.get("spec", {}).get("terminationGracePeriodSeconds", 0)
        ends = datetime.fromisoformat(self.now) + timedelta(seconds=grace)
        return {"deletionTimestamp": format_time(ends), "deletionGracePeriodSeconds": grace}

    @property
    def writes(self) -> list[Call]:
        return [call for call in self.calls if call.verb != "get" and call.plural != "events"]

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        return await self.request(
            Call("get", resource.plural, None, name), lambda: copied(self.find(resource, namespace, name))
        )

    async def list_as(
        self,
        resource: Resource,
        kind: type[Known],
        namespace: str | None = None,
        keep: Callable[[Known], Known] = lambda it: it,
    ) -> TypedList:
        """All objects of the kind, or those of a namespace."""
        listed, at = await self._list(resource)
        found = TypedList([], [], at)
        for obj in listed:
            if namespace in (None, obj["metadata"].get("namespace")):
                try:
                    found.items.append(keep(convert(kind, obj)))
                except DecodeError as error:
                    found.malformed.append((json.dumps(obj).encode(), error))
        return found

    async def pages_as(
        self,
        resource: Resource,
        kind: type[Known],
        namespace: str | None = None,
        keep: Callable[[Known], Known] = lambda it: it,
    ) -> AsyncIterator[TypedList]:
        yield await self.list_as(resource, kind, namespace, keep)

    async def rows(self, resource: Resource, namespace: str, columns: Sequence[str]) -> list[tuple[str, ...]]:
        """Names and states of claims."""
        assert (resource, *columns) == (RESOURCE_CLAIMS, "Name", "State")
        listed, _ = await self._list(resource)
        return [
            (it["metadata"]["name"], "allocated" if (it.get("status") or {}).get("allocation") else "pending")
            for it in listed
            if it["metadata"].get("namespace") == namespace
        ]

    async def list_versions(self, resource: Resource) -> tuple[list[ObjectVersion], str]:
        """What exists, and as of which revision."""
        listed, at = await self._list(resource)
        return [convert(ObjectVersion, obj["metadata"]) for obj in listed], at

    async def _list(self, resource: Resource) -> tuple[list[Obj], str]:
        call = Call("get", resource.plural, None, "(list)")
        listed = await self.request(call, lambda: {"items": self.of(resource), "at": str(self.revision)})
        return listed["items"], listed["at"]

    async def create(self, resource: Resource, body: Obj, namespace: str | None = None) -> Obj:
        call, body = Call("create", resource.plural, None, body["metadata"].get("name", "")), copied(body)
        return await self.request(call, lambda: self.made(resource, body))

    async def update(self, resource: Resource, body: Obj, subresource: str | None = None) -> Obj:
        call, body = Call("update", resource.plural, subresource, body["metadata"]["name"]), copied(body)
        return await self.request(call, lambda: self.replace(resource, body, subresource))

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Any,
        namespace: str | None = None,
        *,
        kind: str = "merge",
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
    ) -> Obj:
        assert force or kind != "apply", "a server refuses what another field manager has set otherwise"
        call, patch = Call("patch", resource.plural, subresource, name), copied(patch)
        return await self.request(
            call, lambda: self._patched(resource, name, namespace, patch, kind, subresource, field_manager)
        )

    async def create_subresource(
        self, resource: Resource, name: str, subresource: str, body: Obj, namespace: str | None = None
    ) -> Obj:
        assert subresource == "binding"
        call = Call("create", resource.plural, subresource, name)
        return await self.request(call, lambda: self._bound(resource, name, namespace, body))

    async def delete(
        self, resource: Resource, name: str, namespace: str | None = None, **conditions: str | None
    ) -> Obj:
        call = Call("delete", resource.plural, None, name)
        return await self.request(call, lambda: self.deleted(resource, name, namespace, **conditions))

    async def request(self, call: Call, effect: Effect) -> Obj:
        """Takes the request to the server, lets faults speak before and after its effect, and brings the answer."""
        await self.way()
        self.calls.append(call)
        _raise(self.before(call))
        if self.landing(call):
            self.underway.append(effect)
            raise Unreachable("timed out")
        answer = effect()
        await self.way()
        _raise(self.after(call))
        return answer

    def land(self) -> list[Exception | None]:
        """Let the requests that are still under way reach the server; how each fared."""
        fared: list[Exception | None] = []
        while self.underway:
            try:
                self.underway.pop(0)()
            except ApiError as error:
                fared.append(error)
            else:
                fared.append(None)
        return fared

    # --- effects ---

    def made(self, resource: Resource, obj: Obj) -> Obj:
        """The object is stored as a new one. Raises AlreadyExists."""
        meta = obj["metadata"]
        if not meta.get("name"):
            meta["name"] = self.generate(meta["generateName"])
        meta["uid"] = self.new_uid()
        obj.pop("status", None)
        if (resource, meta.get("namespace", ""), meta["name"]) in self.objects:
            raise AlreadyExists(409, "AlreadyExists", f"{meta['name']} exists")
        return self.store("ADDED", resource, obj)

    def deleted(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> Obj:
        """The object goes, or is marked as deleted while finalizers hold it. Raises NotFound, Conflict."""
        obj = copied(self.find(resource, namespace, name))
        if uid not in (None, obj["metadata"]["uid"]):
            raise Conflict(409, "Conflict", "the UID in the precondition does not match")
        if resource_version not in (None, obj["metadata"]["resourceVersion"]):
            self.conflicts += 1
            raise Conflict(409, "Conflict", "the resourceVersion in the precondition does not match")
        if obj["metadata"].get("finalizers"):
            if "deletionTimestamp" not in obj["metadata"]:
                obj["metadata"].update(self.ending(obj))
            return self.store("MODIFIED", resource, obj)
        self.drop(resource, key_of(obj))
        return obj

    def _patched(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: Any,
        kind: str,
        subresource: str | None,
        field_manager: str | None,
    ) -> Obj:
        obj = copied(self.find(resource, namespace, name))
        if kind == "json":
            return self.replace(resource, _json_patched(obj, patch), subresource)
        if patch.get("metadata", {}).get("uid") not in (None, obj["metadata"]["uid"]):
            raise Conflict(409, "Conflict", "uid mismatch")
        if kind == "apply":
            assert field_manager is not None
            assert subresource == "status"
            self.apply(obj, field_manager, patch["status"])
        else:
            assert kind == "merge"
            if patch.get("metadata", {}).get("resourceVersion") not in (None, obj["metadata"]["resourceVersion"]):
                raise Conflict(409, "Conflict", "the object has been modified")
            obj = merged(obj, patch)
        return self.store("MODIFIED", resource, obj)

    def _bound(self, resource: Resource, name: str, namespace: str | None, body: Obj) -> Obj:
        pod = copied(self.find(resource, namespace, name))
        if pod["spec"].get("schedulingGates"):
            raise Conflict(409, "Conflict", f"pod {name} has non-empty .spec.schedulingGates")
        if pod["spec"].get("nodeName") or pod["metadata"]["uid"] != body["metadata"]["uid"]:
            raise Conflict(409, "Conflict", f"pod {name} is already assigned to a node")
        if pod["metadata"].get("deletionTimestamp"):
            raise Conflict(409, "Conflict", f"pod {name} is being deleted, cannot be assigned to a host")
        if body["metadata"].get("resourceVersion") not in (None, pod["metadata"]["resourceVersion"]):
            raise Conflict(409, "Conflict", "the object has been modified")
        pod["spec"]["nodeName"] = body["target"]["name"]
        conditions = [c for c in pod.setdefault("status", {}).get("conditions", []) if c["type"] != "PodScheduled"]
        pod["status"]["conditions"] = [*conditions, {"type": "PodScheduled", "status": "True"}]
        self.store("MODIFIED", resource, pod)
        return {"kind": "Status", "status": "Success"}


def _json_patched(obj: Obj, operations: list[Obj]) -> Obj:
    try:
        patched: Obj = json_patch(obj, operations)
    except PatchRefused as refused:
        raise Invalid(422, "Invalid", str(refused)) from None
    return patched


async def at_once() -> None:
    """A request that takes no time."""


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error
