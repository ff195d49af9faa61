"""The garbage collector: deletes objects whose owners are gone.

Background deletion: when an owner is gone, each dependent loses the reference to it, or is deleted when it has no
other owner left. Foreground: the owner stays, with the finalizer ``foregroundDeletion``, until the dependents that
block its deletion are gone. Orphan: the finalizer ``orphan`` keeps the owner until its dependents have forgotten it.
"""

from __future__ import annotations

from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.served.registry import Registry
from dra_devcluster.apiserver.storage.store import Change, Collection, Key, Stored
from dra_devcluster.apiserver.verbs.delete import FOREGROUND, ORPHAN, DeleteOptions, delete
from dra_devcluster.apiserver.verbs.write import update

from .worker import Worker

Place = tuple[str, str, Key]  # group, resource, key


class GarbageCollector(Worker[Place]):
    """Follows all changes of a store through an index from owners to their dependents."""

    def __init__(self, registry: Registry) -> None:
        super().__init__()
        self._registry = registry
        self._alive: dict[str, Place] = {}  # by UID
        self._dependents: dict[str, set[Place]] = {}  # by UID of the owner
        for collection in registry.store.collections():
            for stored in collection.all():
                self._see(collection, Change("ADDED", stored, None))
        registry.store.listen(self._see)

    def _see(self, collection: Collection, change: Change) -> None:
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
        collection = self._registry.store.collection(group, plural)
        stored = collection.get(*where)
        resource = self._registry.of_collection(collection)
        if stored is None or resource is None:
            return
        write = Write(self._registry, resource, namespace=stored.namespace, verb="patch")
        if stored.finalizing:
            self._finalize(write, stored)
        if stored.owners:
            self._check_owners(write, stored)

    def _check_owners(self, write: Write, stored: Stored) -> None:
        current = self._registry.collection(write.resource).get(*stored.key)
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
        """Whether an owner is in foreground deletion."""
        place = self._alive.get(uid)
        stored = self._registry.store.collection(*place[:2]).get(*place[2]) if place else None
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
            dependent = self._registry.store.collection(*place[:2]).get(*place[2])
            owners = dependent.decode()["metadata"].get("ownerReferences", ()) if dependent else ()
            blocked |= any(owner.get("uid") == uid and owner.get("blockOwnerDeletion") for owner in owners)
        return blocked

    def _forget(self, place: Place, uid: str) -> None:
        """Remove the reference to an owner from a dependent."""
        collection = self._registry.store.collection(*place[:2])
        dependent, resource = collection.get(*place[2]), self._registry.of_collection(collection)
        if dependent is None or resource is None:
            return
        obj = dependent.decode()
        meta = obj["metadata"]
        meta["ownerReferences"] = [owner for owner in meta.get("ownerReferences", ()) if owner.get("uid") != uid]
        if not meta["ownerReferences"]:
            del meta["ownerReferences"]
        update(Write(self._registry, resource, namespace=dependent.namespace, verb="patch"), dependent, obj)


def _finalizers(obj: Json) -> list[str]:
    return list(obj["metadata"].get("finalizers") or ())
