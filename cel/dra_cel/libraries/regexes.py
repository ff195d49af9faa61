"""Regular expressions: RE2, whose matching time is linear in the text."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import re2  # type: ignore[import-untyped]  # the package ships no types

from dra_cel.errors import EvaluationError

_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False  # A bad pattern is the author's error, not a matter for our standard error.
_SHORT: Final = 128


@lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> Any:
    """The compiled pattern. Raises EvaluationError."""
    if _matches_bytes(pattern):
        raise EvaluationError("regex", r"error parsing regexp: \C is not supported")
    try:
        return re2.compile(pattern, _OPTIONS)
    except (re2.error, UnicodeEncodeError) as error:
        detail = error.args[0] if error.args else ""
        text = detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(error)
        raise EvaluationError("regex", f"error parsing regexp: {text}") from None


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
    if len(text) <= _SHORT and len(pattern) <= _SHORT:
        return _matches_short(text, pattern)
    return _search(compile_pattern(pattern), text) is not None


@lru_cache(maxsize=4096)
def _matches_short(text: str, pattern: str) -> bool:
    return _search(compile_pattern(pattern), text) is not None


def find(text: str, pattern: str) -> str:
    """The first match, or the empty text."""
    match = _search(compile_pattern(pattern), text)
    return match.group() if match else ""


def _search(compiled: Any, text: str) -> Any:
    try:
        return compiled.search(text)
    except UnicodeEncodeError:
        raise EvaluationError("regex", "the text is not valid Unicode") from None


def find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    """All matches, at most ``limit`` if it is not negative. Empty matches right after another match do not count."""
    compiled = compile_pattern(pattern)
    found: list[str] = []
    end = -1
    if limit == 0 or _search(compiled, text) is None:
        return found
    for match in compiled.finditer(text):
        if match.end() == match.start() == end:
            continue
        end = match.end()
        found.append(match.group())
        if len(found) == limit:
            break
    return found
