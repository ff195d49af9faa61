"""Which pods wait for a change of other pods, by what can help them (kube-scheduler's queueing hints)."""

from __future__ import annotations

from collections.abc import Iterator

from dra_api.core import Pod

from dra_operator.cache.objects.index import Index
from dra_operator.scheduling.rules import ClusterEvent, Hint
from dra_operator.scheduling.state import Anchors, PodsByNode


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
