"""The entries of `metadata.managedFields`, and their upkeep at ordinary writes.

An entry belongs to a manager together with operation (Apply or Update), subresource and, for updates, API version.
A manager that changes a field by an update becomes its only owner; the cost is a walk over the
changed branches only, since unchanged ones compare equal.
Fields are compared by name, whatever API version an entry was written under. The real server converts first. The result
is the same, because kinds with several versions differ only below lists that are owned as a whole.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dra_devcluster.apiserver.structure import Schema
from dra_devcluster.apiserver.structure.schema import Json

from .compare import object_changes
from .fields import Fields, difference, union, well_formed

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
