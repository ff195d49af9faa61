"""Preemption: deletes pods of lower priority so that one that fits nowhere gets their devices and node resources.

``post_filter`` decides inside the scheduling cycle, from the state of the cycle, and writes nothing. Its nomination is
carried out after the pod's condition was written, beside the writes of other pods. The pod is tried again when the
victims' devices and node resources come free, as after any other refusal. Only with the setting ``preemption`` the
operator has a ``Preemption``.

``scheduling.preemption`` chooses the victims. This module decides when to ask it, and carries out the answer:

1. In the scheduling cycle the pod is *nominated*. From then on its future place counts as used for pods of its priority
   or a lower one.
2. Its status names the node (``nominatedNodeName``). A new process reads that, chooses victims anew at once, keeps
   the place for the pod, and deletes the first victim after ten seconds.
3. The victims are deleted, one after the other (``victims``).

Each request may fail, or be the last before a crash. The state is found again: while victims terminate, their pod waits
for them and preempts no other. A victim that was not deleted is chosen anew, first on the nominated node.

A pod waits for its victims 30 seconds (``preemption-patience``), regardless of their grace periods. Then it looks for
others, and prefers victims that terminate in that time. If there are none, the nomination stays for up to ten minutes.

A nomination is dropped when the pod is placed or deleted, or when no pod that it relies on terminates any more. A gang
is nominated as a whole, and no further victim is deleted once one of its pods is gone.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from dra_api.core import Pod
from dra_kube import NotFound

from dra_operator.controllers.fairness import may_have_another
from dra_operator.controllers.metrics import PreemptionMetrics
from dra_operator.controllers.scheduling.planning import SchedulingContext
from dra_operator.controllers.scheduling.victims import PreemptionTurns, UnderWay, VictimEvictor
from dra_operator.controllers.settings import PreemptionSettings
from dra_operator.kube import EventReason
from dra_operator.scheduling import CycleState, Elapsed, InPieces, Pause, Plan, PostFilterResult, Unschedulable
from dra_operator.scheduling.gang import SameValues
from dra_operator.scheduling.preemption import (
    GangNomination,
    PreemptionTerms,
    is_proven,
    may_preempt,
    preempt,
    preempt_for_gang,
    proven,
    seconds_left,
)
from dra_operator.scheduling.state import Gang, Nomination
from dra_operator.wording import counted, listed

MOST_NOMINATED_PODS: Final = 100
"""Limit on nominated pods. A gang is nominated as a whole even beyond it.

