"""What the controllers of workloads share: finding the pods of an owner, making them, and reporting."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from copy import deepcopy

import orjson

from dra_devcluster.apiserver.errors import Json, StatusError
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.served.registry import Registry
from dra_devcluster.apiserver.storage.store import Change, Collection, Key, Stored
from dra_devcluster.apiserver.structure import Resource
from dra_devcluster.apiserver.verbs.delete import DeleteOptions, delete
from dra_devcluster.apiserver.verbs.write import create, update
from dra_devcluster.clock import now

from .worker import Worker

MANAGER = "dra-devcluster"


class WorkloadController(Worker[Key]):
    """Works on the objects of one resource of ``apps``: on each when it or a dependent changes."""

    kind = ""
    plural = ""
    owned = ("", "pods")

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self.registry = registry
        self.resource = registry.resource("apps", "v1", self.plural)
        self.objects = registry.collection(self.resource)
        self.dependents = registry.store.collection(*self.owned)
        for stored in self.objects.all():
            self.add(stored.key)
        registry.store.listen(self.see)

    def see(self, collection: Collection, change: Change) -> None:
        """A change: have the objects that it concerns looked at."""
        if collection is self.objects:
            self.add(change.stored.key)
        elif collection is self.dependents and change.stored.owners:
            owner = controller_of(change.stored.decode())
            if owner.get("kind") == self.kind:
                self.add((change.stored.namespace, owner["name"]))

    def handle(self, key: Key) -> None:
        stored = self.objects.get(*key)
        if stored is not None and not stored.finalizing:
            self.reconcile(stored, stored.decode())

    def reconcile(self, stored: Stored, obj: Json) -> None:
        """Do what the object asks for."""
        raise NotImplementedError

    def owned_by(self, owner: Stored) -> list[Stored]:
        """The dependents that the object controls and that are not in deletion, oldest first."""
        found = [
            stored
            for stored in self.dependents.all(owner.namespace)
            if owner.uid in stored.owners
            and not stored.finalizing
            and controller_of(stored.decode()).get("uid") == owner.uid
        ]
        return sorted(found, key=lambda stored: stored.decode()["metadata"]["creationTimestamp"])

    def create_pod(self, owner: Json, spec: Json, labels: dict[str, str]) -> None:
        """A pod from the template in the owner's spec; one that cannot be made is reported by an event."""
        template = (owner["spec"].get("template") or {}).get("metadata") or {}
        meta = {
            "generateName": f"{owner['metadata']['name']}-",
            "namespace": owner["metadata"]["namespace"],
            "labels": {**(template.get("labels") or {}), **labels},
            "ownerReferences": [owner_reference(self.resource, owner)],
        }
        if annotations := template.get("annotations"):
            meta["annotations"] = annotations  # none at all rather than empty ones, as after any request
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": deepcopy(spec)}
        try:
            create(self.write("", "pods", meta["namespace"], "create"), body)
        except StatusError as error:
            self._report(owner, f"Error creating: {error}")

    def delete(self, stored: Stored) -> None:
        """Delete a pod or another dependent."""
        delete(self.write(*self.owned, stored.namespace, "delete"), stored, DeleteOptions(uid=stored.uid))

    def set_status(self, stored: Stored, obj: Json, status: Json) -> None:
        """Write the status if it differs; the object has not changed since ``stored``."""
        if obj.get("status") != status:
            write = self.write("apps", self.plural, stored.namespace, "update", subresource="status")
            update(write, stored, {**obj, "status": status})

    def write(self, group: str, plural: str, namespace: str, verb: str, *, subresource: str = "") -> Write:
        resource = self.registry.resource(group, "v1", plural)
        return Write(self.registry, resource, namespace=namespace, verb=verb, subresource=subresource, manager=MANAGER)

    def _report(self, owner: Json, message: str) -> None:
        meta, moment = owner["metadata"], now()
        about = {"kind": self.kind, "apiVersion": self.resource.api_version}
        about |= {key: meta[key] for key in ("name", "namespace", "uid")}
        event = {
            "metadata": {"generateName": f"{meta['name']}.", "namespace": meta["namespace"]},
            "involvedObject": about,
            "reason": "FailedCreate",
            "message": message,
            "type": "Warning",
            "source": {"component": MANAGER},
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
        with suppress(StatusError):  # the namespace may be in deletion
            create(self.write("", "events", meta["namespace"], "create"), event)


def controller_of(obj: Json) -> Json:
    """The owner reference that says ``controller: true``; empty when there is none."""
    owners: list[Json] = obj["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), {})


def owner_reference(resource: Resource, owner: Json) -> Json:
    """The reference by which an object controls what it has made."""
    meta = owner["metadata"]
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def template_hash(template: Json) -> str:
    """A short name for the content of a template."""
    return hashlib.blake2b(orjson.dumps(template, option=orjson.OPT_SORT_KEYS), digest_size=5).hexdigest()
