"""Costly evaluations under way: each holds the values that its selector has built so far, up to some megabytes.

There are seats for a few. When they are taken, the tenant with the most gives up its oldest one: what was begun on a
device is begun again in its next turn. So one tenant's selectors neither fill the memory nor stop another one's.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

SEAT_COUNT: Final = 16


class Work(Protocol):
    """What is under way."""

    def put_down(self) -> None:
        """Forget what was begun."""


class InWork:
    """``seats``: how many evaluations may be under way."""

    def __init__(self, seats: int = SEAT_COUNT) -> None:
        self._seats = seats
        self._tenants: dict[Work, str] = {}

    def entered(self, work: Work, tenant: str) -> None:
        """It begins on another device."""
        self._tenants.pop(work, None)
        if len(self._tenants) >= self._seats:
            greediest, _ = Counter(self._tenants.values()).most_common(1)[0]
            oldest = next(one for one, its in self._tenants.items() if its == greediest)
            del self._tenants[oldest]
            oldest.put_down()
        self._tenants[work] = tenant

    def left(self, work: Work) -> None:
        """It is done."""
        self._tenants.pop(work, None)
