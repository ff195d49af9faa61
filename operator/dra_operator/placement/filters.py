"""Which nodes a pod may run on at all, before any device is looked at.

The order is from cheap to costly, and the first obstacle is the one reported.
"""

from __future__ import annotations

from collections.abc import Collection

from dra_api.core import Pod
from dra_api.extended_resources import may_be_devices

from dra_operator.allocator.published.node_selectors import matches

from .features import needed_features
from .immediate import is_stand_in
from .neighbours import Neighbours
from .node import LoadedNode
from .obstacle import Obstacle, ObstacleKind
from .ports import host_ports
from .requests import POD_SLOTS, pod_requests
from .tolerations import NODE_CONDITION, UNSCHEDULABLE, untolerated
from .volumes import NO_VOLUMES, PodVolumes


class NodeFilter:
    """What one pod asks of any node, worked out once. Most nodes have no taint, most pods select no node."""

    def __init__(self, pod: Pod, neighbours: Neighbours | None = None, volumes: PodVolumes = NO_VOLUMES) -> None:
        self._neighbours = neighbours
        self._volumes = volumes
        self._node_name = pod.spec.node_name
        self._tolerations = pod.spec.tolerations or ()
        self._is_stand_in = is_stand_in(pod)
        self._labels = tuple((pod.spec.node_selector or {}).items())
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
        self._required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
        self._features = tuple(needed_features(pod))
        self._ports = tuple(host_ports(pod))
        self._wanted = () if self._is_stand_in else tuple(sorted(pod_requests(pod).items()))

    def obstacle(self, state: LoadedNode, served: Collection[str] = ()) -> Obstacle | None:
        """Why the pod cannot run on the node; None if it can.

        ``served``: resources that devices serve on this node, so that it does not have to offer them itself.
        Raises NodeSelectionError when the pod's affinity cannot be understood.
        """
        if self._node_name and self._node_name != state.name:
            return Obstacle(ObstacleKind.OTHER_NODE)
        taints = state.taints
        if taints and self._is_stand_in:
            taints = tuple(taint for taint in taints if taint.key.startswith(NODE_CONDITION))
        if taints and (taint := untolerated(taints, self._tolerations)) is not None:
            if taint == UNSCHEDULABLE:
                return Obstacle(ObstacleKind.CORDONED)
            return Obstacle(ObstacleKind.TAINT, taint.key, taint.value)
        if (self._labels or self._required is not None) and not self._selects(state):
            return Obstacle(ObstacleKind.NODE_SELECTOR)
        if self._features and (feature := self._undeclared(state)) is not None:
            return Obstacle(ObstacleKind.FEATURE, feature)
        if (port := next((port for port in self._ports if port.is_taken(state.used)), None)) is not None:
            return Obstacle(ObstacleKind.PORT, port.name)
        obstacle = self._shortage(state, served) or self._volumes.obstacle(state.node, state.used)
        if obstacle is None and self._neighbours:
            return self._neighbours.obstacle(state.node.metadata.labels or {})
        return obstacle

    def _selects(self, state: LoadedNode) -> bool:
        labels = state.node.metadata.labels or {}
        if any(labels.get(key) != value for key, value in self._labels):
            return False
        return self._required is None or matches(self._required, state.node)

    def _undeclared(self, state: LoadedNode) -> str | None:
        declared = state.node.status.declared_features or ()
        return next((feature for feature in self._features if feature not in declared), None)

    def _shortage(self, state: LoadedNode, served: Collection[str]) -> Obstacle | None:
        offered, used = state.offered, state.used
        for name, wanted in self._wanted:
            if name in served or (name == POD_SLOTS and name not in offered):
                continue  # a node that does not say how many pods it takes takes any number
            if name not in offered and may_be_devices(name):
                return Obstacle(ObstacleKind.NOT_OFFERED, name)
            if wanted > offered.get(name, 0) - used.get(name, 0):
                return Obstacle(ObstacleKind.POD_SLOTS) if name == POD_SLOTS else Obstacle(ObstacleKind.RESOURCE, name)
        return None
