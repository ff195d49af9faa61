"""Server-side apply, and who manages which fields of an object; as pure functions.

    track_update(live, new, schema, by=Writer(...), now=...) -> list        managedFields after an ordinary write
    apply_patch(live, config, schema, by=Writer(...), now=..., force=...)   the object after a server-side apply

Both leave their arguments alone. `live` is None when the object is created. Neither defaults nor validates: the
server does that with the result, as for any other write. ApplyConflict is a 409, and carries the causes and the real
server's text; ApplyRefused a 400.

**Apply.** The applied configuration is merged over the live object (list-maps by key, sets as sets, atomics as a
whole). Fields that the manager stated last time but not now are removed, unless another manager owns them. A field that
another manager owns and the merge would change is a conflict; with `force` the manager takes it over.

**Sets of fields** have the form that managedFields stores (`FieldsV1`): a tree of dicts. Its keys are path elements:
`f:<field name>`, `k:<key fields of a list item, as JSON>`, `v:<scalar list item, as JSON>`. An empty node is a member
of the set; a node with children is a member too if it holds the key `.`. So `{"f:spec": {"f:nodeName": {}}}` holds one
field, and the tree needs no second representation. Trees are never changed once made: they are shared between versions
of an object. The fields of an object, and the changes between two versions, are found along the schema. Fields of
atomic objects and lists count as one. Items of list-maps differ by their key fields, items of sets by their value.
Fields that the schema does not know are granular.

**Entries.** An entry belongs to a manager together with operation (Apply or Update), subresource and, for updates, API
version. A manager that changes a field by an update becomes its only owner; the cost is a walk over the changed
branches only, since unchanged ones compare equal. Fields are compared by name, regardless of the API version of an
entry. The real server converts first. The result is the same, because kinds with several versions differ only
below lists that are owned as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
    out = {}
    for key, node in one.items():
        left = node if key not in other else _difference(node, other[key])
        if left is not None:
            out[key] = left
    return out


def intersection(one: Fields, other: Fields) -> Fields:
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
            here = prefix + _display_manager(key)
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


def _display_manager(element: str) -> str:
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
        free = key not in schema.properties  # a key of a map is a field of its own; fields of types count by content
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
    return _changes(old, new, "f:", lambda key: schema.child(key) or ANY)


def _changes(old: Json, new: Json, prefix: str, schema_of: Callable[[str], Schema]) -> tuple[Fields, Fields]:
    changed: Fields = {}
    removed: Fields = {}
    for key, value in new.items():
        if key not in old:
            changed[prefix + key] = _whole(value, schema_of(key))
        elif old[key] is not value and old[key] != value:
            _note(changed, removed, prefix + key, old[key], value, schema_of(key))
    for key, value in old.items():
        if key not in new and value is not None:
            removed[prefix + key] = _whole(value, schema_of(key))
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
        before, after = ({element(item, schema): item for item in items} for items in (old or [], new))
        more, less = _changes(before, after, "", lambda _: schema.items or ANY)
    else:
        changed[key] = LEAF
        return
    if more or old is None:
        changed[key] = more
    if less:
        removed[key] = less


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
        mine = {"manager": self.manager, "operation": self.operation, "subresource": self.subresource}
        if self.operation != "Apply":
            mine["apiVersion"] = self.api_version
        return all(entry.get(key, "") == value for key, value in mine.items())

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
    keys = ("operation", "time", "manager", "apiVersion", "subresource")
    entries.sort(key=lambda entry: [entry.get(key, "") for key in keys])
    updaters = [entry for entry in entries if entry["operation"] == "Update"]
    if len(updaters) <= _MOST_UPDATING_MANAGERS:
        return entries
    surplus = updaters[: len(updaters) - _MOST_UPDATING_MANAGERS + 1]
    fields: Fields = {}
    for entry in surplus:
        fields = union(fields, entry["fieldsV1"])
    ancient = Writer(_ANCIENT, surplus[-1]["apiVersion"]).entry(fields, surplus[-1].get("time", ""))
    rest = [entry for entry in entries if not any(entry is one for one in surplus)]
    appliers = [entry for entry in rest if entry["operation"] == "Apply"]
    return [*appliers, ancient, *rest[len(appliers) :]]


class ApplyRefused(ValueError):
    """The configuration cannot be applied (400); the text is meant for the client."""


class ApplyConflict(Exception):
    """Other managers own fields that would change (409). `causes` are (field, message) pairs."""

    def __init__(self, by_manager: dict[str, list[str]]) -> None:
        self.causes = [(path, f"conflict with {name}") for name, all_ in by_manager.items() for path in all_]
        if len(self.causes) == 1:
            text = f"Apply failed with 1 conflict: {self.causes[0][1]}: {self.causes[0][0]}"
        else:
            lines = [
                "\n".join([f"conflicts with {name}:", *(f"- {path}" for path in by_manager[name])])
                for name in sorted(by_manager)
            ]
            text = f"Apply failed with {len(self.causes)} conflicts: " + "\n".join(lines)
        super().__init__(text)


def apply_patch(live: Json | None, config: Json, schema: Schema, *, by: Writer, now: str, force: bool = False) -> Json:
    """The object after `by` (operation "Apply") applied `config`; equals `live` when nothing changes.

    `config` has passed the decoder. Raises ApplyConflict (unless `force`) and ApplyRefused.
    """
    if "managedFields" in config.get("metadata", {}):
        raise ApplyRefused("metadata.managedFields must be nil")
    config = _concerned(config, by.subresource, schema)
    entries = _entries(live, schema, by)
    stated = held(owned_part(config), schema)
    previous: Fields = next((entry["fieldsV1"] for entry in entries if by.wrote(entry)), {})
    others = [entry for entry in entries if not by.wrote(entry)]
    merged = merge(live or {}, config, schema)
    kept = stated
    for entry in others:
        kept = union(kept, entry["fieldsV1"])
    merged = _without(merged, difference(previous, kept), kept, schema) or {}
    changed, removed = object_changes(live, merged, schema)
    conflicts = {_display(e): both for e in others if (both := list(paths(intersection(e["fieldsV1"], changed))))}
    if conflicts and not force:
        raise ApplyConflict(conflicts)
    if live is not None and stated == previous and not changed and not removed:
        return live
    # Unlike an update, an apply owns what it states, not what it changed.
    entries = disown(others, by, own=stated, lost=union(changed, removed), gone={}, now=now)
    metadata = {**merged.get("metadata", {}), "managedFields": entries}
    return {**merged, "metadata": metadata}


def merge(live: Any, config: Any, schema: Schema) -> Any:
    if isinstance(config, dict) and isinstance(live, dict) and not schema.atomic:
        merged = dict(live)
        for key, value in config.items():
            merged[key] = merge(live[key], value, schema.child(key) or ANY) if key in live else value
        return merged
    if isinstance(config, list) and isinstance(live, list) and granular_list(schema):
        return _merge_lists(live, config, schema)
    return config


def _merge_lists(live: list[Any], config: list[Any], schema: Schema) -> list[Any]:
    """The applied items in their order; an item that only the live list has stays before those that it preceded."""
    known = {element(item, schema): item for item in live}
    stated = {element(item, schema): item for item in config}
    if len(stated) < len(config):
        raise ApplyRefused(f"duplicate entries for key in a list of {(schema.items or ANY).name}")
    result = []
    waiting = list(live)
    for key, item in stated.items():
        while waiting and element(waiting[0], schema) not in stated:
            result.append(waiting.pop(0))
        if key in known:
            item = merge(known[key], item, schema.items or ANY)
            if waiting and element(waiting[0], schema) == key:
                waiting.pop(0)
        result.append(item)
    return result + [item for item in waiting if element(item, schema) not in stated]


def _without(value: Any, doomed: Fields, kept: Fields, schema: Schema) -> Any:
    """`value` without these fields; None when nothing is left. A parent of a field that stays is kept."""
    if not doomed:
        return value
    result: Any
    if isinstance(value, dict):
        result = {}
        for key, item in value.items():
            left = _rest(item, "f:" + key, doomed, kept, schema.child(key) or ANY)
            if left is not None:
                result[key] = left
    elif isinstance(value, list) and granular_list(schema):
        rest = (_rest(item, element(item, schema), doomed, kept, schema.items or ANY) for item in value)
        result = [item for item in rest if item is not None]
    else:
        return value
    return result or None


def _rest(item: Any, key: str, doomed: Fields, kept: Fields, schema: Schema) -> Any:
    if key not in doomed:
        return item
    if key not in kept and member(doomed[key]):
        return None
    left = _without(item, doomed[key], kept.get(key, {}), schema)
    if left is None and key in kept and member(kept[key]):
        return type(item)()  # a manager states it, if only as empty
    return left


def _entries(live: Json | None, schema: Schema, by: Writer) -> list[Json]:
    """The live object's entries; for an object without any, one that owns all it holds."""
    found = entries_of(live) or []
    if found or live is None:
        return found
    fields = held(owned_part(live), schema)
    stamp = live.get("metadata", {}).get("creationTimestamp", "")
    return [Writer("before-first-apply", by.api_version).entry(fields, stamp)] if fields else []


def _concerned(config: Json, subresource: str, schema: Schema) -> Json:
    """The part of a configuration that the addressed resource stores: status apart from the rest."""
    if subresource == "status":
        return {key: value for key, value in config.items() if key in ("apiVersion", "kind", "metadata", "status")}
    return {key: value for key, value in config.items() if key != "status" or "status" not in schema.properties}


def _display(entry: Json) -> str:
    """A manager as conflict messages name it."""
    name = f'"{entry["manager"]}"'
    if entry.get("subresource"):
        name += f' with subresource "{entry["subresource"]}"'
    return f"{name} using {entry['apiVersion']}" if entry["operation"] == "Update" else name
