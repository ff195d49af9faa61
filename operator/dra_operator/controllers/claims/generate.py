"""Gives a pod its claims: generates them from templates, records them in its status, reserves them if it already has a
node.

The controller ``templates``; claim-controller.md sections 5.3 to 5.6. Every step can be repeated: a claim that exists
already is found by its owner and annotation, so a crash between creating and recording makes no second one.

If there are two claims for one entry all the same (``cache.duplicates``), ``ClaimRepair`` records the allocated one.
The cache is only the occasion: the repair reads the pod and the claims again before it changes anything. It records
first and deletes then, so that the recorded claim always exists.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from dra_api.codec import DecodeError, to_dict
from dra_api.core import Pod, PodResourceClaim
from dra_api.references import (
    ClaimName,
    ClaimNotCreatedYet,
    ClaimNotOwned,
    ClaimReferenceError,
    check_owned_by,
    claim_names,
    consumer_of,
    group_name,
    is_owned_by_group,
    is_pod_group,
    is_reserved_for,
)
from dra_api.releases.release import NEWEST, Release
from dra_api.resource import (
    EXTENDED_RESOURCE_ANNOTATION,
    FINALIZER,
    GROUP,
    POD_CLAIM_NAME_ANNOTATION,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimTemplateSpec,
)
from dra_api.scheduling import GROUP as SCHEDULING_GROUP
from dra_api.scheduling import PodGroup
from dra_kube import AlreadyExists, KubeError, NotFound, Object

from dra_operator.cache import ClaimTemplate, Cluster, Key, by_entry, counting_claim, duplicates
from dra_operator.controllers.claims.names import (
    NAME_ATTEMPTS,
    NamesBeingWritten,
    generated_name,
    generated_name_base,
    legacy_name,
    without_suffix,
)
from dra_operator.controllers.context import ControllerContext
from dra_operator.controllers.errors import ControllerError, GenerationFailed, PodVanished
from dra_operator.controllers.logbook import tell
from dra_operator.controllers.metrics import ClaimMetrics
from dra_operator.kube import ClaimChanged, ClaimWriter, EventReason, PodChanged, PodWriter, with_remedy
from dra_operator.scheduling.state import bytes_of_large, has_gate, size_refusal

_EXTENDED: Final = "extended-resources"


def claim_for(
    owner: Pod | PodGroup, purpose: str, annotations: dict[str, str], spec: Object, release: Release
) -> Object:
    """Return a claim that the pod or PodGroup owns, named after that and what it is for (claim-controller.md 5.4)."""
    meta = owner.metadata
    reference = {
        "apiVersion": "v1" if isinstance(owner, Pod) else _version_of_groups(release),
        "kind": type(owner).__name__,
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
    }
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "generateName": generated_name_base(meta.name, purpose),
            "namespace": meta.namespace,
            "annotations": annotations,
            "ownerReferences": [reference],
        },
        "spec": spec,
    }


def _version_of_groups(release: Release) -> str:
    """Return the version of the PodGroup API that the release has (K37-WL-04)."""
    return f"{SCHEDULING_GROUP}/{'v1beta1' if release >= Release.V1_37 else 'v1alpha2'}"


def claim_for_extended_resources(pod: Pod, spec: ResourceClaimSpec) -> Object:
    """Return the claim for what devices serve to the pod (scheduling.md 7.2, 7.3).

    It has the finalizer from the start, which saves a write before the allocation.
    """
    body = claim_for(pod, _EXTENDED, {EXTENDED_RESOURCE_ANNOTATION: "true"}, to_dict(spec), NEWEST)
    body["metadata"]["finalizers"] = [FINALIZER]
    return body


def without_chance(pod: Pod, text: str) -> str:
    """What is said of a failure, without the random part of the name of the pod's claim for extended resources.

    Each attempt makes a new one, and a condition that named it would be news to everyone at each attempt.
    """
    return without_suffix(text, generated_name_base(pod.metadata.name, _EXTENDED))


logger = logging.getLogger(__name__)


class ClaimMaker:
    """``create`` a claim. Templates and gates are those of the cluster."""

    def __init__(self, cluster: Cluster, claims: ClaimWriter, metrics: ClaimMetrics) -> None:
        self._cluster, self._claims, self._metrics = cluster, claims, metrics

    async def create(
        self, owner: Pod | PodGroup, entry: str, template_name: str, *, with_finalizer: bool = False
    ) -> ResourceClaim:
        """Return the claim of the entry, new or already there. Raises GenerationFailed."""
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
            self._metrics.created_from_template(type(owner), success=False, admin_access=admin)
            name = body["metadata"].get("name", "")
            raise GenerationFailed(f"create ResourceClaim {name}: {with_remedy(error)}") from error
        self._metrics.created_from_template(type(owner), success=True, admin_access=admin)
        kind = "pod" if isinstance(owner, Pod) else "pod_group"
        tell(logger, logging.INFO, "claim generated", claim=claim.key, template=template_name, **{kind: owner.key})
        return claim

    async def _create_once(self, owner: Pod | PodGroup, entry: str, body: Object) -> ResourceClaim:
        """Return the claim of the entry, new or already there. Raises AlreadyExists when all names are taken by others.

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
        """Return whether the template asks for admin access.

        Raises GenerationFailed for what is switched off (5.4, 7).
        """
        requests = spec.spec.devices.requests or ()
        admin = any(request.exactly is not None and request.exactly.admin_access for request in requests)
        if admin and not self._cluster.features.admin_access:
            raise GenerationFailed("admin access is requested, but the feature is disabled")
        if not self._cluster.features.prioritized_list and any(request.first_available for request in requests):
            raise GenerationFailed("template includes a prioritized list of subrequests, but the feature is disabled")
        return admin


