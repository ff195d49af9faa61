"""Makes the claim of one entry from its template, for a pod or for a PodGroup (claim-controller.md 5.4, step 6 on)."""

from __future__ import annotations

import logging

from dra_api.core import Pod
from dra_api.relations.references import is_owned_by_group
from dra_api.releases.release import Release
from dra_api.resource import FINALIZER, GROUP, POD_CLAIM_NAME_ANNOTATION, ResourceClaim, ResourceClaimTemplateSpec
from dra_api.scheduling import PodGroup
from dra_kube import AlreadyExists, KubeError, NotFound, Object

from dra_operator.cache import ClaimTemplate, Cluster
from dra_operator.controllers.errors import GenerationFailed
from dra_operator.controllers.logbook import tell
from dra_operator.controllers.metrics import ClaimMetrics
from dra_operator.kube import ClaimWriter, with_remedy
from dra_operator.scheduling.state import bytes_of_large, size_refusal

from .claim_body import claim_for
from .claim_names import NAME_ATTEMPTS, generated_name

logger = logging.getLogger(__name__)


class ClaimMaker:
    """``create`` a claim. Templates and gates are those of the cluster."""

    def __init__(self, cluster: Cluster, claims: ClaimWriter, metrics: ClaimMetrics) -> None:
        self._cluster, self._claims, self._metrics = cluster, claims, metrics

    async def create(
        self, owner: Pod | PodGroup, entry: str, template_name: str, *, with_finalizer: bool = False
    ) -> ResourceClaim:
        """The claim of the entry, new or already there. Raises GenerationFailed."""
        template = self._cluster.store_of(ClaimTemplate).get(f"{owner.metadata.namespace}/{template_name}")
        if template is None:
            missing = f'resourceclaimtemplate.{GROUP} "{template_name}" not found'
            raise GenerationFailed(f'resource claim template "{template_name}": {missing}')
        spec = template.typed()
        if (size := bytes_of_large(spec.spec)) is not None:
            raise GenerationFailed(f"resource claim template {template_name} {size_refusal(size)}")
        admin = self._check_gates(spec)
        body = claim_from_template(owner, entry, template, self._cluster.features.release)
        if with_finalizer:
            body["metadata"]["finalizers"] = [FINALIZER]
        try:
            claim = await self._create_once(owner, entry, body)
        except KubeError as error:
            self._metrics.created(type(owner), success=False, admin_access=admin)
            name = body["metadata"].get("name", "")
            raise GenerationFailed(f"create ResourceClaim {name}: {with_remedy(error)}") from error
        self._metrics.created(type(owner), success=True, admin_access=admin)
        kind = "pod" if isinstance(owner, Pod) else "pod_group"
        tell(logger, logging.INFO, "claim generated", claim=claim.key, template=template_name, **{kind: owner.key})
        return claim

    async def _create_once(self, owner: Pod | PodGroup, entry: str, body: Object) -> ResourceClaim:
        """The claim of the entry, new or already there. Raises AlreadyExists when all names are taken by others.

        A claim that is made again because the recorded one is gone gets another name: nodes may still remember that.
        """
        meta, former = body["metadata"], recorded_name(owner, entry)
        for attempt in range(NAME_ATTEMPTS):
            name = generated_name(meta["generateName"], owner.metadata.uid, entry, attempt)
            if name == former:
                continue
            meta["name"] = name
            try:
                return await self._claims.create(body)
            except AlreadyExists as error:
                taken = error
            try:
                claim = await self._claims.find(owner.metadata.namespace, name)
            except NotFound:
                continue  # gone in between: its name may still be that of a claim which others remember
            if _is_claim_of(claim, owner, entry):
                return claim
        raise taken

    def _check_gates(self, spec: ResourceClaimTemplateSpec) -> bool:
        """Whether the template asks for admin access. Raises GenerationFailed for what is switched off (5.4, 7)."""
        requests = spec.spec.devices.requests or ()
        admin = any(request.exactly is not None and request.exactly.admin_access for request in requests)
        if admin and not self._cluster.features.admin_access:
            raise GenerationFailed("admin access is requested, but the feature is disabled")
        if not self._cluster.features.prioritized_list and any(request.first_available for request in requests):
            raise GenerationFailed("template includes a prioritized list of subrequests, but the feature is disabled")
        return admin


def claim_from_template(owner: Pod | PodGroup, entry: str, template: ClaimTemplate, release: Release) -> Object:
    """The claim to create for an entry (5.4, step 8)."""
    content = template.content()
    wanted = content.get("metadata") or {}
    annotations = {**(wanted.get("annotations") or {}), POD_CLAIM_NAME_ANNOTATION: entry}
    body = claim_for(owner, entry, annotations, content.get("spec") or {}, release)
    if wanted.get("labels"):
        body["metadata"]["labels"] = wanted["labels"]
    return body


def recorded_name(owner: Pod | PodGroup, entry: str) -> str | None:
    """The name of the claim that the status records for the entry."""
    statuses = owner.status.resource_claim_statuses or ()
    return next((status.resource_claim_name for status in statuses if status.name == entry), None)


def _is_claim_of(claim: ResourceClaim, owner: Pod | PodGroup, entry: str) -> bool:
    """Whether the claim was made for this entry of this very pod or group, and is there to stay."""
    controller, meta = claim.metadata.controller, claim.metadata
    if isinstance(owner, Pod):
        is_own = controller is not None and controller.uid == owner.metadata.uid
    else:
        is_own = is_owned_by_group(owner, claim)
    return (
        is_own and meta.deletion_timestamp is None and (meta.annotations or {}).get(POD_CLAIM_NAME_ANNOTATION) == entry
    )
