"""Writes the plan for a pod, and says what the pod waits for when it has its devices and cannot be bound yet.

A pod may be allocated and reserved and still not be bound: its devices have to get ready, its volumes to be bound, or
a list of the claims has to show that no other scheduler took its devices. It keeps its devices and its room, and is
looked at again when that may have changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial

from dra_api.core import Pod
from dra_api.relations.volumes import volume_uses
from dra_api.resource import ResourceClaim
from dra_kube.spans import span

from dra_operator.controllers.errors import BindingRefused
from dra_operator.controllers.workers import Result
from dra_operator.kube import EventReason
from dra_operator.scheduling import ConflictCheckDue, Plan
from dra_operator.scheduling.claims import Readiness
from dra_operator.scheduling.rules import VolumeWait
from dra_operator.scheduling.state import is_at_gate, is_placeholder

from .bind_step import BindStep
from .binding_cycle import BindingCycle
from .context import SchedulingContext
from .report import AGAIN, SCHEDULER_ERROR, WaitingReport

UNSEEN_LOOK_SECONDS = 5.0  # seconds between two looks whether watch and list have brought what a pod waits for


class Permit:
    """Carries out plans whose devices and room are taken."""

    def __init__(self, context: SchedulingContext, report: WaitingReport) -> None:
        self._context, self._report = context, report
        self._cluster, self._conflict_check = context.cluster, context.writing.conflict_check

    async def write(self, pod: Pod, plan: Plan, binding_cycle: BindingCycle, bind_step: BindStep) -> Result | None:
        """The plan, as much of it as may be written by now; None if the bind step has to wait. Raises BindingFailed."""
        try:
            with span(
                "binding_cycle", pod=pod.key, node=plan.node, claims=lambda: [it.key for it in self._claims_of(pod)]
            ):
                is_done = await binding_cycle.write(partial(self.may_bind, pod))
        except BindingRefused as refused:
            await self._report.waits(pod, SCHEDULER_ERROR, f"{refused}; {AGAIN}")
            raise
        finally:
            self._cluster.storage.written(pod.metadata.uid)
        pod = self._cluster.pods.get(pod.key, pod.metadata.uid) or pod  # it may record a claim more by now
        if not is_done:
            waits_for, obstacle = self._look_again(pod, plan), self._conflict_check.obstacle
            if obstacle and self._conflict_check.wait(self._claims_of(pod)) == math.inf:
                await self._report.waits(pod, SCHEDULER_ERROR, obstacle)
            elif waits_for:
                await self._report.goes_on_waiting(pod, SCHEDULER_ERROR, waits_for)
            return None
        self.ended(pod, plan, bind_step)
        return Result.SCHEDULED

    def ended(self, pod: Pod, plan: Plan, bind_step: BindStep) -> None:
        """The pod has what it waited for."""
        self._report.forget(pod)
        if news := bind_step.news(pod, plan.node):
            self._context.events.post(*news)
        for claim in self._claims_of(pod):
            self._context.writing.metrics.awaited(claim, Readiness.READY, self._context.clock())

    def may_bind(self, pod: Pod, claims: Sequence[ResourceClaim]) -> bool:
        """Whether all devices are ready for the pod to run with them, and certainly its own.

        An immediate claim waits for nothing: the pods that use it do.
        """
        if is_placeholder(pod):
            return True
        if any(self._context.readiness(claim).state is not Readiness.READY for claim in claims):
            return False
        if any(self._unbound_volumes(pod)):
            return False
        if self._conflict_check.wait(claims) > 0:
            return False
        for claim in filter(self._conflict_check.is_doubtful, claims):
            self._cluster.contested.setdefault(claim.metadata.uid, claim)
        return not any(self._must_give_way(pod, claim) for claim in claims)

    def _look_again(self, pod: Pod, plan: Plan) -> str:
        """Have the pod, which has its devices and cannot be bound yet, looked at when that may have changed.

        Return for what it waits, or an empty text if that is seen at once.
        """
        claims = self._claims_of(pod)
        unbound = self.await_volumes(pod, plan)
        wait = self._conflict_check.wait(claims)
        if wait > 0:
            # Watch and list wake the pod when they bring what it waits for; should they never come, look again.
            self._context.look_again(pod.key, UNSEEN_LOOK_SECONDS if wait == math.inf else wait)
            return ConflictCheckDue(tuple(claims)).text
        if not unbound and not any(self._must_give_way(pod, claim) for claim in claims):
            waiting = f"waiting for binding conditions for device on node {plan.node}"
            self._context.events.post(pod, EventReason.BINDING_CONDITIONS_PENDING, waiting)
        self._context.look_again(pod.key)
        return ""

    def await_volumes(self, pod: Pod, plan: Plan) -> bool:
        """Whether the pod waits for volumes, which are being bound: it says so, and there is a time for it."""
        unbound = ", ".join(self._unbound_volumes(pod))
        if unbound:
            deadline = self._context.clock() + timedelta(seconds=self._context.times.volume_binding_timeout)
            self._cluster.storage.wait(pod.metadata.uid, VolumeWait(plan.node, deadline))
            waiting = f"waiting for PersistentVolumeClaim {unbound} to be bound on node {plan.node}"
            self._context.events.post(pod, EventReason.VOLUMES_PENDING, waiting)
        return bool(unbound)

    def _claims_of(self, pod: Pod) -> list[ResourceClaim]:
        return [claim for _, claim in self._cluster.claims_of(pod) if claim is not None]

    def _unbound_volumes(self, pod: Pod) -> Iterator[str]:
        """The pod's claims of volumes that are not bound yet; those of a pod at the gate are not ours."""
        for use in () if is_at_gate(pod) else volume_uses(pod):
            claim = self._cluster.storage.claim(use.key)
            if claim is None or not claim.is_bound:
                yield use.name

    def _must_give_way(self, pod: Pod, claim: ResourceClaim) -> bool:
        """Whether another claim holds a device of this one too, and no pod relies on this one but those that wait."""
        return bool(self._cluster.clashes(claim)) and self._cluster.is_dispensable(pod, claim)
