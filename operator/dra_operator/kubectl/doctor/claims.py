"""Claims that do not end, that nobody uses, that exist twice, or whose allocations must not be.

A device in two claims, claims that hold devices for no pod and pods without their devices are states in which the tests
that watch a cluster call it broken. A cluster passes through some of them in normal work, between two writes of one
controller: those count only when they are older than ``MOMENT_SECONDS``, if their age is known, and not while a pod
waits that explains them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from dra_api.command_line import is_name, kubectl, with_command
from dra_api.core import Pod
from dra_api.leases import Lease
from dra_api.meta import RESOURCE_CLAIMS
from dra_api.references import (
    ClaimReferenceError,
    claim_names,
    claims_of_pod,
    is_pod_group,
    is_reserved_for,
    pod_is_done,
)
from dra_api.resource import FINALIZER, POD_CLAIM_NAME_ANNOTATION, ResourceClaim, ResourceClaimConsumerReference
from dra_api.values import parse_time

from dra_operator.allocator import DeviceId
from dra_operator.kubectl.doctor.trouble import Diagnosis, Operation, Repair, Trouble, unchanged
from dra_operator.kubectl.facts import age, other_finalizers, pods_of, using_pods
from dra_operator.kubectl.observed import Observed
from dra_operator.scheduling.state import HOLD, is_immediate
from dra_operator.wording import counted, listed


def claim_troubles(seen: Observed) -> Iterator[Diagnosis]:
    """Of each claim; whether a pod exists is known only to viewers who may list all pods."""
    for claim in sorted(seen.every(ResourceClaim), key=lambda claim: claim.key):
        if "pods" not in seen.unseen:
            yield from _reserved_for_gone_pods(seen, claim)
        if claim.metadata.deletion_timestamp is not None:
            yield from _not_ending(seen, claim)
    yield from _made_twice(seen)


def delete_pods(names: Iterable[str], namespace: str) -> str:
    """Return the command that deletes the pods, without consumers that no pod can be called like."""
    pods = list(filter(is_name, names))
    return kubectl("delete", "pod", names=pods, namespace=namespace) if pods else ""


def not_made_again(seen: Observed, names: Iterable[str], namespace: str) -> str:
    """Return ``; nothing creates pod x again: keep its manifest``, or an empty text if controllers do for all pods.

    A person who deletes such a pod loses it.
    """
    pods = [seen.one(Pod, f"{namespace}/{name}") for name in names]
    alone = [pod for pod in pods if pod is not None and pod.metadata.controller is None and not pod_is_done(pod)]
    if not alone:
        return ""
    one = len(alone) == 1
    which = f"pod{'' if one else 's'} {listed(pod.metadata.name for pod in alone)}"
    names = [pod.metadata.name for pod in alone]
    save = kubectl("get", "pod", "-o", "yaml", names=names, namespace=namespace)
    first = with_command(f"keep {'its manifest' if one else 'their manifests'} first", save)
    return f"; nothing creates {which} again: {first}"


def is_gone(seen: Observed, claim: ResourceClaim, consumer: ResourceClaimConsumerReference) -> bool:
    """Whether the pod of a reservation does not exist: none has its name, or another one."""
    if consumer.resource != "pods" or consumer.api_group:
        return False
    pod = seen.one(Pod, f"{claim.metadata.namespace}/{consumer.name}")
    return pod is None or pod.metadata.uid != consumer.uid


def _reserved_for_gone_pods(seen: Observed, claim: ResourceClaim) -> Iterator[Diagnosis]:
    every = enumerate(claim.status.reserved_for or ())
    gone = [(place, consumer) for place, consumer in every if is_gone(seen, claim, consumer)]
    if not gone:
        return
    operations = unchanged(claim)
    for place, consumer in gone:
        operations.append({"op": "test", "path": f"/status/reservedFor/{place}/uid", "value": consumer.uid})
    operations += [{"op": "remove", "path": f"/status/reservedFor/{place}"} for place, _ in reversed(gone)]
    pods = tuple((consumer.name, consumer.uid) for _, consumer in gone)
    names, is_one = listed(f"{name} (UID {uid})" for name, uid in pods), len(pods) == 1
    what = f"is reserved for {'pod' if is_one else 'pods'} {names}, which {'does' if is_one else 'do'} not exist"
    text = f"drop {'the reservation' if is_one else counted(len(pods), 'reservation')}"
    then: list[Operation] = []
    is_last = len(gone) == len(claim.status.reserved_for or ()) and not running_with(seen, claim)
    if is_last and is_freed_with_its_consumers(claim):
        operations.append({"op": "remove", "path": "/status/allocation"})
        text += ", and free the devices, which no other pod uses"
        then = _without_finalizer(claim)
    repair = Repair(text, claim.metadata.namespace, claim.metadata.name, "status", operations, gone=pods, then=then)
    yield Diagnosis.repairable("reservation", what, repair)


def is_freed_with_its_consumers(claim: ResourceClaim) -> bool:
    """Return whether the claim is to lose its devices with its last consumer, as controllers see to.

    kube-controller-manager frees devices in the write that drops the last consumer, and in no other one: a repair that
    left them would leave them for good. A claim with another finalizer has devices on somebody's account, such as an
    immediate claim.
    """
    return claim.status.allocation is not None and not other_finalizers(claim) and not is_immediate(claim)


def without_devices(claim: ResourceClaim, text: str) -> Repair:
    """Return the repair that takes the devices from a claim without consumers, and then its finalizer."""
    operations = [*unchanged(claim), {"op": "remove", "path": "/status/allocation"}]
    meta = claim.metadata
    return Repair(text, meta.namespace, meta.name, "status", operations, then=_without_finalizer(claim))


def without_finalizer(claim: ResourceClaim, text: str) -> Repair:
    """Return the repair that takes the finalizer from a claim that has it, and neither devices nor consumers."""
    operations = [*unchanged(claim), *_finalizer_off(claim)]
    return Repair(text, claim.metadata.namespace, claim.metadata.name, "", operations)


def deletion(claim: ResourceClaim, pod: tuple[str, str]) -> Repair:
    """Return the repair that ends a claim without consumers, which was made for this pod (name and UID)."""
    meta = claim.metadata
    text = "delete it, as its pod is gone" + (", and free its devices" if claim.status.allocation is not None else "")
    is_it: Operation = {"op": "test", "path": "/metadata/uid", "value": meta.uid}
    free: Operation = {"op": "remove", "path": "/status/allocation"}
    operations = [is_it, free] if claim.status.allocation is not None else []
    then, deleted = _without_finalizer(claim), (meta.uid, meta.resource_version)
    return Repair(text, meta.namespace, meta.name, "status", operations, gone=[pod], then=then, deleted=deleted)


def _without_finalizer(claim: ResourceClaim) -> list[Operation]:
    """Return the patch that takes off the finalizer of a claim that has lost everything else, or nothing."""
    if FINALIZER not in (claim.metadata.finalizers or ()):
        return []
    is_it: Operation = {"op": "test", "path": "/metadata/uid", "value": claim.metadata.uid}
    return [is_it, {"op": "test", "path": "/status", "value": {}}, *_finalizer_off(claim)]


def _finalizer_off(claim: ResourceClaim) -> list[Operation]:
    path = f"/metadata/finalizers/{(claim.metadata.finalizers or ()).index(FINALIZER)}"
    return [{"op": "test", "path": path, "value": FINALIZER}, {"op": "remove", "path": path}]


def _not_ending(seen: Observed, claim: ResourceClaim) -> Iterator[Diagnosis]:
    meta, status = claim.metadata, claim.status
    since = age(meta.deletion_timestamp or "", seen.taken)
    message = f"has been in deletion for {since}" if since else "is being deleted"
    consumers = [consumer for consumer in status.reserved_for or () if not is_gone(seen, claim, consumer)]
    others = other_finalizers(claim)
    if consumers:
        names = listed(f"PodGroup {it.name}" if is_pod_group(it) else it.name for it in consumers)
        users = [user.name for user in pods_of(seen, claim) if not is_gone(seen, claim, user)]
        command = delete_pods(users, meta.namespace)
        which = f"finalizer{'s' * (len(others) > 1)} {listed(others)} {'are' if len(others) > 1 else 'is'}"
        ends = f"it ends after its pods, once the {which} gone" if others else "it ends with its pods"
        remedy = f"{ends}; if they are not needed any more, delete them"
        remedy += not_made_again(seen, users, meta.namespace)
        yield _stuck(claim, f"{message}: pods use it: {names}", remedy, command)
    elif (
        status.allocation is not None
        and not status.reserved_for
        and not running_with(seen, claim)
        and not others
        and FINALIZER in (meta.finalizers or ())
    ):
        what = f"{message}: it still has devices, which no pod uses, and no controller has freed them"
        yield Diagnosis.repairable("deletion", what, without_devices(claim, "free them"))
    elif unreserved := running_with(seen, claim):
        names = listed(pod.metadata.name for pod in unreserved)
        remedy = "the devices are free to others once the claim is gone: delete the pods first"
        remedy += not_made_again(seen, [pod.metadata.name for pod in unreserved], meta.namespace)
        command = delete_pods([pod.metadata.name for pod in unreserved], meta.namespace)
        yield _stuck(claim, f"{message}, is reserved for no pod, and pods run with it: {names}", remedy, command)
    elif status.allocation is not None or status.reserved_for:
        remedy = "the operator or the kube-controller-manager releases them: check that one of the two is running"
        yield _stuck(claim, f"{message}: it still has devices, which no pod uses", remedy)
    elif others:
        remedy = "look at the controllers that these finalizers belong to"
        yield _stuck(claim, f"{message}: finalizers keep it: {listed(others)}", remedy)
    elif FINALIZER in (meta.finalizers or ()):
        text = f"remove the finalizer {FINALIZER}: the claim has no devices and no pods"
        repair = without_finalizer(claim, text)
        what = f"{message}: only the finalizer {FINALIZER} keeps it"
        yield Diagnosis.repairable("deletion", what, repair)


def _stuck(claim: ResourceClaim, message: str, remedy: str, command: str = "") -> Diagnosis:
    return Diagnosis.of("deletion", f"claim {claim.key}", message, remedy=remedy, command=command)


def _made_twice(seen: Observed) -> Iterator[Diagnosis]:
    """Several claims for one entry of one pod: its status names the one that counts, or does so later."""
    made: dict[tuple[str, str], list[ResourceClaim]] = defaultdict(list)
    for claim in seen.every(ResourceClaim):
        entry, owner = (claim.metadata.annotations or {}).get(POD_CLAIM_NAME_ANNOTATION), claim.metadata.controller
        if entry and owner is not None and owner.kind == "Pod":
            made[(owner.uid, entry)].append(claim)
    named = {
        (pod.metadata.uid, f"{pod.metadata.namespace}/{use.name}")
        for pod in seen.every(Pod)
        for use in claims_of_pod(pod)
    }
    for (uid, entry), claims in sorted(made.items()):
        owner = claims[0].metadata.controller
        pod = owner.name if owner is not None else ""
        used = [claim for claim in claims if (uid, claim.key) in named]
        left = [claim for claim in claims if claim.metadata.deletion_timestamp is None]
        for claim in claims if used else ():
            if claim not in used:
                message = f"is a second claim for entry {entry} of pod {pod}, which uses claim {used[0].metadata.name}"
                remedy, meta = "delete the one that is not used", claim.metadata
                command = kubectl("delete", "resourceclaim", names=[meta.name], namespace=meta.namespace)
                yield Diagnosis.of("duplicate", f"claim {claim.key}", message, remedy=remedy, command=command)
        for claim in left if len(left) > 1 and not used and "pods" not in seen.unseen else ():
            message = f"is one of {len(left)} claims for entry {entry} of pod {pod}, which names none of them"
            remedy = "two controllers made claims: let one of operator and kube-controller-manager do it (controllers)"
            yield Diagnosis.of("duplicate", f"claim {claim.key}", message, remedy=remedy)


MOMENT_SECONDS: Final = 30.0
KUBE_SCHEDULER: Final = "kube-scheduler"
PARKED: Final = ("dra.kopf.dev", "contests")
"""API group and resource of the consumer that a claim has after a lost contest, instead of pods."""


def allocation_troubles(seen: Observed) -> Iterator[Diagnosis]:
    """What claims hold against each other and against pods; nothing without the right to list all pods."""
    claims = sorted(seen.every(ResourceClaim), key=lambda claim: claim.key)
    yield from _in_two_claims(seen, claims)
    if "pods" in seen.unseen:
        return
    for pod in sorted(seen.every(Pod), key=lambda pod: pod.key):
        if not pod_is_done(pod) and str(RESOURCE_CLAIMS) not in seen.unseen:  # one that may not be read is not missing
            yield from _runs_without(seen, pod)
    for claim in claims:
        yield from _for_nobody(seen, claim, seen.pods_by_claim.get(claim.key, ()))


def _in_two_claims(seen: Observed, claims: Sequence[ResourceClaim]) -> Iterator[Diagnosis]:
    """Whole devices that several claims hold; several shares of one are no fault."""
    holders: dict[DeviceId, list[tuple[ResourceClaim, bool]]] = defaultdict(list)
    for claim in claims:
        if _is_parked(claim):  # with which no pod runs; the operator releases it when the other one is gone
            continue
        shares = {DeviceId.of(it): bool(it.share_id) for it in claim.results if not it.admin_access}
        for device, is_share in shares.items():
            holders[device].append((claim, is_share))
    for device, held in sorted(holders.items()):
        if len(held) < 2 or all(is_share for _, is_share in held):
            continue
        first, *others = sorted((claim for claim, _ in held), key=lambda claim: _right_of_way(seen, claim))
        names = listed(f"{claim.key} ({_who(seen, claim)})" for claim in (first, *others))
        claim, space = others[-1], others[-1].metadata.namespace  # one at a time: afterwards doctor is asked again
        repair = None
        if pods := [pod.metadata.name for pod in _running(seen, claim)]:
            remedy = f"keep claim {first.key}, and delete {listed(f'pod {space}/{name}' for name in pods)}"
            remedy += not_made_again(seen, pods, space)
            command = kubectl("delete", "pod", names=pods, namespace=space)
        elif claim.metadata.deletion_timestamp is not None:
            remedy, command = f"keep claim {first.key}; claim {claim.key} is being deleted already", ""
        elif (repair := _release(seen, claim)) is not None:
            remedy = f"keep claim {first.key}; of claim {claim.key}, which no pod uses: {repair.text}"
            command = repair.command
        else:
            remedy = f"keep claim {first.key}, and delete claim {claim.key}, which no pod uses"
            command = kubectl("delete", "resourceclaim", names=[claim.metadata.name], namespace=space)
        if any(lease.metadata.name == KUBE_SCHEDULER for lease in seen.every(Lease)):
            remedy += f"; then restart {KUBE_SCHEDULER}, which takes the device for free once one of them gives it up"
        remedy += "; to prevent it, give devices to one scheduler: kubectl dra territory --help"
        message = f"is held by {len(held)} claims: {names}"
        trouble = Trouble(kind="conflict", object=f"device {device}", message=message, remedy=remedy, command=command)
        # the claim's other troubles are settled when it is deleted
        settled = frozenset() if claim.metadata.deletion_timestamp is not None else frozenset({f"claim {claim.key}"})
        yield Diagnosis(trouble, repair, settled)


def _release(seen: Observed, claim: ResourceClaim) -> Repair | None:
    """Return the repair that takes the devices from a claim without living pods, if that is safe."""
    found = [one.repair for one in _reserved_for_gone_pods(seen, claim)] if "pods" not in seen.unseen else []
    if not claim.status.reserved_for and is_freed_with_its_consumers(claim):
        found.append(without_devices(claim, "free its devices"))
    frees = [it for it in found if it is not None and any(one["path"] == "/status/allocation" for one in it.operations)]
    return frees[0] if frees else None


def _is_parked(claim: ResourceClaim) -> bool:
    """Whether the claim keeps its devices for a contest that it lost, and for nothing else."""
    return any((it.api_group, it.resource) == PARKED for it in claim.status.reserved_for or ())


def _right_of_way(seen: Observed, claim: ResourceClaim) -> tuple[object, ...]:
    """Sorts first whose pods run already, then whose pods have a node, then what was allocated first."""
    pods = _running(seen, claim)
    allocation = claim.status.allocation
    since = (allocation.allocation_timestamp if allocation is not None else None) or claim.metadata.creation_timestamp
    is_started = any(pod.status.phase == "Running" for pod in pods)
    return not is_started, not any(pod.spec.node_name for pod in pods), not pods, since or "", claim.key


def _consumers(seen: Observed, claim: ResourceClaim) -> list[Pod]:
    """The pods that the claim is reserved for."""
    return [pod for pod in using_pods(seen, claim) if is_reserved_for(pod, claim)]


def running_with(seen: Observed, claim: ResourceClaim) -> list[Pod]:
    """Return the pods that name the claim and have a node, reserved or not."""
    return [pod for pod in seen.pods_by_claim.get(claim.key, ()) if pod.spec.node_name]


def _running(seen: Observed, claim: ResourceClaim) -> list[Pod]:
    """Return the pods that still need it: its consumers, and other pods that run with it."""
    reserved = [pod for pod in _consumers(seen, claim) if not pod_is_done(pod)]
    return [*reserved, *(pod for pod in running_with(seen, claim) if pod not in reserved)]


def _who(seen: Observed, claim: ResourceClaim) -> str:
    pods = _running(seen, claim)
    return (
        listed(f"pod {it.metadata.name} of {it.spec.scheduler_name or 'default-scheduler'}" for it in pods) or "no pod"
    )


def _runs_without(seen: Observed, pod: Pod) -> Iterator[Diagnosis]:
    """Pods with a node whose claims are missing, hold nothing, or are not reserved for them."""
    # A controller may still make up for it, for pods that were given their node by hand; it does so in seconds.
    if not pod.spec.node_name or pod.metadata.deletion_timestamp or _is_recent(pod.metadata.creation_timestamp, seen):
        return
    faults = list(_faults_of_claims(seen, pod))
    if not faults:
        return
    message = f"is on node {pod.spec.node_name}, but its {listed(faults, separator=', its ')}"
    remedy = "its devices may go to others, or it never starts: delete it"
    lost = not_made_again(seen, [pod.metadata.name], pod.metadata.namespace)
    remedy += lost or ", so that its controller makes it anew"
    command = kubectl("delete", "pod", names=[pod.metadata.name], namespace=pod.metadata.namespace)
    yield Diagnosis.of("unreserved", f"pod {pod.key}", message, remedy=remedy, command=command)


def _faults_of_claims(seen: Observed, pod: Pod) -> Iterator[str]:
    name_of = claim_names(pod)
    for entry in pod.spec.resource_claims or ():
        try:
            name = name_of(entry).name
        except ClaimReferenceError:
            yield f"entry {entry.name} has no claim"
            continue
        claim = seen.one(ResourceClaim, f"{pod.metadata.namespace}/{name}")
        if name is None or (claim is not None and claim.status.allocation and is_reserved_for(pod, claim)):
            continue
        if claim is None:
            yield f"claim {name} does not exist"
        else:
            lacks = "is not reserved for it" if claim.status.allocation is not None else "holds no device"
            yield f"claim {name} {lacks}"


def _for_nobody(seen: Observed, claim: ResourceClaim, users: Sequence[Pod]) -> Iterator[Diagnosis]:
    """Devices, finalizers and claims that are left over."""
    meta, allocation, finalizers = claim.metadata, claim.status.allocation, claim.metadata.finalizers or ()
    is_kept = HOLD in finalizers
    if allocation is not None and not is_kept and FINALIZER not in finalizers:
        message = "holds devices without a finalizer: when it is deleted, they go to others while its pods run"
        remedy = "the operator puts it back on a claim in use, if it has the controller release: look whether one leads"
        yield Diagnosis.of("finalizer", f"claim {claim.key}", message, remedy=remedy)
    if meta.deletion_timestamp is not None:
        return  # which has a diagnosis of its own
    if ended := [it.metadata.name for it in _consumers(seen, claim) if pod_is_done(it)]:
        message = f"is still reserved for {listed(f'pod {name}' for name in ended)}, which has ended"
        remedy = "the operator or the kube-controller-manager drops that within a second: check that one is running"
        yield Diagnosis.of("reservation", f"claim {claim.key}", message, remedy=remedy)
    owner = meta.controller
    if owner is not None and owner.kind == "Pod" and not _is_recent(meta.creation_timestamp, seen):
        pod = seen.one(Pod, f"{meta.namespace}/{owner.name}")
        owner_is_gone = pod is None or pod.metadata.uid != owner.uid
        if claim.status.reserved_for and all(is_gone(seen, claim, it) for it in claim.status.reserved_for):
            return  # it goes with its reservations, which have a diagnosis of their own
        if owner_is_gone or (pod is not None and pod_is_done(pod)):
            why = "does not exist" if owner_is_gone else "has ended"
            message = f"was made for pod {owner.name} (UID {owner.uid}), which {why}"
            is_needed = users or claim.status.reserved_for or other_finalizers(claim)
            if (
                owner_is_gone and not is_needed and len(meta.owner_references or ()) == 1
            ):  # the collector asks for others
                repair = deletion(claim, (owner.name, owner.uid))
                yield Diagnosis.repairable("orphan", message, repair)
                return
            remedy = "a controller deletes it within a minute: if it is still there, delete it"
            command = kubectl("delete", "resourceclaim", names=[meta.name], namespace=meta.namespace)
            yield Diagnosis.of("orphan", f"claim {claim.key}", message, remedy=remedy, command=command)
            return
    if users or is_kept or claim.status.reserved_for:
        return
    since = allocation.allocation_timestamp if allocation is not None else None
    if allocation is not None and not _is_recent(since or meta.creation_timestamp, seen):
        devices = listed(dict.fromkeys(str(DeviceId.of(it)) for it in claim.results))
        message = f"holds {devices}, and no pod uses it"
        remedy = "no controller frees them as long as the claim exists; its next pod gets them. "
        if is_freed_with_its_consumers(claim):
            remedy += "To free them now, take them from the claim, which stays"
            command = without_devices(claim, remedy).command
        else:
            remedy += (
                f"To free them now, delete the claim; {listed(other_finalizers(claim)) or 'the operator'} keeps it"
            )
            command = ""
        yield Diagnosis.of("unused", f"claim {claim.key}", message, remedy=remedy, command=command)
    elif allocation is None and FINALIZER in finalizers and not _is_recent(meta.creation_timestamp, seen):
        message = f"has the finalizer {FINALIZER}, but neither devices nor pods"
        repair = without_finalizer(claim, "remove it: its next allocation adds it again")
        yield Diagnosis.repairable("finalizer", message, repair)


def _is_recent(since: str | None, seen: Observed) -> bool:
    """Whether something was a moment ago; what has no time was not."""
    moment = parse_time(since) if since else None
    return moment is not None and (seen.taken - moment).total_seconds() < MOMENT_SECONDS
