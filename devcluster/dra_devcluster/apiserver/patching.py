"""The three patch formats of the API, as pure functions from document and patch to a new document.

    merge_patch(document, patch)                      RFC 7386, application/merge-patch+json
    json_patch(document, operations)                  RFC 6902, application/json-patch+json
    strategic_merge_patch(document, patch, schema)    application/strategic-merge-patch+json (built-in kinds only)

None of them changes its arguments; results may share unchanged parts with them. A patch that cannot be applied
raises PatchRefused with the text for the client (the only exception of this package; the server answers 422 for
JSON patches and 400 for the others).
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import jsonpatch
import jsonpointer

from dra_devcluster.apiserver.structure.schema import ANY, Json, Schema


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
