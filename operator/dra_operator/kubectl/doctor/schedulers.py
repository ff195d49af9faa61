"""Schedulers that do not work while pods wait for them, rights that they or the viewer lack, and useless marks.

A mark is useless if its scheduler does not run. Operators need the rights of ``app.control_plane`` for the
settings on their Leases, and the API server says which of them are lacking (SubjectAccessReview). Only people who may
ask about others, such as administrators, get an answer about them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from dra_api.command_line import kubectl
from dra_api.core import Node, Pod, Taint
from dra_api.leases import LEASE_NAMESPACE, Lease
from dra_api.meta import LEASES, RESOURCE_CLAIMS, Resource
from dra_api.references import every_toleration, pod_is_done
from dra_api.releases import NEWEST, Release
from dra_api.resource import SCHEDULER_KEY, DeviceTaint, ResourceClaim
from dra_api.values import parse_time
from dra_kube import Api, Forbidden
from dra_ledger.taints import rule_selects as selects

from dra_operator.allocator import DeviceId, enters, scheduler_of, schedulers_of
from dra_operator.app.control_plane import MANIFEST, Right, Work, lease_rights, needed
from dra_operator.cache import SCHEDULER_NAME
from dra_operator.kubectl.doctor.trouble import Diagnosis
from dra_operator.kubectl.facts import Marks, marking_rules, marks_of, renewal, using_pods
from dra_operator.kubectl.live import KINDS
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.why.pods import DEFAULT, was_looked_at
from dra_operator.scheduling.state import is_at_gate
from dra_operator.wording import counted, listed

KUBE_SCHEDULER: Final = "kube-scheduler"
HONOURED_AFTER_SECONDS: Final = 10.0
"""From a taint until a scheduler that honours it has seen it."""


def scheduler_troubles(seen: Observed) -> Iterator[Diagnosis]:
    """First who does not lead, then what is marked wrongly."""
    names = _lease_names(seen)
    if names is not None:
        yield from _without_leader(seen, names)
    yield from _marks(seen, names)


def _lease_names(seen: Observed) -> set[str] | None:
    """The Leases that exist; None where that is not known."""
    names = {lease.metadata.name for lease in seen.every(Lease)}
    is_known = names or (seen.is_whole and str(LEASES) not in seen.unseen)
    return names if is_known else None


def _without_leader(seen: Observed, names: set[str]) -> Iterator[Diagnosis]:
    """Schedulers for which pods wait and that do not renew their Lease."""
    leases = {lease.metadata.name: lease for lease in seen.every(Lease)}
    waiting = _waiting(seen, leases)
    for scheduler, pods in sorted(waiting.items()):
        is_operators = scheduler == SCHEDULER_NAME or f"{LEASE_PREFIX}{scheduler}" in names
        name = f"{LEASE_PREFIX}{scheduler}" if is_operators else KUBE_SCHEDULER
        lease = leases.get(name)
        if (not is_operators and (scheduler != DEFAULT or lease is None)) or (lease and lease.is_held(seen.taken)):
            continue
        if lease is None and any(map(was_looked_at, pods)):  # by an operator without a Lease, or with one elsewhere
            continue
        them = f"{counted(len(pods), 'pod waits', 'pods wait')} for it: {listed(sorted(pod.key for pod in pods))}"
        them = them if pods else "no pod waits for it yet"
        if lease is None:
            message = f"has no operator: there is no Lease {name}, and {them}"
        else:
            holder = lease.spec.holder_identity or "no holder"
            message = (
                f"has no leader: Lease {lease.key} of {holder} was renewed {renewal(lease, seen.taken)}, and {them}"
            )
        remedy, command = "start it: look at the pods of its Deployment and their logs", ""
        if is_operators:
            command = kubectl("get", "pods", "--selector=app.kubernetes.io/name=dra-operator", namespace="dra-system")
        yield Diagnosis.of("leader", f"scheduler {scheduler}", message, remedy=remedy, command=command)


def _waiting(seen: Observed, leases: Mapping[str, Lease]) -> dict[str, list[Pod]]:
    """The pods that wait, by their scheduler; also schedulers that have stopped, for which none waits yet."""
    waiting: dict[str, list[Pod]] = defaultdict(list)
    for pod in seen.every(Pod):
        if pod.spec.node_name or pod_is_done(pod) or pod.metadata.deletion_timestamp is not None:
            continue
        if is_at_gate(pod):
            waiting[SCHEDULER_NAME].append(pod)
        elif not pod.spec.scheduling_gates:
            waiting[pod.spec.scheduler_name or DEFAULT].append(pod)
    for name, one in leases.items():  # who stopped without giving its Lease up is missed before the next pod waits
        if one.spec.holder_identity and not one.is_held(seen.taken):
            if name.startswith(LEASE_PREFIX):
                waiting[name.removeprefix(LEASE_PREFIX)] += ()
            elif name == KUBE_SCHEDULER:
                waiting[DEFAULT] += ()
    return waiting


def _marks(seen: Observed, names: set[str] | None) -> Iterator[Diagnosis]:
    """Taints that are to give devices and nodes to a scheduler."""
    published = marks_of(seen)
    for rule in marking_rules(seen):
        name = rule.metadata.name
        what, command = f"DeviceTaintRule {name}", kubectl("delete", "devicetaintrule", names=[name])
        if not any(selects(rule, id_) for id_ in published):
            message = "selects no published device, so no device belongs to its scheduler by it"
            remedy = "correct driver, pool and device of its selector, or delete it"
            yield Diagnosis.of("territory", what, message, remedy=remedy, command=command)
        yield from _wrong(what, [rule.spec.taint], names, command)
    for node in sorted(seen.every(Node), key=lambda node: node.metadata.name):
        command = kubectl("taint", "node", names=[node.metadata.name], then=[f"{SCHEDULER_KEY}-"])
        yield from _wrong(f"node {node.metadata.name}", node.spec.taints or (), names, command)
    for id_, taints in sorted(published.items()):
        if len(schedulers := schedulers_of(taints)) > 1:
            message = f"is marked for the schedulers {listed(schedulers)}, so that none of them takes it"
            remedy = f"remove the taint {SCHEDULER_KEY} of all but one"
            yield Diagnosis.of("territory", f"device {id_}", message, remedy=remedy)
    yield from _ignored(seen, published)


def _wrong(
    what: str, taints: Iterable[DeviceTaint | Taint], names: set[str] | None, command: str
) -> Iterator[Diagnosis]:
    """Taints with the key of territories that give nothing to a scheduler."""
    for taint in taints:
        scheduler = scheduler_of(taint)
        if taint.key != SCHEDULER_KEY:
            continue
        if scheduler is None:
            message = f"has the taint {SCHEDULER_KEY} with the effect {taint.effect}, which gives it to no scheduler"
            message += "; pods that use what it taints are evicted" if taint.effect == "NoExecute" else ""
            remedy = "use the effect NoSchedule"
        elif scheduler == DEFAULT:
            message = f"is marked for {DEFAULT}, which does not tolerate that taint by itself: no scheduler takes it"
            remedy = "remove the taint, and have the operator leave the devices alone (own-devices-only, leave-nodes)"
        elif names is not None and f"{LEASE_PREFIX}{scheduler}" not in names:
            message = f"is marked for the scheduler {scheduler!r}, of which there is no Lease: no scheduler takes it"
            remedy = f"correct the value of the taint {SCHEDULER_KEY}, or start that scheduler"
        else:
            continue
        yield Diagnosis.of("territory", what, message, remedy=remedy, command=command)


def _ignored(seen: Observed, published: Marks) -> Iterator[Diagnosis]:
    """Devices that another scheduler took after they were marked, for a claim that does not tolerate that."""
    for claim in sorted(seen.every(ResourceClaim), key=lambda claim: claim.key):
        allocation = claim.status.allocation
        since = parse_time(allocation.allocation_timestamp) if allocation is not None else None
        pods = using_pods(seen, claim)
        schedulers = {pod.spec.scheduler_name or DEFAULT for pod in pods}
        if since is None or len(schedulers) != 1 or any(map(_may_have_passed_the_gate, pods)):
            continue
        scheduler, devices = schedulers.pop(), [DeviceId.of(it) for it in claim.results if not it.admin_access]
        for id_ in dict.fromkeys(devices):
            late = (it for it in published.get(id_, ()) if _is_older(it, since))
            owner = next((name for it in late if (name := scheduler_of(it)) not in (None, scheduler)), None)
            if owner is not None and not enters(every_toleration(claim), owner):
                message = (
                    f"got {id_} from {scheduler}, although it belongs to {owner}, and the claim tolerates no such taint"
                )
                remedy = (
                    f"turn on the feature gates DRADeviceTaints and DRADeviceTaintRules for {scheduler}, in a release "
                    "later than 1.36.2, or taint the nodes (kubectl dra territory --nodes)"
                )
                yield Diagnosis.of("territory", f"claim {claim.key}", message, remedy=remedy)
                break


def _is_older(taint: DeviceTaint | Taint, moment: datetime) -> bool:
    """Whether a scheduler that honours the taint of a device had seen it by then; what has no time is left out."""
    then = parse_time(taint.time_added) if isinstance(taint, DeviceTaint) else None
    return then is not None and (moment - then).total_seconds() > HONOURED_AFTER_SECONDS


def _may_have_passed_the_gate(pod: Pod) -> bool:
    """The operator allocates for pods at its gate, and narrows their affinity: nothing else is left of that."""
    return pod.spec.affinity is not None and pod.spec.affinity.node_affinity is not None


LEASE_PREFIX: Final = "dra-operator-"
"""Of the Lease's name, before the name of the scheduler."""


