"""Features that a pod needs of its node, which declares those it has (kube-scheduler's NodeDeclaredFeatures)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from dra_api.core import Pod

from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.obstacle import Obstacle, Reason

from .rule import NodeRule, RuleSurroundings

FEATURE: Final = Reason("feature", "node(s) didn't declare the feature {subject}")


class NodeDeclaredFeatures(NodeRule):
    """``node.status.declaredFeatures`` has to name what the pod needs."""

    def __init__(self, needed: Sequence[str]) -> None:
        self._needed = needed

    @classmethod
    def of(cls, pod: Pod, _: RuleSurroundings) -> NodeDeclaredFeatures | None:
        """Only for a pod that needs a feature."""
        needed = tuple(_needed_features(pod))
        return cls(needed) if needed else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """The first feature that the node does not declare."""
        declared = state.node.status.declared_features or ()
        missing = next((feature for feature in self._needed if feature not in declared), None)
        return Obstacle(FEATURE, missing) if missing is not None else None


def _needed_features(pod: Pod) -> Iterator[str]:
    containers = (*(pod.spec.init_containers or ()), *(pod.spec.containers or ()))
    rules = (rule for container in containers for rule in container.restart_policy_rules or ())
    if any(rule.action == "RestartAllContainers" for rule in rules):
        yield "RestartAllContainersOnContainerExits"
    if pod.spec.host_network and pod.spec.host_users is False:
        yield "UserNamespacesHostNetworkSupport"
