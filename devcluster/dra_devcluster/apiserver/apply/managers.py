"""Who manages which fields of an object.

Sets of fields in the form that managedFields stores (`FieldsV1`), and their algebra.

A set is a tree of dicts. Its keys are path elements: `f:<field name>`, `k:<key fields of a list item, as JSON>`,
`v:<scalar list item, as JSON>`. An empty node is a member of the set; a node with children is a member too if it
holds the key `.`. So `{"f:spec": {"f:nodeName": {}}}` holds one field, and the tree needs no second representation.
Trees are never changed once made: they are shared between versions of an object.

From objects to field sets: what an object holds, and what changed between two versions of it.

Both walk the schema: fields of atomic objects and lists count as one, items of list-maps differ by their key
fields, items of sets by their value; everything that the schema does not know is granular.

The entries of `metadata.managedFields`, and their upkeep at ordinary writes.

An entry belongs to a manager together with operation (Apply or Update), subresource and, for updates, API version.
A manager that changes a field by an update becomes its only owner; the cost is a walk over the
changed branches only, since unchanged ones compare equal.
Fields are compared by name, whatever API version an entry was written under. The real server converts first. The result
is the same, because kinds with several versions differ only below lists that are owned as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from dra_devcluster.apiserver.structure import ANY, Schema
from dra_devcluster.apiserver.structure.schema import Json

Fields = dict[str, Any]
LEAF: Fields = {}  # shared by all trees


def union(one: Fields, other: Fields) -> Fields:
    """The root of a tree is never a member: an empty root is the empty set."""
    if not one or not other:
        return one or other
    return {key: _union(one.get(key), other.get(key)) for key in one | other}


def difference(one: Fields, other: Fields) -> Fields:
    """The members of `one` that are not members of `other`."""
    out = {}
    for key, node in one.items():
        left = node if key not in other else _difference(node, other[key])
        if left is not None:
            out[key] = left
    return out


def intersection(one: Fields, other: Fields) -> Fields:
    """The members of both."""
    out = {}
    for key in one.keys() & other.keys():
        both = _intersection(one[key], other[key])
        if both is not None:
            out[key] = both
    return out


def member(node: Fields) -> bool:
    """Whether the path that ends in this node belongs to the set."""
    return not node or "." in node


def paths(fields: Fields, prefix: str = "") -> Iterator[str]:
    """Every member as messages name it: `.spec.containers[name="c"].image`, in sorted order."""
    for key in sorted(fields):
        if key != ".":
            here = prefix + _display(key)
            if member(fields[key]):
                yield here
            yield from paths(fields[key], here)


def well_formed(fields: Any) -> bool:
    """Whether a client's data is such a tree."""
    return isinstance(fields, dict) and all(_is_element(key) and well_formed(node) for key, node in fields.items())


def _is_element(key: str) -> bool:
    kind, _, rest = key.partition(":")
    if kind != "k":
        return key == "." or (kind in ("f", "v") and bool(rest))
    try:
        return isinstance(orjson.loads(rest), dict)
    except orjson.JSONDecodeError:
        return False


def _display(element: str) -> str:
    kind, _, rest = element.partition(":")
    if kind == "f":
        return "." + rest
    if kind == "v":
        return f"[={rest}]"
    pairs = orjson.loads(rest)
    return "[" + ",".join(f"{key}={orjson.dumps(value).decode()}" for key, value in sorted(pairs.items())) + "]"


def _node(inside: bool, children: Fields) -> Fields | None:
    """A node from its parts; None when nothing is left of it."""
    if inside:
        return {".": LEAF, **children} if children else LEAF
    return children or None


def _children(node: Fields) -> Fields:
    return {key: value for key, value in node.items() if key != "."} if "." in node else node


def _union(one: Fields | None, other: Fields | None) -> Fields:
    if one is None or other is None or one is other:
        return one if one is not None else other or LEAF
    inside = member(one) or member(other)
    return _node(inside, union(_children(one), _children(other))) or LEAF


def _difference(one: Fields, other: Fields) -> Fields | None:
    inside = member(one) and not member(other)
    return _node(inside, difference(_children(one), _children(other)))


