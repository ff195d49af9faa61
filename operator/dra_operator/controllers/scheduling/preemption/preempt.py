"""Preemption: ends pods of lower priority so that one that fits nowhere gets their devices and their room.

``scheduling.preemption`` decides who ends. Here it is decided when that is asked, and the answer is carried out:

1. in the scheduling cycle, the pod is *nominated*: what it is to get counts as used for pods of its priority or a lower
   one, from that moment on;
2. its status names the node (``nominatedNodeName``), by which a new process knows it again;
3. the victims are deleted, one after the other (``evict_victims``).

Each request may fail, and be the last before a crash. What is left then is found again: as long as victims end, their
pod waits for them and no other has to go; a victim that was not deleted is chosen anew, first of all on the node of the
nomination.

A nomination ends when the pod is placed or gone, or when nothing that it relies on is ending any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Final

from dra_api.core import Pod
from dra_api.relations.references import pod_is_done
from dra_kube import NotFound

from dra_operator.cache import Cluster, Keys
from dra_operator.controllers.shared.timing import PreemptionSettings
from dra_operator.controllers.work.metrics import PreemptionMetrics
from dra_operator.kube import EventReason, EventRecorder, PodWriter
from dra_operator.scheduling import Elapsed, Pause, PostFilterResult, Unschedulable
from dra_operator.scheduling.preemption import PreemptionTerms, may_preempt, preempt, proven
from dra_operator.scheduling.state import Nomination, node_requests
from dra_operator.wording import counted, listed

from .evict_victims import LATE_SECONDS, VictimEvictor
from .turns import PreemptionTurns

MOST_NOMINATED_PODS: Final = 100
"""Pods that are nominated at the same time."""
SHOWN_VICTIM_NAMES: Final = 4
"""Pods that a message names."""


@dataclass(slots=True)
class _Nominated:
    """``claims``: UIDs of those whose devices come free. ``gone_at``: when all pods that were to end had ended."""

    result: PostFilterResult
    claims: frozenset[str]
    gone_at: float | None = None

    @property
    def ending(self) -> tuple[Pod, ...]:
        return (*self.result.victims, *self.result.awaited)


class Preemption:
    """A ``MakesRoom``. ``wake`` gets the keys of pods that may use what was kept for another one."""

    def __init__(
        self,
        cluster: Cluster,
        pods: PodWriter,
        events: EventRecorder,
        evictor: VictimEvictor,
        metrics: PreemptionMetrics,
        settings: PreemptionSettings,
        *,
        clock: Callable[[], float],
        rest: float,
        look_again: Callable[[str, float], None],
        wake: Callable[[Keys], None],
    ) -> None:
        self._cluster, self._pods, self._events, self._evictor = cluster, pods, events, evictor
        self._metrics, self._settings = metrics, settings
        self._clock, self._rest, self._look_again, self._wake = clock, rest, look_again, wake
        self._turns = PreemptionTurns(clock, rest, look_again, cluster.waiting.__contains__)
        self._nominated: dict[str, _Nominated] = {}
        self._outdated: set[str] = set()
        """Pods whose status may name a node for which they are not nominated any more."""
        cluster.nominated_pods.is_on = True

    # --- deciding ---

    def post_filter(self, failed: Unschedulable) -> Generator[Pause, Elapsed, PostFilterResult | None]:
        """See ``MakesRoom``."""
        pod = failed.cycle_state.pod
        if not may_preempt(pod):
            return None
        if self._is_under_way(pod):
            self._look_again(pod.key, self._rest)
            return None
        if len(self._cluster.nominated_pods) >= MOST_NOMINATED_PODS or not self._turns.may_try(pod):
            return None
        self._metrics.attempted()
        terms = self._terms(pod)
        found = yield from self._timed(pod, preempt(failed, terms))
        if found is not None:
            found = proven(failed, terms, found, self._cluster.allocated_devices.usage.snapshot())
            if found is None:
                self._look_again(pod.key, self._rest)
                return None
        self._nominate(pod, found)
        return found

    def _timed(
        self, pod: Pod, searching: Generator[Pause, Elapsed, PostFilterResult | None]
    ) -> Generator[Pause, Elapsed, PostFilterResult | None]:
        """The same, with its time charged to the turns, also if it is never finished."""
        spent, elapsed = 0.0, None
        try:
            while True:
                began = time.perf_counter()
                try:
                    pause = searching.send(elapsed)
                except StopIteration as end:
                    found: PostFilterResult | None = end.value
                    return found
                finally:
                    spent += time.perf_counter() - began
                elapsed = yield pause
        finally:
            self._turns.took(pod, spent)

    def _nominate(self, pod: Pod, found: PostFilterResult | None) -> None:
        uid, known = pod.metadata.uid, self._cluster.nominated_pods
        self._nominated = {uid: it for uid, it in self._nominated.items() if known.get(uid) is not None}
        if found is None:
            self._nominated.pop(uid, None)
            self._wake(self._cluster.end_nomination(uid))
            self._outdated.add(uid)
            return
        claims = (claim for it in (*found.victims, *found.awaited) for _, claim in self._cluster.claims_of(it))
        self._nominated[uid] = _Nominated(found, frozenset(it.metadata.uid for it in claims if it is not None))
        requests, allocations = node_requests(pod, found.plan.served), tuple(found.plan.allocations.values())
        self._wake(self._cluster.nominate(Nomination(pod, found.nominated_node, allocations, requests)))
        self._look_again(pod.key, self._rest)

    def _is_under_way(self, pod: Pod) -> bool:
        """Whether the pod has to wait for others to end, and for what they had to come free."""
        known = self._nominated.get(pod.metadata.uid)
        if known is None or self._cluster.nominated_pods.get(pod.metadata.uid) is None:
            return False
        left = [it for it in map(self._current, known.ending) if it is not None]
        if left:
            known.gone_at = None
            return all(self._evictor.is_leaving(known.result.nominated_node, it) for it in left)
        if known.gone_at is None:
            known.gone_at = self._clock()
        is_held = any(map(self._cluster.allocated_devices.holds, known.claims))
        return is_held and self._clock() - known.gone_at < LATE_SECONDS

    def _current(self, pod: Pod) -> Pod | None:
        current = self._cluster.pods.get(pod.key, pod.metadata.uid)
        return None if current is None or pod_is_done(current) else current

    # --- what the decision goes by ---

    def _terms(self, pod: Pod) -> PreemptionTerms:
        known = self._cluster.nominated_pods.get(pod.metadata.uid)
        node = known.node if known is not None else pod.status.nominated_node_name
        return PreemptionTerms(
            find_pod=self._cluster.pods.get,
            may_end=self._may_end,
            is_leaving=partial(self._evictor.is_leaving, node),
            holders=self._cluster.holders,
            gang=self._cluster.gang_of_pod,
            members=self._cluster.placed_of_gang,
            budgets=self._cluster.budgets,
        )

    def _may_end(self, pod: Pod) -> bool:
        is_ours = pod.spec.scheduler_name == self._cluster.scheduler_name
        return (is_ours or self._settings.other_schedulers) and not self._evictor.is_refused(pod)

    # --- carrying out ---

    def prospect(self, pod: Pod) -> str:
        """See ``MakesRoom``."""
        known = self._nominated.get(pod.metadata.uid)
        if known is None or self._cluster.nominated_pods.get(pod.metadata.uid) is None:
            return ""
        names, one = listed((it.key for it in known.ending), SHOWN_VICTIM_NAMES), len(known.ending) == 1
        return f"it gets node {known.result.nominated_node} once {names} {'has' if one else 'have'} ended"

    async def prepare_candidate(self, pod: Pod, nominated: PostFilterResult | None) -> None:
        """See ``MakesRoom``."""
        try:
            if nominated is not None:
                await self._end_victims(pod, nominated)
            elif pod.metadata.uid in self._outdated:
                self._outdated.discard(pod.metadata.uid)
                if pod.status.nominated_node_name:
                    await self._pods.nominate(pod, "")
        except NotFound:
            return  # the pod itself is gone, and its nomination with it

    async def _end_victims(self, pod: Pod, nominated: PostFilterResult) -> None:
        node, victims = nominated.nominated_node, nominated.victims
        if pod.status.nominated_node_name != node:
            await self._pods.nominate(pod, node)
        if not victims:
            return
        names = listed((it.key for it in victims), SHOWN_VICTIM_NAMES)
        text = f"Ending {counted(len(victims), 'pod')} of lower priority, after which this one fits on {node}: {names}"
        self._events.post(pod, EventReason.PREEMPTING, text)
        ended = 0
        try:
            for victim in victims:
                if not self._is_wanted(pod, node):
                    return
                ended += await self._evictor.end(victim, pod, node)
        finally:
            if ended:
                self._metrics.ended(ended)

    def _is_wanted(self, pod: Pod, node: str) -> bool:
        """Whether the pod is there and still nominated: otherwise no pod has to end for it."""
        known = self._cluster.nominated_pods.get(pod.metadata.uid)
        return known is not None and known.node == node and self._current(pod) is not None