def claim_from_template(owner: Pod | PodGroup, entry: str, template: ClaimTemplate, release: Release) -> Object:
    """Return the claim to create for an entry (5.4, step 8)."""
    content = template.content()
    wanted = content.get("metadata") or {}
    annotations = {**(wanted.get("annotations") or {}), POD_CLAIM_NAME_ANNOTATION: entry}
    body = claim_for(owner, entry, annotations, content.get("spec") or {}, release)
    if wanted.get("labels"):
        body["metadata"]["labels"] = wanted["labels"]
    return body


def recorded_name(owner: Pod | PodGroup, entry: str) -> str | None:
    """Return the name of the claim that the status records for the entry."""
    statuses = owner.status.resource_claim_statuses or ()
    return next((status.resource_claim_name for status in statuses if status.name == entry), None)


def _is_claim_of(claim: ResourceClaim, owner: Pod | PodGroup, entry: str) -> bool:
    """Return whether the claim was made for this entry of this very pod or group, and is there to stay."""
    controller, meta = claim.metadata.controller, claim.metadata
    if isinstance(owner, Pod):
        is_own = controller is not None and controller.uid == owner.metadata.uid
    else:
        is_own = is_owned_by_group(owner, claim)
    return (
        is_own and meta.deletion_timestamp is None and (meta.annotations or {}).get(POD_CLAIM_NAME_ANNOTATION) == entry
    )


class ClaimRepair:
    """``handle`` one pod. Raises KubeError.

    ``pod_seen`` is called with a pod and what a read says of it, which the watch then does not bring any more.
    """

    def __init__(self, cluster: Cluster, claims: ClaimWriter, pods: PodWriter) -> None:
        self._cluster, self._claims, self._pods = cluster, claims, pods
        self.pod_seen: Callable[[Pod | None, Pod], None] = lambda _, __: None

    async def handle(self, pod: Pod) -> Pod:
        """The pod, with the claims recorded that count; the superfluous ones are deleted."""
        if not list(duplicates(pod, self._cluster.claims_owned_by(pod))):
            return pod
        uid = pod.metadata.uid
        for claim in list(self._cluster.claims_owned_by(pod)):
            await self._claims.read(claim)
        known, pod = pod, await self._pods.read(pod.metadata.namespace, pod.metadata.name)
        self.pod_seen(known, pod)
        if pod.metadata.uid != uid or pod.metadata.deletion_timestamp is not None:
            return pod
        found = list(duplicates(pod, self._cluster.claims_owned_by(pod)))
        right = {item.entry: item.keep.metadata.name for item in found if not item.is_recorded}
        if right:
            tell(logger, logging.INFO, "pod did not record its claims", pod=pod.key, claims=list(right.values()))
            pod = await self._pods.record_claims(pod, right)
        for item in found:
            for claim in item.superfluous:
                tell(logger, logging.INFO, "superfluous claim", claim=claim.key, pod=pod.key, entry=item.entry)
                await self._claims.delete(claim)
        return pod


CLAIMS_AT_ONCE = 100
"""So many claims are made for a pod before others have their turn: a pod may ask for thousands."""


