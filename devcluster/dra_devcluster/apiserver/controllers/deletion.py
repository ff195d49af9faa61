"""Deletion that follows another one, or waits for it: dependents of owners, the content of namespaces and definitions,
and PodGroups.

Background deletion: when an owner is gone, each dependent loses the reference to it, or is deleted when it has no
other owner left. Foreground: the owner stays, with the finalizer ``foregroundDeletion``, until the dependents that
block its deletion are gone. Orphan: the finalizer ``orphan`` keeps the owner until its dependents have forgotten it.

A namespace in deletion is emptied. A fresh cluster has its namespaces with their default service accounts. The kind of
a CustomResourceDefinition is served from its first write until its last object is gone. A PodGroup that is deleted
stays until all its pods have ended (K37-WL-06)."""

from __future__ import annotations

from typing import Final

from dra_api.values import now

from dra_devcluster.apiserver.controllers.worker import Worker
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.kinds.administration import CLEANUP
from dra_devcluster.apiserver.kinds.core import FINALIZER
from dra_devcluster.apiserver.kinds.dra_rules import PROTECTION, PROTECTION_SINCE
from dra_devcluster.apiserver.metadata import dig
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.store import Change, Collection, Key, Stored
from dra_devcluster.apiserver.verbs.write import FOREGROUND, ORPHAN, DeleteOptions, create, delete, delete_some, update

Place = tuple[str, str, Key]  # group, resource, key


class GarbageCollector(Worker[Place]):
    """Follows all changes of a store through an index from owners to their dependents."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._alive: dict[str, Place] = {}  # by UID
        self._dependents: dict[str, set[Place]] = {}  # by UID of the owner
        for collection in registry.store.collections():
            for stored in collection.all():
                self.see(collection, Change("ADDED", stored, None))

    def see(self, collection: Collection, change: Change) -> None:
        stored, previous = change.stored, change.previous
        place = (collection.group, collection.resource, stored.key)
        for uid in previous.owners if previous else ():
            self._dependents.get(uid, set()).discard(place)
            if not self._dependents.get(uid):
                self._dependents.pop(uid, None)
            if uid in self._alive:
                self.add(self._alive[uid])  # it may wait for this dependent
        if change.type == "DELETED":
            self._alive.pop(stored.uid, None)
            for dependent in self._dependents.get(stored.uid, ()):
                self.add(dependent)
            return
        self._alive[stored.uid] = place
        for uid in stored.owners:
            self._dependents.setdefault(uid, set()).add(place)
        if stored.owners or stored.finalizing:
            self.add(place)

    def handle(self, key: Place) -> None:
        group, plural, where = key
        collection = self.registry.store.collection(group, plural)
        stored = collection.get(*where)
        resource = self.registry.of_collection(collection)
        if stored is None or resource is None:
            return
        write = Write(self.registry, resource, namespace=stored.namespace, verb="patch")
        if stored.finalizing:
            self._finalize(write, stored)
        if stored.owners:
            self._check_owners(write, stored)

    def _check_owners(self, write: Write, stored: Stored) -> None:
        current = self.registry.collection(write.resource).get(*stored.key)
        if current is None or current.finalizing:
            return
        lost = [uid for uid in current.owners if not self._is_owner(uid, current)]
        if not lost and not any(self._waits_for(uid) for uid in current.owners):
            return
        alive = [uid for uid in current.owners if uid not in lost and not self._waits_for(uid)]
        if not alive:
            waiting = len(lost) < len(current.owners) and self._dependents.get(current.uid)
            options = DeleteOptions(propagation="Foreground" if waiting else "Background", uid=current.uid)
            delete(write, current, options)
        elif lost or len(alive) < len(current.owners):
            obj = current.decode()
            meta = obj["metadata"]
            meta["ownerReferences"] = [owner for owner in meta["ownerReferences"] if owner.get("uid") in alive]
            update(write, current, obj)

    def _is_owner(self, uid: str, dependent: Stored) -> bool:
        """An owner exists, and is cluster-scoped or in the same namespace."""
        place = self._alive.get(uid)
        return place is not None and place[2][0] in ("", dependent.namespace)

    def _waits_for(self, uid: str) -> bool:
        place = self._alive.get(uid)
        stored = self.registry.store.collection(*place[:2]).get(*place[2]) if place else None
        return stored is not None and stored.finalizing and FOREGROUND in _finalizers(stored.decode())

    def _finalize(self, write: Write, stored: Stored) -> None:
        """Do the work of this controller's finalizers, then remove them."""
        obj = stored.decode()
        finalizers = _finalizers(obj)
        done = set()
        if ORPHAN in finalizers:
            for place in list(self._dependents.get(stored.uid, ())):
                self._forget(place, stored.uid)
            done.add(ORPHAN)
        if FOREGROUND in finalizers and not self._blocking(stored.uid):
            done.add(FOREGROUND)
        if done:
            obj["metadata"]["finalizers"] = [name for name in finalizers if name not in done]
            update(write, stored, obj)

    def _blocking(self, uid: str) -> bool:
        """Whether dependents still block the deletion; starts the deletion of all dependents."""
        blocked = False
        for place in list(self._dependents.get(uid, ())):
            self.add(place)
            dependent = self.registry.store.collection(*place[:2]).get(*place[2])
            owners = dependent.decode()["metadata"].get("ownerReferences", ()) if dependent else ()
            blocked |= any(owner.get("uid") == uid and owner.get("blockOwnerDeletion") for owner in owners)
        return blocked

    def _forget(self, place: Place, uid: str) -> None:
        collection = self.registry.store.collection(*place[:2])
        dependent, resource = collection.get(*place[2]), self.registry.of_collection(collection)
        if dependent is None or resource is None:
            return
        obj = dependent.decode()
        meta = obj["metadata"]
        meta["ownerReferences"] = [owner for owner in meta.get("ownerReferences", ()) if owner.get("uid") != uid]
        if not meta["ownerReferences"]:
            del meta["ownerReferences"]
        update(Write(self.registry, resource, namespace=dependent.namespace, verb="patch"), dependent, obj)


