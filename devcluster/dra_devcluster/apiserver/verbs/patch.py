"""Patches: converts the stored object to the served version, applies the patch, and updates the object as usual.

The three patch formats of the API are pure functions from document and patch to a new document::

    merge_patch(document, patch)                      RFC 7386, application/merge-patch+json
    json_patch(document, operations)                  RFC 6902, application/json-patch+json
    strategic_merge_patch(document, patch, schema)    application/strategic-merge-patch+json (built-in kinds only)

None of them changes its arguments; results may share unchanged parts with them. A patch that cannot be applied raises
PatchRefused with the text for the client; the server answers 422 for JSON patches and 400 for the others.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Literal

import jsonpatch
import jsonpointer
import orjson
from dra_api.validation import formats as faults
from dra_api.values import now

from dra_devcluster.apiserver import errors
from dra_devcluster.apiserver.apply import ApplyConflict, ApplyRefused, Writer, apply_patch
from dra_devcluster.apiserver.errors import Json, StatusError, bad_request, name_mismatch, name_missing, not_found
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.metadata import dig, to_served
from dra_devcluster.apiserver.store import Stored
from dra_devcluster.apiserver.structure import decode
from dra_devcluster.apiserver.structure.schema import ANY, Schema
from dra_devcluster.apiserver.verbs.write import check_fields, check_uid_stays, check_version, create, update


class PatchRefused(ValueError):
    """The patch is malformed or does not fit the document; the text is meant for the client."""


# The real server's limit on the number of operations of one patch.
_MOST_OPERATIONS = 10_000
_UNFIT = (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, KeyError, RecursionError)


def json_patch(document: Any, operations: Any) -> Any:
    """A changed copy of `document`; raises PatchRefused when an operation is malformed, misses its target or a
    `test` fails."""
    if operations is None:
        return document
    if not isinstance(operations, list):
        raise PatchRefused("a JSON patch is a list of operations")
    if len(operations) > _MOST_OPERATIONS:
        raise PatchRefused(f"the JSON patch has {len(operations)} operations, more than {_MOST_OPERATIONS}")
    try:
        changed = deepcopy(document)
        for operation in operations:
            if (strict := _strict(changed, operation)) is not None:
                changed = jsonpatch.JsonPatch([strict]).apply(changed, in_place=True)
        return changed
    except _UNFIT as fault:
        # As on the real server, the text does not name the operation.
        raise PatchRefused("the server rejected our request due to an error in our request") from fault


def _strict(document: Any, operation: dict[str, Any]) -> dict[str, Any] | None:
    """The operation as RFC 6902 would write it; None for one that changes nothing."""
    what = operation["op"]
    if what in ("add", "replace", "test"):
        operation = {"value": None, **operation}
    if what not in ("replace", "test", "copy"):
        return operation
    holder, key = jsonpointer.JsonPointer(operation["from" if what == "copy" else "path"]).to_last(document)
    if not isinstance(holder, dict) or key is None or key in holder:
        return operation
    if what == "test":
        return operation if operation["value"] is not None else None
    return {"op": "add", "path": operation["path"], "value": operation.get("value")}


def merge_patch(document: Any, patch: Any) -> Any:
    """`document` with `patch` applied; neither is changed, unchanged parts are shared. Raises PatchRefused."""
    try:
        return _merge(document, patch)
    except RecursionError as fault:
        raise PatchRefused("the patch is nested too deeply") from fault


def _merge(document: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


_PATCH = "$patch"
_RETAIN = "$retainKeys"
_DELETE_ITEMS = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"


def strategic_merge_patch(document: Json, patch: Json, schema: Schema) -> Json:
    """`document` with `patch` applied under `schema`; neither argument is changed. Raises PatchRefused."""
    if not isinstance(patch, dict):
        raise PatchRefused("a strategic merge patch is an object")
    try:
        return _merge_object(document, patch, schema)
    except RecursionError as fault:
        raise PatchRefused("the patch is nested too deeply") from fault


def _merge_object(old: Json, patch: Json, schema: Schema) -> Json:
    directive = patch.get(_PATCH)
    if directive == "replace":
        return _plain_object(patch)
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise PatchRefused(f"unknown patch type {directive!r}: $patch is replace, delete or merge")
    merged = dict(old)
    if _RETAIN in patch:
        merged = {key: value for key, value in merged.items() if key in _texts(patch[_RETAIN], _RETAIN)}
    for key, value in patch.items():
        if key.startswith(_DELETE_ITEMS):
            name = key.removeprefix(_DELETE_ITEMS)
            doomed = _texts(value, key)
            merged[name] = [item for item in _texts(merged.get(name) or [], name) if item not in doomed]
    for key, value in patch.items():
        if not key.startswith("$"):
            _merge_field(merged, key, value, patch, schema.child(key) or ANY)
    for key in patch:
        name = key.removeprefix(_ORDER)
        if name != key and name not in patch and isinstance(merged.get(name), list):
            field = schema.child(name) or ANY
            merged[name] = _ordered(merged[name], merged[name], patch[key], field.merge_key)
    return merged


def _merge_field(merged: Json, key: str, value: Any, patch: Json, schema: Schema) -> None:
    old = merged.get(key)
    if value is None:
        merged.pop(key, None)
    elif "replace" in schema.strategies or type(old) is not type(value):
        merged[key] = _plain(value)
    elif isinstance(value, dict) and isinstance(old, dict):
        merged[key] = _merge_object(old, value, schema)
    elif isinstance(value, list) and isinstance(old, list) and "merge" in schema.strategies:
        merged[key] = _merge_list(old, value, patch.get(_ORDER + key), schema)
    else:
        merged[key] = _plain(value)


def _merge_list(old: list[Any], patch: list[Any], order: list[Any] | None, schema: Schema) -> list[Any]:
    key = schema.merge_key
    directives = [item for item in patch if key and isinstance(item, dict) and _PATCH in item]
    if any(item[_PATCH] == "replace" for item in directives):
        return [_plain(item) for item in patch if item not in directives]
    items = {_identity(item, key): item for item in old}
    named = []
    for item in patch:
        identity = _identity(item, key)
        if key and item.get(_PATCH) == "delete":
            items.pop(identity, None)
            continue
        named.append(item)
        known = items.get(identity)
        if isinstance(known, dict):
            items[identity] = _merge_object(known, item, schema.items or ANY)
        else:
            items[identity] = _plain(item)
    return _ordered(list(items.values()), old, order if order is not None else named, key)


def _identity(item: Any, key: str) -> str | int | float:
    """What makes an item itself: the value of its merge key, or the item where the list is one of scalars."""
    identity = item
    if key:
        if not isinstance(item, dict) or key not in item:
            raise PatchRefused(f"map: {item!r} does not contain declared merge key: {key}")
        identity = item[key]
    if not isinstance(identity, str | int | float):
        raise PatchRefused(f"{identity!r} cannot identify a list item: it is neither a string nor a number")
    return identity


def _ordered(merged: list[Any], old: list[Any], order: list[Any], key: str) -> list[Any]:
    """`merged` with the items that `order` names in its order, and the server's others where they belong."""
    if not isinstance(order, list):
        raise PatchRefused(f"{_ORDER.rstrip('/')} must be a list")
    places = {_identity(item, key): place for place, item in enumerate(old)}
    wanted = {_identity(item, key): place for place, item in enumerate(order)}
    named = [item for item in merged if _identity(item, key) in wanted]
    named.sort(key=lambda item: wanted[_identity(item, key)])
    others = [item for item in merged if _identity(item, key) not in wanted]
    result: list[Any] = []
    while named and others:
        left, right = places.get(_identity(others[0], key)), places.get(_identity(named[0], key))
        server_first = left is not None and right is not None and left < right
        result.append((others if server_first else named).pop(0))
    return result + named + others