def _intersection(one: Fields, other: Fields) -> Fields | None:
    return _node(member(one) and member(other), intersection(_children(one), _children(other)))


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


# More updating managers than this and the oldest are folded into one, as on the real server.
_MOST_UPDATING_MANAGERS = 10
_ANCIENT = "ancient-changes"


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes: `manager` is the fieldManager parameter or the first part of the user agent."""

    manager: str
    api_version: str
    subresource: str = ""
    operation: str = "Update"

    def wrote(self, entry: Json) -> bool:
        """Whether `entry` is this writer's."""
        same = (entry.get("manager"), entry.get("operation"), entry.get("subresource", "")) == (
            self.manager,
            self.operation,
            self.subresource,
        )
        return same and (self.operation == "Apply" or entry.get("apiVersion") == self.api_version)

    def entry(self, fields: Fields, now: str) -> Json:
        """A fresh entry; `now` is RFC 3339 in UTC."""
        made: Json = {"manager": self.manager, "operation": self.operation, "apiVersion": self.api_version}
        made |= {"time": now, "fieldsType": "FieldsV1", "fieldsV1": fields}
        return made | ({"subresource": self.subresource} if self.subresource else {})


def track_update(live: Json | None, new: Json, schema: Schema, *, by: Writer, now: str) -> list[Json]:
    """managedFields for `new` after an ordinary create, update or patch by `by`.

    A client may edit the entries themselves (kubectl does, to migrate to server-side apply): those in `new` count if
    they are there, else those of `live`; a single empty entry forgets them all, malformed ones are dropped.
    """
    entries = entries_of(new)
    if entries == [{}]:
        return []
    known = entries_of(live) or []
    entries = known if entries is None or entries == known else [entry for entry in entries if _well_formed(entry)]
    changed, removed = object_changes(live, new, schema)
    if not changed and not removed:
        return entries
    return disown(entries, by, own=changed, lost=union(changed, removed), gone=removed, now=now)


def disown(entries: Iterable[Json], by: Writer, *, own: Fields, lost: Fields, gone: Fields, now: str) -> list[Json]:
    """The entries after `by` took `own`: others lose `lost`, the writer itself loses `gone`."""
    mine: Fields = {}
    kept = []
    for entry in entries:
        if by.wrote(entry):
            mine = union(mine, entry["fieldsV1"])
            continue
        left = difference(entry["fieldsV1"], lost)
        if left:
            kept.append(entry if left == entry["fieldsV1"] else {**entry, "fieldsV1": left})
    mine = union(difference(mine, gone), own)
    if mine:
        kept.append(by.entry(mine, now))
    return _folded(kept)


def entries_of(obj: Json | None) -> list[Json] | None:
    """The entries of an object; None if it has no such field."""
    found = (obj or {}).get("metadata", {}).get("managedFields")
    return found if isinstance(found, list) else None


def _well_formed(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and all(isinstance(entry.get(key), str) for key in ("manager", "apiVersion"))
        and entry.get("operation") in ("Apply", "Update")
        and isinstance(entry.get("time", ""), str)
        and well_formed(entry.get("fieldsV1"))
    )


def _folded(entries: list[Json]) -> list[Json]:
    """Sorted as the real server does; surplus updaters are folded into one."""
    entries.sort(
        key=lambda entry: (
            entry["operation"],
            entry.get("time", ""),
            entry["manager"],
            entry["apiVersion"],
            entry.get("subresource", ""),
        )
    )
    updaters = [entry for entry in entries if entry["operation"] == "Update"]
    surplus = (
        updaters[: max(0, len(updaters) - _MOST_UPDATING_MANAGERS + 1)]
        if len(updaters) > _MOST_UPDATING_MANAGERS
        else []
    )
    if not surplus:
        return entries
    fields: Fields = {}
    for entry in surplus:
        fields = union(fields, entry["fieldsV1"])
    ancient = Writer(_ANCIENT, surplus[-1]["apiVersion"]).entry(fields, surplus[-1].get("time", ""))
    rest = [entry for entry in entries if not any(entry is one for one in surplus)]
    appliers = [entry for entry in rest if entry["operation"] == "Apply"]
    return [*appliers, ancient, *rest[len(appliers) :]]
