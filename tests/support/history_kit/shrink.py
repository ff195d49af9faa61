"""The few steps and strikes of a history without which nothing goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .game import Game, Step

Part = Step | str
"""A step, or a strike of the weather."""


def shrunk(game: Game, seed: int) -> tuple[Any, tuple[str, ...]]:
    """A script and the strikes of its weather, none of which can be left out alone; for a seed that goes wrong."""
    script = game.script_of(seed)

    def goes_wrong(parts: Sequence[Part]) -> bool:
        steps, strikes = _split(parts)
        return bool(game.play(seed, script._replace(steps=steps), strikes).findings)

    parts: Sequence[Part] = [*script.steps, *game.play(seed).strikes]
    before = len(parts) + 1
    while len(parts) < before:
        before = len(parts)
        parts = _fewest(parts, goes_wrong)
    steps, strikes = _split(parts)
    return script._replace(steps=steps), strikes


def _split(parts: Sequence[Part]) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    steps = tuple(part for part in parts if isinstance(part, Step))
    return steps, tuple(part for part in parts if not isinstance(part, Step))


def _fewest(parts: Sequence[Part], is_enough: Callable[[Sequence[Part]], bool]) -> Sequence[Part]:
    """Leave out halves, quarters, ... down to single ones, as long as the rest is enough (delta debugging)."""
    size = len(parts)
    while size:
        start = 0
        while start < len(parts):
            fewer = [*parts[:start], *parts[start + size :]]
            if is_enough(fewer):
                parts = fewer
            else:
                start += size
        size //= 2
    return parts