def _plain(value: Any) -> Any:
    """A value the server did not have: taken from the patch without its nulls and directives."""
    if isinstance(value, dict):
        return _plain_object(value)
    if isinstance(value, list):
        return [_plain(v) for v in value if not (isinstance(v, dict) and v.get(_PATCH) == "delete")]
    return value


def _plain_object(value: Json) -> Json:
    return {k: _plain(v) for k, v in value.items() if v is not None and not k.startswith("$")}


def _texts(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise PatchRefused(f"{name} must be a list")
    return value


Format = Literal["json", "merge", "strategic", "apply"]


def patch(
    write: Write, name: str, format_: Format, document: Any, *, force: bool = False, mode: str = ""
) -> tuple[Stored, bool]:
    """Apply a patch; returns the object and whether it is new (only ``apply`` creates). Raises 400 to 422."""
    resource = write.resource
    stored = write.registry.collection(resource).get(write.namespace, name)
    write.verb = "apply" if format_ == "apply" else "patch"
    if format_ == "apply":
        return _apply(write, stored, name, document, force=force, mode=mode)
    if stored is None:
        raise not_found(resource.group, resource.plural, name)
    served = to_served(resource, stored.decode())
    try:
        if format_ == "json":
            changed = json_patch(served, document)
        elif format_ == "merge":
            changed = merge_patch(served, _object(document))
        else:
            changed = strategic_merge_patch(served, _object(document), resource.schema)
    except PatchRefused as error:
        if format_ == "json" and isinstance(document, list):
            raise StatusError(422, "Invalid", str(error), {}) from error
        raise bad_request(str(error)) from error
    changed = _object(changed)
    try:
        check_version(write, changed)
        check_fields(resource.schema, changed, mode, resource.kind, write)
    except StatusError as error:  # the result is no object of the kind
        why = error.message.rpartition(" cannot be handled as ")[2].partition(": ")[2] or error.message
        fault = faults.invalid("patch", orjson.dumps(changed).decode(), why)
        raise errors.invalid("", "", "", [fault]) from error
    given = (changed.get("metadata") or {}).get("name")
    if not given:
        raise name_missing(name)
    if given != name:
        raise name_mismatch(given, name)
    return update(write, stored, changed), False


def _object(document: Any) -> Json:
    if not isinstance(document, dict):
        raise bad_request("the patch must result in an object, not in a list, a string or a number")
    return document


def _apply(
    write: Write, stored: Stored | None, name: str, document: Any, *, force: bool, mode: str
) -> tuple[Stored, bool]:
    resource = write.resource
    config = _object(document)
    if not config.get("apiVersion") or not config.get("kind"):
        raise bad_request("an applied configuration needs apiVersion and kind")
    check_version(write, config)
    _check_applied(write, name, config, mode)
    meta = config.setdefault("metadata", {})
    if meta.get("name", name) != name:
        raise name_mismatch(meta["name"], name)
    if stored is None and write.subresource:
        raise not_found(resource.group, resource.plural, name)
    if stored is None:
        write.registry.authorization.require(write.asks("create", name))
        if uid := meta.get("uid"):
            why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise errors.conflict(resource.group, resource.plural, name, why)
        if not meta.get("name"):
            raise name_missing(name)
    meta["name"] = name
    live = to_served(resource, stored.decode()) if stored is not None else None
    writer = Writer(write.manager, resource.api_version, write.subresource, "Apply")
    try:
        applied = apply_patch(live, config, resource.schema, by=writer, now=now(), force=force)
    except ApplyRefused as error:
        raise bad_request(str(error)) from error
    except ApplyConflict as error:
        causes = [
            {"reason": "FieldManagerConflict", "message": message, "field": field} for field, message in error.causes
        ]
        raise StatusError(409, "Conflict", str(error), {"causes": causes}) from error
    decode(resource.schema, applied)
    if stored is None:
        return create(write, applied), True
    check_uid_stays(write, stored, meta.get("uid"))
    return update(write, stored, applied), False


def _check_applied(write: Write, name: str, config: Json, mode: str) -> None:
    """The configuration itself stays as it was written: two writings of one quantity are two values for an apply.

    Undeclared fields cannot have an owner, so they are refused rather than dropped, whatever the mode.
    """
    resource, read = write.resource, deepcopy(config)
    unknown = [problem for problem in decode(resource.schema, read) if problem.kind == "unknown"]
    if unknown:
        namespace = dig(config, "metadata.namespace") or ""
        what = f"{namespace}/{name}; {resource.group}/{resource.version}, Kind={resource.kind}"
        texts = "\n".join(f".{problem.path}: field not declared in schema" for problem in unknown)
        raise StatusError(500, "", f"failed to create typed patch object ({what}): {texts}")
    check_fields(resource.schema, read, mode, resource.kind, write)
