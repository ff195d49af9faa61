"""Whether an answer about a CEL selector is the expected one.

The answer has the fields of ``expect``: ``kind``, and with it ``match`` or ``error_kind``, ``output_type``,
``max_cost``, ``actual_cost``. Messages are not compared. Neither is a cost that depends on the order of a map, nor a
field that the case does not expect.
"""

from __future__ import annotations

from typing import Any

from kit_compare import Unreadable

Json = dict[str, Any]
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
            return f"{name} {_shown(wanted)} expected, got {_shown(got)}{reason}"
    return None


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
