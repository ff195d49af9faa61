"""The ledgers of one problem, made when a request first needs them."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from .ledger import Ledger
from .node_state import NodeState


class Ledgers:
    """Ledgers start from the state of the node."""

    def __init__(self, node: NodeState) -> None:
        self.node = node
        self._made: dict[Hashable, Ledger] = {}

    def get(self, key: Hashable, make: Callable[[NodeState], Ledger]) -> Ledger:
        """The ledger of this key: all requests that ask for the same one share it. ``make`` makes it for the first."""
        known = self._made.get(key)
        if known is None:
            known = self._made[key] = make(self.node)
        return known
