"""Node selector and required node affinity: the labels and fields a node must have (kube-scheduler's NodeAffinity).

Preferred node affinity is a score, in ``scores``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from dra_api.core import NodeSelector, Pod

from dra_operator.allocator import node_selectors
from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.obstacle import Obstacle, Reason

from .rule import NodeRule, RuleSurroundings

NODE_SELECTOR: Final = Reason("node-selector", "node(s) didn't match the pod's node selector or affinity")


class NodeAffinity(NodeRule):
    """``spec.nodeSelector`` and ``spec.affinity.nodeAffinity``."""

    def __init__(self, labels: Mapping[str, str], required: NodeSelector | None) -> None:
        self._labels = tuple(labels.items())
        self._required = required
        self._terms: tuple[node_selectors.NodeTerm, ...] | None = None

    @classmethod
    def of(cls, pod: Pod, _: RuleSurroundings) -> NodeAffinity | None:
        """Only for a pod that selects nodes."""
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
        required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
        labels = pod.spec.node_selector or {}
        return cls(labels, required) if labels or required is not None else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """The node is not selected. Raises NodeSelectionError."""
        labels = state.node.metadata.labels or {}
        if any(labels.get(key) != value for key, value in self._labels):
            return Obstacle(NODE_SELECTOR)
        if self._required is None:
            return None
        if self._terms is None:  # looked up once, since that takes as long as the selector is large
            self._terms = node_selectors.parse(self._required)
        return Obstacle(NODE_SELECTOR) if node_selectors.first_match(self._terms, state.node) is None else None
