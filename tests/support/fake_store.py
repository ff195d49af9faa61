"""What the fake API server keeps: objects, who owns which fields of them, and the events that watches would bring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from dra_kube import (
    RESOURCE_CLAIMS,
    Conflict,
    Invalid,
    NotFound,
    Resource,
)
from dra_operator.sources.kinds import WATCHED
from objects import Obj

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
        self._revision = 100
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
        self._tell("DELETED", resource, obj)

    def of(self, resource: Resource) -> list[Obj]:
        """All objects of a kind."""
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
        self._revision += 1
        meta["resourceVersion"] = str(self._revision)
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
        allocated = [_device(it) for it in (status.get("allocation") or {}).get("devices", {}).get("results") or ()]
        status["devices"] = [it for it in status["devices"] if _device(it) in allocated]


def _device(entry: Obj) -> tuple[str | None, ...]:
    return tuple(entry.get(name) for name in ("driver", "pool", "device", "shareID"))


def _split(key: str) -> tuple[str, str]:
    namespace, _, name = key.rpartition("/")
    return namespace, name


def key_of(obj: Obj) -> str:
    meta = obj["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])
