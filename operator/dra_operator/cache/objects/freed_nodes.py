"""On which nodes room came free: what a pod that lacked room may find when it is tried again.

Where a thousand pods lack cpu, that of a pod which ends may help any of them, and it is gone when the first one has
been tried. So the others are asked first whether they would fit on one of these nodes as it is now.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator


class FreedNodes:
    """Names of nodes, in the order in which room came free on them last."""

    def __init__(self) -> None:
        self._freed_at: OrderedDict[str, int] = OrderedDict()
        self.number = 0
        """How often room came free."""

    def freed(self, node: str) -> None:
        """A pod left the node, or takes less of it than before."""
        self.number += 1
        self._freed_at.pop(node, None)
        self._freed_at[node] = self.number

    def gone(self, node: str) -> None:
        """There is no such node any more."""
        self._freed_at.pop(node, None)

    def since(self, number: int) -> Iterator[str]:
        """The nodes on which room came free after this number of times, the latest first."""
        for node, freed_at in reversed(self._freed_at.items()):
            if freed_at <= number:
                return
            yield node
