"""The binding cycle: reserve the devices of a plan, write, bind; unreserve what failed (scheduling.md 4.5 to 4.7).

What a binding cycle ends with is its ``BindStep``: the binding of the pod, or the opening of its scheduling gate.

The allocated devices keep each allocation until its write is over. What is over depends on the answer:

* The server said no: nothing happened, and the devices are free at once.
* There was no answer (timeout, broken connection, a server error), or something unforeseen broke the cycle off: the
  write may have happened, or may still. Devices and room stay taken. The next attempt for the pod first asks the
  server, and makes sure by a write of its own that an allocation which is not there cannot
  come any more (``Unreserve.confirm``).

What a binding cycle itself has allocated and reserved it deallocates and lets go when a later step fails: a claim that
were left allocated without a consumer would hold its devices for ever, should the pod vanish now. So would a shared
claim whose other consumers ended meanwhile. A claim that had an allocation and no consumer before keeps its allocation.

Claims of volumes come after the devices: what is begun with them is never taken back, so a pod that fails before has
left no trace in storage. A crash in between loses nothing either: the next attempt finds the devices, goes to their
node, and finds there which volumes are reserved already. The pod is bound when all its volumes are.

The claim for extended resources is the last one of devices: created, allocated and reserved, recorded in the pod's
status. It has no name before it exists, so the server cannot be asked what became of a creation without an answer. What
is half made when a cycle ends is found by its owner and its annotation: by the next attempt, which deletes it; by the
controller ``release`` when the pod got its node with another claim, or is done.

``Permit`` delays the bind step. A pod may be allocated and reserved and still not be bound: its devices have to get
ready, its volumes to be bound, or a list of the claims has to show that no other scheduler took its devices. It keeps
its devices and its room, and is looked at again when that may have changed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TypeVar

from dra_api.core import Pod, PodExtendedResourceClaimStatus
from dra_api.references import (
    consumer_of,
    group_consumer,
    group_name,
    is_pod_group,
    is_reserved_for,
    pod_as_consumer,
    volume_uses,
)
from dra_api.releases import Release
from dra_api.resource import AllocationResult, ResourceClaim
from dra_kube import ApiError, Conflict, Gone, KubeError, NotFound, TooManyRequests, Unauthorized
from dra_kube.spans import span

from dra_operator.cache import DeviceTaken
from dra_operator.controllers.claims.generate import check_recorded, claim_for_extended_resources, without_chance
from dra_operator.controllers.claims.group import releasing
from dra_operator.controllers.claims.release import discard
from dra_operator.controllers.errors import BindingFailed, BindingRefused, PodVanished
from dra_operator.controllers.scheduling.planning import BindStep, SchedulingContext
from dra_operator.controllers.scheduling.report import AGAIN, SCHEDULER_ERROR, WaitingReport
from dra_operator.controllers.workers import AttemptResult, devices_in, tell
from dra_operator.kube import (
    ClaimChanged,
    ClaimStripped,
    EventReason,
    ObjectChanged,
    PodGroupChanged,
    may_have_happened,
    with_remedy,
)
from dra_operator.scheduling import ConflictCheckDue, Plan, is_alone
from dra_operator.scheduling.claims import ExtendedClaim, PodClaim, Readiness
from dra_operator.scheduling.rules import VolumeWait
from dra_operator.scheduling.state import is_at_gate, is_placeholder, title

logger = logging.getLogger(__name__)
T = TypeVar("T")

_PASSING = (Conflict, NotFound, Gone, TooManyRequests, Unauthorized)
"""Answers that say no for now; every other one says no for good."""


class BindingCycle:
    """One ``plan`` for a ``pod``, on its way to the server; ``bind_step`` is its last write.

    ``reserve`` takes the devices and the room. A cycle that fails wakes the pods that may use what it gives back.
    """

    def __init__(
        self, context: SchedulingContext, bind_step: BindStep, pod: Pod, pod_claims: Sequence[PodClaim], plan: Plan
    ) -> None:
        self.pod, self.plan, self.bind_step = pod, plan, bind_step
        self._context, self._pod_claims = context, pod_claims
        self._cluster, self._claims, self._pods = context.cluster, context.claims, context.pods
        self._conflict_check = context.conflict_check
        self._reserved: list[ResourceClaim] = []
        self._extended = next((claim for entry, claim in pod_claims if entry is None), None)
        self._has_node_use = False
        self._unknown: set[str] = set()
        self._action = ""

    @property
    def waits(self) -> bool:
        """Return whether another member of the gang allocates a claim that this one only reserves."""
        open_claims = (it.metadata.uid for _, it in self._pod_claims if it.status.allocation is None)
        return any(uid not in self.plan.allocations for uid in open_claims)

    def reserve(self) -> None:
        """Take everything or nothing. Raises DeviceTaken when the plan gives away what is not free."""
        pod, plan = self.pod, self.plan
        claims = [claim for _, claim in self._pod_claims]
        if plan.extended is not None:
            claims.append(plan.extended.claim)
        try:
            for claim in claims:
                allocation = plan.allocations.get(claim.metadata.uid)
                if allocation is not None:
                    self._cluster.allocated_devices.assume(claim, allocation, pod)
        except DeviceTaken:
            self._unreserve_devices()
            raise
        if not is_placeholder(pod):
            # The room as well: a placeholder pod takes none, since no pod runs.
            self._context.queues.add(self._cluster.assume_placed(pod, plan.node, plan.served, plan.node_use.amounts))
        # So that the next plan does not choose the same volume, and run into a conflict.
        self._cluster.storage.assume(pod.metadata.uid, plan.node, plan.volumes)

    async def pre_bind(self) -> list[ResourceClaim]:
        """Write all of the plan but volumes and the bind step. Return the claims as they are then.

        Raises BindingFailed, after everything was given back that can be; whatever else a bug raises, unchanged.
        """
        async with self._undoing():
            claims = []
            # One after the other: a failed write then leaves one claim behind, and the next attempt finds it.
            for entry, claim in self._pod_claims:
                claims.append(await self._reserve(entry, claim))
            claims += await self._serve_extended_resources()
            await self._record_node_use()
            # The kubelet finds a pod's claims by their recorded names: these are written before the pod is bound.
            await self._context.names_being_written.over(self.pod)
            return claims

    async def bind_volumes(self) -> None:
        """Begin what the PV controller and the provisioners complete. It is never taken back.

        Raises as ``pre_bind``.
        """
        if is_at_gate(self.pod):
            return  # the pod's own scheduler does that
        async with self._undoing():
            node, volumes = self.plan.node, self.plan.volumes
            for claim, volume in volumes.reserve:
                self._action = f"reserve PersistentVolume {volume.key} for PersistentVolumeClaim {claim.key}"
                await self._context.volumes.reserve(volume, claim)
            for claim in volumes.provision:
                self._action = f"select node {node} for PersistentVolumeClaim {claim.key}"
                await self._context.volumes.select_node(claim, node)

    async def bind(self, claims: Sequence[ResourceClaim], *, undo: bool = True) -> None:
        """Take the bind step.

        Raises as ``pre_bind``; without ``undo`` a pod that exists keeps all it has when that fails.
        """
        async with self._undoing(always=undo):
            self._action = self.bind_step.action(self.plan.node)
            # The kubelet mounts what the status names: a pod that is bound with other claims would never start.
            pod = self._cluster.pods.get(self.pod.key, self.pod.metadata.uid)
            if pod is not None:  # otherwise the server knows better
                check_recorded(pod, claims)
            await self.bind_step.write(self.pod, self.plan.node, claims)
        if not is_placeholder(self.pod):
            # A bound pod needs no check any more; an immediate claim still does, until pods use it.
            self._conflict_check.forget(claims)

    def unreserve(self) -> None:
        """Reverse ``reserve``; what was written stays."""
        self._unreserve_devices()
        self._context.queues.add(self._cluster.forget_placed(self.pod))

    async def take_back(self) -> None:
        """Reverse ``reserve`` and all writes that succeeded."""
        await self._undo(vanished=False)

    def renew(self) -> None:
        """Take the claims as others have written them by now."""
        # Another member of the gang has allocated a claim that this one only reserves.
        known = self._cluster.claims.get
        self._pod_claims = [
            PodClaim(it, known(claim.key, claim.metadata.uid) or claim) for it, claim in self._pod_claims
        ]

    @asynccontextmanager
    async def _undoing(self, *, always: bool = True) -> AsyncIterator[None]:
        """Give back what can be given back if a write fails; unless ``always``, only if the pod has vanished."""
        try:
            yield
        except Exception as error:
            if not is_over(error):
                # The write may still happen. Devices named in it stay taken (``_unknown``), all others are free.
                self._unreserve_devices()
            elif always or isinstance(error, PodVanished):
                # The same plan would be refused again, so what an earlier attempt allocated goes as well.
                refused = isinstance(error, ApiError) and not isinstance(error, _PASSING)
                await self._undo(vanished=isinstance(error, PodVanished), refused=refused)
            if isinstance(error, KubeError | ObjectChanged):
                raise self._failure(error) from error
            raise

    def _failure(self, error: Exception) -> BindingFailed:
        if isinstance(error, ApiError) and is_over(error) and not isinstance(error, _PASSING):
            refused = f"cannot {self._action}: the API server refused: {with_remedy(error)}"
            return BindingRefused(without_chance(self.pod, refused))
        if isinstance(error, ClaimStripped):
            return BindingRefused(without_chance(self.pod, f"cannot {self._action}: {error}"))
        failed = f"{title(self.pod)} to node {self.plan.node}: cannot {self._action}: {error}"
        return BindingFailed(without_chance(self.pod, failed))

    async def _reserve(self, entry: str | None, claim: ResourceClaim) -> ResourceClaim:
        allocation = self.plan.allocations.get(claim.metadata.uid)
        if is_placeholder(self.pod):
            if allocation is not None:
                claim = await self._allocate(claim, allocation, self._claims.allocate(claim, allocation, None))
            return claim
        # An earlier attempt wrote it: nothing is to be done, and nothing to be undone.
        if allocation is None and is_reserved_for(self.pod, claim):
            return claim
        pod_entry = next(item for item in self.pod.spec.resource_claims or () if item.name == entry)
        group = self._cluster.groups.of(self.pod)
        # Without the group it is not known who the consumer is: the pod or the group.
        if group is None and group_name(self.pod) is not None:
            raise PodGroupChanged(f"PodGroup {group_name(self.pod)} is gone")
        consumer = consumer_of(self.pod, group, pod_entry)
        writing = (
            self._claims.reserve(claim, consumer)
            if allocation is None
            else self._claims.allocate(claim, allocation, consumer)
        )
        written = await self._allocate(claim, allocation, writing)
        # Reservations of groups are taken back by other rules (``_undo_group_claims``).
        if not is_pod_group(consumer):
            self._reserved.append(written)
        return written

    async def _allocate(
        self, claim: ResourceClaim, allocation: AllocationResult | None, writing: Awaitable[ResourceClaim]
    ) -> ResourceClaim:
        # Said before each write, so that its failure can name what was tried.
        self._action = f"{'reserve' if allocation is None else 'allocate'} claim {claim.key}"
        try:
            written = await writing
        except BaseException as error:
            if not is_over(error):
                self._unknown.add(claim.metadata.uid)
            raise
        pod = "" if is_placeholder(self.pod) else self.pod.key
        fields = {"claim": claim.key, "pod": pod, "node": self.plan.node}
        if allocation is not None:
            # The check counts from here: another scheduler that decided before it saw this write needs its grace.
            self._conflict_check.wrote(written)
            tell(logger, logging.INFO, "claim allocated", **fields, devices=lambda: devices_in(allocation))
        else:
            tell(logger, logging.DEBUG, "claim reserved", **fields)
        # From now on the claim itself says what it has; pods that share it may be tried again.
        self._context.queues.add(self._cluster.confirm(claim.metadata.uid))
        return written

    async def _serve_extended_resources(self) -> list[ResourceClaim]:
        """Write the claim that the plan asks for, if it does, and the status that names it to the kubelet (7.3)."""
        plan = self.plan
        if plan.extended is None:
            if self._extended is None and self.pod.status.extended_resource_claim_status is not None:
                await self._record(None)  # what is recorded is of an attempt for a node where devices served
            return []
        # Remembered before the next write: what fails from here on has to delete it.
        self._extended = made = await self._create(plan.extended)
        allocation = plan.allocations[plan.extended.claim.metadata.uid]
        writing = self._claims.allocate(made, allocation, pod_as_consumer(self.pod))
        written = await self._allocate(made, allocation, writing)
        await self._record(
            PodExtendedResourceClaimStatus(
                resource_claim_name=made.metadata.name, request_mappings=plan.extended.mappings
            )
        )
        return [written]

    async def _record(self, status: PodExtendedResourceClaimStatus | None) -> None:
        self._action = "record the claim for extended resources in the pod's status"
        try:
            await self._pods.record_extended(self.pod, status)
        except NotFound as error:
            raise PodVanished(str(error)) from error

    async def _record_node_use(self) -> None:
        """Record the node resources that the devices take in the pod's status before it is bound (K37-NA-08)."""
        statuses = self.plan.node_use.statuses
        if is_placeholder(self.pod) or is_at_gate(self.pod):
            return  # the scheduler that binds the pod records it
        # An earlier attempt has written the same.
        if statuses == (self.pod.status.node_allocatable_resource_claim_statuses or ()):
            return
        self._action = "record resources of the node in the pod's status"
        try:
            await self._pods.record_node_use(self.pod, statuses)
        except NotFound as error:
            raise PodVanished(str(error)) from error
        self._has_node_use = bool(statuses)

    async def _create(self, extended: ExtendedClaim) -> ResourceClaim:
        """Create the claim, and put it among the allocated devices in the place of the planned one.

        When the answer is lost the devices are free again, since they are not allocated yet.
        """
        self._action = f"create the claim for extended resources of pod {self.pod.key}"
        try:
            made = await self._claims.create(claim_for_extended_resources(self.pod, extended.claim.spec))
        except KubeError:
            self._context.metrics.created(success=False)
            raise
        self._context.metrics.created(success=True)
        tell(logger, logging.INFO, "claim generated", claim=made.key, pod=self.pod.key, template="")
        # The devices were taken for a claim that existed only here.
        self._cluster.follow(extended.claim.metadata.uid, made)
        return made

    async def _undo(self, *, vanished: bool, refused: bool = False) -> None:
        """Reverse everything done (4.6). A pod that vanished uses none of its claims any more.

        A pod whose last step is refused keeps no devices that it got in an earlier attempt: it may never start.
        """
        # The room first: others may be planned while the writes below are on their way.
        self.unreserve()
        uid = self.pod.metadata.uid
        for claim in self._reserved:
            # A claim that had devices and no consumer before keeps them: somebody allocated it on purpose.
            frees = vanished or claim.metadata.uid in self.plan.allocations or not is_alone(self.pod, claim)
            await self._try_to_undo(claim, self._claims.unreserve(claim, {uid}, deallocate=frees))
        earlier = list(self._allocated_earlier()) if refused else []
        for claim in earlier:
            await self._try_to_undo(claim, self._claims.unreserve(claim, {uid}, deallocate=True))
        self._conflict_check.given_up([*self._reserved, *earlier])
        await self._undo_group_claims()
        # Left in the status it would charge the pod for devices that it does not have.
        if self._has_node_use and not vanished:
            with suppress(KubeError):  # the next attempt writes it anew
                await self._pods.record_node_use(self.pod, ())
        if self._extended is not None:
            await self._try_to_undo(self._extended, discard(self._claims, self._extended, uid))

    def _allocated_earlier(self) -> Iterator[ResourceClaim]:
        """Yield the claims that an earlier attempt allocated for pods none of which is bound.

        One in a contest is left to its end: another scheduler takes a device for free that is given back.
        """
        known = {claim.metadata.uid for claim in self._reserved}
        for _, planned in self._pod_claims:
            claim = self._cluster.claims.get(planned.key, planned.metadata.uid)
            if claim is None or claim.status.allocation is None or claim.metadata.uid in known:
                continue
            # Only what was allocated here for pods that wait: another claim may belong to a pod that runs.
            if self._conflict_check.is_unbound(claim) and claim.metadata.uid not in self._cluster.contested:
                yield claim

    async def _undo_group_claims(self) -> None:
        """Claims that are reserved for the pod's PodGroup, if no other pod of it is placed (K37-WL-22 and -26).

        Up to Kubernetes 1.36 they stay so, and the next attempt uses them or gives them back.
        """
        if self._cluster.features.release < Release.V1_37 or group_name(self.pod) is None:
            return
        for _, planned in self._pod_claims:
            claim = self._cluster.claims.get(planned.key, planned.metadata.uid)
            group = group_consumer(self.pod, claim) if claim is not None else None
            if claim is None or group is None or self._cluster.groups.has_placed(self.pod):
                continue
            # As it was when the plan was made: then the group's reservation is ours to take off, and the devices are
            # not.
            had_devices = planned.status.allocation is not None and not planned.status.reserved_for
            with releasing(self._cluster, claim, self._context.queues.add):
                undoing = self._claims.unreserve(claim, {group.uid}, deallocate=not had_devices)
                await self._try_to_undo(claim, undoing)
            self._conflict_check.given_up([claim])

    async def _try_to_undo(self, claim: ResourceClaim, undoing: Awaitable[object]) -> None:
        fields = {"claim": claim.key, "pod": self.pod.key}
        try:
            await undoing
        except (KubeError, ClaimChanged) as error:
            tell(logger, logging.WARNING, "claim stays with the pod until it is tried again", error=error, **fields)
        else:
            tell(logger, logging.INFO, "claim released", because="the pod was not bound", **fields)

    def _unreserve_devices(self) -> None:
        for entry in self._cluster.allocated_devices.assumed_for(self.pod.key):
            # The write may still land. Given away now, the device would be held twice.
            if entry.claim.metadata.uid not in self._unknown:
                self._context.queues.add(self._cluster.confirm(entry.claim.metadata.uid))


