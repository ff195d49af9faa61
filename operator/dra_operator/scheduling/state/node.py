"""A node as placement sees it: the object, and what the pods on it request."""

from __future__ import annotations

from collections.abc import Mapping

from dra_api.core import Node, Taint
from dra_api.relations.quota import may_be_devices

from .requests import POD_SLOTS, Amounts
from .taints import UNSCHEDULABLE, repelling, soft

_WEIGHED = ("cpu", "memory", POD_SLOTS)
_NOTHING: Amounts = {}


class LoadedNode:
    """``used`` sums the requests of all pods on the node, those whose binding is under way included.

    What every decision needs of a node is computed once per version of the node and change of its load.
    """

    __slots__ = ("counted", "emptiness", "name", "node", "offered", "soft_taints", "taints", "used")

    def __init__(self, node: Node, used: Amounts = _NOTHING) -> None:
        self.node = node
        self.name = node.metadata.name
        self.offered: Mapping[str, int] = {
            name: quantity.nanos for name, quantity in (node.status.allocatable or {}).items()
        }
        """What the node has in total, in billionths."""
        self.counted = frozenset(name for name, total in self.offered.items() if total > 0 and may_be_devices(name))
        """The extended resources that the node serves itself, by a device plugin."""
        self.taints: tuple[Taint, ...] = tuple(repelling(node.spec.taints or ()))
        """Those that keep pods away, the one of a cordoned node included."""
        self.soft_taints: tuple[Taint, ...] = tuple(soft(node.spec.taints or ()))
        """Those that only ask pods to stay away."""
        if node.spec.unschedulable:
            self.taints = (UNSCHEDULABLE, *self.taints)
        self._load(used)

    def with_load(self, used: Amounts) -> LoadedNode:
        """The same node with other pods on it."""
        state = LoadedNode.__new__(LoadedNode)
        state.node, state.name, state.offered, state.taints = self.node, self.name, self.offered, self.taints
        state.counted, state.soft_taints = self.counted, self.soft_taints
        state._load(used)
        return state

    def _load(self, used: Amounts) -> None:
        self.used = used
        free = [1 - used.get(name, 0) / offer for name in _WEIGHED if (offer := self.offered.get(name, 0)) > 0]
        self.emptiness = sum(free) / len(free) if free else 0.0
        """The share of the node that is free, from 0 to 1: the mean of cpu, memory and pod slots."""
