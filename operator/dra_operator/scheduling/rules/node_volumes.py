"""The node must be able to use the pod's volumes: one rule for all that ``volumes`` says of them.

It stands for kube-scheduler's NodeVolumeLimits, VolumeBinding and VolumeZone, whose reasons are in the files of these
names.
"""

from __future__ import annotations

from collections.abc import Collection

from dra_api.core import Pod

from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.obstacle import Obstacle

from .rule import NodeRule, RuleSurroundings
from .volumes import NO_VOLUMES, PodVolumes


class NodeVolumes(NodeRule):
    """The volumes of a pod whose claims are in order."""

    def __init__(self, volumes: PodVolumes) -> None:
        self._volumes = volumes

    @classmethod
    def of(cls, _: Pod, around: RuleSurroundings) -> NodeVolumes | None:
        """Only for a pod with volumes that tie it to nodes."""
        return cls(around.volumes) if around.volumes is not NO_VOLUMES else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """Why the pod cannot use its volumes on the node."""
        return self._volumes.obstacle(state.node, state.used)