def is_over(error: BaseException) -> bool:
    """Return whether the write certainly had no effect."""
    return isinstance(error, ObjectChanged | BindingFailed) or not may_have_happened(error)


UNSEEN_LOOK_SECONDS = 5.0  # seconds between two looks whether watch and list have brought what a pod waits for


class Permit:
    """Carries out plans whose devices and room are taken."""

    def __init__(self, context: SchedulingContext, report: WaitingReport) -> None:
        self._context, self._report = context, report
        self._cluster, self._conflict_check = context.cluster, context.conflict_check

    async def write(self, binding_cycle: BindingCycle) -> AttemptResult | None:
        """Write the plan, as much of it as may be written by now; None if the bind step has to wait. Raises
        BindingFailed."""
        pod, plan = binding_cycle.pod, binding_cycle.plan
        try:
            with span(
                "binding_cycle",
                pod=pod.key,
                node=plan.node,
                claims=lambda: [it.key for it in self._cluster.known_claims(pod)],
            ):
                # Devices, then volumes, then the pod: what cannot be taken back comes after what can fail.
                claims = await binding_cycle.pre_bind()
                await binding_cycle.bind_volumes()
                if is_done := self.may_bind(pod, claims):
                    await binding_cycle.bind(claims)
        except BindingRefused as refused:
            # At once and not after the silence: nothing but a person changes the answer.
            await self._report.waits(pod, SCHEDULER_ERROR, f"{refused}; {AGAIN}")
            raise
        finally:
            # The objects show the outcome from now on.
            self._cluster.storage.written(pod.metadata.uid)
        pod = self._cluster.pods.get(pod.key, pod.metadata.uid) or pod  # it may record a claim more by now
        if not is_done:
            waits_for, obstacle = self._look_again(pod, plan.node), self._conflict_check.obstacle
            # The list does not come, and the pod waits for nothing else: that has to be said at once.
            if obstacle and self._conflict_check.wait(self._cluster.known_claims(pod)) == math.inf:
                await self._report.waits(pod, SCHEDULER_ERROR, obstacle)
            elif waits_for:
                await self._report.goes_on_waiting(pod, SCHEDULER_ERROR, waits_for)
            return None
        self.ended(pod, binding_cycle)
        return AttemptResult.SCHEDULED

    def ended(self, pod: Pod, binding_cycle: BindingCycle) -> None:
        """Note that the pod, of which this is the newest version, is bound, or released from the gate."""
        self._report.forget(pod)
        if news := binding_cycle.bind_step.news(pod, binding_cycle.plan.node):
            self._context.events.post(*news)
        for claim in self._cluster.known_claims(pod):
            self._context.metrics.awaited(claim, Readiness.READY, self._context.now())

    def may_bind(self, pod: Pod, claims: Sequence[ResourceClaim]) -> bool:
        """Return whether all devices are ready for the pod to run with them, and certainly its own.

        An immediate claim waits for nothing: the pods that use it do.
        """
        if is_placeholder(pod):
            return True
        # The kubelet would fail to prepare a device that is not attached yet.
        if any(self._context.readiness(claim).state is not Readiness.READY for claim in claims):
            return False
        if any(self._unbound_volumes(pod)):
            return False
        if self._conflict_check.wait(claims) > 0:
            return False
        # A device may have had a second holder before this process began, and kube-scheduler then takes it for free.
        for claim in filter(self._conflict_check.is_doubtful, claims):
            self._cluster.contested.setdefault(claim.metadata.uid, claim)
        return not any(self._must_give_way(pod, claim) for claim in claims)

    def _look_again(self, pod: Pod, node: str) -> str:
        """Have the pod, which has its devices and cannot be bound yet, looked at when that may have changed.

        Return for what it waits, or an empty text if that is seen at once.
        """
        claims = self._cluster.known_claims(pod)
        unbound = self.await_volumes(pod, node)
        wait = self._conflict_check.wait(claims)
        is_unready = any(self._context.readiness(claim).state is not Readiness.READY for claim in claims)
        # Told now, even if other schedulers are waited for first: later attempts find the claim allocated.
        if is_unready and not unbound and not any(self._must_give_way(pod, claim) for claim in claims):
            waiting = f"waiting for binding conditions for device on node {node}"
            self._context.events.post(pod, EventReason.BINDING_CONDITIONS_PENDING, waiting)
        if wait > 0:
            # Watch and list wake the pod when they bring what it waits for; should they never come, look again.
            self._context.look_again(pod.key, UNSEEN_LOOK_SECONDS if wait == math.inf else wait)
            return ConflictCheckDue(tuple(claims)).text
        self._context.look_again(pod.key)
        return ""

    def await_volumes(self, pod: Pod, node: str) -> bool:
        """Return whether the pod waits for volumes, which are being bound: it says so, and there is a time for it."""
        unbound = ", ".join(self._unbound_volumes(pod))
        if unbound:
            # A provisioner may never answer: then the devices are given to others.
            deadline = self._context.now() + timedelta(seconds=self._context.times.volume_binding_timeout)
            self._cluster.storage.wait(pod.metadata.uid, VolumeWait(node, deadline))
            waiting = f"waiting for PersistentVolumeClaim {unbound} to be bound on node {node}"
            self._context.events.post(pod, EventReason.VOLUMES_PENDING, waiting)
        return bool(unbound)

    def _unbound_volumes(self, pod: Pod) -> Iterator[str]:
        """Yield the pod's claims of volumes that are not bound yet; those of a pod at the gate are not ours."""
        for use in () if is_at_gate(pod) else volume_uses(pod):
            claim = self._cluster.storage.claim(use.key)
            if claim is None or not claim.is_bound:
                yield use.name

    def _must_give_way(self, pod: Pod, claim: ResourceClaim) -> bool:
        """Return whether another claim holds a device of this one too, and no pod relies on this one but those that
        wait."""
        return bool(self._cluster.clashes(claim)) and self._cluster.is_dispensable(pod, claim)
