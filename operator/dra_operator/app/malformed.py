"""Objects that cannot be read: told once, left out, everything else goes on."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from dra_kube import Resource

from dra_operator.cluster import UidMemory

logger = logging.getLogger(__name__)


class Quarantine:
    """Warns about each malformed version of an object once. The last good version stays in the view.

    That matters for claims: forgetting one would set its devices free.
    """

    def __init__(self) -> None:
        self._told = UidMemory(1000)
        self.count = 0

    def tell(self, resource: Resource, raw: dict[str, Any] | bytes, error: Exception) -> None:
        """Name the object, the field at fault, and what to do."""
        meta = _metadata(raw)
        identity = f"{meta.get('uid')}/{meta.get('resourceVersion')}"
        if identity in self._told:
            return
        self._told.add(identity)
        self.count += 1
        name = "/".join(str(part) for part in (meta.get("namespace"), meta.get("name")) if part) or "(without a name)"
        logger.warning("%s %s is malformed and left out until it is mended: %s", resource.kind, name, error)


def _metadata(raw: dict[str, Any] | bytes) -> dict[str, Any]:
    try:
        obj = msgspec.json.decode(raw) if isinstance(raw, bytes) else raw
        meta = obj["metadata"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return {}
    return meta if isinstance(meta, dict) else {}
