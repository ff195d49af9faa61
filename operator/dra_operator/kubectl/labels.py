"""Label selectors as kubectl's ``-l`` takes them: ``app=web,tier!=test,zone in (a,b),gpu,!spot``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from .answer import ExitCode, Problem

Matches = Callable[[Mapping[str, str] | None], bool]
_PART: Final = re.compile(
    r"\s*(?:(?P<key>[\w./-]+)\s*(?P<op>==|=|!=)\s*(?P<value>[\w.-]*)"
    r"|(?P<of>[\w./-]+)\s+(?P<set>in|notin)\s*\((?P<values>[^)]*)\)"
    r"|(?P<absent>!)?\s*(?P<exists>[\w./-]+))\s*(?:,|$)"
)


def selecting(text: str | None) -> Matches:
    """Whether labels meet all requirements. Raises Problem."""
    tests: list[Callable[[Mapping[str, str]], bool]] = []
    place = 0
    while text and place < len(text):
        if (found := _PART.match(text, place)) is None:
            raise Problem(
                f"--selector: cannot read {text[place:]!r}; write KEY=VALUE, separated by commas", ExitCode.USAGE
            )
        place = found.end()
        tests.append(_test(found))
    return lambda labels: all(test(labels or {}) for test in tests)


def _test(found: re.Match[str]) -> Callable[[Mapping[str, str]], bool]:
    if key := found["key"]:
        value, is_equal = found["value"], found["op"] != "!="
        return lambda labels: (labels.get(key) == value) is is_equal
    if of := found["of"]:
        values, is_in = {one.strip() for one in found["values"].split(",")}, found["set"] == "in"
        return lambda labels: (labels.get(of) in values) is is_in
    name, is_there = found["exists"], not found["absent"]
    return lambda labels: (name in labels) is is_there
