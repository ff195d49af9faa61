"""Gives a pod its claims: generates them from templates, records them in its status, reserves them if it already has a
node.

The controller ``templates``; claim-controller.md sections 5.3 to 5.6. Every step can be repeated: a claim that exists
already is found by its owner and annotation, so a crash between creating and recording makes no second one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from dra_api.codec import DecodeError
from dra_api.core import Pod, PodResourceClaim
from dra_api.relations.references import (
    ClaimName,
    ClaimNotCreatedYet,
    ClaimNotOwned,
    ClaimReferenceError,
    check_owned_by,
    claim_names,
    consumer_of,
    is_reserved_for,
)
from dra_api.resource import FINALIZER, GROUP, POD_CLAIM_NAME_ANNOTATION, ResourceClaim, ResourceClaimTemplateSpec
from dra_kube import AlreadyExists, KubeError, NotFound, Object

from dra_operator.cache import ClaimTemplate, Cluster, Key, by_entry, counting_claim
from dra_operator.controllers.shared.errors import GenerationFailed, PodVanished
from dra_operator.controllers.shared.logbook import tell
from dra_operator.controllers.shared.own_controllers import OwnControllers
from dra_operator.controllers.work.growing_pauses import GrowingPauses
from dra_operator.controllers.work.metrics import ClaimMetrics
from dra_operator.kube import ClaimChanged, ClaimWriter, EventReason, EventRecorder, PodChanged, PodWriter, with_remedy
from dra_operator.scheduling.state import has_gate, size_refusal

from .claim_body import claim_for_pod
from .claim_names import NAME_ATTEMPTS, generated_name, legacy_name
from .names_being_written import NamesBeingWritten
from .repair import ClaimRepair

logger = logging.getLogger(__name__)

CLAIMS_AT_ONCE = 100
"""So many claims are made for a pod before others have their turn: a pod may ask for thousands."""


class ClaimGenerator:
    """Handles ``pod:`` keys. ``legacy_names``: claims of Kubernetes up to 1.27 count as well (5.8)."""

    def __init__(
        self,
        cluster: Cluster,
        claims: ClaimWriter,
        pods: PodWriter,
        events: EventRecorder,
        metrics: ClaimMetrics,
        controllers: OwnControllers,
        names_being_written: NamesBeingWritten,
        pauses: GrowingPauses,
        *,
        legacy_names: bool = False,
    ) -> None:
        self._cluster, self._claims, self._pods = cluster, claims, pods
        self._names_being_written, self._legacy_names = names_being_written, legacy_names
        self._events, self._metrics, self._controllers = events, metrics, controllers
        self._pauses = pauses
        self._repair = ClaimRepair(cluster, claims, pods)

    async def handle(self, key: str) -> None:
        """Make, record and reserve one pod's claims. The first entry that fails ends the round and leads to an
        event."""
        pod = self._cluster.pods.get(key)
        if pod is None or pod.metadata.deletion_timestamp is not None or pod.is_terminal:
            return
        ours = self._controllers.placement and pod.spec.scheduler_name == self._cluster.scheduler_name
        try:
            if ours or self._controllers.templates:
                pod = await self._repair.handle(pod)
            if self._controllers.templates:
                await self._serve(pod)
        except PodChanged:
            return  # its successor, which was read, has brought the key here again

    async def _serve(self, pod: Pod) -> None:
        found: dict[str, str] = {}
        name_of, owned = claim_names(pod), by_entry(self._cluster.claims_owned_by(pod))
        for entry in pod.spec.resource_claims or ():
            if len(found) == CLAIMS_AT_ONCE:
                break  # their record brings the pod here again
            try:
                name = None if self._is_settled(pod, entry, name_of) else await self._claim_for(pod, entry, owned)
            except (ClaimReferenceError, KubeError, GenerationFailed, DecodeError) as error:
                text = f"PodResourceClaim {entry.name}: {error}"
                self._events.post(pod, EventReason.FAILED_CLAIM_CREATION, text)
                raise GenerationFailed(text) from error
            if name is not None:
                found[entry.name] = name
        if found:
            with self._names_being_written.of(pod, found):
                pod = await self._record(pod, found)
        if pod.spec.node_name:
            await self._reserve(pod)

    async def _record(self, pod: Pod, found: Mapping[str, str]) -> Pod:
        try:
            return await self._pods.record_claims(pod, found)
        except NotFound as error:
            raise PodVanished(str(error)) from error

    async def _claim_for(
        self, pod: Pod, entry: PodResourceClaim, owned: Mapping[str, list[ResourceClaim]]
    ) -> str | None:
        """The name of the claim that has to be recorded for the entry; None if there is nothing to record (5.4)."""
        if entry.resource_claim_template_name is None:
            return None
        made = counting_claim(pod, owned.get(entry.name, ()))
        if made is None and self._legacy_names:
            every = self._cluster.claims_owned_by(pod)
            made = next((claim for claim in every if _is_legacy_claim_of(claim, pod, entry.name)), None)
        if made is not None:
            return made.metadata.name
        return await self._make(pod, entry, entry.resource_claim_template_name)

    async def _make(self, pod: Pod, entry: PodResourceClaim, template: str) -> str | None:
        """The name of a new claim. None: the recorded one is gone once more, and it is made again after a pause."""
        if _recorded(pod, entry.name) is None:
            return (await self._create(pod, entry, template)).metadata.name
        what = f"{pod.metadata.uid}/{entry.name}"
        if self._pauses.puts_off(what, Key("templates", pod.key)):
            return None
        claim = await self._create(pod, entry, template)
        self._pauses.did(what)
        return claim.metadata.name

    def _is_settled(self, pod: Pod, entry: PodResourceClaim, name_of: Callable[[PodResourceClaim], ClaimName]) -> bool:
        try:
            name, must_check_owner = name_of(entry)
        except ClaimNotCreatedYet:
            return False
        if name is None:
            return True
        claim = self._cluster.claims.get(f"{pod.metadata.namespace}/{name}")
        if claim is None:
            return False
        try:
            if must_check_owner:
                check_owned_by(pod, claim)
        except ClaimNotOwned:
            return False
        return True

    async def _create(self, pod: Pod, entry: PodResourceClaim, template_name: str) -> ResourceClaim:
        template = self._cluster.store_of(ClaimTemplate).get(f"{pod.metadata.namespace}/{template_name}")
        if template is None:
            missing = f'resourceclaimtemplate.{GROUP} "{template_name}" not found'
            raise GenerationFailed(f'resource claim template "{template_name}": {missing}')
        if (size := template.bytes_of_spec) is not None:
            raise GenerationFailed(f"resource claim template {template_name} {size_refusal(size)}")
        admin = self._check_gates(template.typed())
        body = claim_from_template(pod, entry.name, template)
        if self._is_ours_throughout(pod):
            body["metadata"]["finalizers"] = [FINALIZER]
        try:
            claim = await self._create_once(pod, entry.name, body)
        except KubeError as error:
            self._metrics.created(success=False, admin_access=admin)
            name = body["metadata"].get("name", "")
            raise GenerationFailed(f"create ResourceClaim {name}: {with_remedy(error)}") from error
        self._metrics.created(success=True, admin_access=admin)
        tell(logger, logging.INFO, "claim generated", claim=claim.key, pod=pod.key, template=template_name)
        return claim

    async def _create_once(self, pod: Pod, entry: str, body: Object) -> ResourceClaim:
        """The claim of the entry, new or already there. Raises AlreadyExists when all names are taken by others.

        A claim that is made again because the recorded one is gone gets another name: nodes may still remember that.
        """
        meta, former = body["metadata"], _recorded(pod, entry)
        names = [
            generated_name(meta["generateName"], pod.metadata.uid, entry, attempt) for attempt in range(NAME_ATTEMPTS)
        ]
        for name in names:
            if name == former:
                continue
            meta["name"] = name
            try:
                return await self._claims.create(body)
            except AlreadyExists as error:
                taken = error
            try:
                claim = await self._claims.find(pod.metadata.namespace, name)
            except NotFound:
                continue  # gone in between: its name may still be that of a claim which others remember
            if _is_claim_of(claim, pod, entry):
                return claim
        raise taken

    def _is_ours_throughout(self, pod: Pod) -> bool:
        """Whether a claim that is made for the pod is also allocated and released here.

        Then it has the finalizer from birth, which saves the write that would put it on before the allocation. Should
        the claim never be allocated, its deletion waits until the finalizer is removed, as that of any other claim.
        """
        ours = self._controllers
        is_placed_here = ours.placement and pod.spec.scheduler_name == self._cluster.scheduler_name
        is_allocated_here = ours.allocation if has_gate(pod) else is_placed_here
        return is_allocated_here and ours.release and not pod.spec.node_name

    def _check_gates(self, spec: ResourceClaimTemplateSpec) -> bool:
        """Whether the template asks for admin access. Raises GenerationFailed for what is switched off (5.4, 7)."""
        requests = spec.spec.devices.requests or ()
        admin = any(request.exactly is not None and request.exactly.admin_access for request in requests)
        if admin and not self._cluster.features.admin_access:
            raise GenerationFailed("admin access is requested, but the feature is disabled")
        if not self._cluster.features.prioritized_list and any(request.first_available for request in requests):
            raise GenerationFailed("template includes a prioritized list of subrequests, but the feature is disabled")
        return admin

    async def _reserve(self, pod: Pod) -> None:
        """Reserve allocated claims for a pod that did not go through a scheduler (5.5). Allocates nothing.

        Raises GenerationFailed when a claim takes no more consumers, or is not what the cache has any more.
        """
        name_of = claim_names(pod)
        for entry in pod.spec.resource_claims or ():
            name, must_check_owner = name_of(entry)
            if name is None:
                continue
            claim = self._cluster.claims.get(f"{pod.metadata.namespace}/{name}")
            if claim is None:
                return  # its arrival brings the pod here again
            if must_check_owner:
                check_owned_by(pod, claim)
            if claim.status.allocation is not None and not is_reserved_for(pod, claim):
                try:
                    await self._claims.reserve(claim, consumer_of(pod, None, entry))
                except ClaimChanged as error:
                    raise GenerationFailed(f"PodResourceClaim {entry.name}: {error}") from error


def claim_from_template(pod: Pod, entry: str, template: ClaimTemplate) -> Object:
    """The claim to create for a pod entry (5.4, step 8)."""
    content = template.content()
    wanted = content.get("metadata") or {}
    annotations = {**(wanted.get("annotations") or {}), POD_CLAIM_NAME_ANNOTATION: entry}
    body = claim_for_pod(pod, entry, annotations, content.get("spec") or {})
    if wanted.get("labels"):
        body["metadata"]["labels"] = wanted["labels"]
    return body


def _recorded(pod: Pod, entry: str) -> str | None:
    """The name of the claim that the pod records for the entry."""
    statuses = pod.status.resource_claim_statuses or ()
    return next((status.resource_claim_name for status in statuses if status.name == entry), None)


def _is_legacy_claim_of(claim: ResourceClaim, pod: Pod, entry: str) -> bool:
    """Whether Kubernetes up to 1.27 made this claim of the pod for the entry: the name says so, and no annotation."""
    meta = claim.metadata
    has_name = meta.name == legacy_name(pod.metadata.name, entry)
    return has_name and POD_CLAIM_NAME_ANNOTATION not in (meta.annotations or {})


def _is_claim_of(claim: ResourceClaim, pod: Pod, entry: str) -> bool:
    """Whether the claim was made for this entry of this very pod, and is there to stay."""
    owner, meta = claim.metadata.controller, claim.metadata
    is_own = owner is not None and owner.uid == pod.metadata.uid and meta.deletion_timestamp is None
    return is_own and (meta.annotations or {}).get(POD_CLAIM_NAME_ANNOTATION) == entry
