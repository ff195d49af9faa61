"""A pod that names its node runs on no other (kube-scheduler's NodeName)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dra_api.core import Pod

from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.obstacle import Obstacle, Reason

from .rule import NodeRule, RuleSurroundings

OTHER_NODE: Final = Reason("other-node", "node(s) not named by the pod")


class NodeName(NodeRule):
    """``spec.nodeName``."""

    def __init__(self, name: str) -> None:
        self._name = name

    @classmethod
    def of(cls, pod: Pod, _: RuleSurroundings) -> NodeName | None:
        """Only for a pod that names a node."""
        return cls(pod.spec.node_name) if pod.spec.node_name else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """Another node."""
        return Obstacle(OTHER_NODE) if self._name != state.name else None
