"""Selecting objects: the label and field selectors of a query as tests, NodeSelectors, and questions about a status."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dra_api.selectors import Requirement

from dra_devcluster.apiserver.errors import Json, bad_request
from dra_devcluster.apiserver.metadata import dig

Test = Callable[[Mapping[str, str]], bool]

_KEY = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9.]{0,251}[A-Za-z0-9])?/)?[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?"
_EQUALITY = re.compile(rf"(?P<key>{_KEY})\s*(?P<operator>==|=|!=)\s*(?P<value>{_VALUE})")
_MEMBER = re.compile(rf"(?P<key>{_KEY})\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)")
_PRESENCE = re.compile(rf"(?P<absent>!?)\s*(?P<key>{_KEY})")
_NUMERIC = re.compile(rf"(?P<key>{_KEY})\s*(?P<operator>[<>])\s*(?P<value>-?[0-9]+)")
_ALWAYS = ("metadata.name", "metadata.namespace")
_SEPARATOR = re.compile(r",(?![^()]*\))")


def label_test(selector: str) -> Test | None:
    """The test for a label selector, None when it selects everything. Raises a 400."""
    parts = _SEPARATOR.split(selector) if selector.strip() else []
    return _all([_label_requirement(part.strip(), selector) for part in parts])


def field_test(selector: str, supported: Collection[str]) -> Test | None:
    """The test for a field selector over the fields a resource supports. Raises a 400."""
    tests = [_field_requirement(part.strip(), selector, supported) for part in selector.split(",") if part.strip()]
    return _all(tests)


def equals_of(selector: str) -> dict[str, str]:
    """The ``field=value`` pairs of a field selector: short cuts for a look-up."""
    pairs = {}
    for part in selector.split(","):
        if "!=" not in part and "=" in part:
            key, _, value = part.partition("=")
            pairs[key.strip()] = value.lstrip("=").strip()
    return pairs


def _all(tests: list[Test]) -> Test | None:
    if len(tests) < 2:
        return tests[0] if tests else None
    return lambda values: all(test(values) for test in tests)


def _label_requirement(part: str, selector: str) -> Test:
    if match := _EQUALITY.fullmatch(part):
        operator = "NotIn" if match["operator"] == "!=" else "In"
        return Requirement(match["key"], operator, frozenset((match["value"],))).holds
    if match := _MEMBER.fullmatch(part):
        values = frozenset(value.strip() for value in match["values"].split(","))
        if not all(re.fullmatch(_VALUE, value) for value in values):
            raise bad_request(f"unable to parse requirement: {part!r} has an invalid label value")
        return Requirement(match["key"], "NotIn" if match["operator"] == "notin" else "In", values).holds
    if match := _PRESENCE.fullmatch(part):
        return Requirement(match["key"], "DoesNotExist" if match["absent"] else "Exists").holds
    if match := _NUMERIC.fullmatch(part):
        key, operator, bound = match["key"], "Gt" if match["operator"] == ">" else "Lt", match["value"]
        return lambda labels: _compares(labels.get(key), operator, bound)
    raise bad_request(f"unable to parse requirement: {part!r} in label selector {selector!r}")


def _compares(text: str | None, operator: str, bound: str) -> bool:
    """Whether a whole number is greater or less than the bound; False for other texts."""
    try:
        number, limit = int(text or ""), int(bound)
    except ValueError:
        return False
    return number > limit if operator == "Gt" else number < limit


def _field_requirement(part: str, selector: str, supported: Collection[str]) -> Test:
    match = re.fullmatch(r"(?P<key>[^=!]+?)(?P<operator>==|!=|=)(?P<value>.*)", part)
    if match is None:
        raise bad_request(f"invalid selector: '{selector}'; can't understand '{part}'")
    key, value = match["key"], match["value"].replace("\\,", ",").replace("\\=", "=")
    if key not in supported:
        if len(supported) > len(_ALWAYS):
            raise bad_request(f"field label not supported: {key}")
        known = ", ".join(f'"{name}"' for name in supported)
        raise bad_request(f'"{key}" is not a known field selector: only {known}')
    if match["operator"] == "!=":
        return lambda fields: fields.get(key, "") != value
    return lambda fields: fields.get(key, "") == value


def selects(selector: Json, node: Json) -> bool:
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
    if operator in ("Gt", "Lt"):
        return _compares(labels.get(key), operator, values[0] if values else "")
    return Requirement(key, operator, frozenset(values)).holds(labels)


FINISHED = ("Succeeded", "Failed")


def is_ready(obj: Json) -> bool:
    """Whether the condition Ready of a pod or node is true."""
    conditions = dig(obj, "status.conditions") or ()
    return any(entry.get("type") == "Ready" and entry.get("status") == "True" for entry in conditions)


def has_ended(pod: Json) -> bool:
    """Whether no container will run again."""
    return dig(pod, "status.phase") in FINISHED
