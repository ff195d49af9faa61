"""Waiting pods that are to get a node, room and devices once others have ended (``scheduling.state.node``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dra_api.core import Pod

from dra_operator.scheduling.state import NO_NOMINATIONS, Nomination, Nominations


class NominatedPods:
    """``is_placed`` says of a UID whether the pod has its node, or is on its way there: then it counts by itself.

    ``gang_of`` has the key of a pod's gang, ``priority_of`` what counts where pods end for others.

    ``is_on``: a pod that is in no nomination here is asked about the node that its status names, as after a restart.
    """

    def __init__(
        self,
        is_placed: Callable[[str], bool],
        gang_of: Callable[[Pod], str | None],
        priority_of: Callable[[Pod], int],
    ) -> None:
        self._is_placed, self._gang_of, self._priority_of = is_placed, gang_of, priority_of
        self._by_uid: dict[str, Nomination] = {}
        self.is_on = False

    def put(self, nomination: Nomination) -> Nomination | None:
        """The pod is to get this; what it was to get before."""
        before = self._by_uid.get(nomination.pod.metadata.uid)
        self._by_uid[nomination.pod.metadata.uid] = nomination
        return before

    def drop(self, uid: str) -> Nomination | None:
        """The pod is to get nothing any more; what it was to get."""
        return self._by_uid.pop(uid, None)

    def get(self, uid: str) -> Nomination | None:
        """What the pod is to get."""
        return self._by_uid.get(uid)

    def as_seen_by(self, pod: Pod) -> Nominations:
        """What the pod has to respect, and its own node."""
        if not self.is_on:
            return NO_NOMINATIONS
        own = self._by_uid.get(pod.metadata.uid)
        return Nominations.of(own.node if own is not None else pod.status.nominated_node_name, self._before(pod))

    def _before(self, pod: Pod) -> Iterator[Nomination]:
        if not self._by_uid:
            return
        gang, own = self._gang_of(pod), self._priority_of(pod)
        for uid, it in self._by_uid.items():
            if (gang is not None and it.gang == gang) or (it.workload is not None and it.workload.owns(pod)):
                continue
            is_lower = self._priority_of(it.pod) < own
            if uid != pod.metadata.uid and not is_lower and not self._is_placed(uid):
                yield it

    def __iter__(self) -> Iterator[Nomination]:
        return iter(self._by_uid.values())

    def __len__(self) -> int:
        return len(self._by_uid)