class Grant(NamedTuple):
    """What a right is for, and the file that grants it."""

    purpose: str
    manifest: str


def needed_rights(seen: Observed) -> dict[Right, Grant]:
    """Return the rights that operators with a Lease need, and why; none without a Lease."""
    found: dict[Right, Grant] = {}
    for lease in seen.every(Lease):
        if not lease.metadata.name.startswith(LEASE_PREFIX):
            continue
        settings = Settings(lease.metadata.name.removeprefix(LEASE_PREFIX)).completed(seen)
        work = Work(settings.controllers, settings.features(seen), settings.preemption)
        found |= {right: Grant(rule.purpose, rule.manifest) for right, rule in needed(work).items()}
        found |= dict.fromkeys(lease_rights(lease.metadata.name), Grant("to lead", MANIFEST))
    return found


REVIEWS: Final = Resource(
    "authorization.k8s.io", ("v1",), "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
REVIEWS_OF_OTHERS: Final = Resource(
    "authorization.k8s.io", ("v1",), "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
MOST_TOLD_RIGHTS: Final = 8
"""Of one purpose."""
REPAIRS: Final = (("patch", ""), ("patch", "status"), ("delete", ""))
"""What ``--fix`` does to claims."""
ASKED_FROM_1_36: Final = (("patch", "binding"),)
"""What an API server asks for besides, when an allocation or a reservation goes."""


async def missing_rights(api: Api, *, fix: bool, release: Release = NEWEST) -> list[Diagnosis]:
    """Rights to list and, with ``fix``, to repair; what the server does not answer is not missing."""
    asked = [(resource, "list", "") for resource in KINDS]
    repairs = [*REPAIRS, *(ASKED_FROM_1_36 if release >= Release.V1_36 else ())]
    asked += [(RESOURCE_CLAIMS, *repair) for repair in repairs] if fix else []
    allowed = await asyncio.gather(*(_is_allowed(api, *each) for each in asked))
    return list(_told(each for each, is_allowed in zip(asked, allowed, strict=True) if not is_allowed))


async def _is_allowed(api: Api, resource: Resource, verb: str, subresource: str) -> bool:
    attributes = {"group": resource.group, "resource": resource.plural, "verb": verb, "subresource": subresource}
    if resource.kind == "Lease":
        attributes["namespace"] = LEASE_NAMESPACE
    return await _reviewed(api, REVIEWS, {"resourceAttributes": attributes})


async def _reviewed(api: Api, reviews: Resource, spec: Mapping[str, object]) -> bool:
    body = {"apiVersion": reviews.api_version(), "kind": reviews.kind, "spec": spec}
    answer = await api.create(reviews, body)
    return (answer.get("status") or {}).get("allowed") is not False


async def operator_lacks(api: Api, account: str, needed: Mapping[Right, Grant]) -> tuple[list[Diagnosis], list[str]]:
    """Return the rights that the service account ``NAMESPACE/NAME`` lacks, by the file that grants them, and notes."""
    try:
        allowed = await asyncio.gather(*(_may(api, account, right) for right in needed))
    except Forbidden:
        return [], [
            "not looked at: rights of the operator: you may not create subjectaccessreviews.authorization.k8s.io"
        ]
    missing = [right for right, is_allowed in zip(needed, allowed, strict=True) if not is_allowed]
    lacking: dict[str, dict[str, list[str]]] = {}
    for right in missing:
        purpose, manifest = needed[right]
        lacking.setdefault(manifest, {}).setdefault(purpose, []).append(str(right))
    return [_lacks(account, manifest, by_purpose) for manifest, by_purpose in lacking.items()], []


def _lacks(account: str, manifest: str, by_purpose: Mapping[str, list[str]]) -> Diagnosis:
    message = "; ".join(f"{purpose}: {listed(rights, MOST_TOLD_RIGHTS)}" for purpose, rights in by_purpose.items())
    remedy = f"apply the roles of {manifest} and their bindings again; if the operator has another account, name it"
    return Diagnosis.of(
        "rights",
        f"serviceaccount {account}",
        f"may not do what the operator has to: {message}",
        remedy=f"{remedy} by --operator-account",
        command=kubectl("apply", f"--filename={manifest}"),
    )


async def _may(api: Api, account: str, right: Right) -> bool:
    namespace, _, name = account.partition("/")
    resource, _, subresource = right.resource.partition("/")
    attributes = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource}
    attributes |= {"name": right.name, "namespace": right.namespace}
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    spec = {"user": f"system:serviceaccount:{namespace}:{name}", "groups": groups, "resourceAttributes": attributes}
    return await _reviewed(api, REVIEWS_OF_OTHERS, spec)


def _told(missing: Iterator[tuple[Resource, str, str]]) -> Iterator[Diagnosis]:
    by_verb: dict[str, list[str]] = {}
    for resource, verb, subresource in missing:
        by_verb.setdefault(verb, []).append(f"{resource}/{subresource}" if subresource else str(resource))
    for verb, resources in by_verb.items():
        if verb == "list":
            command = kubectl("create", "clusterrolebinding", "dra-viewers", "--clusterrole=dra-viewer", "--user=USER")
            remedy = "without it answers are incomplete: have the ClusterRole of manifests/operator/viewer.yaml bound"
        else:
            remedy, command = "--fix cannot repair without it; the commands below need it as well", ""
        message = f"may not {verb} {', '.join(resources)}"
        yield Diagnosis.of("rights", "you", message, remedy=remedy, command=command)
