"""Which nodes a NodeSelector selects."""

from __future__ import annotations

from typing import Any

from dra_api.relations.label_selectors import Requirement

from dra_devcluster.apiserver.errors import Json


def selects(selector: Json, node: Json) -> bool:
    """Whether a NodeSelector selects the node."""
    labels, fields = node["metadata"].get("labels") or {}, {"metadata.name": node["metadata"]["name"]}
    return any(_is_met(term, labels, fields) for term in selector.get("nodeSelectorTerms") or ())


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
