"""Claims and reservations of PodGroups, and the condition that says whether a group is placed.

The controller ``pod-groups`` (claim-controller.md section 8) generates each claim of a group once from its template,
and records it in the group's status. The claim is reserved for the group when a pod of it is placed, and recorded in
each pod with an equal entry by the controller ``templates``.

A claim stays reserved for a group while a pod of the group is active, known here or on the server: the pods of a group
may come one after the other. Up to Kubernetes 1.36 it stays until the group is gone (claim-controller.md 6.1,
K37-WL-10). DEVIATE: after the end of its group a claim stays reserved for the pods that still run with it. While a
reservation is being taken off (``releasing``) no pod is placed with the claim.

The controller ``group-conditions`` (kubernetes-1.37.md section 8) says in the status whether the pods were placed. The
condition is true once as many pods of ours as the group needs are on nodes at the same time, or one pod of a group with
the policy ``basic``, and stays true from then on. Until then it says what a pod says for the gang, or one of the pods
that are placed alone. That enough pods run is seen in the cache, so that a condition that was not written before the
operator ended is written afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dra_api.codec import DecodeError
from dra_api.core import Pod, PodResourceClaim
from dra_api.references import (
    ClaimReferenceError,
    claim_names,
    is_owned_by_group,
)
from dra_api.releases import Release
from dra_api.resource import ResourceClaim, ResourceClaimConsumerReference
from dra_api.scheduling import PodGroup, placed_condition
from dra_kube import KubeError, NotFound

from dra_operator.cache import Cluster, Key, Keys, by_entry, counting_claim
from dra_operator.controllers.claims.generate import ClaimMaker
from dra_operator.controllers.context import ControllerContext
from dra_operator.controllers.errors import GenerationFailed, ReleaseFailed
from dra_operator.kube import EventReason, PodGroupChanged
from dra_operator.scheduling.state import is_at_gate


class GroupClaimGenerator:
    """Handles ``pod-groups:`` keys."""

    def __init__(self, context: ControllerContext, maker: ClaimMaker) -> None:
        self._context, self._maker = context, maker
        self._cluster, self._groups = context.cluster, context.groups

    async def handle(self, key: str) -> None:
        """Make and record one group's claims. The first entry that fails ends the round and leads to an event."""
        group = self._cluster.groups.store.get(key)
        if group is None or group.metadata.deletion_timestamp is not None or not self._context.ours.templates:
            return
        found: dict[str, str] = {}
        for entry in group.spec.resource_claims or ():
            try:
                name = await self._claim_for(group, entry)
            except (ClaimReferenceError, KubeError, GenerationFailed, DecodeError) as error:
                text = f"PodGroupResourceClaim {entry.name}: {error}"
                self._context.events.post(group, EventReason.FAILED_CLAIM_CREATION, text)
                raise GenerationFailed(text) from error
            if name is not None:
                found[entry.name] = name
        try:
            if found:
                await self._groups.record_claims(group, found)
        except (NotFound, PodGroupChanged):
            return  # gone, or its successor was read, which has brought the key here again

    async def _claim_for(self, group: PodGroup, entry: PodResourceClaim) -> str | None:
        """Return the name of the claim that has to be recorded for the entry; None if there is nothing to record."""
        template = entry.resource_claim_template_name
        if self._maker.is_settled(group, entry, claim_names(group)) or template is None:
            return None
        # A claim may name the group as its controller without being made for it.
        owned = by_entry(it for it in self._cluster.claims_owned_by(group) if is_owned_by_group(group, it))
        made = counting_claim(group, owned.get(entry.name, ()))
        if made is not None:
            return made.metadata.name
        return await self._maker.create_in_time(group, entry.name, template)


async def keeps_reservation(
    context: ControllerContext, claim: ResourceClaim, group: ResourceClaimConsumerReference
) -> bool:
    """Return whether a pod of the group may still need the reservation of the claim. Raises ReleaseFailed."""
    features = context.cluster.features
    # The reservation stays while the gate is off: nobody knows whom it serves.
    if not features.workload_resource_claims or context.cluster.groups.needs(claim, group):
        return True
    if not await _exists(context, claim.metadata.namespace, group):
        return False
    if features.release < Release.V1_37:
        return True
    # Pods of the group may exist that our watch has not reported yet: only the server knows.
    return await context.groups.has_active_pods(claim.metadata.namespace, group.name)


