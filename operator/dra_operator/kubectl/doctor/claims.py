"""Claims that do not end, that hold what no pod uses, or that are there twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from dra_api.command_line import is_name, kubectl
from dra_api.core import Pod
from dra_api.relations.references import claims_of_pod, is_pod_group
from dra_api.resource import (
    FINALIZER,
    POD_CLAIM_NAME_ANNOTATION,
    ResourceClaim,
    ResourceClaimConsumerReference,
)

from dra_operator.kubectl.facts.ages import age
from dra_operator.kubectl.facts.consumers import pods_of
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.scheduling.state import is_immediate
from dra_operator.wording import counted, listed

from .trouble import Diagnosis, Operation, Repair, unchanged


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
    if len(gone) == len(claim.status.reserved_for or ()) and is_freed_with_its_consumers(claim):
        operations.append({"op": "remove", "path": "/status/allocation"})
        text += ", and free the devices, which no other pod uses"
        then = _without_finalizer(claim)
    repair = Repair(text, claim.metadata.namespace, claim.metadata.name, "status", operations, gone=pods, then=then)
    yield Diagnosis.repairable("reservation", f"claim {claim.key}", what, repair)


def is_freed_with_its_consumers(claim: ResourceClaim) -> bool:
    """Return whether the claim is to lose its devices with its last consumer, as controllers see to.

    kube-controller-manager frees devices in the write that drops the last consumer, and in no other one: a repair that
    left them would leave them for good. A claim with another finalizer has devices on somebody's account, such as an
    immediate claim.
    """
    return claim.status.allocation is not None and not other_finalizers(claim) and not is_immediate(claim)


def other_finalizers(claim: ResourceClaim) -> list[str]:
    """Return the finalizers of which only others know when they go."""
    return [name for name in claim.metadata.finalizers or () if name != FINALIZER]


def without_devices(claim: ResourceClaim, text: str) -> Repair:
    """Return the repair that takes the devices from a claim without consumers, and then its finalizer."""
    operations = [*unchanged(claim), {"op": "remove", "path": "/status/allocation"}]
    meta = claim.metadata
    return Repair(text, meta.namespace, meta.name, "status", operations, then=_without_finalizer(claim))


def without_finalizer(claim: ResourceClaim, text: str) -> Repair:
    """Return the repair that takes the finalizer from a claim that has it, and neither devices nor consumers."""
    path = f"/metadata/finalizers/{(claim.metadata.finalizers or ()).index(FINALIZER)}"
    operations = [
        *unchanged(claim),
        {"op": "test", "path": path, "value": FINALIZER},
        {"op": "remove", "path": path},
    ]
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
    path = f"/metadata/finalizers/{(claim.metadata.finalizers or ()).index(FINALIZER)}"
    return [
        {"op": "test", "path": "/metadata/uid", "value": claim.metadata.uid},
        {"op": "test", "path": "/status", "value": {}},
        {"op": "test", "path": path, "value": FINALIZER},
        {"op": "remove", "path": path},
    ]


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
        remedy = "it ends with its pods; if they are not needed any more, delete them"
        yield _stuck(claim, f"{message}: pods use it: {names}", remedy, command)
    elif (
        status.allocation is not None
        and not status.reserved_for
        and not others
        and FINALIZER in (meta.finalizers or ())
    ):
        what = f"{message}: it still has devices, which no pod uses, and no controller has freed them"
        yield Diagnosis.repairable("deletion", f"claim {claim.key}", what, without_devices(claim, "free them"))
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
        yield Diagnosis.repairable("deletion", f"claim {claim.key}", what, repair)


def _stuck(claim: ResourceClaim, message: str, remedy: str, command: str = "") -> Diagnosis:
    return Diagnosis.of("deletion", f"claim {claim.key}", message, remedy=remedy, command=command)


def _made_twice(seen: Observed) -> Iterator[Diagnosis]:
    """Several claims for one entry of one pod: the pod's status names the one that counts."""
    made: dict[tuple[str, str], list[ResourceClaim]] = defaultdict(list)
    for claim in seen.every(ResourceClaim):
        entry = (claim.metadata.annotations or {}).get(POD_CLAIM_NAME_ANNOTATION)
        owner = claim.metadata.controller
        if entry and owner is not None and owner.kind == "Pod":
            made[(owner.uid, entry)].append(claim)
    named = {
        (pod.metadata.uid, f"{pod.metadata.namespace}/{use.name}")
        for pod in seen.every(Pod)
        for use in claims_of_pod(pod)
    }
    for (uid, entry), claims in sorted(made.items()):
        used = [claim for claim in claims if (uid, claim.key) in named]
        for claim in claims if len(claims) > 1 and used else ():
            if claim not in used:
                owner = claim.metadata.controller
                pod = owner.name if owner is not None else ""
                message = f"is a second claim for entry {entry} of pod {pod}, which uses claim {used[0].metadata.name}"
                command = kubectl(
                    "delete", "resourceclaim", names=[claim.metadata.name], namespace=claim.metadata.namespace
                )
                yield Diagnosis.of(
                    "duplicate",
                    f"claim {claim.key}",
                    message,
                    remedy="delete the one that is not used",
                    command=command,
                )
