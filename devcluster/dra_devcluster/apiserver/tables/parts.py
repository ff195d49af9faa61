"""What the cells of many kinds are made of."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from .ages import age

Json = dict[str, Any]
NONE = "<none>"


def name(obj: Json) -> str:
    """The object's name."""
    return str(obj["metadata"].get("name", ""))


def created(obj: Json, now: datetime) -> str:
    """The AGE column."""
    return age(obj["metadata"].get("creationTimestamp"), now)


def spec_of(obj: Json) -> Json:
    """The spec, empty when there is none."""
    return obj.get("spec") or {}


def status_of(obj: Json) -> Json:
    """The status, empty when there is none."""
    return obj.get("status") or {}


def joined(values: Iterable[Any]) -> str:
    """The values with commas between."""
    return ",".join(str(value) for value in values)


def selector_text(selector: Json | None) -> str:
    """A label selector as text; `<none>` when it is absent or empty."""
    selector = selector or {}
    terms = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or []:
        values = f"({joined(term.get('values') or [])})"
        key, operator = term.get("key", ""), term.get("operator")
        in_words = {
            "In": f"{key} in {values}",
            "NotIn": f"{key} notin {values}",
            "Exists": key,
            "DoesNotExist": f"!{key}",
        }
        terms.append(in_words.get(operator or "", key))
    return ",".join(terms) or NONE


def label_text(labels: Json | None) -> str:
    return selector_text({"matchLabels": labels or {}})
