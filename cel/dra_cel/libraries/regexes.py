r"""Regular expressions: RE2, whose matching time is linear in the text.

Compiling is not linear in the pattern: counted repetitions are written out, and a Unicode class takes 1,200
instructions. So a pattern has a size, known from its text before anything is built (``pattern_size``). It decides:

- Above ``PATTERN_INSTRUCTIONS`` the pattern is refused. The limit leaves room for ``(?i)^\pL{1,64}$``, whose size is
  76,941.
- RE2's own limit of memory grows with the size up to 2 MiB. It holds for the program and for the states that matching
  adds, so it is the weight of a compiled pattern in the cache.
- Each pattern that an evaluation uses costs effort by its size, and each match by size and text. An expression with
  many large patterns ends with CostLimitExceeded.

Refusals are remembered like compiled patterns. The package's own cache is emptied each time: it keeps 128 patterns of
any size.

RE2 makes a program of bytes: a class such as ``\pL`` takes 1,200 instructions, and
``(?:\pL\pL\pL){300}`` a million: a second, and tens of megabytes, for 18 characters. The walk that sizes a pattern
adds and multiplies as RE2 does, without building anything: 20 ms for the longest pattern. It errs on the large side,
and counts ``[\pL\pM]`` as the sum of its classes, for example. Patterns that RE2 refuses get a size like others.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

import re2  # type: ignore[import-untyped]  # the package ships no types
from dra_api.cache import Cache

from dra_cel.basics.errors import CostLimitExceeded, EvaluationError, spend, spend_once

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


_SHORT_CHARACTERS: Final = 128
PATTERN_CHARACTERS: Final = 10_240
"""Characters of a pattern (of a whole selector, in Kubernetes' API)."""
UNICODE_CLASSES: Final = 500
r"""Classes like ``\pL`` in a pattern: each takes 30 kB while it is parsed."""
PATTERN_INSTRUCTIONS: Final = 120_000
"""Instructions of a pattern, which take 0.1 s to compile."""
PATTERN_BYTES: Final = 2 << 20
"""Bytes of the largest compiled pattern. RE2 finds out after 12 ms that a pattern does not fit."""
_LEAST_BYTES: Final = 64 << 10
_INSTRUCTION_BYTES: Final = 256
KEPT_PATTERN_BYTES: Final = 16 << 20
"""What all compiled patterns may take: seven of the largest, or 220 of a usual size."""
COMPILING_STEPS: Final = 2
"""Steps of effort for compiling an instruction: an evaluation may use patterns of 250,000 instructions, for 0.2 s."""
MATCHING_INSTRUCTIONS: Final = 1000
"""Instructions by characters that are one step of effort: 2 microseconds where RE2 has to try all of them."""


class Pattern(NamedTuple):
    """A pattern as RE2 has it; ``compiled`` is None if it is refused, and ``refusal`` says why."""

    text: str
    size: int
    compiled: Any
    refusal: str = ""


def memory(size: int) -> int:
    """Bytes that RE2 may take for a pattern of this size."""
    return min(PATTERN_BYTES, _LEAST_BYTES + _INSTRUCTION_BYTES * size)


def _weight(text: str, pattern: Pattern) -> int:
    # the package keeps the pattern as text and as bytes
    return 8 * len(text) + len(pattern.refusal) + (memory(pattern.size) if pattern.compiled is not None else 0)


_patterns: Final[Cache[str, Pattern]] = Cache(KEPT_PATTERN_BYTES, _weight, largest=2 * PATTERN_BYTES)


def compile_pattern(text: str) -> Pattern:
    """The compiled pattern. Raises EvaluationError."""
    pattern = _patterns.get(text)
    if pattern is None:
        refusal = _refused(text)
        size = 0 if refusal else pattern_size(text)
        if size > PATTERN_INSTRUCTIONS:
            refusal, size = _TOO_LARGE, 0
        _pay(text, size)
        pattern = _patterns.put(text, Pattern(text, size, None, refusal) if refusal else _compile(text, size))
    else:
        _pay(text, pattern.size)
    if pattern.compiled is None:
        raise EvaluationError("regex", f"error parsing regexp: {pattern.refusal}")
    return pattern


def forget() -> None:
    """Empties the caches of this module, for tests."""
    _patterns.clear()
    _matches_short.cache_clear()
    _find_short.cache_clear()


_TOO_LARGE: Final = (
    f"pattern too large: with its repetitions written out it has more than {PATTERN_INSTRUCTIONS:,} instructions; "
    r"repeat less often, or write narrower classes than \pL"
)


def _refused(text: str) -> str:
    """Why the pattern is refused at sight; otherwise nothing."""
    if len(text) > PATTERN_CHARACTERS:
        return f"more than {PATTERN_CHARACTERS} characters"
    if text.count("\\p") + text.count("\\P") > UNICODE_CLASSES:
        return f"more than {UNICODE_CLASSES} Unicode classes"
    return r"\C is not supported" if _matches_bytes(text) else ""


def _compile(text: str, size: int) -> Pattern:
    options = re2.Options()
    options.log_errors = False  # A bad pattern is an error of its author: RE2 must not print it to standard error.
    options.max_mem = memory(size)
    try:
        return Pattern(text, size, re2.compile(text, options))
    except (re2.error, UnicodeEncodeError) as error:
        message = _message(error)
        return Pattern(text, size, None, _TOO_LARGE if "too large" in message else message)
    finally:
        re2.purge()


def _pay(text: str, size: int) -> None:
    """The effort of compiling a pattern. Raises CostLimitExceeded."""
    try:
        spend_once(text, COMPILING_STEPS * size)
    except CostLimitExceeded:
        raise CostLimitExceeded(
            "the patterns of the expression are too large together; use fewer of them, repeat less often, or write "
            r"narrower classes than \pL"
        ) from None


def _message(error: Exception) -> str:
    detail = error.args[0] if error.args else ""
    return detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(error)


def _matches_bytes(pattern: str) -> bool:
    r"""Whether the pattern uses ``\C``, which RE2 has and the reference refuses."""
    at = pattern.find("\\")
    while at >= 0:
        escaped = pattern[at + 1 : at + 2]
        if escaped == "C":
            return True
        if escaped == "Q":
            at = pattern.find("\\E", at + 2)
            if at < 0:
                return False
        at = pattern.find("\\", at + 2)
    return False


def matches(text: str, pattern: str) -> bool:
    """Whether the pattern is found in the text. Answers for short texts are remembered: devices repeat their values."""
    if len(text) > _SHORT_CHARACTERS or len(pattern) > _SHORT_CHARACTERS:
        return _search(compile_pattern(pattern), text) is not None
    answer, size = _matches_short(text, pattern)
    _pay(pattern, size)
    _pay_match(text, size)
    return answer


@lru_cache(maxsize=4096)
def _matches_short(text: str, pattern: str) -> tuple[bool, int]:
    compiled = compile_pattern(pattern)
    return _found(compiled, text) is not None, compiled.size


def find(text: str, pattern: str) -> str:
    """The first match, or the empty text. Remembered like the answers of ``matches``."""
    if len(text) > _SHORT_CHARACTERS or len(pattern) > _SHORT_CHARACTERS:
        match = _search(compile_pattern(pattern), text)
        return match.group() if match else ""
    answer, size = _find_short(text, pattern)
    _pay(pattern, size)
    _pay_match(text, size)
    return answer


@lru_cache(maxsize=1024)
def _find_short(text: str, pattern: str) -> tuple[str, int]:
    compiled = compile_pattern(pattern)
    match = _found(compiled, text)
    return match.group() if match else "", compiled.size


def _pay_match(text: str, size: int) -> None:
    """The effort of one search, by what it takes if all instructions are tried at each character."""
    spend(len(text) * size // MATCHING_INSTRUCTIONS)


def _search(pattern: Pattern, text: str) -> Any:
    _pay_match(text, pattern.size)
    return _found(pattern, text)


def _found(pattern: Pattern, text: str) -> Any:
    try:
        return pattern.compiled.search(text)
    except UnicodeEncodeError:
        raise EvaluationError("regex", "the text is not valid Unicode") from None


def find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    """All matches, at most ``limit`` unless it is negative, without empty matches right after another match."""
    compiled = compile_pattern(pattern)
    found: list[str] = []
    end = -1
    if limit == 0 or _search(compiled, text) is None:
        return found
    for match in compiled.compiled.finditer(text):
        if match.end() == match.start() == end:
            continue
        end = match.end()
        found.append(match.group())
        if len(found) == limit:
            break
    return found
