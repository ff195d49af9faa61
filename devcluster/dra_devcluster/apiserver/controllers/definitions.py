"""Serves what CustomResourceDefinitions define, from the write of one until its last object is gone."""

from __future__ import annotations

from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.kinds.definitions import CLEANUP
from dra_devcluster.apiserver.served.registry import Registry
from dra_devcluster.apiserver.storage.store import Change, Collection
from dra_devcluster.apiserver.verbs.delete import delete_some
from dra_devcluster.apiserver.verbs.write import update

from .worker import Worker

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
