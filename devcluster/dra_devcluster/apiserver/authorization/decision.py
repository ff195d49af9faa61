"""The answer of an authorizer."""

from __future__ import annotations

from typing import NamedTuple


class Decision(NamedTuple):
    """Yes or no; ``reason`` is what a refusal or a review says about it, if anything."""

    allowed: bool
    reason: str = ""
