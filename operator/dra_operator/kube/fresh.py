"""Objects as the server has just sent them: an update on top of one needs no read before."""

from __future__ import annotations

from collections import OrderedDict

from dra_api.meta import Object as Struct
from dra_kube import Object

LIMIT = 1000
"""Objects kept; the oldest is forgotten first, and read when it is needed."""


class Fresh:
    """The last ``LIMIT`` objects of a kind that were kept."""

    def __init__(self) -> None:
        self._objects: OrderedDict[str, Object] = OrderedDict()

    def keep(self, raw: Object) -> None:
        """Keep an object; it may change elsewhere, in its metadata and top level."""
        self._objects[raw["metadata"]["uid"]] = {**raw, "metadata": dict(raw["metadata"])}
        if len(self._objects) > LIMIT:
            self._objects.popitem(last=False)

    def take(self, obj: Struct) -> Object | None:
        """The object, to be changed and written; None if it was not kept in the version that the view has."""
        raw = self._objects.pop(obj.metadata.uid, None)
        is_same = raw is not None and raw["metadata"]["resourceVersion"] == obj.metadata.resource_version
        return raw if is_same else None
