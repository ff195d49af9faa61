"""Gives a pod its claims: generates them from templates, records them in its status, reserves them if it already has a
node.

The controller ``templates``; claim-controller.md sections 5.3 to 5.6. Every step can be repeated: a claim that exists
already is found by its owner and annotation, so a crash between creating and recording makes no second one.

If there are two claims for one entry all the same (``cache.index``), the controller records the allocated one.
The cache is only the occasion: the repair reads the pod and the claims again before it changes anything. It records
first and deletes then, so that the recorded claim always exists.

The name of a generated claim is ``<pod>-<entry>-`` and five characters, at most 63 in all (claim-controller.md 5.7).
Long parts are shortened in proportion, so that both can still be recognized. The five characters look like those that
the API server appends to a ``generateName``, but follow from the pod's UID and the entry. So a repeated creation, for
example after a lost answer, meets the existing claim instead of making a second one.

To record the names in a pod's status and to allocate the claims are two writes to two objects, and neither needs the
other. So where devices are abundant they go out together (``NamesBeingWritten``) and save a pod one of four round
trips. The binding waits for both: the kubelet reads the names, and a pod that records other claims than it has would
never start. If the recording fails, the binding cycle finds the pod without them, and gives the devices back. Where
devices are scarce the names come first. A pod that gets none is told so in its status, and that write and the recording
would make each other conflict.

Another name in the status of a pod is the work of another claim controller (``records_claim_of_others``). Only what a
status says counts, since users of a namespace may not write it, while they may make claims that look like any; and only
the status of a pod without a node, since a node may write that of its own pods. What this process records shows
nothing, although the watch may be faster than the answer: users may make a claim for a pod of theirs, which is recorded
like any other. A pod of a PodGroup shows nothing: it may record a claim of the group, whose name follows from that.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from dra_api.codec import DecodeError, to_dict
from dra_api.core import Pod, PodResourceClaim, PodResourceClaimStatus
from dra_api.references import (
    ClaimName,
    ClaimNotCreatedYet,
    ClaimReferenceError,
    check_owned_by,
    claim_names,
    claims_of_pod,
    consumer_of,
    group_name,
    is_owned_by,
    is_owned_by_group,
    is_pod_group,
    is_reserved_for,
    pod_is_ending,
)
from dra_api.releases import NEWEST, Release
from dra_api.resource import (
    EXTENDED_RESOURCE_ANNOTATION,
    FINALIZER,
    GROUP,
    POD_CLAIM_NAME_ANNOTATION,
    ResourceClaim,
    ResourceClaimSpec,
)
from dra_api.scheduling import GROUP as SCHEDULING_GROUP
from dra_api.scheduling import PodGroup
from dra_kube import AlreadyExists, KubeError, NotFound, Object
from msgspec import structs

from dra_operator.cache import ClaimTemplate, Key, by_entry, counting_claim, duplicates, pod_needs_work
from dra_operator.controllers.context import ControllerContext
from dra_operator.controllers.errors import ControllerError, GenerationFailed, PodVanished
from dra_operator.controllers.metrics import ClaimMetrics
from dra_operator.controllers.workers import tell
from dra_operator.kube import ClaimChanged, EventReason, PodChanged, with_remedy
from dra_operator.scheduling.state import asks_for_more, bytes_of_large, has_gate, size_refusal

NAME_ATTEMPTS = 5
"""So many names are tried for a claim: objects of other owners may have the first ones."""
LONGEST_BASE_CHARACTERS = 57
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # those of the API server: without vowels, so that no words appear
_LETTERS = bytes(ord(_ALPHABET[byte % len(_ALPHABET)]) for byte in range(256))
"""A letter for each byte."""
_SUFFIX_CHARACTERS = 5


def generated_name(base: str, pod_uid: str, entry: str, attempt: int) -> str:
    """Return the name for an entry's claim; another one for each attempt, for when a name is taken by something
    else."""
    digest = hashlib.sha256(f"{pod_uid}/{entry}/{attempt}".encode()).digest()
    return base + digest[:_SUFFIX_CHARACTERS].translate(_LETTERS).decode()


def is_ours(claim: str, pod: str, pod_uid: str, entry: str) -> bool:
    """Return whether an operator like this one makes or records a claim of that name for the entry."""
    base = generated_name_base(pod, entry)
    names = (generated_name(base, pod_uid, entry, attempt) for attempt in range(NAME_ATTEMPTS))
    return claim == legacy_name(pod, entry) or claim in names


def without_suffix(text: str, base: str) -> str:
    """Return the text with ``base*`` for each name made from the base, so that two attempts that fail alike say the
    same."""
    return re.sub(rf"{re.escape(base)}[a-z0-9]{{{_SUFFIX_CHARACTERS}}}\b", f"{base}*", text)


def legacy_name(pod: str, entry: str) -> str:
    """Return the name that Kubernetes up to 1.27 gave to the claim of an entry (claim-controller.md 5.8)."""
    return f"{pod}-{entry}"


def generated_name_base(pod: str, entry: str) -> str:
    """Return what goes into ``metadata.generateName``; keeps the hyphen before the random part."""
    # Most names are short enough, and are read by people as they are.
    base = f"{pod}-{entry}-"
    if len(base) <= LONGEST_BASE_CHARACTERS:
        return base
    room = LONGEST_BASE_CHARACTERS - 2  # for the two hyphens
    tail = _cut(entry, max(1, len(entry) * room // len(base)))
    head = _cut(pod, min(max(1, len(pod) * room // len(base)), room - len(tail)))
    return f"{head}-{tail}-"


def _cut(name: str, length: int) -> str:
    """Return the first characters, without those at the end that must not stand before a hyphen."""
    return name[:length].rstrip(".-")


@dataclass(eq=False, slots=True)
class _UnderWay:
    statuses: tuple[PodResourceClaimStatus, ...]
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class NamesBeingWritten:
    """``wanted``: whether a pod is to be planned before its claims are recorded; ``wake`` queues its key for that."""

    def __init__(self, wanted: Callable[[Pod], bool], wake: Callable[[Iterable[Key]], None]) -> None:
        self._wanted, self._wake = wanted, wake
        self._under_way: dict[str, _UnderWay] = {}

    @contextmanager
    def of(self, pod: Pod, claims: Mapping[str, str]) -> Iterator[None]:
        """Inside the block the names of ``claims``, by entry, are being written."""
        # The record and a refusal would be two writes to one status, and make each other conflict.
        if not self._wanted(pod):
            yield
            return
        known = {status.name: status for status in pod.status.resource_claim_statuses or ()}
        known |= {entry: PodResourceClaimStatus(name=entry, resource_claim_name=name) for entry, name in claims.items()}
        self._under_way[pod.metadata.uid] = under_way = _UnderWay(tuple(known.values()))
        # After the names are known here: the plan that this starts must find them.
        self._wake((Key("placement", pod.key),))
        try:
            yield
        finally:
            del self._under_way[pod.metadata.uid]
            # Also if the write failed: who waits sees by the pod whether the names are there.
            under_way.is_over.set()

    def foreseen(self, pod: Pod) -> Pod:
        """Return the pod as it will be when its claims are recorded."""
        under_way = self._under_way.get(pod.metadata.uid)
        if under_way is None:
            return pod
        return structs.replace(pod, status=structs.replace(pod.status, resource_claim_statuses=under_way.statuses))

    async def over(self, pod: Pod) -> None:
        """Wait until nothing is being recorded in the pod, whether that succeeded or not."""
        if (under_way := self._under_way.get(pod.metadata.uid)) is not None:
            await under_way.is_over.wait()


def check_recorded(pod: Pod, claims: Iterable[ResourceClaim]) -> None:
    """Raises ClaimChanged unless this version of the pod records all of the claims that were allocated for it.

    To record them may have failed, another controller may have recorded others, or a write that got no answer may have
    landed late.
    """
    recorded = {use.name for use in claims_of_pod(pod)}
    for claim in claims:
        if claim.metadata.name not in recorded:
            raise ClaimChanged(f"pod {pod.key} does not record claim {claim.metadata.name}")


def records_claim_of_others(before: Pod | None, now: Pod, records_here: Callable[[Pod, str], bool]) -> bool:
    """Return whether between these two versions of a pod another controller recorded a claim for one of its entries.

    ``records_here``: whether the claim of that name is being recorded in the pod by this process, or may have been.
    """
    # Without a version before it nobody can say who recorded what.
    if before is None or before.metadata.uid != now.metadata.uid:
        return False
    # A node may write the status of its pods, and a pod of a group may record the claim of the group.
    if now.spec.node_name or now.spec.scheduling_group is not None:
        return False
    known, new = _recorded(before), _recorded(now)
    meta = now.metadata
    changed = [(entry, claim) for entry, claim in new.items() if claim and known.get(entry) != claim]
    return any(
        not is_ours(claim, meta.name, meta.uid, entry) and not records_here(now, claim) for entry, claim in changed
    )


def _recorded(pod: Pod) -> dict[str, str | None]:
    return {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses or ()}


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
    """Makes claims from templates, for pods and PodGroups. Templates and gates are those of the cluster."""

    def __init__(self, context: ControllerContext, metrics: ClaimMetrics) -> None:
        self._cluster, self._claims, self._pauses = context.cluster, context.claims, context.pauses
        self._metrics = metrics

    def is_settled(
        self, owner: Pod | PodGroup, entry: PodResourceClaim, name_of: Callable[[PodResourceClaim], ClaimName]
    ) -> bool:
        """Return whether the entry has its claim, or needs none. Raises ClaimReferenceError."""
        try:
            name, must_check_owner = name_of(entry)
        except ClaimNotCreatedYet:
            return False
        if name is None:
            return True
        claim = self._cluster.claims.get(f"{owner.metadata.namespace}/{name}")
        if claim is None or not must_check_owner:
            return claim is not None
        return is_owned_by(owner, claim) if isinstance(owner, Pod) else is_owned_by_group(owner, claim)

    async def create_in_time(
        self, owner: Pod | PodGroup, entry: str, template_name: str, *, with_finalizer: bool = False
    ) -> str | None:
        """As ``create``, but for the name; None if the owner has to come back later to have the claim made."""
        what, is_again = f"{owner.metadata.uid}/{entry}", recorded_name(owner, entry) is not None
        key = Key("templates" if isinstance(owner, Pod) else "pod-groups", owner.key)
        # A recorded claim that is gone is made again. Somebody who deletes it again and again meets growing pauses.
        if is_again and self._pauses.puts_off(what, key):
            return None
        claim = await self.create(owner, entry, template_name, with_finalizer=with_finalizer)
        if is_again:
            self._pauses.did(what)
        return claim.metadata.name

    async def create(
        self, owner: Pod | PodGroup, entry: str, template_name: str, *, with_finalizer: bool = False
    ) -> ResourceClaim:
        """Return the claim of the entry, new or already there. Raises GenerationFailed.

        A claim that is made again because the recorded one is gone gets another name: nodes may still remember that.
        """
        namespace, release = owner.metadata.namespace, self._cluster.features.release
        template, admin = await self._template(namespace, template_name)
        body = claim_from_template(owner, entry, template, release)
        meta, former = body["metadata"], recorded_name(owner, entry)
        if with_finalizer:
            meta["finalizers"] = [FINALIZER]
        base, uid = meta["generateName"], owner.metadata.uid
        try:
            for name in (generated_name(base, uid, entry, attempt) for attempt in range(NAME_ATTEMPTS)):
                # Nodes may still remember the claim of that name, and what they prepared for it.
                if name == former:
                    continue
                meta["name"] = name
                try:
                    claim = await self._claims.create(body)
                    break
                except AlreadyExists as error:
                    taken = error
                # The name is taken: perhaps by our own creation, of which the answer was lost.
                known = self._cluster.claims.get(f"{namespace}/{name}")
                try:
                    # Tenants may take names, with claims of any size: one that the watch has shown is not read again.
                    claim = known or await self._claims.find(namespace, name)
                except NotFound:
                    continue  # gone in between: its name may still be that of a claim which others remember
                if _is_claim_of(claim, owner, entry):
                    break
            else:
                raise taken  # all names are those of others
        except KubeError as error:
            self._metrics.created_from_template(type(owner), success=False, admin_access=admin)
            raise GenerationFailed(f"create ResourceClaim {meta.get('name', '')}: {with_remedy(error)}") from error
        self._metrics.created_from_template(type(owner), success=True, admin_access=admin)
        kind = "pod" if isinstance(owner, Pod) else "pod_group"
        tell(logger, logging.INFO, "claim generated", claim=claim.key, template=template_name, **{kind: owner.key})
        return claim

    async def _template(self, namespace: str, name: str) -> tuple[ClaimTemplate, bool]:
        """Return a template from which a claim may be made, and whether that has admin access.

        Raises GenerationFailed and DecodeError.
        """
        template = self._cluster.templates.get(f"{namespace}/{name}")
        if template is None:
            missing = f'resourceclaimtemplate.{GROUP} "{name}" not found'
            raise GenerationFailed(f'resource claim template "{name}": {missing}')
        if template.is_set_aside:
            try:
                template = await self._claims.template(namespace, name)
            except KubeError as error:
                raise GenerationFailed(f"read ResourceClaimTemplate {name}: {with_remedy(error)}") from error
        spec, features = template.typed().spec, self._cluster.features
        requests = spec.devices.requests or ()
        admin = any(request.exactly is not None and request.exactly.admin_access for request in requests)
        if (size := bytes_of_large(spec)) is not None:
            raise GenerationFailed(f"resource claim template {name} {size_refusal(size)}")
        # A server whose gate is off would drop the field without a word, and the pod would get less than it asked for.
        if admin and not features.admin_access:
            raise GenerationFailed("admin access is requested, but the feature is disabled")
        if not features.prioritized_list and any(request.first_available for request in requests):
            raise GenerationFailed("template includes a prioritized list of subrequests, but the feature is disabled")
        return template, admin


def claim_from_template(owner: Pod | PodGroup, entry: str, template: ClaimTemplate, release: Release) -> Object:
    """Return the claim to create for an entry (5.4, step 8)."""
    # From the JSON of the template, not from its struct: fields that this release does not know go into the claim.
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


CLAIMS_AT_ONCE = 100
"""So many claims are made for a pod before others have their turn: a pod may ask for thousands."""


class ClaimGenerator:
    """Handles ``templates:`` keys. ``legacy_names``: claims of Kubernetes up to 1.27 count as well (5.8)."""

    def __init__(
        self, context: ControllerContext, maker: ClaimMaker, names: NamesBeingWritten, *, legacy_names: bool
    ) -> None:
        self._context, self._maker, self._names_being_written = context, maker, names
        self._legacy_names = legacy_names
        self._cluster, self._claims, self._pods = context.cluster, context.claims, context.pods
        self._ours = context.ours
        self._failed: dict[str, tuple[str, str]] = {}
        """By the key of a pod: its UID, and why its claims could not be made."""
        self.pod_seen: Callable[[Pod | None, Pod], None] = lambda _, __: None
        """Called with a pod and what a read says of it, which the watch then does not bring any more."""

    def failure(self, pod: Pod) -> str:
        """Return why the pod's claims could not be made when that was tried last, or an empty text."""
        uid, text = self._failed.get(pod.key, ("", ""))
        return text if uid == pod.metadata.uid else ""

    async def handle(self, key: str) -> None:
        """Make, record and reserve one pod's claims. The first entry that fails ends the round and leads to an
        event."""
        pod = self._cluster.pods.get(key)
        # Before all else: whether it fails now is found out below.
        self._failed.pop(key, None)
        if pod is None or pod_is_ending(pod):
            return
        ours = self._ours.placement and pod.spec.scheduler_name == self._cluster.scheduler_name
        try:
            # Beside a kube-controller-manager only placement knows which of two claims counts: the one that it
            # allocated.
            if asks_for_more(pod):
                pod = await self._pods.whole(pod)
                if not pod_needs_work(self._cluster, pod):
                    return
            if ours or self._ours.templates:
                pod = await self._repair(pod)
            if self._ours.templates:
                await self._serve(pod)
        except PodChanged:
            return  # its successor, which was read, has brought the key here again
        except (ControllerError, KubeError) as error:
            # The event about it is gone after an hour, and the pod still waits: placement says it in the condition.
            self._failed[key] = (pod.metadata.uid, f"waits for its claims, which cannot be made: {error}")
            raise
        finally:
            pod = self._cluster.pods.get(key)
            if pod is not None and self._cluster.waits_for_us(pod) and self._cluster.lacks_generated_claim(pod):
                # Tried all the same after a while: then the pod says why it waits.
                self._context.queues.add_after(Key("placement", key), self._context.times.faulty_templates)

    async def _repair(self, pod: Pod) -> Pod:
        """Return the pod, with the claims recorded that count; the superfluous ones are deleted. Raises KubeError."""
        # Nearly always. The rest costs a request for each claim.
        if not any(duplicates(pod, self._cluster.claims_owned_by(pod))):
            return pod
        uid = pod.metadata.uid
        # Asked of the server: the cache may be old, and the wrong claim would be deleted.
        for claim in list(self._cluster.claims_owned_by(pod)):
            await self._claims.read(claim)
        known, pod = pod, await self._pods.read(pod.metadata.namespace, pod.metadata.name)
        self.pod_seen(known, pod)
        # The claims of a pod that goes are deleted with it.
        if pod.metadata.uid != uid or pod.metadata.deletion_timestamp is not None:
            return pod
        # Once more, by what was read.
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

    async def _serve(self, pod: Pod) -> None:
        found: dict[str, str] = {}
        # Which entries mean a claim of the group follows from the group.
        if group_name(pod) is not None and self._cluster.groups.of(pod) is None:
            return  # it brings the pod here again when it comes
        name_of, owned = claim_names(pod), by_entry(self._cluster.claims_owned_by(pod))
        for entry in pod.spec.resource_claims or ():
            if len(found) == CLAIMS_AT_ONCE:
                break  # their record brings the pod here again
            try:
                is_settled = self._maker.is_settled(pod, entry, name_of)
                name = None if is_settled else await self._claim_for(pod, entry, owned)
            except (ClaimReferenceError, KubeError, GenerationFailed, DecodeError) as error:
                # The words of kube-controller-manager, for which people and programs look.
                text = f"PodResourceClaim {entry.name}: {error}"
                self._context.events.post(pod, EventReason.FAILED_CLAIM_CREATION, text)
                raise GenerationFailed(text) from error
            if name is not None:
                found[entry.name] = name
        if found:
            # The pod is planned meanwhile if devices are abundant; its binding waits for this write.
            with self._names_being_written.of(pod, found):
                try:
                    pod = await self._pods.record_claims(pod, found)
                except NotFound as error:
                    raise PodVanished(str(error)) from error
        if pod.spec.node_name:
            await self._reserve(pod)

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
        # A cluster that was upgraded from 1.27 has claims without the annotation by which they are found.
        if made is None and self._legacy_names:
            every = self._cluster.claims_owned_by(pod)
            made = next((claim for claim in every if _is_legacy_claim_of(claim, pod, entry.name)), None)
        if made is not None:
            return made.metadata.name
        template, with_finalizer = entry.resource_claim_template_name, self._is_ours_throughout(pod)
        return await self._maker.create_in_time(pod, entry.name, template, with_finalizer=with_finalizer)

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

    def _is_ours_throughout(self, pod: Pod) -> bool:
        """Return whether a claim that is made for the pod is also allocated and released here.

        Then it has the finalizer from birth, which saves the write that would put it on before the allocation. Should
        the claim never be allocated, its deletion waits until the finalizer is removed, as that of any other claim.
        """
        ours = self._ours
        # Whoever else allocates the claim puts the finalizer on by itself.
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
            # Without devices the pod cannot run: it names a node, so no scheduler will ever give it some.
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
