"""Pods: defaults, what may change, and graceful deletion.

A pod that has a node is marked first; the node agent ends its containers and deletes it with a grace of 0.
A pod without a node, or one that has finished, goes at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dra_devcluster.apiserver.errors import Json

from .base import Kind, Write

_FINISHED = ("Succeeded", "Failed")


class PodKind(Kind):
    has_generation = True
    returns_deleted = True
    status_writes_metadata = True
    selectable: Mapping[str, str] = MappingProxyType(
        {
            "spec.nodeName": "spec.nodeName",
            "spec.restartPolicy": "spec.restartPolicy",
            "spec.schedulerName": "spec.schedulerName",
            "spec.serviceAccountName": "spec.serviceAccountName",
            "spec.hostNetwork": "spec.hostNetwork",
            "status.phase": "status.phase",
            "status.podIP": "status.podIP",
            "status.nominatedNodeName": "status.nominatedNodeName",
        }
    )

    def prepare_create(self, obj: Json, write: Write) -> None:
        obj["status"] = {"phase": "Pending"}

    def grace(self, obj: Json, wanted: int | None) -> int:
        spec = obj.get("spec") or {}
        if not spec.get("nodeName") or (obj.get("status") or {}).get("phase") in _FINISHED:
            return 0
        seconds = wanted if wanted is not None else spec.get("terminationGracePeriodSeconds", 30)
        return max(int(seconds), 0)
