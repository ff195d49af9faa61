"""What can help a waiting pod, apart from a change of the pod, of its claims or of their classes (SC-02).

While an attempt is under way, everything can: it may have looked already at what changes now. When it ends, the answer
says what is worth waiting for. So no change is missed, and a change that cannot help wakes no pod. ``Hinted`` files the
pods that wait for changes of other pods by the kind of change (kube-scheduler's queueing hints).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dra_api.core import Pod

from dra_operator.cache.index import Index
from dra_operator.scheduling import ANY_DRIVER
from dra_operator.scheduling.claims import CLAIM_UNMADE
from dra_operator.scheduling.rules import ClusterEvent, Hint
from dra_operator.scheduling.state import Anchors, PodsByNode


class TimesFreed(NamedTuple):
    """How often something came free so far."""

    devices: int
    room: int


class WakeConditions(NamedTuple):
    """Which changes of the cluster wake the pod."""

    nodes: bool
    """A node came, or takes other pods than before."""
    room: bool
    """Another pod left its cpu, memory or the like."""
    devices: bool
    """Devices were published or changed."""
    freed: frozenset[str]
    """Devices of one of these drivers were freed; ``ANY_DRIVER`` stands for all drivers."""
    leftovers: bool
    """A claim that an earlier attempt had left over is gone."""
    volumes: bool
    """Volumes or their classes changed."""
    tried_at: TimesFreed | None = None
    """When the last attempt began, or when the last look found that one would be in vain; None: that is not known."""
    hints: frozenset[Hint] = frozenset()
    """What matters to rules between pods, see ``Hinted``."""
    reason: str = "queued"
    """Why it waits, in a word that fits a metric's label."""


EVERYTHING = WakeConditions(
    nodes=True, room=True, devices=True, freed=frozenset({ANY_DRIVER}), leftovers=False, volumes=True
)
"""An attempt that meets a leftover ends at once, so no pod waits for one to go while its attempt is under way."""
NONE = WakeConditions(nodes=False, room=False, devices=False, freed=frozenset(), leftovers=False, volumes=False)
UNMADE = NONE._replace(reason=CLAIM_UNMADE.name)
ANOTHER_WRITE = EVERYTHING._replace(reason="another-write")
WITH_GANG = NONE._replace(reason="with-gang")
BEING_BOUND = NONE._replace(reason="being-bound")
FAILED = NONE._replace(reason="error")
GETTING_READY = NONE._replace(nodes=True, reason="getting-ready")
VOLUMES_PENDING = NONE._replace(nodes=True, volumes=True, reason="volumes-pending")
LEFTOVERS = NONE._replace(leftovers=True)


class Hinted:
    """Keys of waiting pods under their hints. A change is compared with the hints that its pods' labels lead to."""

    def __init__(self) -> None:
        self._waiting: Index[Hint] = Index()
        self._anchors: Anchors[Hint] = Anchors()

    def file(self, key: str, hints: frozenset[Hint]) -> None:
        """The pod waits for exactly these hints; none: forget it."""
        if not hints and key not in self._waiting:
            return
        before = self._waiting.values_of(key)
        self._waiting.file(key, hints)
        for hint in hints - before:
            if not isinstance(hint, ClusterEvent):
                self._anchors.add(hint.anchor, hint)
        for hint in before - hints:
            if not isinstance(hint, ClusterEvent) and not self._waiting.keys(hint):
                self._anchors.discard(hint.anchor, hint)

    def helped_by(self, before: Pod | None, after: Pod | None, pods_by_node: PodsByNode) -> Iterator[str]:
        """The waiting pods helped by a pod on a node that was ``before`` and is ``after`` now; None: it is on no
        node."""
        labels = {id(pod): pod.metadata.labels for pod in (before, after) if pod is not None}.values()
        near = dict.fromkeys(hint for of_pod in labels for hint in self._anchors.near(of_pod))
        for hint in near:
            if not isinstance(hint, ClusterEvent) and hint.helped_by(before, after, pods_by_node):
                yield from self._waiting.keys(hint)

    def waiting_for(self, change: ClusterEvent) -> tuple[str, ...]:
        """The waiting pods that a change of this kind may help."""
        return self._waiting.keys(change)
