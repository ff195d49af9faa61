"""Claims and volumes that a pod's entries mean, the pod that owns a claim, and consumers with a reservation.

A pod names its claims in ``spec.resourceClaims``. An entry is either the name of a claim, or the
name of a template; the claim made from a template is found through ``status.resourceClaimStatuses``
and has to be owned by the pod, because a claim of that name may belong to another owner.
Operator, node and eviction share these functions. Spec: claim-controller.md sections 3 and 6.1.

Pods of a PodGroup may share a claim, which is reserved for the group, by its name in the pod. A component whose gate
DRAWorkloadResourceClaims is off sees each pod ``without_group``.

Errors::

    ClaimReferenceError
    ├── ClaimNotCreatedYet       a template entry without a recorded claim: wait
    ├── UnsupportedClaimSource   the entry uses a field that we do not know
    ├── ClaimNotOwned            the claim belongs to another pod, or has no owner
    └── PodNotInGroup            the pod is not a member of the PodGroup it was asked about
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from dra_api.core import FINISHED, Pod, PodResourceClaim, PodSchedulingGroup
from dra_api.meta import Object, OwnerReference
from dra_api.resource import (
    EXTENDED_RESOURCE_ANNOTATION,
    POD_CLAIM_NAME_ANNOTATION,
    DeviceAllocationConfiguration,
    DeviceClaimConfiguration,
    DeviceToleration,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimTemplateSpec,
)
from dra_api.scheduling import GROUP as SCHEDULING_GROUP
from dra_api.scheduling import PodGroup

Config = TypeVar("Config", DeviceAllocationConfiguration, DeviceClaimConfiguration)


class ClaimReferenceError(Exception):
    """A pod entry does not lead to a claim."""


class ClaimNotCreatedYet(ClaimReferenceError):
    """The claim of a template entry is not recorded in the status yet."""


class UnsupportedClaimSource(ClaimReferenceError):
    """Neither a claim nor a template is named: an extension that this version does not know."""


class ClaimNotOwned(ClaimReferenceError):
    """The claim that has the recorded name was not made for this pod."""


class PodNotInGroup(ClaimReferenceError):
    """The pod is not a member of the given PodGroup."""


class ClaimName(NamedTuple):
    """Where an entry leads: ``name`` None means that no claim is needed and the entry is to be skipped."""

    name: str | None
    must_check_owner: bool


class ClaimUse(NamedTuple):
    """One claim that a pod uses; ``entry`` None is the claim made for the pod's extended resources."""

    entry: PodResourceClaim | None
    name: str
    must_check_owner: bool


def claim_name(owner: Pod | PodGroup, entry: PodResourceClaim) -> ClaimName:
    """The claim that an entry of a pod (or of a PodGroup) means (3.1).

    Raises ClaimNotCreatedYet or UnsupportedClaimSource.
    """
    return claim_names(owner)(entry)


def claim_names(owner: Pod | PodGroup) -> Callable[[PodResourceClaim], ClaimName]:
    """``claim_name`` for one entry after the other: a pod may have thousands, and each has a place in its status."""
    recorded = {status.name: status.resource_claim_name for status in owner.status.resource_claim_statuses or ()}

    def name_of(entry: PodResourceClaim) -> ClaimName:
        if entry.resource_claim_name is not None:
            return ClaimName(entry.resource_claim_name, must_check_owner=False)
        if entry.resource_claim_template_name is None:
            raise _unsupported(owner, entry)
        if entry.name not in recorded:
            raise ClaimNotCreatedYet(f"{_title(owner)}: ResourceClaim not created yet")
        return ClaimName(recorded[entry.name], must_check_owner=True)

    return name_of


def claims_of_pod(pod: Pod) -> Iterator[ClaimUse]:
    """The claims that the pod uses and whose names are known, including the one for extended resources.

    Entries that lead to no claim (yet), or need none, are left out.
    """
    name_of = claim_names(pod)
    for entry in pod.spec.resource_claims or ():
        try:
            name, must_check_owner = name_of(entry)
        except ClaimReferenceError:
            continue
        if name is not None:
            yield ClaimUse(entry, name, must_check_owner)
    extended = pod.status.extended_resource_claim_status
    if extended is not None and extended.resource_claim_name:
        yield ClaimUse(None, extended.resource_claim_name, must_check_owner=True)


def claims_of_group(group: PodGroup) -> Iterator[str]:
    """The names of the claims of the group that are known."""
    name_of = claim_names(group)
    for entry in group.spec.resource_claims or ():
        try:
            name, _ = name_of(entry)
        except ClaimReferenceError:
            continue
        if name is not None:
            yield name


