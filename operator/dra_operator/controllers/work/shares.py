"""How many workers of a queue one namespace may have at the same time.

A write takes as long as the API server needs, and who made the object decides that: a pod of a megabyte takes it
seconds. All workers would soon wait for the pods of one namespace, and none would be left for another. So a namespace
that has workers gets another one only if it then has at most ``WORKERS_PER_FREE_ONE`` for each that is left free. One
alone gets two thirds of them, the next one two thirds of the rest, and one that has none may take the last.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

WORKERS_PER_FREE_ONE: Final = 2


def may_have_another(held: int, free: float) -> bool:
    """Whether a namespace that has so many may get one of those that are free."""
    return not held or held < WORKERS_PER_FREE_ONE * (free - 1)


class Shares:
    """Of so many workers; infinity means that there is always another one."""

    def __init__(self, workers: float) -> None:
        self._free = workers
        self._held: Counter[str] = Counter()

    def may_take(self, namespace: str) -> bool:
        """Whether the namespace may have another worker."""
        return may_have_another(self._held[namespace], self._free)

    def take(self, namespace: str) -> None:
        """It has another one."""
        self._free -= 1
        self._held[namespace] += 1

    def give_back(self, namespace: str) -> None:
        """It has one less."""
        self._free += 1
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]
