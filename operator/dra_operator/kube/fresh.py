"""Objects as the server has just sent them: an update on top of one needs no read before."""

from __future__ import annotations

from typing import Final

import msgspec
from dra_api.cache import Cache
from dra_api.meta import Object as Struct
from dra_kube import Object

KEPT_OBJECT_BYTES: Final = 4 << 20
"""Of all objects of a kind, as JSON; the oldest is forgotten first, and read when it is needed."""


class Fresh:
    """The last objects of a kind that were kept, as JSON: an object of Python takes ten times as much."""

    def __init__(self) -> None:
        self._objects: Cache[str, bytes] = Cache(KEPT_OBJECT_BYTES, lambda _, text: len(text))

    def keep(self, raw: Object) -> None:
        """Keep an object; it may change elsewhere."""
        self._objects.put(raw["metadata"]["uid"], msgspec.json.encode(raw))

    def take(self, obj: Struct) -> Object | None:
        """The object, to be changed and written; None if it was not kept in the version that the cache has."""
        text = self._objects.pop(obj.metadata.uid)
        if text is None:
            return None
        raw: Object = msgspec.json.decode(text)
        return raw if raw["metadata"]["resourceVersion"] == obj.metadata.resource_version else None