def is_for_extended_resources(claim: ResourceClaim) -> bool:
    """Whether a scheduler made the claim for the extended resources of the pod that owns it.

    A claim from a template may have the same annotation, since the template decides on it; that claim names its entry.
    """
    annotations = claim.metadata.annotations or {}
    return annotations.get(EXTENDED_RESOURCE_ANNOTATION) == "true" and POD_CLAIM_NAME_ANNOTATION not in annotations


def without_group(pod: Pod) -> Pod:
    """The pod as one that does not know its group sees it: in a group without a name."""
    if pod.spec.scheduling_group is None:
        return pod
    return replace(pod, spec=replace(pod.spec, scheduling_group=PodSchedulingGroup()))


def group_name(pod: Pod) -> str | None:
    """The PodGroup that the pod is a member of."""
    group = pod.spec.scheduling_group
    return group.pod_group_name or None if group is not None else None


def check_owned_by(pod: Pod, claim: ResourceClaim) -> None:
    """Raises ClaimNotOwned unless the claim was made for the pod or its PodGroup (3.2)."""
    claim_title = f"ResourceClaim {_path(claim)}"
    if claim.metadata.namespace != pod.metadata.namespace:
        raise ClaimNotOwned(f"{claim_title} is not in the namespace of Pod {_path(pod)}")
    controller = claim.metadata.controller
    if controller is not None and controller.uid == pod.metadata.uid:
        return
    group = group_name(pod)
    if group is None:
        raise ClaimNotOwned(f"{claim_title} was not created for Pod {_path(pod)} (Pod is not owner)")
    if controller is None or not _is_group(controller, group):
        raise ClaimNotOwned(
            f"{claim_title} was not created for Pod {_path(pod)} or its PodGroup "
            f"{pod.metadata.namespace}/{group} (neither Pod nor PodGroup is owner)"
        )


def is_owned_by(pod: Pod, claim: ResourceClaim) -> bool:
    """Whether the claim was made for the pod or its PodGroup."""
    try:
        check_owned_by(pod, claim)
    except ClaimNotOwned:
        return False
    return True


def owning_pod(claim: ResourceClaim) -> OwnerReference | None:
    """The pod that the claim was made for, which need not exist any more; None if it was made for no pod."""
    owner = claim.metadata.controller
    return owner if owner is not None and (owner.api_version, owner.kind) == ("v1", "Pod") else None


def owning_group(claim: ResourceClaim) -> OwnerReference | None:
    """The PodGroup that the claim was made for, in whatever version of its API (K37-WL-05)."""
    owner = claim.metadata.controller
    return owner if owner is not None and _is_group(owner, owner.name) else None


def is_owned_by_group(group: PodGroup, claim: ResourceClaim) -> bool:
    """Whether the claim was made for this very group."""
    owner = owning_group(claim)
    is_same = owner is not None and owner.uid == group.metadata.uid
    return is_same and claim.metadata.namespace == group.metadata.namespace


def is_reserved_for(pod: Pod, claim: ResourceClaim) -> bool:
    """Whether the pod or its PodGroup is among the consumers of the claim (3.3)."""
    return any(stands_for(consumer, pod) for consumer in claim.status.reserved_for or ())


def group_consumer(pod: Pod, claim: ResourceClaim) -> ResourceClaimConsumerReference | None:
    """The PodGroup of the pod, if the claim is reserved for it."""
    groups = (consumer for consumer in claim.status.reserved_for or () if is_pod_group(consumer))
    return next((group for group in groups if group.name == group_name(pod)), None)


def stands_for(consumer: ResourceClaimConsumerReference, pod: Pod) -> bool:
    """Whether the consumer is the pod, or its PodGroup."""
    return consumer.uid == pod.metadata.uid or (is_pod_group(consumer) and consumer.name == group_name(pod))


def is_pod_group(consumer: ResourceClaimConsumerReference) -> bool:
    """Whether the claim is reserved for a PodGroup."""
    return (consumer.api_group, consumer.resource) == (SCHEDULING_GROUP, "podgroups")


def consumer_of(pod: Pod, pod_group: PodGroup | None, entry: PodResourceClaim) -> ResourceClaimConsumerReference:
    """The consumer for which the claim of an entry is reserved: the PodGroup if it has an equal entry, otherwise the
    pod (3.4).

    Raises UnsupportedClaimSource when an inspected entry names neither claim nor template, and PodNotInGroup.
    """
    if not _names_source(entry):
        raise _unsupported(pod, entry)
    if pod_group is not None:
        if (pod.metadata.namespace, group_name(pod)) != (pod_group.metadata.namespace, pod_group.metadata.name):
            raise PodNotInGroup(f"{_title(pod)} is not a member of {_title(pod_group)}")
        for shared in pod_group.spec.resource_claims or ():
            if not _names_source(shared):
                raise _unsupported(pod_group, shared)
            if shared == entry:
                meta = pod_group.metadata
                return ResourceClaimConsumerReference(
                    api_group=SCHEDULING_GROUP, resource="podgroups", name=meta.name, uid=meta.uid
                )
    return pod_as_consumer(pod)


