"""Server-side apply: a manager states the fields it wants; the server merges them and remembers who owns what.

The applied configuration is merged over the live object (list-maps by key, sets as sets, atomics as a whole). Fields
that the manager stated last time but not now are removed, unless another manager owns them. A field that another
manager owns and the merge would change is a conflict: 409, or with `force` the manager takes it over.
"""

from typing import Any

from dra_devcluster.apiserver.apply.managers import (
    Fields,
    difference,
    element,
    granular_list,
    held,
    intersection,
    member,
    object_changes,
    owned_part,
    paths,
    union,
)
from dra_devcluster.apiserver.structure import ANY, Schema
from dra_devcluster.apiserver.structure.schema import Json

from .managers import Writer, disown, entries_of


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
    """`config` over `live`."""
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