Namespaces share them as they share workers (``fairness``), since victims may take days to terminate. A namespace
without a nominated pod always gets one."""
SHOWN_VICTIM_NAMES: Final = 4
"""Pods that a message names."""

T = TypeVar("T")


class Preemption:
    """Has pods end so that another one fits. It wakes pods that may use a place that is no longer kept for another."""

    def __init__(self, context: SchedulingContext, settings: PreemptionSettings, metrics: PreemptionMetrics) -> None:
        self._context, self._settings, self._metrics = context, settings, metrics
        self._cluster, self._pods, self._events = context.cluster, context.pods, context.events
        self._rest, self._look_again = context.times.preemption_rest, context.look_again
        self._evictor = VictimEvictor(
            self._pods,
            self._events,
            self._cluster.scheduler_name,
            clock=context.clock,
            now=context.now,
            rest=self._rest,
            patience=settings.patience,
        )
        waits = self._cluster.waiting.__contains__
        self._turns = PreemptionTurns(context.clock, self._rest, self._look_again, waits)
        self._under_way = UnderWay(self._cluster, self._evictor, context.clock)
        self._outdated: dict[str, str] = {}
        """Keys, by UID, of pending pods whose status may name a node for which they are not nominated any more."""
        self._cluster.nominated_pods.is_on = True

    # --- deciding ---

    def post_filter(self, failed: Unschedulable) -> Generator[Pause, Elapsed, PostFilterResult | None]:
        """Return a nomination, or None. See ``scheduling.PostFilter``."""
        pod, uid = failed.cycle_state.pod, failed.cycle_state.pod.metadata.uid
        if not may_preempt(pod) or not self._may_begin(uid, [pod]):
            return None
        terms = self._terms(uid, [pod])
        found = yield from self._timed(pod, uid, preempt(failed, terms))
        if found is not None:
            # Other pods were placed while the search paused: no pod is preempted for a place that is gone.
            found = proven(failed, terms, found, self._cluster.allocated_devices.usage.snapshot())
            if found is None:
                self._look_again(pod.key, self._rest)
                return None
        if found is not None:
            self._nominate(uid, [_nomination(pod, found.plan)], (*found.victims, *found.awaited))
        else:
            self._find_none(uid, [pod], [pod])
        # A new process keeps the place, but deletes nobody yet: ``_nominate`` has the pod looked at again.
        return None if self._turns.is_resting else found

    def for_gang(
        self, gang: Gang, states: Sequence[CycleState], same: SameValues
    ) -> Generator[Pause, Elapsed, GangNomination | None]:
        """As ``post_filter``, for a gang without a joint plan; the first of the states is its leader's."""
        leader, pods = states[0].pod, [state.pod for state in states]
        if not all(map(may_preempt, pods)) or not self._may_begin(gang.key, pods):
            return None
        terms = self._terms(gang.key, pods)
        found = yield from self._timed(leader, gang.key, preempt_for_gang(states, same, terms))
        if found is None:
            self._find_none(gang.key, pods, self._nominated_of(gang))
            return None
        usage = self._cluster.allocated_devices.usage
        if not is_proven(states, terms, found, self._cluster.loaded_nodes(), usage):
            self._look_again(leader.key, self._rest)
            return None
        # Other pods of the gang may have been nominated before: nothing stays kept for these.
        kept = {pod.metadata.uid for pod in pods}
        self._forget(gang.key, [pod for pod in self._nominated_of(gang) if pod.metadata.uid not in kept])
        nominations = [_nomination(pod, plan, gang.key) for pod, plan in zip(pods, found.plans, strict=True)]
        self._nominate(gang.key, nominations, (*found.victims, *found.awaited))
        return None if self._turns.is_resting else found

    def forget_gang(self, gang: Gang) -> None:
        """Free the devices that were kept for the gang: it lacks pods."""
        self._forget(gang.key, self._nominated_of(gang))

    def forget(self, pod: Pod) -> None:
        """Free what was kept for the pod, and for the gang with which it was nominated: it is not tried."""
        known = self._cluster.nominated_pods.get(pod.metadata.uid)
        if known is not None and known.gang is not None:
            self._forget(known.gang, [it.pod for it in self._cluster.nominated_pods if it.gang == known.gang])
        elif known is not None or pod.status.nominated_node_name:  # by a former process
            self._forget(pod.metadata.uid, [pod])

    def _may_begin(self, who: str, pods: Sequence[Pod]) -> bool:
        """Return whether an attempt may begin now. If not, the first of the pods is requeued."""
        pod, known = pods[0], self._cluster.nominated_pods
        if self._under_way.is_waiting(who):
            self._look_again(pod.key, self._rest)
            return False
        is_recalled = any(it.status.nominated_node_name and known.get(it.metadata.uid) is None for it in pods)
        if not self._has_share(pods):
            # The last process has nominated them, and this one will not. Their status names a node on which no place is
            # kept: it would mislead people and autoscalers, and is corrected.
            recalled = (it for it in pods if it.status.nominated_node_name)
            self._outdated.update({it.metadata.uid: it.key for it in recalled})
            return False
        if not self._turns.may_try(pod, who, recalls=is_recalled):
            return False
        self._metrics.attempted()
        return True

    def _has_share(self, pods: Sequence[Pod]) -> bool:
        """Return whether one more pod of their namespace may be nominated.

        A nominated pod always has a share: it may need other victims.
        """
        known, namespace = self._cluster.nominated_pods, pods[0].metadata.namespace
        if any(known.get(pod.metadata.uid) is not None for pod in pods):
            return True
        # Victims may take days to terminate: a tenant with many pods must not have all nominations meanwhile.
        held = sum(it.pod.metadata.namespace == namespace for it in known)
        return may_have_another(held, MOST_NOMINATED_PODS - len(known))

    def _timed(
        self, pod: Pod, who: str, searching: Generator[Pause, Elapsed, T | None]
    ) -> Generator[Pause, Elapsed, T | None]:
        """Do the work, and charge its time to the turns, also if the attempt is given up at a pause."""
        work, spent = InPieces(searching), 0.0
        try:
            while not work.is_over:
                began = time.perf_counter()
                try:
                    pause = next(work, None)
                finally:  # the time of the pause is not charged: others run then
                    spent += time.perf_counter() - began
                if pause is not None:
                    work.elapsed = yield pause
            return work.answer
        finally:
            self._turns.took(pod, spent, who)

    def _find_none(self, who: str, pods: Sequence[Pod], nominated: Sequence[Pod]) -> None:
        """Drop the nomination of pods for which there are no victims, unless slow victims still terminate for them.

        The first pod looks again if there may be victims soon.
        """
        # The place stays kept while victims terminate for it, or they would have been preempted for nothing.
        is_kept = self._turns.is_resting or self._under_way.may_still_end(who)
        if is_kept or self._may_end_soon(pods):
            self._look_again(pods[0].key, self._rest)
        if not is_kept:
            self._forget(who, nominated)

    def _may_end_soon(self, pods: Sequence[Pod]) -> bool:
        """Return whether a pod of lower priority is being bound, so that it can be a victim soon."""
        cluster, rank = self._cluster, min(map(self._cluster.priority_of, pods))
        waiting = (pod for key in cluster.waiting if (pod := cluster.pods.get(key)) is not None)
        # They are no victims before they are bound, and may be the only ones soon.
        lower = (pod for pod in waiting if cluster.priority_of(pod) < rank)
        return any(not it.spec.node_name and (cluster.node_of(it) or cluster.holds_devices(it)) for it in lower)

    def _nominate(self, who: str, nominations: Sequence[Nomination], ending: Sequence[Pod]) -> None:
        """Keep the places for the pods. The pod of the first nomination is looked at again."""
        self._under_way.begin(who, nominations, ending)
        for it in nominations:
            self._context.queues.add(self._cluster.nominate(it))
        self._look_again(nominations[0].pod.key, self._rest)

    def _forget(self, who: str, pods: Sequence[Pod]) -> None:
        self._under_way.end(who)
        waits = self._cluster.waiting.__contains__
        self._outdated = {uid: key for uid, key in self._outdated.items() if waits(key)}
        for pod in pods:
            is_known = self._cluster.nominated_pods.get(pod.metadata.uid) is not None
            self._context.queues.add(self._cluster.end_nomination(pod.metadata.uid))
            if is_known or pod.status.nominated_node_name:
                self._outdated[pod.metadata.uid] = pod.key

    def _nominated_of(self, gang: Gang) -> list[Pod]:
        """Return its pods that are nominated, or that the last process has nominated."""
        known = {it.pod.metadata.uid: it.pod for it in self._cluster.nominated_pods if it.gang == gang.key}
        named = (it for it in self._cluster.members_of(gang)[1] if it.status.nominated_node_name)
        return [*known.values(), *(it for it in named if it.metadata.uid not in known)]

    # --- what the decision goes by ---

    def _terms(self, who: str, pods: Sequence[Pod]) -> PreemptionTerms:
        known = self._cluster.nominated_pods
        nominations = [(pod, known.get(pod.metadata.uid)) for pod in pods]
        nodes = {pod.status.nominated_node_name if it is None else it.node for pod, it in nominations} - {""}
        is_late, overdue = self._under_way.lateness(who)
        return PreemptionTerms(
            find_pod=self._cluster.pods.get,
            claims_of=self._cluster.claims_of,
            may_end=self._may_end,
            is_leaving=partial(self._evictor.is_leaving, nodes),
            holders=self._cluster.holders,
            gang=self._cluster.gang_of_pod,
            placed_with=self._cluster.gang_key_of,
            members=self._cluster.placed_of_gang,
            budgets=self._cluster.budgets,
            priority=self._cluster.priority_of,
            seconds_left=self._seconds_left,
            patience=self._settings.patience,
            is_late=is_late,
            overdue=overdue,
        )

    def _seconds_left(self, pod: Pod) -> float:
        return seconds_left(pod, self._cluster.nodes.get(pod.spec.node_name), self._context.now())

    def _may_end(self, pod: Pod) -> bool:
        is_ours = pod.spec.scheduler_name == self._cluster.scheduler_name
        return (is_ours or self._settings.other_schedulers) and not self._evictor.is_refused(pod)

    # --- carrying out ---

    def prospect(self, pod: Pod, gang: Gang | None = None) -> str:
        """Return a clause about the victims that the nominated pod, or its gang, waits for; or an empty text."""
        known = self._under_way.get(gang.key if gang is not None else pod.metadata.uid)
        if known is None:
            return ""
        names, one = listed((it.key for it in known.ending), SHOWN_VICTIM_NAMES), len(known.ending) == 1
        gets = f"it gets node {known.nominations[0].node}" if gang is None else "all get their nodes"
        return f"{gets} when {names} {'has' if one else 'have'} terminated"

    async def prepare_candidate(self, pod: Pod, nominated: PostFilterResult | None) -> None:
        """Delete the victims. Without a nomination, correct an outdated status.

        Raises KubeError and PlacementFailed; then the pod is tried again.
        """
        if nominated is None:
            await self._correct([pod])
            return
        node, rank = nominated.nominated_node, self._cluster.priority_of(pod)
        why = f"Preempted by pod {pod.key}, which has priority {rank} and is nominated for node {node}"
        after = f"after which this one fits on {node}"
        await self._end_victims([(pod, node)], nominated.victims, after, pod.key, why)

    async def prepare_for_gang(self, gang: Gang, pods: Sequence[Pod], nominated: GangNomination | None) -> None:
        """The same for a gang; the first of the pods is its leader."""
        if nominated is None:
            await self._correct(self._cluster.members_of(gang)[1])
            return
        rank = min(map(self._cluster.priority_of, pods))
        why = f"Preempted by gang {gang.title} of pod {pods[0].key}, which has priority {rank}"
        after = f"after which all of gang {gang.title} fits"
        places = [(pod, plan.node) for pod, plan in zip(pods, nominated.plans, strict=True)]
        await self._end_victims(places, nominated.victims, after, f"gang {gang.title}", why)

    async def _correct(self, pods: Sequence[Pod]) -> None:
        """Remove the nominated node from the status of pods that are not nominated any more."""
        for pod in pods:
            if pod.metadata.uid in self._outdated:
                del self._outdated[pod.metadata.uid]
                if pod.status.nominated_node_name:
                    with suppress(NotFound):
                        await self._pods.nominate(pod, "")

    async def _end_victims(
        self, places: Sequence[tuple[Pod, str]], victims: Sequence[Pod], after: str, preemptor: str, why: str
    ) -> None:
        with suppress(NotFound):  # the pod is gone, and needs no victims
            # The status first: after a crash it tells the next process for whom the victims were deleted.
            for pod, node in places:
                if pod.status.nominated_node_name != node:
                    await self._pods.nominate(pod, node)
            if not victims:
                return
            names = listed((it.key for it in victims), SHOWN_VICTIM_NAMES)
            text = f"Preempting {counted(len(victims), 'pod')} of lower priority, {after}: {names}"
            self._events.post(places[0][0], EventReason.PREEMPTING, text)
            ended = 0
            try:
                for victim in victims:
                    # Each deletion takes a request, in which the pod may be deleted or find another place.
                    if not all(self._is_wanted(pod, node) for pod, node in places):
                        return
                    ended += await self._evictor.end(victim, preemptor, why)
            finally:
                if ended:
                    self._metrics.ended(ended)

    def _is_wanted(self, pod: Pod, node: str) -> bool:
        """Return whether the pod exists and is still nominated for the node."""
        known = self._cluster.nominated_pods.get(pod.metadata.uid)
        return known is not None and known.node == node and self._under_way.current(pod) is not None


def _nomination(pod: Pod, plan: Plan, gang: str | None = None) -> Nomination:
    return Nomination(pod, plan.node, tuple(plan.allocations.values()), plan.requests_of(pod), gang)
