"""An API server in a dict, for controllers.

The fake has the semantics that matter for correctness: optimistic concurrency, status as a sub-resource, server-side
apply with field ownership, finalizers, UID preconditions, bindings. What happened is in ``calls``; ``before`` and
``after`` make single calls fail before or after they take effect.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

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
    Resource,
    ServerError,
    TypedList,
    Unreachable,
)
from fake_store import FakeStore, copied, key_of, merged
from objects import Obj

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


T = TypeVar("T", bound=Object)
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
        """Every call that changed something, except events."""
        return [call for call in self.calls if call.verb != "get" and call.plural != "events"]

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        return await self.request(
            Call("get", resource.plural, None, name), lambda: copied(self.find(resource, namespace, name))
        )

    async def list_as(
        self, resource: Resource, kind: type[T], namespace: str | None = None, keep: Callable[[T], T] = lambda it: it
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
        self, resource: Resource, kind: type[T], namespace: str | None = None, keep: Callable[[T], T] = lambda it: it
    ) -> AsyncIterator[TypedList]:
        """All objects in a single page."""
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
        listed = await self.request(call, lambda: {"items": self.of(resource), "at": str(self._revision)})
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
