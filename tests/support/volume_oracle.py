"""Which volumes the unbound claims of a pod get on a node, decided by trying everything in the order of the rules.

Works on raw objects and shares nothing with placement: for each claim, the smallest first, it looks at every volume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from objects import Obj

Chosen = dict[str, str | None]
"""By claim: the volume that it gets, None for a new one."""
SIZES = {"1Gi": 1, "2Gi": 2, "3Gi": 3}


def size(amounts: Mapping[str, str]) -> int:
    return SIZES[amounts["storage"]]


def oracle(claims: Sequence[Obj], volumes: Sequence[Obj], classes: Mapping[str, Obj], node: Obj) -> Chosen | None:
    """None if the pod cannot run on the node."""
    chosen: Chosen = {}
    for claim in sorted(claims, key=lambda it: size(it["spec"]["resources"]["requests"])):
        name = claim["metadata"]["name"]
        selected = claim["metadata"].get("annotations", {}).get("volume.kubernetes.io/selected-node")
        if selected not in (None, node["name"]):
            return None
        found = None if selected else _find(claim, volumes, node, [it for it in chosen.values() if it])
        if found is None and not _can_make(classes[claim["spec"]["storageClassName"]], node):
            return None
        chosen[name] = found
    return chosen


def _find(claim: Obj, volumes: Sequence[Obj], node: Obj, taken: Sequence[str]) -> str | None:
    best: tuple[int, str] | None = None
    for volume in volumes:
        spec, name = volume["spec"], volume["metadata"]["name"]
        ref: Any = spec.get("claimRef")
        own = ref is not None and ref["name"] == claim["metadata"]["name"] and ref.get("uid", "") in ("", _uid(claim))
        if name in taken or (ref is not None and not own):
            continue
        if spec["storageClassName"] != claim["spec"]["storageClassName"]:
            continue
        if size(spec["capacity"]) < size(claim["spec"]["resources"]["requests"]):
            continue
        if own:
            return name if _reaches(volume, node) else None
        if volume["status"]["phase"] != "Available" or not _reaches(volume, node):
            continue
        if not set(claim["spec"]["accessModes"]) <= set(spec["accessModes"]):
            continue
        best = min(best or (99, ""), (size(spec["capacity"]), name))
    return best[1] if best else None


def _uid(claim: Obj) -> str:
    return str(claim["metadata"]["uid"])


def _reaches(volume: Obj, node: Obj) -> bool:
    affinity = volume["spec"].get("nodeAffinity")
    if affinity is None:
        return True
    (term,) = affinity["required"]["nodeSelectorTerms"]
    return all(node["labels"].get(it["key"]) in it["values"] for it in term["matchExpressions"])


def _can_make(storage_class: Obj, node: Obj) -> bool:
    if storage_class["provisioner"] == "kubernetes.io/no-provisioner":
        return False
    terms = storage_class.get("allowedTopologies") or []
    if not terms:
        return True
    return any(
        all(node["labels"].get(it["key"]) in it["values"] for it in term["matchLabelExpressions"]) for term in terms
    )
