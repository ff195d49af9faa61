"""LabelSelectors of objects (those of queries are in ``selectors``), and the requirements of node affinity."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import Json


def selects(selector: Json | None, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector matches; None matches nothing, an empty one everything."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(meets(requirement, labels) for requirement in selector.get("matchExpressions") or ())


def meets(requirement: Json, labels: Mapping[str, str]) -> bool:
    """Whether labels (or fields) meet one requirement; an operator that is not known is never met."""
    key, values = requirement.get("key", ""), requirement.get("values") or []
    match requirement.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt" | "Lt" as operator:
            try:
                number, bound = int(labels[key]), int(values[0])
            except (KeyError, IndexError, ValueError):
                return False
            return number > bound if operator == "Gt" else number < bound
    return False
