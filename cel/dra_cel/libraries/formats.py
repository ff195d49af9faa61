"""Named formats: ``format.dns1123Label().validate(text)`` gives the complaints, or nothing.

The texts of complaints are those of Kubernetes, because expressions may compare them and their lengths count as cost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any, Final

from dra_cel.basics.declarations import (
    CHARACTER_COST,
    PATTERN_CHARACTER_COST,
    Estimate,
    Function,
    Operand,
    Range,
    Rule,
    exactly,
    glob,
    method,
    scale,
    size_of,
)
from dra_cel.basics.types import FORMAT, STRING, list_of, optional_of
from dra_cel.basics.values import NONE, Opaque, Optional

from . import addresses

Check = Callable[[str], list[str]]
_FORMAT_PATTERN_CHARACTERS: Final = 128

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN: Final = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*", re.ASCII)
_OLD_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_NAME: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)
_LABEL_VALUE: Final = re.compile(f"({_NAME.pattern})?", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})", re.ASCII)
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})", re.ASCII)
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))", re.ASCII)


class FormatValue(Opaque):
    """A format: its name, its check, and the length of its pattern, from which the cost follows."""

    __slots__ = ("check", "name", "pattern_length")
    cel_type = FORMAT
    no_key = True
    survives_repacking = True

    def __init__(self, name: str, pattern_length: int, check: Check) -> None:
        self.name = name
        self.pattern_length = pattern_length
        self.check = check

    def identity(self) -> str:
        return self.name


def _too_long(text: str, limit: int) -> list[str]:
    return [f"must be no more than {limit} bytes"] if len(text.encode("utf-8", "replace")) > limit else []


def _rule(rule: str, pattern: re.Pattern[str], *examples: str) -> str:
    """The complaint about a text that does not match a pattern."""
    shown = " or ".join(f"'{example}', " for example in examples)
    return f"{rule} (e.g. {shown}regex used for validation is '{pattern.pattern}')"


def _pattern(pattern: re.Pattern[str], limit: int, complaint: str) -> Check:
    def check(text: str) -> list[str]:
        return _too_long(text, limit) + ([] if pattern.fullmatch(text) else [complaint])

    return check


_ENDS: Final = "and must start and end with an alphanumeric character"
_LABEL_RULE: Final = _rule(
    f"a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', {_ENDS}",
    _LABEL,
    "my-name",
    "123-abc",
)
_subdomain: Final = _pattern(
    _SUBDOMAIN,
    253,
    _rule(
        f"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', {_ENDS}",
        _SUBDOMAIN,
        "example.com",
    ),
)
_old_label: Final = _pattern(
    _OLD_LABEL,
    63,
    _rule(
        "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic "
        "character, and end with an alphanumeric character",
        _OLD_LABEL,
        "my-name",
        "abc-123",
    ),
)
_CHARACTERS: Final = f"consist of alphanumeric characters, '-', '_' or '.', {_ENDS}"
_NAME_RULE: Final = _rule(f"must {_CHARACTERS}", _NAME, "MyName", "my.name", "123-abc")
_name_part: Final = _pattern(_NAME, 63, _NAME_RULE)
_label_value: Final = _pattern(
    _LABEL_VALUE,
    63,
    _rule(f"a valid label must be an empty string or {_CHARACTERS}", _LABEL_VALUE, "MyValue", "my_value", "12345"),
)


def _label(text: str) -> list[str]:
    if _LABEL.fullmatch(text):
        return _too_long(text, 63)
    return [*_too_long(text, 63), "must not contain dots" if _SUBDOMAIN.fullmatch(text) else _LABEL_RULE]


def _prefix_of(check: Check) -> Check:
    """The check for a prefix to which a generated suffix will be added: it may end with a dash."""
    return lambda text: check(text[:-2] + "a" if len(text) > 1 and text.endswith("-") else text)


def _qualified_name(text: str) -> list[str]:
    prefix, slash, name = text.rpartition("/")
    if "/" in prefix:
        return [
            f"a valid label key {_NAME_RULE} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    complaints: list[str] = []
    if slash:
        wrong = _subdomain(prefix) if prefix else ["must be non-empty"]
        complaints = [f"prefix part {line}" for line in wrong]
    if not name:
        complaints.append("name part must be non-empty")
    return complaints + [f"name part {line}" for line in _name_part(name)]


def _is_date(text: str) -> bool:
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    year, month, day = map(int, match.groups())
    try:
        date(year + 400 if year < 400 else year, month, day)
    except ValueError:
        return False
    return True


def _is_datetime(text: str) -> bool:
    day, t, time = text.lower().partition("t")
    match = _TIME.fullmatch(time.partition("t")[0]) if t else None
    return match is not None and _is_date(day) and match[1] <= "23" and match[2] <= "59" and match[3] <= "59"


def _uri(text: str) -> list[str]:
    complaint = addresses.request_fault(text)
    return [] if complaint is None else [complaint]


def _passing(passes: Callable[[str], object], complaint: str) -> Check:
    return lambda text: [] if passes(text) else [complaint]


FORMATS: Final = {
    name: FormatValue(name, length, check)
    for name, length, check in (
        ("dns1123Label", 30, _label),
        ("dns1123Subdomain", 60, _subdomain),
        ("dns1035Label", 30, _old_label),
        ("qualifiedName", 60, _qualified_name),
        ("dns1123LabelPrefix", 30, _prefix_of(_label)),
        ("dns1123SubdomainPrefix", 60, _prefix_of(_subdomain)),
        ("dns1035LabelPrefix", 30, _prefix_of(_old_label)),
        ("labelValue", 40, _label_value),
        ("uri", 1103, _uri),
        ("uuid", 70, _passing(_UUID.fullmatch, "does not match the UUID format")),
        ("byte", 84, _passing(_BASE64.fullmatch, "invalid base64")),
        ("date", 71, _passing(_is_date, "invalid date")),
        ("datetime", 71, _passing(_is_datetime, "invalid datetime")),
    )
}


def _named(name: str) -> Optional:
    return Optional(FORMATS[name]) if name in FORMATS else NONE


def _validate(format_: FormatValue, text: str) -> Optional:
    complaints = format_.check(text)
    return Optional(complaints) if complaints else NONE


def _estimate(operands: Sequence[Operand]) -> Estimate:
    text = operands[1].size.scaled(CHARACTER_COST)
    return Estimate(text.scaled(_FORMAT_PATTERN_CHARACTERS * PATTERN_CHARACTER_COST))


def _count(values: Sequence[Any], result: Any) -> int:
    if not isinstance(values[0], FormatValue):
        return 1
    text = scale(size_of(values[1]) + 1, CHARACTER_COST)
    return text * scale(values[0].pattern_length, PATTERN_CHARACTER_COST)


def _ceiling(operands: Sequence[Operand]) -> Range:
    """The estimate takes every pattern to be short, but that of URIs is not."""
    longest = max(format_.pattern_length for format_ in FORMATS.values())
    return operands[1].size.plus(exactly(1)).times(exactly(longest))


def _constant(value: FormatValue) -> Callable[[], FormatValue]:
    return lambda: value


LIBRARY: Final = (
    *(Function(f"format.{name}", (glob((), FORMAT, _constant(value)),)) for name, value in FORMATS.items()),
    Function("format.named", (glob((STRING,), optional_of(FORMAT), _named),)),
    Function(
        "validate",
        (method((FORMAT, STRING), optional_of(list_of(STRING)), _validate, Rule(_estimate, _count, _ceiling)),),
    ),
)
