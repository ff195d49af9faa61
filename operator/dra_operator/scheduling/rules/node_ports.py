"""A pod cannot run on a node where another pod holds one of its host ports (kube-scheduler's NodePorts)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from dra_api.core import Pod

from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.scheduling.state.requests import HostPort, host_ports

from .rule import NodeRule, RuleSurroundings

PORT: Final = Reason("port", "{subject} is taken", ends_with_any_pod=True)


class NodePorts(NodeRule):
    """The ports of the node that the pod holds; ``state.requests`` says which conflict."""

    def __init__(self, ports: Sequence[HostPort]) -> None:
        self._ports = ports

    @classmethod
    def of(cls, pod: Pod, _: RuleSurroundings) -> NodePorts | None:
        """Only for a pod that holds ports of its node."""
        ports = tuple(host_ports(pod))
        return cls(ports) if ports else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """The first port that is taken."""
        taken = next((port for port in self._ports if port.is_taken(state.used)), None)
        return Obstacle(PORT, taken.name) if taken is not None else None