class ClaimGenerator:
    """Handles ``templates:`` keys. ``legacy_names``: claims of Kubernetes up to 1.27 count as well (5.8)."""

    def __init__(
        self, context: ControllerContext, maker: ClaimMaker, names: NamesBeingWritten, *, legacy_names: bool = False
    ) -> None:
        self._context, self._maker, self._names_being_written = context, maker, names
        self._legacy_names = legacy_names
        self._cluster, self._claims, self._pods, self._ours = (
            context.cluster,
            context.claims,
            context.pods,
            context.ours,
        )
        self._failed: dict[str, tuple[str, str]] = {}
        """By the key of a pod: its UID, and why its claims could not be made."""
        self.repair = ClaimRepair(self._cluster, self._claims, self._pods)

    def failure(self, pod: Pod) -> str:
        """Return why the pod's claims could not be made when that was tried last, or an empty text."""
        uid, text = self._failed.get(pod.key, ("", ""))
        return text if uid == pod.metadata.uid else ""

    async def handle(self, key: str) -> None:
        """Make, record and reserve one pod's claims. The first entry that fails ends the round and leads to an
        event."""
        pod = self._cluster.pods.get(key)
        self._failed.pop(key, None)
        if pod is None or pod.metadata.deletion_timestamp is not None or pod.is_terminal:
            return
        ours = self._ours.placement and pod.spec.scheduler_name == self._cluster.scheduler_name
        try:
            if ours or self._ours.templates:
                pod = await self.repair.handle(pod)
            if self._ours.templates:
                await self._serve(pod)
        except PodChanged:
            return  # its successor, which was read, has brought the key here again
        except (ControllerError, KubeError) as error:
            self._failed[key] = (pod.metadata.uid, f"waits for its claims, which cannot be made: {error}")
            raise
        finally:
            pod = self._cluster.pods.get(key)
            if pod is not None and self._cluster.waits_for_us(pod) and self._cluster.lacks_generated_claim(pod):
                # Tried all the same after a while: then the pod says why it waits.
                self._context.add_after(Key("placement", key), self._context.times.faulty_templates)

    async def _serve(self, pod: Pod) -> None:
        found: dict[str, str] = {}
        if group_name(pod) is not None and self._cluster.groups.of(pod) is None:
            return  # it brings the pod here again when it comes
        name_of, owned = claim_names(pod), by_entry(self._cluster.claims_owned_by(pod))
        for entry in pod.spec.resource_claims or ():
            if len(found) == CLAIMS_AT_ONCE:
                break  # their record brings the pod here again
            try:
                name = None if self._is_settled(pod, entry, name_of) else await self._claim_for(pod, entry, owned)
            except (ClaimReferenceError, KubeError, GenerationFailed, DecodeError) as error:
                text = f"PodResourceClaim {entry.name}: {error}"
                self._context.events.post(pod, EventReason.FAILED_CLAIM_CREATION, text)
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
        """Return the name of the claim that has to be recorded for the entry; None if there is nothing to record
        (5.4)."""
        if entry.resource_claim_template_name is None:
            return None
        self._check_gate_of_groups(pod)
        group = self._cluster.groups.of(pod)
        if group is not None and is_pod_group(consumer_of(pod, group, entry)):
            shared = counting_claim(group, by_entry(self._cluster.claims_owned_by(group)).get(entry.name, ()))
            return shared.metadata.name if shared is not None else None  # its controller makes it, and wakes the pod
        made = counting_claim(pod, owned.get(entry.name, ()))
        if made is None and self._legacy_names:
            every = self._cluster.claims_owned_by(pod)
            made = next((claim for claim in every if _is_legacy_claim_of(claim, pod, entry.name)), None)
        if made is not None:
            return made.metadata.name
        return await self._make(pod, entry, entry.resource_claim_template_name)

    async def _make(self, pod: Pod, entry: PodResourceClaim, template: str) -> str | None:
        """Return the name of a new claim, or None if the recorded one is gone once more: it is made again after a
        pause."""
        if recorded_name(pod, entry.name) is None:
            return (await self._create(pod, entry, template)).metadata.name
        what = f"{pod.metadata.uid}/{entry.name}"
        if self._context.pauses.puts_off(what, Key("templates", pod.key)):
            return None
        claim = await self._create(pod, entry, template)
        self._context.pauses.did(what)
        return claim.metadata.name

    def _check_gate_of_groups(self, pod: Pod) -> None:
        """Without the gate it is not known whether an entry means a claim of the pod's group (K37-WL-07).

        Before 1.37 the pod got a claim of its own then. Raises GenerationFailed.
        """
        features = self._cluster.features
        is_on = features.generic_workload and features.workload_resource_claims
        if pod.spec.scheduling_group is not None and not is_on and features.release >= Release.V1_37:
            raise GenerationFailed(
                "the pod is in a PodGroup, whose claims need the feature gates GenericWorkload and "
                "DRAWorkloadResourceClaims: turn both on"
            )

    async def _create(self, pod: Pod, entry: PodResourceClaim, template: str) -> ResourceClaim:
        return await self._maker.create(pod, entry.name, template, with_finalizer=self._is_ours_throughout(pod))

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

    def _is_ours_throughout(self, pod: Pod) -> bool:
        """Return whether a claim that is made for the pod is also allocated and released here.

        Then it has the finalizer from birth, which saves the write that would put it on before the allocation. Should
        the claim never be allocated, its deletion waits until the finalizer is removed, as that of any other claim.
        """
        ours = self._ours
        is_placed_here = ours.placement and pod.spec.scheduler_name == self._cluster.scheduler_name
        is_allocated_here = ours.allocation if has_gate(pod) else is_placed_here
        return is_allocated_here and ours.release and not pod.spec.node_name

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
                    await self._claims.reserve(claim, consumer_of(pod, self._cluster.groups.of(pod), entry))
                except ClaimChanged as error:
                    raise GenerationFailed(f"PodResourceClaim {entry.name}: {error}") from error


def _is_legacy_claim_of(claim: ResourceClaim, pod: Pod, entry: str) -> bool:
    """Return whether Kubernetes up to 1.27 made this claim of the pod for the entry: the name says so, and no
    annotation."""
    meta = claim.metadata
    has_name = meta.name == legacy_name(pod.metadata.name, entry)
    return has_name and POD_CLAIM_NAME_ANNOTATION not in (meta.annotations or {})
