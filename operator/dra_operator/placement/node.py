"""A node as placement sees it: the object, and what the pods on it already ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_api.core import Node

from .requests import Amounts


@dataclass(frozen=True, slots=True)
class NodeState:
    """``used`` sums the requests of all pods on the node, those whose binding is under way included."""

    node: Node
    used: Amounts = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.node.metadata.name

    @property
    def allocatable(self) -> Mapping[str, int]:
        """What the node offers in total, in billionths."""
        return {name: quantity.nanos for name, quantity in (self.node.status.allocatable or {}).items()}
