"""The parameters of lists and watches: numbers, and which parameters may be given together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dra_devcluster.apiserver.errors import Json, bad_request, invalid_options
from dra_devcluster.apiserver.faults import forbidden, unsupported
from dra_devcluster.apiserver.structure import Fault

_MATCH = "resourceVersionMatch"
_INITIAL = "sendInitialEvents"


def number(query: Json, name: str) -> int:
    """A number of the query; 0 if it is missing. Raises a 400."""
    text = query.get(name, "0")
    if not re.fullmatch("[+-]?[0-9]+", text, re.ASCII):
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    if not re.fullmatch("[+-]?0*[0-9]{1,19}", text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": value out of range')
    return int(text)


def revision(query: Json) -> int:
    """The resourceVersion; 0 if it is missing. Raises a 400."""
    text = query.get("resourceVersion", "")
    if text and not re.fullmatch("[0-9]{1,18}", text, re.ASCII):
        why = f'strconv.ParseUint: parsing "{text}": invalid syntax'
        raise bad_request(f'invalid resource version: resourceVersion: Invalid value: "{text}": {why}')
    return int(text or "0")


def check_list(query: Json) -> None:
    """Raises a 400 or 422."""
    number(query, "timeoutSeconds")
    if faults := list(_list_faults(query)):
        raise invalid_options("List", *faults)


def check_watch(query: Json) -> None:
    """Raises a 422."""
    if faults := list(_watch_faults(query)):
        raise invalid_options("List", *faults)


def _list_faults(query: Json) -> Iterator[Fault]:
    if match := query.get(_MATCH, ""):
        if not query.get("resourceVersion"):
            yield forbidden(_MATCH, f"{_MATCH} is forbidden unless resourceVersion is provided")
        if query.get("continue"):
            yield _with_continue()
        if match not in ("Exact", "NotOlderThan"):
            yield unsupported(_MATCH, match, ["Exact", "NotOlderThan", ""])
        if match == "Exact" and query.get("resourceVersion") == "0":
            yield forbidden(_MATCH, f'{_MATCH} "exact" is forbidden for resourceVersion "0"')
    if _INITIAL in query:
        yield forbidden(_INITIAL, f"{_INITIAL} is forbidden for list")


def _watch_faults(query: Json) -> Iterator[Fault]:
    match = query.get(_MATCH, "")
    if _INITIAL in query and match != "NotOlderThan":
        yield forbidden(_MATCH, f"{_INITIAL} requires setting {_MATCH} to NotOlderThan")
    if match and _INITIAL not in query:
        yield forbidden(_MATCH, f"{_MATCH} is forbidden for watch unless {_INITIAL} is provided")
    if match not in ("", "NotOlderThan"):
        yield unsupported(_MATCH, match, ["NotOlderThan"])
    if query.get("continue"):
        yield _with_continue()


def _with_continue() -> Fault:
    return forbidden(_MATCH, f"{_MATCH} is forbidden when continue is provided")
