"""Label selectors as kubectl's ``-l`` takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dra_api.relations.label_selectors import Selector

from .answer import ExitCode, Problem

Matches = Callable[[Mapping[str, str] | None], bool]


def selecting(text: str | None) -> Matches:
    """Whether labels meet all requirements. Raises Problem."""
    try:
        selector = Selector.parse(text or "")
    except ValueError as error:
        raise Problem(f"--selector: {error}", ExitCode.USAGE) from error
    return lambda labels: selector.matches(labels or {})
