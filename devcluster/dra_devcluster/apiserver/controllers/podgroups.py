"""The protection of PodGroups: one that is deleted stays until all its pods have ended (K37-WL-06)."""

from __future__ import annotations

from typing import Final

from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.kinds.dra import PROTECTION, PROTECTION_SINCE
from dra_devcluster.apiserver.served.registry import Registry
from dra_devcluster.apiserver.storage.metadata import dig
from dra_devcluster.apiserver.storage.store import Change, Collection, Key
from dra_devcluster.apiserver.verbs.write import update

from .worker import Worker

_GROUP: Final = "spec.schedulingGroup.podGroupName"


class PodGroupProtection(Worker[Key]):
    """Removes the finalizer, which new groups have from birth, and puts it back where pods need it."""

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self._registry = registry
        self._groups = registry.store.collection("scheduling.k8s.io", "podgroups")
        self._pods = registry.store.collection("", "pods")
        if registry.release >= PROTECTION_SINCE:
            for stored in self._groups.all():
                self.add(stored.key)
            registry.store.listen(self._see)

    def _see(self, collection: Collection, change: Change) -> None:
        if collection is self._groups:
            self.add(change.stored.key)
        elif collection is self._pods:
            namespace = change.stored.namespace
            name = dig(change.stored.decode(), _GROUP) if any(self._groups.all(namespace)) else None
            if isinstance(name, str):
                self.add((namespace, name))

    def handle(self, key: Key) -> None:
        stored, resource = self._groups.get(*key), self._registry.of_collection(self._groups)
        if stored is None or resource is None:
            return
        group = stored.decode()
        finalizers = group["metadata"].get("finalizers") or []
        if stored.finalizing and PROTECTION in finalizers and not self._is_in_use(key):
            group["metadata"]["finalizers"] = [name for name in finalizers if name != PROTECTION]
        elif not stored.finalizing and PROTECTION not in finalizers and self._is_in_use(key):
            group["metadata"]["finalizers"] = [*finalizers, PROTECTION]
        else:
            return
        update(Write(self._registry, resource, namespace=stored.namespace), stored, group)

    def _is_in_use(self, key: Key) -> bool:
        """Whether a pod of the group has not ended."""
        namespace, name = key
        return any(
            pod.fields.get("status.phase") not in ("Succeeded", "Failed") and dig(pod.decode(), _GROUP) == name
            for pod in self._pods.all(namespace)
        )
