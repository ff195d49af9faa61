"""What goes with a namespace or a definition: the objects in it.

The namespaces of a fresh cluster, their default service accounts, and the emptying of namespaces in deletion.

Serves what CustomResourceDefinitions define, from the write of one until its last object is gone.
"""

from __future__ import annotations

from dra_devcluster.apiserver.controllers.worker import Worker
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.kinds.definitions import CLEANUP
from dra_devcluster.apiserver.kinds.namespaces import FINALIZER
from dra_devcluster.apiserver.served.registry import Registry
from dra_devcluster.apiserver.storage.store import Change, Collection, Stored
from dra_devcluster.apiserver.verbs.delete import delete_some
from dra_devcluster.apiserver.verbs.write import create, update
from dra_devcluster.clock import now

DEFAULT_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


def ensure_namespaces(registry: Registry) -> None:
    """Create the default namespaces that are missing."""
    resource = registry.resource("", "v1", "namespaces")
    for name in DEFAULT_NAMESPACES:
        if registry.collection(resource).get("", name) is None:
            create(Write(registry, resource, verb="create"), {"metadata": {"name": name}})


class NamespaceController(Worker[str]):
    """Creates the service account of every namespace, and empties namespaces in deletion."""

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self._registry = registry
        self._namespaces = registry.resource("", "v1", "namespaces")
        self._accounts = registry.resource("", "v1", "serviceaccounts")
        for stored in registry.collection(self._namespaces).all():
            self.add(stored.name)
        registry.store.listen(self._see)

    def _see(self, collection: Collection, change: Change) -> None:
        if (collection.group, collection.resource) == ("", "namespaces"):
            self.add(change.stored.name)
        elif change.type == "DELETED" and change.stored.namespace and not collection.count(change.stored.namespace):
            self.add(change.stored.namespace)  # it may have been the last one

    def handle(self, key: str) -> None:
        stored = self._registry.collection(self._namespaces).get("", key)
        if stored is None:
            return
        if stored.finalizing:
            self._empty(stored)
        elif self._registry.collection(self._accounts).get(key, "default") is None:
            write = Write(self._registry, self._accounts, namespace=key, verb="create")
            create(write, {"metadata": {"name": "default", "namespace": key}})

    def _empty(self, stored: Stored) -> None:
        namespace = stored.decode()
        if FINALIZER not in (namespace.get("spec") or {}).get("finalizers", ()):
            return
        left: dict[str, int] = {}
        for collection in self._registry.store.collections():
            resource = self._registry.of_collection(collection)
            if resource is None or not resource.namespaced:
                continue
            progress = delete_some(self._registry, collection, stored.name)
            if progress.left:
                left[resource.group_resource] = progress.left
            if progress.goes_on:
                self.add(stored.name)
        self._report(stored, namespace, left)

    def _report(self, stored: Stored, namespace: Json, left: dict[str, int]) -> None:
        """Let the deletion of the namespace complete, or set conditions that say what it waits for."""
        if left:
            remaining = ", ".join(f"{name} has {count} resource instances" for name, count in sorted(left.items()))
            condition = {
                "type": "NamespaceContentRemaining",
                "status": "True",
                "reason": "SomeResourcesRemain",
                "message": f"Some resources are remaining: {remaining}",
            }
            conditions = namespace.setdefault("status", {}).setdefault("conditions", [])
            same = [entry for entry in conditions if entry.get("type") == condition["type"]]
            if same and same[0].get("message") == condition["message"]:
                return
            others = [entry for entry in conditions if entry.get("type") != condition["type"]]
            namespace["status"]["conditions"] = [*others, {**condition, "lastTransitionTime": now()}]
            subresource = "status"
        else:
            namespace["spec"]["finalizers"].remove(FINALIZER)
            subresource = "finalize"
        update(Write(self._registry, self._namespaces, subresource=subresource), stored, namespace)


_PLACE = ("apiextensions.k8s.io", "customresourcedefinitions")


class DefinitionController(Worker[str]):
    """Keeps the served resources in step with the definitions, and empties those in deletion."""

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self._registry = registry
        self._definitions = registry.resource(_PLACE[0], "v1", _PLACE[1])
        for stored in registry.collection(self._definitions).all():
            self.add(stored.name)
        registry.store.listen(self._see)

    def _see(self, collection: Collection, change: Change) -> None:
        if (collection.group, collection.resource) == _PLACE:
            if change.type == "DELETED":
                self._registry.remove_definition(change.stored.decode())
            else:
                self._registry.add_definition(change.stored.decode())
                self.add(change.stored.name)
        elif change.type == "DELETED" and not collection.count():
            self.add(f"{collection.resource}.{collection.group}")  # it may have been the last one

    def handle(self, key: str) -> None:
        stored = self._registry.collection(self._definitions).get("", key)
        if stored is None or not stored.finalizing:
            return
        definition = stored.decode()
        if CLEANUP not in (definition["metadata"].get("finalizers") or ()):
            return
        spec = definition["spec"]
        collection = self._registry.store.collection(spec["group"], spec["names"]["plural"])
        progress = delete_some(self._registry, collection)
        if progress.goes_on:
            self.add(key)
        if progress.left == 0:
            definition["metadata"]["finalizers"].remove(CLEANUP)
            update(Write(self._registry, self._definitions, verb="patch"), stored, definition)