async def _exists(context: ControllerContext, namespace: str, group: ResourceClaimConsumerReference) -> bool:
    known = context.cluster.groups.store
    # The end of the group was seen: no request is needed.
    if group.uid in known.deleted:
        return False
    if known.get(f"{namespace}/{group.name}", group.uid) is not None:
        return True
    try:
        return (await context.groups.read(namespace, group.name)).metadata.uid == group.uid
    except NotFound:
        return False
    except DecodeError as error:
        text = f"its consumer PodGroup {group.name} is malformed; correct or delete that group: {error}"
        raise ReleaseFailed(text) from error


@contextmanager
def releasing(cluster: Cluster, claim: ResourceClaim, wake: Callable[[Keys], None]) -> Iterator[None]:
    """Inside the block, in which the claim's reservation for a PodGroup ends, no pod is placed with it."""
    # A pod that was placed now would run with devices that are being given back.
    cluster.groups.releasing.add(claim.metadata.uid)
    try:
        yield
    finally:
        cluster.groups.releasing.discard(claim.metadata.uid)
        users = cluster.users_of(claim.key)
        # They were put off because of this release.
        wake(tuple(Key("placement", pod) for pod in users if pod in cluster.waiting))


PLACED = "Scheduled"


class Shown(NamedTuple):
    """What a condition says."""

    status: str
    reason: str
    message: str


class GroupConditions:
    """Handles ``group-conditions:`` keys."""

    def __init__(self, context: ControllerContext) -> None:
        self._context, self._cluster, self._groups = context, context.cluster, context.groups
        self._kind = placed_condition(context.cluster.features.release)
        self._said: dict[str, Shown] = {}
        """By group: why its pods wait, until it is written."""

    def waits(self, pod: Pod, reason: str, message: str) -> None:
        """Why a pod of ours waits, or its gang: its group waits for the same reason.

        Pods of a large group say so all the time, so the group is looked at for it after growing pauses.
        """
        group = self._cluster.groups.of(pod)
        # A pod at the gate is placed by another scheduler, which reports the group by itself.
        if group is None or is_at_gate(pod) or self._is_over(self._shown(group)):
            return
        key = Key("group-conditions", group.key)
        # Kept even if it is not written now: the last reason counts at the end of the pause.
        self._said[group.key] = Shown("False", reason, message)
        if not self._context.pauses.puts_off(group.metadata.uid, key):
            self._context.pauses.did(group.metadata.uid)
            self._context.queues.add((key,))

    async def handle(self, key: str) -> None:
        """Write the condition of one group, if it does not show it."""
        group, said = self._cluster.groups.store.get(key), self._said.pop(key, None)
        if group is None or not self._context.ours.placement or self._is_over(shown := self._shown(group)):
            return
        wanted = Shown("True", PLACED, "") if self._is_placed(group) else said
        # Pods of a group may wait for different reasons: nothing is written while the shown reason holds for one.
        if wanted is None or wanted == shown or (wanted == said and self._is_said(group, shown)):
            return
        try:
            await self._groups.report(group, self._kind, *wanted)
        except (NotFound, PodGroupChanged):
            return  # gone, or its successor was read, which has brought the key here again
        except KubeError:
            # Not over a newer reason that came while this one was on its way.
            if said is not None:
                self._said.setdefault(key, said)
            raise

    def _is_over(self, shown: Shown | None) -> bool:
        """Return whether the condition stays as it is."""
        return shown is not None and shown.status == "True"

    def _is_said(self, group: PodGroup, shown: Shown | None) -> bool:
        """Return whether a pod still says what the condition says: then it stays."""
        return shown is not None and any(
            (it.type, *shown) == ("PodScheduled", it.status, it.reason, it.message)
            for pod in self._members(group)
            for it in pod.status.conditions or ()
        )

    def _shown(self, group: PodGroup) -> Shown | None:
        conditions = group.status.conditions or ()
        return next((Shown(it.status, it.reason, it.message) for it in conditions if it.type == self._kind), None)

    def _is_placed(self, group: PodGroup) -> bool:
        gang = group.spec.scheduling_policy.gang
        # By the watch and not by answers: a condition that says so must be true for whoever reads both.
        placed = sum(bool(pod.spec.node_name) for pod in self._members(group))
        return placed >= max(gang.min_count if gang is not None else 1, 1)

    def _members(self, group: PodGroup) -> Iterator[Pod]:
        """Return the pods of ours that have not failed."""
        for key in self._cluster.groups.members.keys(group.key):
            pod = self._cluster.pods.get(key)
            is_ours = pod is not None and pod.spec.scheduler_name == self._cluster.scheduler_name
            if pod is not None and is_ours and pod.status.phase != "Failed":
                yield pod
