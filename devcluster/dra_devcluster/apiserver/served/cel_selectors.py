"""Checks the expressions of new objects: whether they compile, and what they may cost (api.md section 9)."""

from __future__ import annotations

from dra_api.releases.gates import FeatureGates
from dra_api.validation import SelectorCheck, SelectorVerdict
from dra_cel import CompileError, DerivedAttribute, compile, derived_attributes, device_selectors


def selector_check(gates: FeatureGates) -> SelectorCheck:
    """The check for these gates; stored selectors may use more than new ones."""
    features = {"consumable_capacity": gates.consumable_capacity, "list_attributes": gates.list_attributes}
    environments = {stored: device_selectors(new=not stored, **features) for stored in (False, True)}

    def check(expression: str, stored: bool) -> SelectorVerdict:
        try:
            return SelectorVerdict(max_cost=compile(expression, environments[stored]).max_cost)
        except CompileError as error:
            return SelectorVerdict(error=f"compilation failed: {_listing(error)}")

    return check


def derived_check(gates: FeatureGates) -> SelectorCheck:
    """The same for derived attributes (K37-DA-03)."""
    features = {"consumable_capacity": gates.consumable_capacity, "list_attributes": gates.list_attributes}
    environments = {stored: derived_attributes(new=not stored, **features) for stored in (False, True)}

    def check(expression: str, stored: bool) -> SelectorVerdict:
        try:
            return SelectorVerdict(max_cost=DerivedAttribute(expression, environments[stored]).max_cost)
        except CompileError as error:
            return SelectorVerdict(error=f"compilation failed: {_listing(error)}")

    return check


def _listing(error: CompileError) -> str:
    """All complaints as the real server shows them: each with its line and a mark below."""
    lines = error.expression.split("\n")
    return "\n".join(
        f"ERROR: <input>:{issue.line}:{issue.column}: {issue.message}\n"
        f" | {lines[issue.line - 1] if issue.line <= len(lines) else ''}\n"
        f" | {'.' * (issue.column - 1)}^"
        for issue in error.issues
    )
