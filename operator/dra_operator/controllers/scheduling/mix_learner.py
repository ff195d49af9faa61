"""Tells the allocator what pods ask for, so that it can keep devices whole for what comes (``allocator.ordering.mix``).

Each pod is told once, when it is tried first; one that asks for more cpu than any node has in all, when there is such a
node. A process that begins continues with what the last one counted, which stands on the Lease. If nothing stands
there, it looks at the pods that have devices, which are what was asked for before, the youngest last. With a mix that
is given, nothing is learned.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import inf
from typing import Final

from dra_api.core import Pod
from dra_api.resource import ResourceClaim

from dra_operator.allocator import Allocator
from dra_operator.cache import Cluster
from dra_operator.scheduling.state import MILLI_BILLIONTHS, milli_cpu_of

from .mix_text import Asked, MixError, read_mix, written

logger = logging.getLogger(__name__)

REMEMBERED_PODS: Final = 10_000
"""Pods that are not told twice."""
EXISTING_PODS: Final = 1_000
"""Pods with devices that are looked at in the beginning."""


class MixMemory:
    """What of the mix does not end with the process. ``given``: it is this, and is not learned.

    ``before`` is what the last process has left. ``text`` is what the next one will find; empty while nothing is known.
    """

    def __init__(self, given: Sequence[Asked] = ()) -> None:
        self.given = given
        self.before: Sequence[Asked] = ()
        self.text = ""

    def recall(self, text: str) -> None:
        """The last process left this. What cannot be read, as from another version, is forgotten."""
        try:
            self.before = read_mix(text) if text else ()
        except MixError as error:
            logger.warning("the mix on the Lease is forgotten: %s", error)


class MixLearner:
    """What the allocator was told."""

    def __init__(self, cluster: Cluster, allocator: Allocator, memory: MixMemory | None = None) -> None:
        self._cluster, self._allocator, self._memory = cluster, allocator, memory or MixMemory()
        self._told: dict[str, None] = {}
        self._has_begun = False
        self._given_at = -1
        """The version of the classes for which the given mix was compiled."""

    def see(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        """The pod is tried with these claims."""
        if not self._allocator.looks_at_mix:
            return
        if self._memory.given:
            self._give()
            return
        if not self._has_begun:
            self._has_begun = True
            self._begin()
        self._tell(pod, claims)

    def known(self) -> Sequence[Asked]:
        """The commonest requests: those that the last process has left, or else those of the pods with devices."""
        if not self._has_begun:
            self._has_begun = True
            self._begin()
        text = written(self._allocator.learned.counted)
        return read_mix(text) if text else ()

    def _give(self) -> None:
        version = self._allocator.inventory.class_version
        if version != self._given_at:
            self._given_at = version
            self._take(self._memory.given)

    def _begin(self) -> None:
        if self._memory.before:
            self._take(self._memory.before)
            return
        placed = [pod for pod in self._cluster.pods if pod.spec.node_name and pod.spec.resource_claims]
        placed.sort(key=lambda pod: (pod.metadata.creation_timestamp or "", pod.key))
        for pod in placed[-EXISTING_PODS:]:
            self._tell(pod, [claim for _, claim in self._cluster.claims_of(pod) if claim is not None])

    def _take(self, asked: Sequence[Asked]) -> None:
        """Classes that are gone are left out."""
        learned = self._allocator.learned
        learned.take([(self._allocator.compile([it.claim]), it.weight, it.milli_cpu) for it in asked])
        self._memory.text = written(learned.counted)

    def _tell(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        if not claims or pod.metadata.uid in self._told:
            return
        milli_cpu = milli_cpu_of(pod)
        if milli_cpu * MILLI_BILLIONTHS > (self._cluster.loaded_nodes().largest_cpu or inf):
            return
        if len(self._told) >= REMEMBERED_PODS:
            del self._told[next(iter(self._told))]
        self._told[pod.metadata.uid] = None
        learned = self._allocator.learned
        if learned.learn(self._allocator.compile(claims), milli_cpu):
            self._memory.text = written(learned.counted)
