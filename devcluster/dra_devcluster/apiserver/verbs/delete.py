"""Deletion, and who owns what.

Keeps managedFields when objects are created and changed; an apply does so itself.

Deleting objects: at once, after a grace period, or when the last finalizer is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from dra_api.validation.formats import FieldError, invalid, not_supported
from dra_api.values import format_time

from dra_devcluster.apiserver.apply import Writer, track_update
from dra_devcluster.apiserver.errors import Json, conflict, invalid_options
from dra_devcluster.apiserver.kinds import Write, kind_of
from dra_devcluster.apiserver.metadata import to_served
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.store import Collection, Stored
from dra_devcluster.apiserver.verbs.read import number
from dra_devcluster.apiserver.wire import flag
from dra_devcluster.clock import now


def track_created(write: Write, obj: Json) -> None:
    """Record in managedFields what the client set, before the server adds fields without an owner."""
    asked = {key: value for key, value in obj.items() if key != "status" or "status" not in write.resource.subresources}
    _note(write, obj, asked, None)


def track(write: Write, obj: Json, old: Json) -> None:
    """Record in managedFields which manager changed which fields."""
    _note(write, obj, to_served(write.resource, obj), to_served(write.resource, old))


def _note(write: Write, obj: Json, new: Json, live: Json | None) -> None:
    if write.verb == "apply":
        return  # an apply has done so itself
    writer = Writer(write.manager, write.resource.api_version, write.subresource)
    entries = track_update(live, new, write.resource.schema, by=writer, now=now())
    obj["metadata"]["managedFields"] = entries
    if not entries:
        del obj["metadata"]["managedFields"]


ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
_BATCH_OBJECTS = 200


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """What a deletion asks for; ``grace`` None is the kind's own period."""

    grace: int | None = None
    propagation: str = ""
    uid: str = ""
    revision: str = ""
    dry_run: bool = False

    @classmethod
    def parse(cls, asked: Json) -> DeleteOptions:
        """From a DeleteOptions object. Raises a 422."""
        if wrong := list(_option_faults(asked)):
            raise invalid_options("Delete", *wrong)
        propagation = asked.get("propagationPolicy") or ""
        if (orphan := asked.get("orphanDependents")) is not None:
            propagation = "Orphan" if orphan else "Background"
        conditions = asked.get("preconditions") or {}
        return cls(
            grace=asked.get("gracePeriodSeconds"),
            propagation=propagation,
            uid=conditions.get("uid") or "",
            revision=conditions.get("resourceVersion") or "",
            dry_run=bool(asked.get("dryRun")),
        )


def delete_options_of(query: Json) -> Json:
    """The DeleteOptions object of a query, all but ``dryRun``, which may be given several times. Raises a 400."""
    asked: Json = {}
    if "gracePeriodSeconds" in query:
        asked["gracePeriodSeconds"] = number(query, "gracePeriodSeconds")
    if "orphanDependents" in query:
        asked["orphanDependents"] = flag(query, "orphanDependents")
    if "propagationPolicy" in query:
        asked["propagationPolicy"] = query["propagationPolicy"]
    return asked


def _option_faults(asked: Json) -> Iterator[FieldError]:
    propagation = asked.get("propagationPolicy")
    if propagation is not None:
        if asked.get("orphanDependents") is not None:
            text = "orphanDependents and deletionPropagation cannot be both set"
            yield invalid("propagationPolicy", propagation, text)
        if propagation not in ("Orphan", "Foreground", "Background"):
            yield not_supported("propagationPolicy", propagation, ["Foreground", "Background", "Orphan", "nil"])
    dry_run = asked.get("dryRun") or []
    if not set(dry_run) <= {"All"}:
        yield not_supported("dryRun", dry_run, ["All"])


class Progress(NamedTuple):
    """How many objects are left, and whether some of them have not been deleted yet."""

    left: int
    goes_on: bool


def delete(write: Write, stored: Stored, options: DeleteOptions) -> tuple[Stored, bool]:
    """Remove the object, or mark it; returns its last version and whether it is gone. Raises 403, 409."""
    registry = write.registry
    kind = kind_of(write.resource)
    obj = stored.decode()
    meta = obj["metadata"]
    _check_preconditions(write, meta, options)
    kind.prepare_delete(obj, write)
    write.admit("DELETE", None, stored.decode())
    _choose_finalizers(meta, options.propagation)
    _set_deadline(meta, kind.grace(obj, options.grace))
    collection = registry.collection(write.resource)
    if not meta.get("finalizers") and not meta["deletionGracePeriodSeconds"] and not kind.holds(obj):
        if write.dry_run:
            return stored, True
        if kind.deletes_gracefully and not stored.finalizing and "generation" in meta:
            meta["generation"] += 1
        # Deleted at once, the object is returned as it was; if the deletion could have waited, with its marks.
        marked = stored.finalizing or kind.deletes_gracefully
        return collection.remove(stored.key, obj if marked else stored.decode()), True
    kind.mark_deleted(obj)
    if obj == stored.decode():
        return stored, False
    if not stored.finalizing and "generation" in meta:
        meta["generation"] += 1
    if write.dry_run:
        return Stored(obj, stored.revision, stored.fields), False
    return collection.put(obj, kind.fields(obj)), False


def _check_preconditions(write: Write, meta: Json, options: DeleteOptions) -> None:
    """The object must be the one that the client means, in the state that it saw. Raises a 409."""
    resource = write.resource
    for what, wanted, there, perhaps in (
        ("UID", options.uid, meta["uid"], "deleted and then recreated"),
        ("ResourceVersion", options.revision, meta["resourceVersion"], "modified"),
    ):
        if wanted and wanted != there:
            why = (
                f"the {what} in the precondition ({wanted}) does not match the {what} in record ({there}). "
                f"The object might have been {perhaps}"
            )
            raise conflict(resource.group, resource.kind, meta["name"], why)


def delete_some(registry: Registry, collection: Collection, namespace: str = "") -> Progress:
    """Delete objects of a collection (of one namespace if given), in parts so that other requests need not wait."""
    resource = registry.of_collection(collection)
    if resource is None:
        return Progress(0, False)
    fresh = [stored for stored in collection.all(namespace) if not stored.finalizing]
    for stored in fresh[:_BATCH_OBJECTS]:
        write = Write(registry, resource, namespace=stored.namespace, verb="delete")
        delete(write, stored, DeleteOptions(propagation="Background"))
    return Progress(collection.count(namespace), len(fresh) > _BATCH_OBJECTS)


def _choose_finalizers(meta: Json, propagation: str) -> None:
    """The finalizers tell the garbage collector what to do with the dependents."""
    finalizers = list(meta.get("finalizers") or ())
    wanted = {"Orphan": ORPHAN, "Foreground": FOREGROUND}.get(propagation)
    if propagation:
        finalizers = [name for name in finalizers if name not in (ORPHAN, FOREGROUND) or name == wanted]
    if wanted and wanted not in finalizers:
        finalizers.append(wanted)
    meta["finalizers"] = finalizers
    if not finalizers:
        del meta["finalizers"]


def _set_deadline(meta: Json, grace: int) -> None:
    """A repeated deletion can only shorten the time that is left."""
    pending = meta.get("deletionGracePeriodSeconds")
    if "deletionTimestamp" in meta and (pending or 0) <= grace:
        meta.setdefault("deletionGracePeriodSeconds", 0)
        return
    meta["deletionTimestamp"] = format_time(datetime.now(UTC) + timedelta(seconds=grace))
    meta["deletionGracePeriodSeconds"] = grace
