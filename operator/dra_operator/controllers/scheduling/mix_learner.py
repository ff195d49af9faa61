"""Tells the allocator what pods ask for, so that it can keep devices whole for what comes (``allocator.ordering.mix``).

Each pod is told once, when it is tried first. A process that begins knows nothing: before its first decision it looks
at the pods that have devices, which are what was asked for before, the youngest last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dra_api.core import Pod
from dra_api.resource import ResourceClaim

from dra_operator.allocator import Allocator
from dra_operator.cache import Cluster

REMEMBERED_PODS: Final = 10_000
"""Pods that are not told twice."""
EXISTING_PODS: Final = 1_000
"""Pods with devices that are looked at in the beginning."""


class MixLearner:
    """What the allocator was told."""

    def __init__(self, cluster: Cluster, allocator: Allocator) -> None:
        self._cluster, self._allocator = cluster, allocator
        self._told: dict[str, None] = {}
        self._has_begun = False

    def see(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        """The pod is tried with these claims."""
        if not self._allocator.looks_at_mix:
            return
        if not self._has_begun:
            self._has_begun = True
            self._begin()
        self._tell(pod, claims)

    def _begin(self) -> None:
        placed = [pod for pod in self._cluster.pods if pod.spec.node_name and pod.spec.resource_claims]
        placed.sort(key=lambda pod: (pod.metadata.creation_timestamp or "", pod.key))
        for pod in placed[-EXISTING_PODS:]:
            self._tell(pod, [claim for _, claim in self._cluster.claims_of(pod) if claim is not None])

    def _tell(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        if not claims or pod.metadata.uid in self._told:
            return
        if len(self._told) >= REMEMBERED_PODS:
            del self._told[next(iter(self._told))]
        self._told[pod.metadata.uid] = None
        self._allocator.learned.learn(self._allocator.compile(claims))