def pod_as_consumer(pod: Pod) -> ResourceClaimConsumerReference:
    """The pod itself, for claims that none of its entries names."""
    return ResourceClaimConsumerReference(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)


def classes_of(claim: ResourceClaim | ResourceClaimTemplateSpec) -> Iterator[str]:
    """The device classes that a claim, or a template of claims, names in whatever form."""
    for request in claim.spec.devices.requests or ():
        if request.exactly is not None:
            yield request.exactly.device_class_name
        for sub in request.first_available or ():
            yield sub.device_class_name


def every_toleration(claim: ResourceClaim | ResourceClaimTemplateSpec) -> Iterator[DeviceToleration]:
    """Yield the tolerations of all requests of a claim, or of a template of claims."""
    for request in claim.spec.devices.requests or ():
        if request.exactly is not None:
            yield from request.exactly.tolerations or ()
        for sub in request.first_available or ():
            yield from sub.tolerations or ()


def pod_is_done(pod: Pod) -> bool:
    """Whether the pod no longer needs its claims: it finished, or was deleted before it got a node (6.1).

    A pod that has a node and is being deleted may still be running, and keeps its claims.
    """
    # Not by ``is_terminal``: this is asked more often than anything else about a pod.
    return pod.status.phase in FINISHED or (pod.metadata.deletion_timestamp is not None and not pod.spec.node_name)


def pod_is_ending(pod: Pod) -> bool:
    """Whether the pod finished or is being deleted: nothing new is begun for it."""
    return pod.metadata.deletion_timestamp is not None or pod.status.phase in FINISHED


def base_request(reference: str) -> str:
    """The request of a reference: ``gpu`` for both ``gpu`` and ``gpu/large`` (3.5)."""
    return reference.partition("/")[0]


def configs_for_result(configs: Iterable[Config] | None, request: str) -> list[Config]:
    """The opaque configurations that apply to a result of this request reference, in their order (3.5)."""
    names = {request, base_request(request)}
    return [
        config
        for config in configs or ()
        if config.opaque is not None and (not config.requests or not names.isdisjoint(config.requests))
    ]


def _names_source(entry: PodResourceClaim) -> bool:
    return entry.resource_claim_name is not None or entry.resource_claim_template_name is not None


def _unsupported(owner: Pod | PodGroup, entry: PodResourceClaim) -> UnsupportedClaimSource:
    return UnsupportedClaimSource(
        f'{_title(owner)}, spec.resourceClaim "{entry.name}": none of the supported fields are set'
    )


def _is_group(owner: OwnerReference, name: str) -> bool:
    return (owner.kind, owner.name, owner.api_version.partition("/")[0]) == ("PodGroup", name, SCHEDULING_GROUP)


def _path(item: Pod | PodGroup | ResourceClaim) -> str:
    return f"{item.metadata.namespace}/{item.metadata.name}"


def _title(owner: Pod | PodGroup) -> str:
    return f'pod "{_path(owner)}"' if isinstance(owner, Pod) else f"PodGroup {_path(owner)}"


class VolumeUse(NamedTuple):
    """One volume of a pod that is a claim. ``is_ephemeral``: kube-controller-manager makes it, and the pod owns it."""

    namespace: str
    name: str
    is_ephemeral: bool

    @property
    def key(self) -> str:
        """``namespace/name`` of the claim."""
        return f"{self.namespace}/{self.name}"


def volume_uses(pod: Pod) -> Iterator[VolumeUse]:
    """In the order of ``spec.volumes``. The claim of an ephemeral volume is named after pod and volume."""
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            yield VolumeUse(pod.metadata.namespace, volume.persistent_volume_claim.claim_name, is_ephemeral=False)
        elif volume.ephemeral is not None:
            yield VolumeUse(pod.metadata.namespace, f"{pod.metadata.name}-{volume.name}", is_ephemeral=True)


def is_made_for(pod: Pod, claim: Object) -> bool:
    """Return whether a PersistentVolumeClaim was made for an ephemeral volume of this pod, not of a namesake."""
    owner = claim.metadata.controller
    return owner is not None and owner.uid == pod.metadata.uid
