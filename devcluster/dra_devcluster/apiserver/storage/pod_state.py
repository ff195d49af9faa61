"""Questions about a pod's status."""

from __future__ import annotations

from dra_devcluster.apiserver.errors import Json

from .metadata import dig

FINISHED = ("Succeeded", "Failed")


def is_ready(pod: Json) -> bool:
    """Whether the condition Ready is true."""
    conditions = dig(pod, "status.conditions") or ()
    return any(entry.get("type") == "Ready" and entry.get("status") == "True" for entry in conditions)


def has_ended(pod: Json) -> bool:
    """Whether no container will run again."""
    return dig(pod, "status.phase") in FINISHED
