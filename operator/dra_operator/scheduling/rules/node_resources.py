"""A node must have room for what the pod requests (kube-scheduler's NodeResourcesFit).

A resource that devices serve on the node does not have to be offered by the node itself. A node that does not say how
many pods it takes takes any number.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from dra_api.core import Pod
from dra_api.quota import may_be_devices

from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.scheduling.state.placeholder import is_placeholder
from dra_operator.scheduling.state.requests import POD_SLOTS, pod_requests

from .rule import NodeRule, RuleSurroundings

TOO_MANY_PODS: Final = Reason("pod-slots", "too many pods on the node", ends_with_any_pod=True)
RESOURCE: Final = Reason("resource", "Insufficient {subject}", ends_with_any_pod=True)
NOT_OFFERED: Final = Reason(
    "not-offered", "cannot fit resource {subject}: neither the node nor a device class offers it"
)


class NodeResources(NodeRule):
    """What the pod requests, in billionths, by name; a placeholder pod requests nothing."""

    def __init__(self, requested: Sequence[tuple[str, int]]) -> None:
        self._requested = requested

    @classmethod
    def of(cls, pod: Pod, _: RuleSurroundings) -> NodeResources | None:
        """Every pod takes a slot at least."""
        return None if is_placeholder(pod) else cls(tuple(sorted(pod_requests(pod).items())))

    def obstacle(self, state: LoadedNode, served: Collection[str]) -> Obstacle | None:
        """The first resource of which the node has too little."""
        offered, used = state.offered, state.used
        for name, requested in self._requested:
            if name in served or (name == POD_SLOTS and name not in offered):
                continue
            if name not in offered and may_be_devices(name):
                return Obstacle(NOT_OFFERED, name)
            if requested > offered.get(name, 0) - used.get(name, 0):
                return Obstacle(TOO_MANY_PODS) if name == POD_SLOTS else Obstacle(RESOURCE, name)
        return None

    def obstacles(self, state: LoadedNode, served: Collection[str]) -> list[Obstacle]:
        """Each resource of which the node has too little."""
        return [it for one in self._requested if (it := NodeResources([one]).obstacle(state, served)) is not None]
