"""Feature gates as the command line takes them."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from dra_api.gates import FeatureGates, UnknownGate

from dra_operator.allocator import GATES, Features

REMEDY: Final = "write NAME=true or NAME=false, separated by commas"


def features_of(text: str) -> Features:
    """The features with these gates changed. Raises UnknownGate, also for gates without effect on the operator."""
    pairs = (part.partition("=") for part in text.split(",") if part)
    values: dict[str, Any] = {
        name.strip(): {"true": True, "false": False}.get(value, value) for name, _, value in pairs
    }
    if unknown := sorted(values.keys() - GATES):
        raise UnknownGate(f"the operator does not look at {', '.join(unknown)}, only at {', '.join(sorted(GATES))}")
    gates: dict[str, bool] = msgspec.to_builtins(FeatureGates.of(values))
    return Features.from_gates(name for name, is_on in gates.items() if is_on)
