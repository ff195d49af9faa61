"""Gives a PodGroup its claims: generates each once from its template, and records it in the group's status.

The controller ``pod-groups``; claim-controller.md section 8. The claim is reserved for the group when a pod of it is
placed, and recorded in each pod with an equal entry by the controller ``templates``.
"""

from __future__ import annotations

from dra_api.codec import DecodeError
from dra_api.core import PodResourceClaim
from dra_api.relations.references import ClaimNotCreatedYet, ClaimReferenceError, claim_name, is_owned_by_group
from dra_api.scheduling import PodGroup
from dra_kube import KubeError, NotFound

from dra_operator.cache import Cluster, Key, by_entry, counting_claim
from dra_operator.controllers.errors import GenerationFailed
from dra_operator.controllers.memory import GrowingPauses
from dra_operator.controllers.settings import OwnControllers
from dra_operator.kube import EventReason, EventRecorder, PodGroupChanged, PodGroupWriter

from .make_claim import ClaimMaker, recorded_name


class GroupClaimGenerator:
    """Handles ``pod-groups:`` keys."""

    def __init__(
        self,
        cluster: Cluster,
        groups: PodGroupWriter,
        maker: ClaimMaker,
        events: EventRecorder,
        controllers: OwnControllers,
        pauses: GrowingPauses,
    ) -> None:
        self._cluster, self._groups, self._maker, self._events = cluster, groups, maker, events
        self._controllers, self._pauses = controllers, pauses

    async def handle(self, key: str) -> None:
        """Make and record one group's claims. The first entry that fails ends the round and leads to an event."""
        group = self._cluster.groups.store.get(key)
        if group is None or group.metadata.deletion_timestamp is not None or not self._controllers.templates:
            return
        found: dict[str, str] = {}
        for entry in group.spec.resource_claims or ():
            try:
                name = await self._claim_for(group, entry)
            except (ClaimReferenceError, KubeError, GenerationFailed, DecodeError) as error:
                text = f"PodGroupResourceClaim {entry.name}: {error}"
                self._events.post(group, EventReason.FAILED_CLAIM_CREATION, text)
                raise GenerationFailed(text) from error
            if name is not None:
                found[entry.name] = name
        try:
            if found:
                await self._groups.record_claims(group, found)
        except (NotFound, PodGroupChanged):
            return  # gone, or its successor was read, which has brought the key here again

    async def _claim_for(self, group: PodGroup, entry: PodResourceClaim) -> str | None:
        """The name of the claim that has to be recorded for the entry; None if there is nothing to record."""
        if self._is_settled(group, entry) or entry.resource_claim_template_name is None:
            return None
        owned = by_entry(it for it in self._cluster.claims_owned_by(group) if is_owned_by_group(group, it))
        made = counting_claim(group, owned.get(entry.name, ()))
        if made is not None:
            return made.metadata.name
        if recorded_name(group, entry.name) is None:
            return (await self._maker.create(group, entry.name, entry.resource_claim_template_name)).metadata.name
        what = f"{group.metadata.uid}/{entry.name}"
        if self._pauses.puts_off(what, Key("pod-groups", group.key)):
            return None
        claim = await self._maker.create(group, entry.name, entry.resource_claim_template_name)
        self._pauses.did(what)
        return claim.metadata.name

    def _is_settled(self, group: PodGroup, entry: PodResourceClaim) -> bool:
        try:
            name, must_check_owner = claim_name(group, entry)
        except ClaimNotCreatedYet:
            return False
        if name is None:
            return True
        claim = self._cluster.claims.get(f"{group.metadata.namespace}/{name}")
        return claim is not None and (not must_check_owner or is_owned_by_group(group, claim))
