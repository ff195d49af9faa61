"""Keeps managedFields when objects are created and changed; an apply does so itself."""

from __future__ import annotations

from dra_devcluster.apiserver.apply import Writer, track_update
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.storage.shapes import to_served
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
