r"""How large the program of a regular expression becomes, from a walk over its text.

RE2 writes counted repetitions out and makes a program of bytes. So a class such as ``\pL`` takes 1,200 instructions,
and ``(?:\pL\pL\pL){300}`` a million: a second, and tens of megabytes, for 18 characters. The walk adds and multiplies
as RE2 does, without building anything: 20 ms for the longest pattern. It errs on the large side, and counts
``[\pL\pM]`` as the sum of its classes, for example. Patterns that RE2 refuses get a size like others.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

import re2  # type: ignore[import-untyped]  # the package ships no types

HUGE_INSTRUCTIONS: Final = 10**9
"""No size is larger, so that repetitions of repetitions stay small numbers."""
_BASE_INSTRUCTIONS: Final = 4
_ANY_INSTRUCTIONS: Final = 8
_SET_INSTRUCTIONS: Final = 32
"""``\\w``, ``[:alpha:]`` and other sets of ASCII, negated ones included."""
_NEGATED_INSTRUCTIONS: Final = 16
"""What is left of Unicode without a few characters."""
_RANGE_INSTRUCTIONS: Final = 8
"""A character or range beyond ASCII among others in brackets."""
_UNKNOWN_CLASS_INSTRUCTIONS: Final = 1300
_FOLDS: Final = re.compile(r"\(\?[a-zA-Z]*i")
_TOKEN: Final = re.compile(
    r"""
      (?P<klass>   \\[pP](?:\{[^}]*\}|.) )
    | (?P<quoted>  \\Q(?P<text>.*?)(?:\\E|\Z) )
    | (?P<set>     \\[dDsSwW] )
    | (?P<escape>  \\x\{[^}]*\} | \\x.. | \\[0-7]{1,3} | \\. )
    | (?P<bracket> \[\^?\]?(?: \[:\^?\w+:\] | \\[pP]\{[^}]*\} | \\Q.*?(?:\\E|\Z) | \\. | [^\]\\] )*\] )
    | (?P<flags>   \(\?[a-zA-Z-]*\) )
    | (?P<open>    \((?:\?(?:P?<[^>]*>|[a-zA-Z-]*:))? )
    | (?P<close>   \) )
    | (?P<either>  \| )
    | (?P<times>   [*+?]\?? | \{(?P<least>\d+)(?P<comma>,(?P<most>\d*))?\}\?? )
    | (?P<any>     \. )
    | (?P<other>   . )
    """,
    re.DOTALL | re.VERBOSE,
)
_ITEM: Final = re.compile(r"\\[pP](?:\{[^}]*\}|.)|\[:\^?\w+:\]|\\[dDsSwW]|\\x\{[^}]*\}|\\.|.", re.DOTALL)
_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False


def pattern_size(pattern: str) -> int:
    """The instructions of the pattern's program, about, and rarely fewer than it has."""
    folded = _FOLDS.search(pattern) is not None
    groups = [0]  # the sums of the groups that are open
    last = 0  # the size of what a repetition would repeat
    for token in _TOKEN.finditer(pattern):
        kind = token.lastgroup
        if kind == "times":
            last = min(HUGE_INSTRUCTIONS, _repeated(last, token))
            continue
        groups[-1] = min(HUGE_INSTRUCTIONS, groups[-1] + last)
        last = 0
        if kind == "open":
            groups.append(2)
        elif kind == "close":
            if len(groups) > 1:
                last = groups.pop()
        else:
            last = _atom(kind, token, folded)
    return min(HUGE_INSTRUCTIONS, _BASE_INSTRUCTIONS + last + sum(groups))


def _repeated(size: int, token: re.Match[str]) -> int:
    if token["least"] is None:
        return size + 1
    least, most = _number(token["least"]), token["most"]
    times = max(1, least, _number(most)) if most else max(1, least) + (token["comma"] is not None)
    return (size + 1) * times


def _number(digits: str) -> int:
    return int(digits[:10])  # RE2 refuses more than 1,000, so the rest decides nothing


def _atom(kind: str | None, token: re.Match[str], folded: bool) -> int:
    text = token[0]
    match kind:
        case "klass":
            return _class(text)
        case "quoted":
            return sum(_character(character, folded) for character in token["text"])
        case "set":
            return _SET_INSTRUCTIONS
        case "bracket":
            return (_NEGATED_INSTRUCTIONS if text[1] == "^" else 1) + sum(
                _item(item, folded) for item in _ITEM.findall(text[1:-1])
            )
        case "any":
            return _ANY_INSTRUCTIONS
        case "either" | "flags":
            return 1
        case "escape" if text.startswith("\\x"):
            return _character("\U0010ffff", folded)
        case "escape":
            return _character(text[1], folded)
        case _:
            return _character(text, folded)


def _character(character: str, folded: bool) -> int:
    if character.isascii():
        return 4 if folded else 1
    return 12 if folded else 4


def _item(item: str, folded: bool) -> int:
    if item[:2] in ("\\p", "\\P"):
        return _class(item)
    if item.startswith("[:") or item in ("\\d", "\\D", "\\s", "\\S", "\\w", "\\W"):
        return _SET_INSTRUCTIONS
    if item.isascii() and not item.startswith("\\"):
        return 3 if folded else 1
    return 3 * _RANGE_INSTRUCTIONS if folded else _RANGE_INSTRUCTIONS


@lru_cache(maxsize=1024)  # RE2 knows some 200 names
def _compiled_class(name: str) -> int:
    try:
        sizes: list[Any] = [re2.compile(flags + name, _OPTIONS).programsize for flags in ("", "(?i)")]
    except (re2.error, UnicodeEncodeError):
        return _UNKNOWN_CLASS_INSTRUCTIONS
    finally:
        re2.purge()
    return int(max(sizes))


def _class(name: str) -> int:
    """The size of a Unicode class, as RE2 has it, with and without regard to case."""
    return _compiled_class(name) if len(name) <= 40 else _UNKNOWN_CLASS_INSTRUCTIONS
