"""All rules, and the rules of one pod together.

They are in the order of their cost. The first obstacle is reported, as kube-scheduler reports its first failed filter.
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
    """The rules of one pod, made once per attempt; false if there are none."""

    def __init__(self, pod: Pod, around: RuleSurroundings, rules: Sequence[type[NodeRule]] = RULES) -> None:
        self._rules = [rule for kind in rules if (rule := kind.of(pod, around)) is not None]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def obstacle(self, state: LoadedNode, served: Collection[str] = ()) -> Obstacle | None:
        """Return the first obstacle on the node, or None if the pod can run there. See ``NodeRule.obstacle``."""
        for rule in self._rules:
            obstacle = rule.obstacle(state, served)
            if obstacle is not None:
                return obstacle
        return None

    def obstacles(self, state: LoadedNode, served: Collection[str] = ()) -> list[Obstacle]:
        """Return the obstacles of all rules, for people. The first one decides."""
        return [it for rule in self._rules for it in rule.obstacles(state, served)]

    def hints(self, reasons: Collection[Reason] | None = None) -> frozenset[Hint]:
        """Return the changes that can remove obstacles with these reasons, or with any reason if None."""
        return few(hint for rule in self._rules for hint in rule.hints(reasons))

    def may_end_with_pods(self, obstacle: Obstacle) -> bool:
        """Return whether deleting other pods, on this node or elsewhere, can remove the obstacle."""
        return obstacle.reason.ends_with_any_pod or any(map(is_of_fewer_pods, self.hints({obstacle.reason})))

    def counts(self, obstacle: Obstacle) -> Mapping[str, int] | None:
        """Return the number of pods behind the obstacle by topology domain, or None if it is not about pods."""
        return next((found for rule in self._rules if (found := rule.counts(obstacle)) is not None), None)
