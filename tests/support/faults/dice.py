"""Whether a fault strikes: always the same for the same seed, request and number of the request.

Every decision has a generator of its own, made from the seed, the fault's place in the list, the request, and how many
like it were made before. One generator for all would make each decision depend on the order in which concurrent
requests happen to arrive.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Protocol, TypeVar

from api_call import ApiCall

from .target import Target


class Strikes(Protocol):
    """What a fault says about how often it strikes: not the first ``skip``, then at most ``count`` of its requests."""

    @property
    def on(self) -> Target: ...
    @property
    def probability(self) -> float: ...
    @property
    def skip(self) -> int: ...
    @property
    def count(self) -> int | None: ...


F = TypeVar("F", bound=Strikes)


class Dice:
    """Decisions about one list of faults."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._made: Counter[tuple[int, str, ApiCall]] = Counter()
        self._met: Counter[int] = Counter()
        self._struck: Counter[int] = Counter()

    def strikes(self, number: int, fault: Strikes, client: str, call: ApiCall) -> random.Random | None:
        """A generator for the details if the fault, ``number`` in its list, strikes this request."""
        if not fault.on.includes(client, call):
            return None
        made = self._made[number, client, call]
        self._made[number, client, call] += 1
        generator = random.Random(f"{self._seed} {number} {client} {call} {made}")
        if generator.random() >= fault.probability:
            return None
        self._met[number] += 1
        if self._met[number] <= fault.skip or (fault.count is not None and self._struck[number] >= fault.count):
            return None
        self._struck[number] += 1
        return generator
