"""Whether an answer is the expected one.

Share ids are random: what counts is whether there is one, and that no two are equal. Quantities are compared as
numbers. An entry of a claim's configuration counts once: Kubernetes 1.36 repeats it for each request that it names,
later versions do not. Missing, null and empty are the same.

An answer about a CEL selector has the fields of ``expect``: ``kind``, and with it ``match`` or ``error_kind``,
``output_type``, ``max_cost``, ``actual_cost``. Messages are not compared. Neither is a cost that depends on the order
of a map, nor a field that the case does not expect.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

Json = dict[str, Any]
DEPTHS = ("outcome", "devices", "all")
"""Outcomes only; also devices, shares and consumed capacity; also configuration, tolerations and node selectors."""

_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DEVICE = ("request", "driver", "pool", "device", "adminAccess", "shareID", "consumedCapacity")


class Unreadable(Exception):
    """An answer does not have the form that the README describes; the message says what is wrong."""


def difference(expected: list[Json], answer: Json, depth: str) -> str | None:
    """How an answer differs from the expected one; None when it does not. Raises Unreadable."""
    nodes = answer.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise Unreadable("the answer has no list nodes")
    for wanted, got in zip(expected, nodes, strict=False):
        said, name = (got.get("node"), got.get("outcome")), wanted["node"]
        if said != (name, wanted["outcome"]):
            return f"node {name}: {wanted['outcome']} expected, got {said[1]} on node {said[0]}{_reason(got)}"
        if wanted["outcome"] == "allocated" and depth != "outcome":
            ours, theirs = comparable(wanted.get("results"), depth), comparable(got.get("results"), depth)
            if ours != theirs:
                return f"node {name}: {_shown(ours)} expected, got {_shown(theirs)}"
            if not _distinct_shares(got["results"]):
                return f"node {name}: several devices have the same share id"
    if len(nodes) != len(expected):
        return f"{len(expected)} nodes expected to be tried, got {len(nodes)}"
    return None


def comparable(results: Any, depth: str) -> list[Any]:
    """One entry per claim, reduced to what is compared. Raises Unreadable."""
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        raise Unreadable("an allocated node has no list results with an object per claim")
    if depth == "devices":
        return [
            [_plain({key: device.get(key) for key in _DEVICE}) for device in _devices(result)] for result in results
        ]
    return [_plain(result) for result in results]


def number(quantity: Any) -> Decimal:
    """A Kubernetes quantity as a number. Raises Unreadable."""
    text = str(quantity)
    try:
        if text[-2:] in _BINARY:
            return Decimal(text[:-2]) * Decimal(1024 ** _BINARY[text[-2:]])
        suffix = text[-1:] if text[-1:] in _SUFFIXES else ""
        return Decimal(text[: len(text) - len(suffix)]).scaleb(_SUFFIXES[suffix])
    except InvalidOperation as error:
        raise Unreadable(f"{text!r} is no quantity") from error


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: _plain(item) for key, item in value.items() if item not in (None, [], {}, False, "")}
    if "shareID" in made:
        made["shareID"] = "any"
    if "consumedCapacity" in made:
        made["consumedCapacity"] = {key: number(text) for key, text in made["consumedCapacity"].items()}
    if isinstance(made.get("config"), list):
        made["config"] = _once(made["config"])
    return made


def _once(config: list[Any]) -> list[Any]:
    """Without repetitions of a claim's own entries."""
    own: list[Any] = []
    kept = []
    for entry in config:
        if entry.get("source") == "FromClaim":
            if entry in own:
                continue
            own.append(entry)
        kept.append(entry)
    return kept


def _devices(result: Json) -> list[Json]:
    return list((result.get("devices") or {}).get("results") or [])


def _distinct_shares(results: list[Json]) -> bool:
    shares = [device["shareID"] for result in results for device in _devices(result) if device.get("shareID")]
    return len(set(shares)) == len(shares)


def _reason(got: Json) -> str:
    return f" ({got['error']})" if got.get("error") else ""


def _shown(results: list[Any]) -> str:
    """Short where only devices are compared, everything otherwise."""
    return str(results) if len(str(results)) < 2000 else f"{str(results)[:2000]}..."


CEL_DEPTHS = ("outcome", "errors", "all")
"""What the selector says; also the kinds of errors and the type of the result; also what it costs."""

_KINDS = ("match", "compile_error", "runtime_error")
_FIELDS = {
    "outcome": ("kind", "match"),
    "errors": ("kind", "match", "error_kind", "output_type"),
    "all": ("kind", "match", "error_kind", "output_type", "max_cost", "actual_cost"),
}


def cel_difference(expected: Json, answer: Json, depth: str) -> str | None:
    """How an answer differs from the expected one; None when it does not. Raises Unreadable."""
    if answer.get("kind") not in _KINDS:
        raise Unreadable(f"the answer has no kind, which is one of {', '.join(_KINDS)}")
    unstable = ("actual_cost",) if expected.get("actual_cost_unstable") else ()
    for name in _FIELDS[depth]:
        wanted, got = expected.get(name), answer.get(name)
        if wanted is not None and name not in unstable and (type(wanted), wanted) != (type(got), got):
            reason = f" ({answer['message']})" if answer.get("message") else ""
            return f"{name} {_literal(wanted)} expected, got {_literal(got)}{reason}"
    return None


def _literal(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