def _finalizers(obj: Json) -> list[str]:
    return list(obj["metadata"].get("finalizers") or ())


DEFAULT_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


def ensure_namespaces(registry: Registry) -> None:
    resource = registry.resource("", "v1", "namespaces")
    for name in DEFAULT_NAMESPACES:
        if registry.collection(resource).get("", name) is None:
            create(Write(registry, resource, verb="create"), {"metadata": {"name": name}})


class NamespaceController(Worker[str]):
    """Creates the service account of every namespace, and empties namespaces in deletion."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._namespaces = registry.resource("", "v1", "namespaces")
        self._accounts = registry.resource("", "v1", "serviceaccounts")
        for stored in registry.collection(self._namespaces).all():
            self.add(stored.name)

    def see(self, collection: Collection, change: Change) -> None:
        if (collection.group, collection.resource) == ("", "namespaces"):
            self.add(change.stored.name)
        elif change.type == "DELETED" and change.stored.namespace and not collection.count(change.stored.namespace):
            self.add(change.stored.namespace)  # it may have been the last one

    def handle(self, key: str) -> None:
        stored = self.registry.collection(self._namespaces).get("", key)
        if stored is None:
            return
        if stored.finalizing:
            self._empty(stored)
        elif self.registry.collection(self._accounts).get(key, "default") is None:
            write = Write(self.registry, self._accounts, namespace=key, verb="create")
            create(write, {"metadata": {"name": "default", "namespace": key}})

    def _empty(self, stored: Stored) -> None:
        namespace = stored.decode()
        if FINALIZER not in (namespace.get("spec") or {}).get("finalizers", ()):
            return
        left: dict[str, int] = {}
        for collection in self.registry.store.collections():
            resource = self.registry.of_collection(collection)
            if resource is None or not resource.namespaced:
                continue
            progress = delete_some(self.registry, collection, stored.name)
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
        update(Write(self.registry, self._namespaces, subresource=subresource), stored, namespace)


_PLACE = ("apiextensions.k8s.io", "customresourcedefinitions")


class DefinitionController(Worker[str]):
    """Keeps the served resources in step with the definitions, and empties those in deletion."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._definitions = registry.resource(_PLACE[0], "v1", _PLACE[1])
        for stored in registry.collection(self._definitions).all():
            self.add(stored.name)

    def see(self, collection: Collection, change: Change) -> None:
        if (collection.group, collection.resource) == _PLACE:
            if change.type == "DELETED":
                self.registry.remove_definition(change.stored.decode())
            else:
                self.registry.add_definition(change.stored.decode())
                self.add(change.stored.name)
        elif change.type == "DELETED" and not collection.count():
            self.add(f"{collection.resource}.{collection.group}")  # it may have been the last one

    def handle(self, key: str) -> None:
        stored = self.registry.collection(self._definitions).get("", key)
        if stored is None or not stored.finalizing:
            return
        definition = stored.decode()
        if CLEANUP not in (definition["metadata"].get("finalizers") or ()):
            return
        spec = definition["spec"]
        collection = self.registry.store.collection(spec["group"], spec["names"]["plural"])
        progress = delete_some(self.registry, collection)
        if progress.goes_on:
            self.add(key)
        if progress.left == 0:
            definition["metadata"]["finalizers"].remove(CLEANUP)
            update(Write(self.registry, self._definitions, verb="patch"), stored, definition)


_GROUP: Final = "spec.schedulingGroup.podGroupName"


class PodGroupProtection(Worker[Key]):
    """Removes the finalizer, which new groups have from birth, and puts it back where pods need it."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._groups = registry.store.collection("scheduling.k8s.io", "podgroups")
        self._pods = registry.store.collection("", "pods")
        if registry.release >= PROTECTION_SINCE:
            for stored in self._groups.all():
                self.add(stored.key)

    def see(self, collection: Collection, change: Change) -> None:
        if self.registry.release < PROTECTION_SINCE:
            return
        if collection is self._groups:
            self.add(change.stored.key)
        elif collection is self._pods:
            namespace = change.stored.namespace
            name = dig(change.stored.decode(), _GROUP) if any(self._groups.all(namespace)) else None
            if isinstance(name, str):
                self.add((namespace, name))

    def handle(self, key: Key) -> None:
        stored, resource = self._groups.get(*key), self.registry.of_collection(self._groups)
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
        update(Write(self.registry, resource, namespace=stored.namespace), stored, group)

    def _is_in_use(self, key: Key) -> bool:
        namespace, name = key
        return any(
            pod.fields.get("status.phase") not in ("Succeeded", "Failed") and dig(pod.decode(), _GROUP) == name
            for pod in self._pods.all(namespace)
        )
