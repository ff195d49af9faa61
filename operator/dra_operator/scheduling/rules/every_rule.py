"""All rules, and what they say together of a pod.

The order is from cheap to costly, and the first obstacle is the one reported.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from dra_api.core import Pod

from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.obstacle import Obstacle, Reason

from .inter_pod_affinity import Affinity, AntiAffinity, ExistingAntiAffinity
from .node_rules import (
    NodeAffinity,
    NodeDeclaredFeatures,
    NodeName,
    NodePorts,
    NodeResources,
    NodeVolumes,
    PodOS,
    TaintToleration,
)
from .pod_topology_spread import PodTopologySpread
from .rule import Hint, NodeRule, RuleSurroundings, few, is_of_fewer_pods

OF_NODES: Final[tuple[type[NodeRule], ...]] = (
    NodeName,
    TaintToleration,
    NodeAffinity,
    PodOS,
    NodeDeclaredFeatures,
    NodePorts,
    NodeResources,
    NodeVolumes,
)
BETWEEN_PODS: Final[tuple[type[NodeRule], ...]] = (PodTopologySpread, Affinity, AntiAffinity, ExistingAntiAffinity)
RULES: Final = (*OF_NODES, *BETWEEN_PODS)


class PodRules:
    """What one pod asks of any node, worked out once; false if it asks nothing."""

    def __init__(self, pod: Pod, around: RuleSurroundings, rules: Sequence[type[NodeRule]] = RULES) -> None:
        self._rules = [rule for kind in rules if (rule := kind.of(pod, around)) is not None]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def obstacle(self, state: LoadedNode, served: Collection[str] = ()) -> Obstacle | None:
        """The first obstacle on the node; None if the pod can run there. See ``NodeRule.obstacle``."""
        for rule in self._rules:
            obstacle = rule.obstacle(state, served)
            if obstacle is not None:
                return obstacle
        return None

    def obstacles(self, state: LoadedNode, served: Collection[str] = ()) -> list[Obstacle]:
        """Return the obstacles of all rules, for people: the first decides."""
        return [it for rule in self._rules for it in rule.obstacles(state, served)]

    def hints(self, reasons: Collection[Reason] | None = None) -> frozenset[Hint]:
        """Which changes of other pods can remove obstacles with these reasons, with any if None."""
        return few(hint for rule in self._rules for hint in rule.hints(reasons))

    def may_end_with_pods(self, obstacle: Obstacle) -> bool:
        """Whether the obstacle may pass when other pods end, on this node or elsewhere."""
        return obstacle.reason.ends_with_any_pod or any(map(is_of_fewer_pods, self.hints({obstacle.reason})))

    def counts(self, obstacle: Obstacle) -> Mapping[str, int] | None:
        """The pods that an obstacle is about, by topology domain; None if it is about no pods."""
        return next((found for rule in self._rules if (found := rule.counts(obstacle)) is not None), None)
