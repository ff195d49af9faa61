"""Events: selectable by what they are about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.structure import Fault

from .base import Kind, Write

_ABOUT = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


class EventKind(Kind):
    created_by_update = True
    selectable: Mapping[str, str] = MappingProxyType(
        {
            **{f"involvedObject.{field}": f"involvedObject.{field}" for field in _ABOUT},
            **{f"regarding.{field}": f"involvedObject.{field}" for field in _ABOUT},
            "reason": "reason",
            "type": "type",
            "reportingComponent": "reportingComponent",
            "reportingController": "reportingComponent",
            "source": "source.component",
        }
    )

    def fields(self, obj: Json) -> dict[str, str]:
        found = super().fields(obj)
        found["source"] = found["source"] or found["reportingComponent"]
        return found

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[Fault]:
        about = (obj.get("involvedObject") or {}).get("namespace", "")
        namespace = obj["metadata"].get("namespace", "")
        if about != namespace and (about or namespace != "default"):
            yield faults.invalid("involvedObject.namespace", about, "does not match event.namespace")
