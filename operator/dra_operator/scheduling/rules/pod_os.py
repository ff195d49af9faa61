"""A pod that names its operating system runs on no node with another one.

kube-scheduler does not look at ``spec.os``: it binds such a pod, and the kubelet refuses it (``PodOSNotSupported``).
Devices would be allocated in vain, so the node is passed over here. A node tells its system by the label
``kubernetes.io/os``; one without that label may have any.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dra_api.core import Pod

from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.obstacle import Obstacle, Reason

from .rule import NodeRule, RuleSurroundings

OTHER_OS: Final = Reason("other-os", "node(s) didn't have the pod's operating system ({subject})")
_LABEL: Final = "kubernetes.io/os"


class PodOS(NodeRule):
    """``spec.os.name``."""

    def __init__(self, name: str) -> None:
        self._name = name

    @classmethod
    def of(cls, pod: Pod, _: RuleSurroundings) -> PodOS | None:
        """Only for a pod that names its system."""
        return cls(pod.spec.os.name) if pod.spec.os is not None and pod.spec.os.name else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """Another system."""
        its = (state.node.metadata.labels or {}).get(_LABEL, self._name)
        return Obstacle(OTHER_OS, self._name) if its != self._name else None
