"""An API server in a dict, and a world around it in which the reconcilers run.

The fake has the semantics that matter for correctness: optimistic concurrency, status as a sub-resource, server-side
apply with field ownership, finalizers, UID preconditions, bindings. What happened is in ``calls``; ``faults`` make
single calls fail before or after they take effect.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, NamedTuple

import pytest
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import Device, DeviceClass, ResourceClaim, ResourceSlice
from dra_kube import (
    DEVICE_CLASSES,
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    AlreadyExists,
    ApiError,
    Conflict,
    Invalid,
    NotFound,
    Resource,
    ServerError,
    Unreachable,
)
from dra_operator.allocator import Allocator, Features, Inventory
from dra_operator.allocator.published.predicates import Language
from dra_operator.cluster import ClaimTemplate, Cluster, Concern, check
from dra_operator.reconcile import Concerns, Control
from dra_operator.reconcile.dispatcher import Postponed
from prometheus_client import CollectorRegistry

Obj = dict[str, Any]
KINDS: dict[Resource, type[Object]] = {
    PODS: Pod,
    NODES: Node,
    RESOURCE_CLAIMS: ResourceClaim,
    RESOURCE_CLAIM_TEMPLATES: ClaimTemplate,
    DEVICE_CLASSES: DeviceClass,
    RESOURCE_SLICES: ResourceSlice,
}
FEW: dict[Concern, int] = {"pod": 4, "claim": 4, "place": 20}
LIST_KEYS = {"resourceClaimStatuses": "name", "conditions": "type"}


class Call(NamedTuple):
    """One request: ``verb`` as in RBAC, ``sub`` the sub-resource."""

    verb: str
    plural: str
    sub: str | None
    name: str


Fault = Callable[[Call], Exception | None]


class FakeApi:
    """Implements the client protocol of ``dra_operator.kube``."""

    def __init__(self) -> None:
        self.objects: dict[tuple[Resource, str, str], Obj] = {}
        self.managed: dict[tuple[str, str], dict[str, set[str]]] = {}
        self.events: list[tuple[str, Resource, Obj]] = []
        self.calls: list[Call] = []
        self.conflicts = 0
        self.before: Fault = lambda call: None
        self.after: Fault = lambda call: None
        self.landing: Callable[[Call], bool] = lambda call: False
        """Which updates get no answer, and take effect only with ``land``, if then the server still takes them."""
        self.underway: list[tuple[Resource, Obj, str | None]] = []
        self.way: Callable[[], Awaitable[None]] = at_once
        """How long a request takes to the server, and an answer back; what happened can be seen by watches before."""
        self.generate: Callable[[str], str] = lambda base: f"{base}{len(self.calls):05d}"
        self._revision = 100
        self._uids = 0

    # --- what tests use ---

    def add(self, resource: Resource, obj: Obj) -> Obj:
        """Put an object there as somebody else would."""
        obj = copy.deepcopy(obj)
        meta = obj["metadata"]
        meta.setdefault("uid", self._new_uid())
        return self._store("ADDED", resource, obj)

    def change(self, resource: Resource, key: str, edit: Callable[[Obj], object]) -> Obj:
        """Change an object as somebody else would."""
        obj = copy.deepcopy(self[resource, key])
        edit(obj)
        return self._store("MODIFIED", resource, obj)

    def drop(self, resource: Resource, key: str) -> None:
        """Remove an object at once, whatever finalizers say."""
        obj = self.objects.pop((resource, *_split(key)))
        self._tell("DELETED", resource, obj)

    def of(self, resource: Resource) -> list[Obj]:
        """All objects of a kind."""
        return [obj for (kind, _, _), obj in self.objects.items() if kind == resource]

    def __getitem__(self, where: tuple[Resource, str]) -> Obj:
        resource, key = where
        return self.objects[(resource, *_split(key))]

    @property
    def writes(self) -> list[Call]:
        """What changed something, events aside."""
        return [call for call in self.calls if call.verb != "get" and call.plural != "events"]

    # --- the client protocol ---

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        async with self._call("get", resource, None, name):
            return copy.deepcopy(self._find(resource, namespace, name))

    async def create(self, resource: Resource, body: Obj, namespace: str | None = None) -> Obj:
        meta = body["metadata"]
        async with self._call("create", resource, None, meta.get("name", "")):
            obj = copy.deepcopy(body)
            meta = obj["metadata"]
            if not meta.get("name"):
                meta["name"] = self.generate(meta["generateName"])
            meta["uid"] = self._new_uid()
            obj.pop("status", None)
            if (resource, meta.get("namespace", ""), meta["name"]) in self.objects:
                raise AlreadyExists(409, "AlreadyExists", f"{meta['name']} exists")
            return self._store("ADDED", resource, obj)

    async def update(self, resource: Resource, body: Obj, subresource: str | None = None) -> Obj:
        meta = body["metadata"]
        async with self._call("update", resource, subresource, meta["name"]):
            if self.landing(self.calls[-1]):
                self.underway.append((resource, copy.deepcopy(body), subresource))
                raise Unreachable("timed out")
            return self._update(resource, body, subresource)

    def land(self) -> list[Exception | None]:
        """Let the updates that are still under way reach the server; how each fared."""
        fared: list[Exception | None] = []
        while self.underway:
            try:
                self._update(*self.underway.pop(0))
            except ApiError as error:
                fared.append(error)
            else:
                fared.append(None)
        return fared

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
        async with self._call("patch", resource, subresource, name):
            obj = copy.deepcopy(self._find(resource, namespace, name))
            if patch.get("metadata", {}).get("uid") not in (None, obj["metadata"]["uid"]):
                raise Conflict(409, "Conflict", "uid mismatch")
            if kind == "apply":
                assert field_manager is not None
                assert subresource == "status"
                self._apply(obj, field_manager, patch["status"])
            else:
                assert kind == "merge"
                obj = _merged(obj, patch)
            return self._store("MODIFIED", resource, obj)

    async def create_subresource(
        self, resource: Resource, name: str, subresource: str, body: Obj, namespace: str | None = None
    ) -> Obj:
        async with self._call("create", resource, subresource, name):
            assert subresource == "binding"
            pod = copy.deepcopy(self._find(resource, namespace, name))
            if pod["spec"].get("nodeName") or pod["metadata"]["uid"] != body["metadata"]["uid"]:
                raise Conflict(409, "Conflict", f"pod {name} is already assigned to a node")
            pod["spec"]["nodeName"] = body["target"]["name"]
            conditions = [c for c in pod.setdefault("status", {}).get("conditions", []) if c["type"] != "PodScheduled"]
            pod["status"]["conditions"] = [*conditions, {"type": "PodScheduled", "status": "True"}]
            self._store("MODIFIED", resource, pod)
            return {"kind": "Status", "status": "Success"}

    async def delete(
        self, resource: Resource, name: str, namespace: str | None = None, *, uid: str | None = None
    ) -> Obj:
        async with self._call("delete", resource, None, name):
            obj = copy.deepcopy(self._find(resource, namespace, name))
            if uid not in (None, obj["metadata"]["uid"]):
                raise Conflict(409, "Conflict", "the UID in the precondition does not match")
            if obj["metadata"].get("finalizers"):
                obj["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
                return self._store("MODIFIED", resource, obj)
            self.drop(resource, _key(obj))
            return obj

    # --- inside ---

    def _call(self, verb: str, resource: Resource, sub: str | None, name: str) -> _Call:
        return _Call(self, Call(verb, resource.plural, sub, name))

    def _find(self, resource: Resource, namespace: str | None, name: str) -> Obj:
        try:
            return self.objects[(resource, namespace or "", name)]
        except KeyError:
            raise NotFound(404, "NotFound", f'{resource} "{name}" not found') from None

    def _update(self, resource: Resource, body: Obj, subresource: str | None) -> Obj:
        meta = body["metadata"]
        old = self._find(resource, meta.get("namespace"), meta["name"])
        if meta.get("resourceVersion") not in (None, old["metadata"]["resourceVersion"]):
            self.conflicts += 1
            raise Conflict(409, "Conflict", "the object has been modified")
        new = copy.deepcopy(old)
        if subresource == "status":
            new["status"] = copy.deepcopy(body.get("status", {}))
            _validate(new)
        else:
            new = copy.deepcopy(body) | ({"status": old["status"]} if "status" in old else {})
        return self._store("MODIFIED", resource, new)

    def _apply(self, obj: Obj, manager: str, status: Obj) -> None:
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

    def _store(self, event: str, resource: Resource, obj: Obj) -> Obj:
        meta = obj["metadata"]
        self._revision += 1
        meta["resourceVersion"] = str(self._revision)
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and resource == RESOURCE_CLAIMS:
            self.objects.pop((resource, meta.get("namespace", ""), meta["name"]), None)
            self._tell("DELETED", resource, obj)
            return copy.deepcopy(obj)
        self.objects[(resource, meta.get("namespace", ""), meta["name"])] = obj
        self._tell(event, resource, obj)
        return copy.deepcopy(obj)

    def _tell(self, event: str, resource: Resource, obj: Obj) -> None:
        if resource in KINDS:
            self.events.append((event, resource, copy.deepcopy(obj)))

    def _new_uid(self) -> str:
        self._uids += 1
        return f"uid-{self._uids}"


class _Call:
    """Records a call and lets the faults speak, before it takes effect and after."""

    def __init__(self, api: FakeApi, call: Call) -> None:
        self._api, self._call = api, call

    async def __aenter__(self) -> None:
        await self._api.way()
        self._api.calls.append(self._call)
        _raise(self._api.before(self._call))

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._api.way()
        if error is None:
            _raise(self._api.after(self._call))


async def at_once() -> None:
    """No time at all."""


def _merged(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    kept = dict(old) if isinstance(old, dict) else {}
    kept |= {name: _merged(kept.get(name), value) for name, value in patch.items()}
    return {name: value for name, value in kept.items() if value is not None}


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def _validate(obj: Obj) -> None:
    status = obj["status"]
    if status.get("reservedFor") and not status.get("allocation"):
        raise Invalid(422, "Invalid", "status.reservedFor: Forbidden: may not be specified when not allocated")
    if len(status.get("reservedFor") or ()) > 256:
        raise Invalid(422, "Invalid", "status.reservedFor: Too many: 257: must have at most 256 items")


def _split(key: str) -> tuple[str, str]:
    namespace, _, name = key.rpartition("/")
    return namespace, name


def _key(obj: Obj) -> str:
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


class TinyLanguage:
    """Selectors for tests: ``all``, ``none``, ``broken``, or the name of an attribute that has to be there."""

    def compile(self, expression: str) -> Callable[[str, Device], bool]:
        def predicate(driver: str, device: Device) -> bool:
            if expression in ("all", "none"):
                return expression == "all"
            if expression not in (device.attributes or {}):
                raise KeyError(f"no such key: {expression}")
            return True

        return predicate


class World:
    """A fake server and an operator on it. ``crash`` forgets the operator and starts a fresh one."""

    def __init__(self, features: Features) -> None:
        self.api = FakeApi()
        self.features = features
        self.language: Language = TinyLanguage()
        self.now = "2026-01-01T00:00:00Z"
        self.concerns = Concerns()

    def start(self) -> Control:
        """A fresh operator that knows what a LIST would tell it."""
        inventory = Inventory(self.features, language=self.language)
        self.cluster = Cluster(inventory)
        numbers = iter(range(1, 1000))
        allocator = Allocator(inventory, new_share_id=lambda: f"share-{next(numbers)}")
        self.registry = CollectorRegistry()
        self.control = Control(
            self.cluster,
            self.api,
            allocator,
            registry=self.registry,
            workers=FEW,
            grace=0.02,
            now=lambda: self.now,
            concerns=self.concerns,
        )
        self.api.events.clear()
        self.control.load(convert(KINDS[kind], obj) for (kind, _, _), obj in self.api.objects.items() if kind in KINDS)
        return self.control

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Control]:
        """Let the operator work inside the block."""
        task = asyncio.create_task(self.control.run())
        try:
            yield self.control
        finally:
            task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled(), f"the operator ended by itself: {task.exception()!r}"

    async def settle(self) -> None:
        """Start an operator, let it work until there is nothing left to do, and stop it."""
        self.start()
        async with self.running():
            await self.quiet()

    async def attempt(self, key: str) -> None:
        """One attempt to place a pod, from the decision to the last write; the operator need not run."""
        while isinstance(decided := await self.control.placer.decide(key), Postponed):
            pass
        if decided.follow_up is not None:
            await decided.follow_up()

    async def quiet(self) -> None:
        """Bring watch events, each before anything is retried, until nothing happens any more."""
        async with asyncio.timeout(60):
            while self.api.events or not self.control.queues.is_quiet:
                self.bring_events()
                await self.tick()
        check(self.cluster)

    async def tick(self) -> None:
        """Let the operator do a little."""
        await asyncio.sleep(0.001)

    def bring_events(self) -> None:
        """What the watch would do."""
        while self.api.events:
            event, resource, obj = self.api.events.pop(0)
            struct = convert(KINDS[resource], obj)
            if event == "DELETED":
                self.control.remove(KINDS[resource], struct.key, struct.metadata.uid)
            else:
                self.control.put(struct)

    def messages(self, reason: str) -> list[str]:
        """The events of one reason that were written."""
        return [event["message"] for event in self.api.of(EVENTS) if event["reason"] == reason]


@pytest.fixture
def world() -> World:
    return World(Features())


@pytest.fixture
def default_features() -> Features:
    return Features()


@pytest.fixture(scope="session")
def worlds() -> Callable[[Features], World]:
    """For tests that need certain features."""
    return World


class Make:
    """Objects as short as tests want them."""

    @staticmethod
    def node(name: str, **labels: str) -> Obj:
        allocatable = {"cpu": "4", "memory": "8Gi", "pods": "10"}
        return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}

    @staticmethod
    def slice(node: str, devices: int, driver: str = "gpu.example.com", **attributes: str) -> Obj:
        published = {name: {"string": value} for name, value in attributes.items()}
        return {
            "metadata": {"name": f"{node}-{driver}"},
            "spec": {
                "driver": driver,
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": f"dev-{number}", "attributes": published} for number in range(devices)],
            },
        }

    @staticmethod
    def device_class(name: str = "gpu", *selectors: str) -> Obj:
        return {
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": text}} for text in selectors]},
        }

    @staticmethod
    def claim_spec(count: int = 1, class_name: str = "gpu", *selectors: str) -> Obj:
        exactly: Obj = {"deviceClassName": class_name, "allocationMode": "ExactCount", "count": count}
        if selectors:
            exactly["selectors"] = [{"cel": {"expression": text}} for text in selectors]
        return {"devices": {"requests": [{"name": "req", "exactly": exactly}]}}

    @classmethod
    def template(cls, name: str = "tmpl", **metadata: Any) -> Obj:
        return {
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"metadata": metadata, "spec": cls.claim_spec()},
        }

    @classmethod
    def claim(cls, name: str, *, count: int = 1, owner: Obj | None = None, **meta: Any) -> Obj:
        """``owner``: the metadata of the pod that the claim was made for."""
        if owner is not None:
            pod = {"apiVersion": "v1", "kind": "Pod", "name": owner["name"], "uid": owner["uid"], "controller": True}
            meta["ownerReferences"] = [pod]
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "ns", **meta},
            "spec": cls.claim_spec(count),
        }

    @staticmethod
    def pod(name: str = "pod", claims: Iterable[Obj] = (), node: str = "", **spec: Any) -> Obj:
        entries = [{"name": f"entry-{number}", **entry} for number, entry in enumerate(claims)]
        assigned = {"nodeName": node} if node else {}
        return {
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"schedulerName": "dra-scheduler", "containers": [], "resourceClaims": entries, **assigned, **spec},
            "status": {"phase": "Pending"},
        }

    @staticmethod
    def asking(name: str, **amounts: str) -> Obj:
        """A container that asks for resources."""
        return {"name": name, "resources": {"requests": amounts}}

    FROM_TEMPLATE: ClassVar = {"resourceClaimTemplateName": "tmpl"}

    @staticmethod
    def use(claim: str) -> Obj:
        return {"resourceClaimName": claim}


@pytest.fixture(scope="session")
def make() -> type[Make]:
    return Make


@pytest.fixture
def errors() -> dict[str, Callable[[], Exception]]:
    """What a server may answer, or not answer."""
    return {
        "conflict": lambda: Conflict(409, "Conflict", "the object has been modified"),
        "server error": lambda: ServerError(500, "InternalError", "etcd is on fire"),
        "no answer": lambda: Unreachable("connection reset"),
        "forbidden": lambda: ApiError(403, "Forbidden", "not allowed"),
    }
