"""A pod runs on no node with a taint that it does not tolerate (kube-scheduler's TaintToleration, NodeUnschedulable).

A cordoned node has a taint for that. A placeholder pod stands for an immediate claim, which has no tolerations: only
taints that say how the node is, or that it belongs to another scheduler, keep it away.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from dra_api.core import Pod, Toleration

from dra_operator.allocator import scheduler_of
from dra_operator.scheduling.state.node import (
    NODE_CONDITION,
    UNSCHEDULABLE,
    LoadedNode,
    tolerations_of,
    untolerated,
)
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.scheduling.state.placeholder import is_placeholder

from .rule import NodeRule, RuleSurroundings

CORDONED: Final = Reason("cordoned", "node(s) were unschedulable")
TAINT: Final = Reason("taint", "node(s) had untolerated taint {{{subject}: {detail}}}")


class TaintToleration(NodeRule):
    """``spec.tolerations``; every pod has this rule."""

    def __init__(self, tolerations: Sequence[Toleration], *, is_placeholder: bool) -> None:
        self._tolerations = tolerations
        self._is_placeholder = is_placeholder

    @classmethod
    def of(cls, pod: Pod, _: RuleSurroundings) -> TaintToleration:
        """The pod's tolerations."""
        return cls(tolerations_of(pod), is_placeholder=is_placeholder(pod))

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """The first taint that is not tolerated."""
        taints = state.taints
        if taints and self._is_placeholder:
            taints = tuple(it for it in taints if it.key.startswith(NODE_CONDITION) or scheduler_of(it) is not None)
        if not taints or (taint := untolerated(taints, self._tolerations)) is None:
            return None
        return Obstacle(CORDONED) if taint == UNSCHEDULABLE else Obstacle(TAINT, taint.key, taint.value)
