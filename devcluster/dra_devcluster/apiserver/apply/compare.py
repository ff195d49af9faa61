"""From objects to field sets: what an object holds, and what changed between two versions of it.

Both walk the schema: fields of atomic objects and lists count as one, items of list-maps differ by their key
fields, items of sets by their value; everything that the schema does not know is granular.
"""

from functools import lru_cache
from typing import Any

import orjson

from dra_devcluster.apiserver.structure import ANY, Schema
from dra_devcluster.apiserver.structure.schema import Json

from .fields import LEAF, Fields

# Set by the server on every object: they have no owner.
_UNOWNED = frozenset(
    {"name", "namespace", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"}
    | {"uid", "generation", "resourceVersion", "managedFields"}
)


def owned_part(obj: Json | None) -> Json:
    """The object without type and server-set metadata, which ownership does not cover."""
    part = {key: value for key, value in (obj or {}).items() if key not in ("apiVersion", "kind", "metadata")}
    metadata = {key: value for key, value in (obj or {}).get("metadata", {}).items() if key not in _UNOWNED}
    return {"metadata": metadata, **part} if metadata else part


def held(value: Json, schema: Schema) -> Fields:
    """The fields that an applied configuration states: its leaves, its list items and its free map keys."""
    out: Fields = {}
    for key, item in value.items():
        child = schema.child(key) or ANY
        node = _held(item, child)
        free = (
            key not in schema.properties
        )  # a key of a map, a field of its own; fields of types count by their content
        if node:
            out["f:" + key] = {".": LEAF, **node} if free else node
        elif free or item is None or item == {} or not _is_granular(item, child):
            out["f:" + key] = node
    return out


def _held(value: Any, schema: Schema) -> Fields:
    if isinstance(value, dict) and not schema.atomic:
        return held(value, schema)
    if isinstance(value, list) and granular_list(schema):
        out: Fields = {}
        for item in value:
            children = _held(item, schema.items or ANY) if schema.list_type == "map" else LEAF
            out[element(item, schema)] = {".": LEAF, **children} if children else LEAF
        return out
    return LEAF


def object_changes(old: Json | None, new: Json, schema: Schema) -> tuple[Fields, Fields]:
    """(fields added or modified, fields removed) between two versions of an API object; `old` is None at creation."""
    empty = _blank(schema)
    return changes({"metadata": {}, **empty, **owned_part(old)}, {"metadata": {}, **empty, **owned_part(new)}, schema)


def changes(old: Json, new: Json, schema: Schema) -> tuple[Fields, Fields]:
    """(fields added or modified, fields removed) from `old` to `new`."""
    changed: Fields = {}
    removed: Fields = {}
    for key, value in new.items():
        if key not in old:
            changed["f:" + key] = _whole(value, schema.child(key) or ANY)
        elif old[key] is not value and old[key] != value:
            _note(changed, removed, "f:" + key, old[key], value, schema.child(key) or ANY)
    for key, value in old.items():
        if key not in new and value is not None:
            removed["f:" + key] = _whole(value, schema.child(key) or ANY)
    return changed, removed


@lru_cache(maxsize=1024)
def _blank(schema: Schema) -> Json:
    """What a new object of this type holds before any field is set: the parts that are never absent.

    A custom resource has none: on the real server it is no struct."""
    if not schema.typed:
        return {}
    return {
        key: _blank(child) if child.kind == "object" and not child.atomic else None
        for key, child in schema.properties.items()
        if child.has_default or key in schema.required
    }


def _is_granular(value: Any, schema: Schema) -> bool:
    """Whether the parts of a value are owned one by one."""
    return (isinstance(value, dict) and not schema.atomic) or (isinstance(value, list) and granular_list(schema))


def granular_list(schema: Schema) -> bool:
    return not schema.atomic and schema.list_type in ("map", "set")


def element(item: Any, schema: Schema) -> str:
    """The path element of one item of a granular list."""
    if schema.list_type == "set":
        return "v:" + orjson.dumps(item).decode()
    key = {}
    for name in sorted(schema.map_keys):
        field = schema.items.child(name) if schema.items else None
        default = field.default if field and field.has_default else None
        value = item.get(name, default) if isinstance(item, dict) else None
        if value is not None:
            key[name] = value
    return "k:" + orjson.dumps(key).decode()


def _note(changed: Fields, removed: Fields, key: str, old: Any, new: Any, schema: Schema) -> None:
    """Record the difference of two unequal values under `key`."""
    if isinstance(new, dict) and isinstance(old, dict | None) and not schema.atomic:
        more, less = changes(old or {}, new, schema)
    elif isinstance(new, list) and isinstance(old, list | None) and granular_list(schema):
        more, less = _list_changes(old or [], new, schema)
    else:
        changed[key] = LEAF
        return
    if more or old is None:
        changed[key] = more
    if less:
        removed[key] = less


def _list_changes(old: list[Any], new: list[Any], schema: Schema) -> tuple[Fields, Fields]:
    changed: Fields = {}
    removed: Fields = {}
    before = {element(item, schema): item for item in old}
    after = {element(item, schema): item for item in new}
    for key, item in after.items():
        if key not in before:
            changed[key] = _whole(item, schema.items or ANY)
        elif before[key] != item:
            _note(changed, removed, key, before[key], item, schema.items or ANY)
    for key, item in before.items():
        if key not in after:
            removed[key] = _whole(item, schema.items or ANY)
    return changed, removed


def _whole(value: Any, schema: Schema) -> Fields:
    """All paths in a value that was added or removed as a whole, including those of containers."""
    if isinstance(value, dict) and not schema.atomic:
        inner = {
            "f:" + key: _whole(item, schema.child(key) or ANY) if isinstance(item, (dict, list)) else LEAF
            for key, item in value.items()
        }
    elif isinstance(value, list) and granular_list(schema):
        inner = {element(item, schema): _whole(item, schema.items or ANY) for item in value}
    else:
        return LEAF
    return {".": LEAF, **inner} if inner else LEAF
