"""Which nodes a pod may run on by its spec."""

from __future__ import annotations

from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.storage.metadata import dig
from dra_devcluster.apiserver.storage.node_selection import selects


def fits(spec: Json, node: Json) -> bool:
    """Whether a pod of this spec may run on the node: selector, required affinity, taints."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = dig(spec, "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution")
    if required and not selects(required, node):
        return False
    taints = [taint for taint in dig(node, "spec.taints") or () if taint.get("effect") != "PreferNoSchedule"]
    tolerations = spec.get("tolerations") or []
    return all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in taints)


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint.get("key")):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
