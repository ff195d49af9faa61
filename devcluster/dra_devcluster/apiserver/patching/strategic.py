"""Strategic merge patch: a merge patch that knows, from the schema, which lists are merged and by which key.

A list with patch strategy `merge` is merged item by item (objects by their merge key, scalars as a set); other lists
are replaced. Directives inside the patch say more: `$patch: replace|delete|merge` on an object or list item,
`$retainKeys` (keys of the object that survive), `$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>`.
Resulting order: items named by the patch stand in its order (or that of `$setElementOrder`); items only the server
has keep their place before those they preceded; new items come first, as the real server puts them.
"""

from typing import Any

from dra_devcluster.apiserver.structure.schema import ANY, Json, Schema

from .errors import PatchRefused

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
