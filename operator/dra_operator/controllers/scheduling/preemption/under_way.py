"""Preemptions whose victims were chosen, and that wait for them to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from dra_api.core import Pod
from dra_api.relations.references import pod_is_done

from dra_operator.cache import Cluster
from dra_operator.scheduling.state import Nomination

from .evict_victims import VictimEvictor

FREED_SECONDS: Final = 60.0
"""So long after the end of its pods a claim may still have its devices."""
KEPT_SECONDS: Final = 600.0
"""So long what a victim has is kept for another pod when no further one can end for it."""


@dataclass(slots=True)
class Preempting:
    """What one pod, or all pods of a gang, are to get once others have ended.

    ``claims``: UIDs of those whose devices come free. ``gone_at``: when all pods that were to end had ended.
    ``is_late``: a pod that was to end for these was there for longer than others are waited for. ``overdue``:
    namespaces of those of which the grace period was over by then.
    """

    nominations: tuple[Nomination, ...]
    ending: tuple[Pod, ...]
    claims: frozenset[str]
    is_late: bool = False
    overdue: frozenset[str] = frozenset()
    gone_at: float | None = None

    @property
    def nodes(self) -> frozenset[str]:
        """Where they go."""
        return frozenset(it.node for it in self.nominations)


class UnderWay:
    """By the UID of a pod, or the key of a gang."""

    def __init__(self, cluster: Cluster, evictor: VictimEvictor, clock: Callable[[], float]) -> None:
        self._cluster, self._evictor, self._clock = cluster, evictor, clock
        self._known: dict[str, Preempting] = {}

    def begin(self, who: str, nominations: Sequence[Nomination], ending: Sequence[Pod]) -> None:
        """These end for it."""
        before = self._known.get(who)
        self._known = {key: it for key, it in self._known.items() if self._is_nominated(it, any)}
        claims = (claim for pod in ending for _, claim in self._cluster.claims_of(pod))
        freed = frozenset(claim.metadata.uid for claim in claims if claim is not None)
        self._known[who] = Preempting(tuple(nominations), tuple(ending), freed)
        if before is not None:
            self._known[who].is_late, self._known[who].overdue = before.is_late, before.overdue

    def end(self, who: str) -> None:
        """It waits for none of them any more."""
        self._known.pop(who, None)

    def get(self, who: str) -> Preempting | None:
        """What it waits for, if all its pods are still nominated."""
        known = self._known.get(who)
        return known if known is not None and self._is_nominated(known, all) else None

    def is_waiting(self, who: str) -> bool:
        """Whether it has to wait for others to end, and for what they had to come free."""
        known = self.get(who)
        if known is None:
            return False
        left = [it for it in map(self.current, known.ending) if it is not None]
        if left:
            known.gone_at = None
            stays = [it for it in left if not self._evictor.is_leaving(known.nodes, it)]
            late = [it for it in stays if it.metadata.deletion_timestamp is not None]
            known.is_late = known.is_late or bool(late)
            known.overdue |= {it.metadata.namespace for it in late if self._evictor.is_overdue(it)}
            return not stays
        if known.gone_at is None:
            known.gone_at = self._clock()
        is_held = any(map(self._cluster.allocated_devices.holds, known.claims))
        return is_held and self._clock() - known.gone_at < FREED_SECONDS

    def lateness(self, who: str) -> tuple[bool, frozenset[str]]:
        """Whether a pod that was to end for it was too late, and the namespaces of those that are overdue."""
        known = self._known.get(who)
        return (known.is_late, known.overdue) if known is not None else (False, frozenset())

    def may_still_end(self, who: str) -> bool:
        """Whether all pods that it waits for are being deleted, though not in time: what they have stays kept."""
        known = self.get(who)
        left = [it for it in map(self.current, known.ending) if it is not None] if known is not None else []
        return bool(left) and all(self._evictor.seconds_deleted(it) < KEPT_SECONDS for it in left)

    def current(self, pod: Pod) -> Pod | None:
        """The pod as it is, unless it is gone or done."""
        current = self._cluster.pods.get(pod.key, pod.metadata.uid)
        return None if current is None or pod_is_done(current) else current

    def _is_nominated(self, it: Preempting, some: Callable[[Iterable[bool]], bool]) -> bool:
        known = self._cluster.nominated_pods
        return some(known.get(each.pod.metadata.uid) is not None for each in it.nominations)
