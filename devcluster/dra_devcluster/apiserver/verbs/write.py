"""Creates, changes and deletes objects, in the same steps for every kind.

Create and change: decode (types, unknown fields), fill in defaults, restore fields that the client may not set,
validate, ask whether it is permitted, record in managedFields who set which fields, store. Nothing here waits, so an
object cannot change between read and write: a conflict can only come from a resourceVersion that the client sent. All
verbs check their bodies and preconditions as here.

An object is deleted at once, after a grace period, or when its last finalizer is gone. A deletion may orphan the
object's dependents, or wait for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from dra_api.validation import formats as faults
from dra_api.validation.formats import Errors
from dra_api.values import format_time, now

from dra_devcluster.apiserver import errors
from dra_devcluster.apiserver.apply import Writer, track_update
from dra_devcluster.apiserver.errors import Json, StatusError, bad_request, conflict, invalid
from dra_devcluster.apiserver.kinds import Kind, Write, kind_of
from dra_devcluster.apiserver.metadata import (
    generated_name,
    new_uid,
    stored_name,
    to_served,
    to_stored,
    validate_metadata,
)
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.store import Collection, Stored
from dra_devcluster.apiserver.structure import Resource, Schema, decode, refusal
from dra_devcluster.apiserver.verbs.read import number
from dra_devcluster.apiserver.wire import flag


def _track(write: Write, obj: Json, new: Json, live: Json | None) -> None:
    """Record in managedFields which fields the manager has changed; both objects are as they are served."""
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
            raise errors.invalid_options("Delete", *wrong)
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


def _option_faults(asked: Json) -> Errors:
    propagation = asked.get("propagationPolicy")
    if propagation is not None:
        if asked.get("orphanDependents") is not None:
            text = "orphanDependents and deletionPropagation cannot be both set"
            yield faults.invalid("propagationPolicy", propagation, text)
        if propagation not in ("Orphan", "Foreground", "Background"):
            yield faults.not_supported("propagationPolicy", propagation, ["Foreground", "Background", "Orphan", "nil"])
    dry_run = asked.get("dryRun") or []
    if not set(dry_run) <= {"All"}:
        yield faults.not_supported("dryRun", dry_run, ["All"])


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
    if is_ready_to_go(kind, obj):
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
    try:
        ends = datetime.now(UTC) + timedelta(seconds=grace)
    except OverflowError:  # a grace period is any int64
        ends = datetime.max.replace(tzinfo=UTC)
    meta["deletionTimestamp"] = format_time(ends)
    meta["deletionGracePeriodSeconds"] = grace


def check_fields(schema: Schema, obj: Json, mode: str, title: str, write: Write) -> None:
    """Drop unknown fields, warn about them or refuse them (``fieldValidation``). Raises 400."""
    problems = decode(schema, obj)
    if any(problem.kind == "type" for problem in problems) or (problems and mode == "Strict"):
        raise bad_request(refusal(write.resource.version, title, problems))
    if mode in ("", "Warn"):
        write.warnings += [problem.text for problem in problems]


def check_version(write: Write, obj: Json) -> None:
    """The body must be of the kind that the URL names. Raises 400."""
    resource = write.resource
    version = obj.setdefault("apiVersion", resource.api_version)
    kind = obj.setdefault("kind", resource.kind)
    if version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({resource.api_version})"
        )
    if kind != resource.kind:
        raise bad_request(f"the kind in the data ({kind}) does not match the expected kind ({resource.kind})")


def check_uid_stays(write: Write, stored: Stored, uid: Any) -> None:
    """A patch may name the UID of the object, and no other. Raises a 422."""
    resource = write.resource
    if uid and uid != stored.uid:
        raise invalid(resource.group, resource.kind, stored.name, [faults.immutable("metadata.uid", uid)])


def check_preconditions(write: Write, old: Json, uid: Any, revision: Any) -> None:
    """The object must be the one that the client means, in the state that it saw. Raises a 409."""
    resource, meta = write.resource, old["metadata"]
    if uid and uid != meta["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {meta['uid']}"
        raise conflict(resource.group, resource.plural, meta["name"], why)
    if revision and str(revision) != meta["resourceVersion"]:
        raise conflict(resource.group, resource.plural, meta["name"])


_GENERATE_ATTEMPTS = 8
# Metadata that only the server writes: an update keeps it.
_OWN_METADATA = (
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


def create(write: Write, obj: Json) -> Stored:
    """Store a new object. Raises 400, 403, 404 (namespace), 409, 422."""
    registry, resource = write.registry, write.resource
    kind = kind_of(resource)
    _begin(write, obj)
    kind.default(obj, write)
    if write.manager:  # before the server adds fields without an owner
        asked = {key: value for key, value in obj.items() if key != "status" or "status" not in resource.subresources}
        _track(write, obj, asked, None)
    obj = to_stored(resource, obj)
    kind.prepare_create(obj, write)
    _fill_parts(resource, obj)
    meta = obj["metadata"]
    meta["generation"] = 1
    if not kind.has_generation:
        del meta["generation"]
    wrong = [*_metadata_faults(kind, resource, meta), *kind.validate(obj, None, write)]
    if wrong:
        raise invalid(resource.group, resource.kind, meta.get("name", ""), wrong)
    write.admit("CREATE", obj)
    collection = registry.collection(resource)
    _find_free_name(write, collection, meta)
    return _store(write, collection, kind, obj, None)


def create_by_update(write: Write, obj: Json) -> Stored:
    """Store the object of an update that is not there: its resourceVersion does not count, but its UID does.

    Raises as ``create``, and a 409.
    """
    resource, meta = write.resource, obj["metadata"]
    write.registry.authorization.require(write.asks("create", meta["name"]))
    if uid := meta.get("uid"):
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
        raise conflict(resource.group, resource.plural, meta["name"], why)
    meta.pop("resourceVersion", None)
    write.verb = "create"
    return create(write, obj)


def _begin(write: Write, obj: Json) -> None:
    """Identity of a new object."""
    resource = write.resource
    meta = obj.setdefault("metadata", {})
    if resource.namespaced:
        if meta.setdefault("namespace", write.namespace) != write.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        _check_namespace(write, meta.get("name", ""))
    else:
        meta.pop("namespace", None)
    if meta.get("resourceVersion"):
        raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = generated_name(meta["generateName"])
        write.generated = True
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
        meta.pop(key, None)
    meta["uid"] = new_uid()
    meta["creationTimestamp"] = now()


def _fill_parts(resource: Resource, obj: Json) -> None:
    """Parts that are never absent (``status: {}``), as they are no pointers on the real server."""
    for name, schema in resource.schema.properties.items():
        if schema.has_default and schema.default == {}:
            obj.setdefault(stored_name(resource, name), {})


def _check_namespace(write: Write, name: str) -> None:
    resource = write.resource
    namespace = write.registry.store.collection("", "namespaces").get("", write.namespace)
    if namespace is None:
        raise errors.not_found("", "namespaces", write.namespace)
    if namespace.finalizing:
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {write.namespace} is being terminated",
            "field": "metadata.namespace",
        }
        why = f"unable to create new content in namespace {write.namespace} because it is being terminated"
        raise errors.forbidden(resource.group, resource.plural, name, why, [cause])


def _find_free_name(write: Write, collection: Collection, meta: Json) -> None:
    for _ in range(_GENERATE_ATTEMPTS):
        if collection.get(meta.get("namespace", ""), meta["name"]) is None:
            return
        if not write.generated:
            break
        meta["name"] = generated_name(meta["generateName"])
    raise errors.already_exists(write.resource.group, write.resource.plural, meta["name"])


def update(write: Write, stored: Stored, obj: Json) -> Stored:
    """Store a changed object; the same `Stored` when nothing changed. Raises 400, 403, 409, 422."""
    registry, resource = write.registry, write.resource
    kind = kind_of(resource)
    old = stored.decode()
    meta = obj.setdefault("metadata", {})
    if write.verb == "patch":
        check_uid_stays(write, stored, meta.get("uid"))
    check_preconditions(write, old, meta.get("uid"), meta.get("resourceVersion"))
    if not meta.get("resourceVersion") and not kind.unconditional_update and write.verb == "update":
        fault = faults.invalid("metadata.resourceVersion", 0, "must be specified for an update")
        raise invalid(resource.group, resource.plural, stored.name, [fault])
    for key in _OWN_METADATA:
        if key in old["metadata"]:
            meta[key] = old["metadata"][key]
        else:
            meta.pop(key, None)
    meta["resourceVersion"] = old["metadata"]["resourceVersion"]
    kind.default(obj, write)
    obj = to_stored(resource, obj)
    kind.prepare_update(obj, old, write)
    _fill_parts(resource, obj)
    meta = obj["metadata"]
    wrong = [
        *_metadata_faults(kind, resource, meta),
        *_new_finalizers(meta, old["metadata"]),
        *kind.validate(obj, old, write),
    ]
    if wrong:
        raise invalid(resource.group, resource.kind, stored.name, wrong)
    write.admit("UPDATE", obj, old)
    if kind.has_generation and kind.generation_of(obj) != kind.generation_of(old):
        meta["generation"] = old["metadata"].get("generation", 0) + 1
    collection = registry.collection(resource)
    if is_ready_to_go(kind, obj):
        return stored if write.dry_run else collection.remove(stored.key, obj)
    if _same(obj, old):
        return stored
    return _store(write, collection, kind, obj, old)


def store_changed(write: Write, stored: Stored, obj: Json) -> Stored:
    """Store what a sub-resource or a controller has changed in a decoded object, without the checks for clients."""
    kind = kind_of(write.resource)
    return _store(write, write.registry.collection(write.resource), kind, obj, stored.decode())


def _same(obj: Json, old: Json) -> bool:
    """Whether nothing changed; new times in managedFields alone, as after a repeated apply, are no change."""
    new = {key: value for key, value in obj.items() if key not in ("apiVersion", "kind")}
    return {**new, "metadata": _without_times(new)} == {**old, "metadata": _without_times(old)}


def _without_times(obj: Json) -> Json:
    meta = obj["metadata"]
    entries = [{**entry, "time": ""} for entry in meta.get("managedFields") or ()]
    return {**meta, "managedFields": entries}


def _store(write: Write, collection: Collection, kind: Kind, obj: Json, old: Json | None) -> Stored:
    if write.manager and old is not None:
        _track(write, obj, to_served(write.resource, obj), to_served(write.resource, old))
    if write.dry_run:
        return Stored(obj, write.registry.store.revision, kind.fields(obj))
    return collection.put(obj, kind.fields(obj))


def _metadata_faults(kind: Kind, resource: Resource, meta: Json) -> Errors:
    if not kind.checks_metadata:
        yield from validate_metadata(meta, kind.name_rule, is_custom=resource.definition is not None)


def _new_finalizers(meta: Json, old: Json) -> Errors:
    added = sorted(set(meta.get("finalizers") or ()) - set(old.get("finalizers") or ()))
    if added and "deletionTimestamp" in old:
        names = ", ".join(f'"{name}"' for name in added)
        why = "no new finalizers can be added if the object is being deleted, found new finalizers []string"
        yield faults.forbidden("metadata.finalizers", f"{why}{{{names}}}")


def is_ready_to_go(kind: Kind, obj: Json) -> bool:
    """Whether an object in deletion can be removed."""
    meta = obj["metadata"]
    return (
        "deletionTimestamp" in meta
        and not meta.get("finalizers")
        and not meta.get("deletionGracePeriodSeconds")
        and not kind.holds(obj)
    )
