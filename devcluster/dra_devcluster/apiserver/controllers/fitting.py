"""Which nodes a pod may run on by its spec."""

from __future__ import annotations

from typing import Any

from dra_api.label_selectors import Requirement

from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.metadata import dig


def fits(spec: Json, node: Json) -> bool:
    """Whether a pod of this spec may run on the node: selector, required affinity, taints."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = dig(spec, "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution")
    fields = {"metadata.name": node["metadata"]["name"]}
    if required and not any(_is_met(term, labels, fields) for term in required.get("nodeSelectorTerms") or ()):
        return False
    taints = [taint for taint in dig(node, "spec.taints") or () if taint.get("effect") != "PreferNoSchedule"]
    tolerations = spec.get("tolerations") or []
    return all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in taints)


def _is_met(term: Json, labels: dict[str, Any], fields: dict[str, str]) -> bool:
    expressions, by_field = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not by_field:
        return False
    return all(_holds(item, labels) for item in expressions) and all(_holds(item, fields) for item in by_field)


def _holds(wish: Json, labels: dict[str, Any]) -> bool:
    """A requirement of a label selector, or one that compares whole numbers."""
    key, operator, values = wish.get("key", ""), wish.get("operator", ""), wish.get("values") or []
    if operator not in ("Gt", "Lt"):
        return Requirement(key, operator, frozenset(values)).holds(labels)
    try:
        number, bound = int(labels[key]), int(values[0])
    except (KeyError, IndexError, ValueError):
        return False
    return number > bound if operator == "Gt" else number < bound


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint.get("key")):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
