"""Regular expressions: RE2, whose matching time is linear in the text."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import re2  # type: ignore[import-untyped]  # the package ships no types

from dra_cel.errors import EvaluationError

_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False  # A bad pattern is an error of its author: RE2 must not print it to standard error.
_LARGE: Final = re2.Options()
_LARGE.log_errors = False
_LARGE.max_mem = 64 << 20  # The reference allows even more; few patterns need it, so few are kept.
_SHORT: Final = 128
PATTERN_LIMIT: Final = 10_240
"""Characters of a pattern (of a whole selector, in Kubernetes' API)."""
CLASS_LIMIT: Final = 500
r"""Classes like ``\pL`` in a pattern: each takes 30 kB while it is parsed."""


def compile_pattern(pattern: str) -> Any:
    """The compiled pattern. Raises EvaluationError."""
    if len(pattern) > PATTERN_LIMIT:
        raise EvaluationError("regex", f"error parsing regexp: more than {PATTERN_LIMIT} characters")
    if pattern.count("\\p") + pattern.count("\\P") > CLASS_LIMIT:
        raise EvaluationError("regex", f"error parsing regexp: more than {CLASS_LIMIT} Unicode classes")
    if _matches_bytes(pattern):
        raise EvaluationError("regex", r"error parsing regexp: \C is not supported")
    return _compile(pattern) or _compile_large(pattern)


@lru_cache(maxsize=512)
def _compile(pattern: str) -> Any:
    """The compiled pattern, or None if it is too large for the usual limit."""
    try:
        return re2.compile(pattern, _OPTIONS)
    except (re2.error, UnicodeEncodeError) as error:
        message = _message(error)
        if "too large" in message:
            return None
        raise EvaluationError("regex", f"error parsing regexp: {message}") from None


@lru_cache(maxsize=4)
def _compile_large(pattern: str) -> Any:
    try:
        return re2.compile(pattern, _LARGE)
    except re2.error as error:
        raise EvaluationError("regex", f"error parsing regexp: {_message(error)}") from None


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
    if len(text) <= _SHORT and len(pattern) <= _SHORT:
        return _matches_short(text, pattern)
    return _search(compile_pattern(pattern), text) is not None


@lru_cache(maxsize=4096)
def _matches_short(text: str, pattern: str) -> bool:
    return _search(compile_pattern(pattern), text) is not None


def find(text: str, pattern: str) -> str:
    """The first match, or the empty text. Remembered like the answers of ``matches``."""
    return _find_short(text, pattern) if len(text) <= _SHORT and len(pattern) <= _SHORT else _find(text, pattern)


def _find(text: str, pattern: str) -> str:
    match = _search(compile_pattern(pattern), text)
    return match.group() if match else ""


_find_short: Final = lru_cache(maxsize=4096)(_find)


def _search(compiled: Any, text: str) -> Any:
    try:
        return compiled.search(text)
    except UnicodeEncodeError:
        raise EvaluationError("regex", "the text is not valid Unicode") from None


def find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    """All matches, at most ``limit`` unless it is negative, without empty matches right after another match."""
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
