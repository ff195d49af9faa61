"""A cluster of objects from files, and the operator's work on it: claims of pods, gates, placing, reserving.

Claims are made from their templates, or held back. Claims that the API server would refuse are refused here: claims
beyond a ResourceQuota, and admin access without the label of the namespace.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import chain, count
from typing import Final, TypeVar

import msgspec
from dra_api.codec import DecodeError
from dra_api.core import Namespace, Node, Pod, PodResourceClaim, PodResourceClaimStatus
from dra_api.meta import Object, ObjectMeta, OwnerReference
from dra_api.quota import ResourceQuota, charges, whole
from dra_api.references import is_reserved_for, pod_as_consumer, pod_is_done
from dra_api.resource import (
    ADMIN_ACCESS_LABEL,
    POD_CLAIM_NAME_ANNOTATION,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dra_api.selectors import permits_admin_access, wants_admin_access
from dra_ledger.cel_language import CelSelectors
from msgspec.structs import replace

from dra_operator.allocator import DEVICE_ORDERS, Allocator, Features, Inventory, Semantics
from dra_operator.cache import Cluster
from dra_operator.commands.file_items import BadInput
from dra_operator.commands.object_files import identified, of_kind
from dra_operator.controllers.scheduling.mix import Asked, MixLearner, MixMemory
from dra_operator.scheduling import PLACEMENT_STRATEGIES, CycleState, Placement, Plan
from dra_operator.scheduling.state import GATE, OPENED_LAST, bytes_of_large, is_at_gate, pod_requests, size_refusal
from dra_operator.sources.kind_table import OF_STORAGE


class Hindrance(StrEnum):
    """The values are stable."""

    TEMPLATE_MISSING = "template-missing"
    TEMPLATE_UNFIT = "template-unfit"
    CLAIM_MISSING = "claim-missing"
    ADMIN_ACCESS = "admin-access"
    QUOTA = "quota"
    SCHEDULING_GATE = "scheduling-gate"


@dataclass(frozen=True, slots=True)
class HeldBack:
    """``subject`` is what it is about (a template, a namespace, a gate), ``reason`` the same in words."""

    kind: Hindrance
    subject: str
    reason: str

    @property
    def text(self) -> str:
        """A clause about the pod, without its name."""
        return f"is not tried: {self.reason}"

    @property
    def lacks_input(self) -> bool:
        """Whether the files do not say enough for an answer."""
        return self.kind in (Hindrance.TEMPLATE_MISSING, Hindrance.CLAIM_MISSING)


def admin_refusal(claims: Iterable[ResourceClaim], cluster: Cluster) -> HeldBack | None:
    """Why a claim gets no admin access; None if it does, or if its namespace is not in the files."""
    for claim in filter(_waits_for_admin_access, claims):
        name = claim.metadata.namespace
        namespace = cluster.namespaces.get(name)
        if namespace is not None and not permits_admin_access(namespace):
            label = f"admin access to devices requires the label {ADMIN_ACCESS_LABEL}: true on namespace {name}"
            return HeldBack(Hindrance.ADMIN_ACCESS, name, f"claim {claim.key}: {label}")
    return None


def taken_as_permitted(claims: Iterable[ResourceClaim], cluster: Cluster) -> Iterator[str]:
    """A note for each namespace that is not in the files, although its label decides about a claim."""
    for name in sorted({claim.metadata.namespace for claim in filter(_waits_for_admin_access, claims)}):
        if cluster.namespaces.get(name) is None:
            label = f"(label {ADMIN_ACCESS_LABEL}: true)"
            yield f"Namespace {name} is not in the files: admin access is taken as permitted there {label}"


def _waits_for_admin_access(claim: ResourceClaim) -> bool:
    """What was granted stays, whatever becomes of the label."""
    return claim.status.allocation is None and wants_admin_access(claim.spec.devices)


Charges = Counter[str]


@dataclass(frozen=True, slots=True)
class Limit:
    """What a quota allows, and what is used of it: as it says itself, or else as the claims in the files add up."""

    key: str
    hard: Mapping[str, int]
    used: Charges


class ClaimQuotas:
    """Lets claims in, one after the other. ``stored`` are those that the server has, and has charged already."""

    def __init__(
        self,
        quotas: Iterable[ResourceQuota],
        stored: Collection[ResourceClaim],
        extended_resource: Callable[[str], str],
    ) -> None:
        self._extended_resource = extended_resource
        self._stored = frozenset(claim.metadata.uid for claim in stored)
        self._let_in: set[str] = set()
        self._added: defaultdict[str, Charges] = defaultdict(Counter)
        self._limits: defaultdict[str, list[Limit]] = defaultdict(list)
        counted: defaultdict[str, Charges] = defaultdict(Counter)
        for claim in stored:
            counted[claim.metadata.namespace] += charges(claim, extended_resource)
        for quota in quotas:
            if not quota.spec.scopes and quota.spec.scope_selector is None:  # with scopes it counts pods, not claims
                namespace = quota.metadata.namespace
                self._limits[namespace].append(_limit(quota, counted[namespace]))

    def fork(self) -> ClaimQuotas:
        """An independent copy, which knows what was let in so far."""
        other = copy(self)
        other._let_in = set(self._let_in)
        other._added = defaultdict(Counter, {namespace: Counter(charged) for namespace, charged in self._added.items()})
        return other

    def __bool__(self) -> bool:
        """Whether there is any quota that counts claims."""
        return any(self._limits.values())

    def refusal(
        self, claims: Iterable[ResourceClaim], *, extended_of: Pod | None = None, lasting: bool
    ) -> HeldBack | None:
        """Why not all of the claims can be made; None if they can. ``lasting``: then later ones find these charged.

        ``extended_of``: the claim is that for the extended resources of this pod.
        """
        added: defaultdict[str, Charges] = defaultdict(Counter)
        # Nothing is remembered of namespaces without limits: the operator plans for as long as it runs.
        limited = (it for it in claims if self._limits.get(it.metadata.namespace))
        new = [it for it in limited if it.metadata.uid not in self._stored and it.metadata.uid not in self._let_in]
        for claim in new:
            namespace, asked = claim.metadata.namespace, self._asked(claim, extended_of)
            for limit in self._limits[namespace]:
                used = limit.used + self._added[namespace] + added[namespace]
                if over := [name for name in sorted(asked) if _exceeds(limit, name, used, asked)]:
                    title = "the claim for extended resources" if extended_of is not None else f"claim {claim.key}"
                    return HeldBack(Hindrance.QUOTA, limit.key, f"{title}: {_said(limit, over, asked, used)}")
            added[namespace] += asked
        if lasting:
            self._let_in.update(claim.metadata.uid for claim in new)
            for namespace, amounts in added.items():
                self._added[namespace] += amounts
        return None

    def _asked(self, claim: ResourceClaim, extended_of: Pod | None) -> Charges:
        asked = charges(claim, self._extended_resource)
        for name in pod_requests(extended_of) if extended_of is not None else ():
            asked.pop(f"requests.{name}", None)  # the pod itself is charged with that
        return asked


def _limit(quota: ResourceQuota, counted: Charges) -> Limit:
    told = {name: whole(amount) for name, amount in (quota.status.used or {}).items()}
    hard = {name: whole(amount) for name, amount in (quota.spec.hard or {}).items()}
    return Limit(quota.key, hard, Counter({**counted, **told}))


def _exceeds(limit: Limit, name: str, used: Charges, asked: Charges) -> bool:
    return name in limit.hard and asked[name] > 0 and used[name] + asked[name] > limit.hard[name]


def _said(limit: Limit, over: Sequence[str], asked: Charges, used: Charges) -> str:
    """The words of the API server, and the remedy."""
    requested, in_use, limited = (
        ",".join(f"{name}={amounts[name]}" for name in over) for amounts in (asked, used, limit.hard)
    )
    name = limit.key.rpartition("/")[2]
    numbers = f"requested: {requested}, used: {in_use}, limited: {limited}"
    return f"exceeded quota: {name}, {numbers}: raise the quota, or delete claims of the namespace"


@dataclass(frozen=True, slots=True)
class PodClaims:
    """``lacking`` says, by the key of a pod, what is lacking of its claims ``where`` they were looked for.

    ``templates`` raise DecodeError for one that cannot be read.
    """

    cluster: Cluster
    templates: Mapping[str, ResourceClaimTemplate]
    lacking: dict[str, HeldBack] = field(default_factory=dict)
    where: str = "in the files"

    def give(self, pod: Pod) -> Pod:
        """The pod as it is when its claims have been made from templates; both are put into the cluster.

        A pod that has its node, or is done, needs none.
        """
        if not (pod.spec.node_name or pod_is_done(pod)):
            statuses = {status.name: status for status in pod.status.resource_claim_statuses or ()}
            lacking = [it for entry in pod.spec.resource_claims or () if (it := self._serve(pod, entry, statuses))]
            if lacking:
                reasons = "; ".join(it.reason for it in lacking)
                self.lacking[pod.key] = HeldBack(lacking[0].kind, lacking[0].subject, reasons)
            status = msgspec.structs.replace(pod.status, resource_claim_statuses=tuple(statuses.values()))
            pod = msgspec.structs.replace(pod, status=status)
        self.cluster.apply(pod)
        return pod

    def _serve(self, pod: Pod, entry: PodResourceClaim, statuses: dict[str, PodResourceClaimStatus]) -> HeldBack | None:
        """See that there is a claim for the entry, and that ``statuses`` names it. The result is what is missing."""
        namespace, recorded = pod.metadata.namespace, statuses.get(entry.name)
        if entry.resource_claim_name is None and entry.resource_claim_template_name is None:
            return None  # an unknown source: placement tells of it
        name = entry.resource_claim_name or (recorded.resource_claim_name if recorded else None)
        is_settled = recorded is not None and name is None  # no claim is needed
        if is_settled or (name is not None and f"{namespace}/{name}" in self.cluster.claims):
            return None
        key = f"{namespace}/{entry.resource_claim_template_name}"
        try:
            template = self.templates.get(key)
        except DecodeError as error:
            return _unfit(entry, key, f"cannot be read ({error}): correct it")
        if template is None or entry.resource_claim_name is not None:
            return _missing(entry, namespace, name, self.where)
        if (size := bytes_of_large(template.spec.spec)) is not None:
            return _unfit(entry, key, size_refusal(size))
        name = name or self._free(namespace, f"{pod.metadata.name}-{entry.name}")
        self.cluster.apply(made_from(template, name, pod, entry.name))
        statuses[entry.name] = PodResourceClaimStatus(name=entry.name, resource_claim_name=name)
        return None

    def _free(self, namespace: str, name: str) -> str:
        """The name, or a longer one if that is taken: entry ``b-c`` of pod ``a`` and ``c`` of ``a-b`` have one name."""
        names = chain([name], (f"{name}-{number}" for number in count(2)))
        return next(it for it in names if f"{namespace}/{it}" not in self.cluster.claims)


def _unfit(entry: PodResourceClaim, key: str, fault: str) -> HeldBack:
    reason = f"entry {entry.name}: ResourceClaimTemplate {key} {fault}"
    return HeldBack(Hindrance.TEMPLATE_UNFIT, key, reason)


def _missing(entry: PodResourceClaim, namespace: str, name: str | None, place: str) -> HeldBack:
    """``name`` is that of the claim, if the pod names one, or has one recorded."""
    template = f"ResourceClaimTemplate {namespace}/{entry.resource_claim_template_name}"
    where, lost = f"entry {entry.name}:", f"ResourceClaim {namespace}/{name} is not {place}"
    if name is None:
        reason = f"{where} {template} is not {place}: add it, or correct resourceClaimTemplateName"
        return HeldBack(Hindrance.TEMPLATE_MISSING, f"{namespace}/{entry.resource_claim_template_name}", reason)
    if entry.resource_claim_name is not None:
        reason = f"{where} {lost}: add it, or correct resourceClaimName"
    else:
        reason = f"{where} {lost}, nor is {template}, of which it would be made again: add one of them"
    return HeldBack(Hindrance.CLAIM_MISSING, f"{namespace}/{name}", reason)


def made_from(template: ResourceClaimTemplate, name: str, pod: Pod | None = None, entry: str = "") -> ResourceClaim:
    """The claim that a pod gets from the template; without a pod, one that no pod uses."""
    owners = (
        OwnerReference(api_version="v1", kind="Pod", name=owner.name, uid=owner.uid, controller=True)
        for owner in ((pod.metadata,) if pod is not None else ())
    )
    metadata = ObjectMeta(
        name=name,
        namespace=template.metadata.namespace,
        uid=f"made-from-template-{template.metadata.namespace}/{name}",
        annotations={POD_CLAIM_NAME_ANNOTATION: entry} if entry else None,
        owner_references=tuple(owners) or None,
    )
    return ResourceClaim(metadata=metadata, spec=template.spec.spec)


def gates_of_others(pod: Pod) -> list[str]:
    """The gates that others remove before it is the operator's turn."""
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    after_ours = OPENED_LAST if GATE in gates else frozenset()
    return [] if is_at_gate(pod) else [name for name in gates if name != GATE and name not in after_ours]


def gated_by_others(pod: Pod) -> str:
    """Which gates are removed in which order, as a clause about the pod."""
    gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
    after_ours = OPENED_LAST if GATE in gates else frozenset()
    then = f"; then the operator allocates its devices and removes {GATE}" if GATE in gates else ""
    last = "".join(f"; {name} is removed after that" for name in gates if name in after_ours)
    alike = [name for name in gates if name != GATE and name.startswith(GATE.partition("/")[0])]
    misspelt = "".join(f"; {name} is not the operator's gate, which is {GATE}" for name in alike)
    return f"waits for its scheduling gates to be removed: {', '.join(gates_of_others(pod))}{then}{last}{misspelt}"


_VERSIONS: Final = count(1)


def apply_changed(cluster: Cluster, obj: Object) -> None:
    """Apply another state of an object, which is news whatever version it has."""
    version = f"simulated-{next(_VERSIONS)}"
    cluster.apply(replace(obj, metadata=replace(obj.metadata, resource_version=version)))


def refusal(
    claims: Sequence[ResourceClaim], cluster: Cluster, quotas: ClaimQuotas, *, lasting: bool
) -> HeldBack | None:
    """What the API server would not let in of the claims."""
    return admin_refusal(claims, cluster) or quotas.refusal(claims, lasting=lasting)


def closed_gate(pod: Pod) -> HeldBack | None:
    """The gates of other controllers."""
    gates = gates_of_others(pod)
    return HeldBack(Hindrance.SCHEDULING_GATE, ", ".join(gates), f"the pod {gated_by_others(pod)}") if gates else None


def reserve(cycle_state: CycleState, found: Plan, cluster: Cluster) -> None:
    """Take devices and room for the pod, as the operator would, so that the next pod finds what is left."""
    pod = cycle_state.pod
    extended = (found.extended.claim,) if found.extended is not None else ()
    for claim in (*cycle_state.resource_claims, *extended):
        status = claim.status
        if claim.metadata.uid in found.allocations:
            status = replace(status, allocation=found.allocations[claim.metadata.uid])
        if not is_reserved_for(pod, claim) and pod.metadata.uid:
            status = replace(status, reserved_for=(*(status.reserved_for or ()), pod_as_consumer(pod)))
        apply_changed(cluster, replace(claim, status=status))
    cluster.assume_placed(pod, found.node, found.served, found.node_use.amounts)
    cluster.storage.assume(pod.metadata.uid, found.node, found.volumes)


T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """``claims`` are tried together where the files have no pod. ``notes`` say what is not as the files have it."""

    cluster: Cluster
    allocator: Allocator
    placement: Placement
    learner: MixLearner
    pods: Sequence[Pod]
    claims: Sequence[ResourceClaim]
    notes: Sequence[str]
    lacking: Mapping[str, HeldBack]
    """By the key of a pod, what the files lack of its claims."""
    quotas: ClaimQuotas


def simulated(
    objects: Sequence[Object],
    node_names: Sequence[str] | None,
    *,
    features: Features,
    semantics: Semantics,
    strategy: str = PLACEMENT_STRATEGIES[0],
    device_order: str = DEVICE_ORDERS[0],
    mix: Sequence[Asked] = (),
) -> SimulatedCluster:
    """The cluster, ready to be asked. Raises BadInput when there is nothing to try, or no node to try it on."""
    notes: list[str] = []
    cluster = Cluster(Inventory(features, language=CelSelectors(features), semantics=semantics))
    for kind in (Namespace, DeviceClass, ResourceSlice):
        for obj in of_kind(kind, objects):
            cluster.apply(obj)
    for rule in of_kind(DeviceTaintRule, objects):
        if features.taint_rules and features.device_taints:
            cluster.apply(rule)
        else:
            notes.append(f"DeviceTaintRule {rule.metadata.name} is left out: --feature-gates DRADeviceTaintRules=true")
    for obj in objects:
        if isinstance(obj, (ResourceClaim, *OF_STORAGE.values())):
            cluster.apply(identified(obj))
    quotas = ClaimQuotas(of_kind(ResourceQuota, objects), _stored(objects), partial(extended_resource, cluster))
    known = {node.metadata.name for node in of_kind(Node, objects)} or set(_named_by_slices(objects))
    for node in _nodes(objects, node_names):
        cluster.apply(node)
        if node.metadata.name not in known:
            notes.append(f"node {node.metadata.name} is not in the files, and tried as one without labels")
    templates = {template.key: template for template in of_kind(ResourceClaimTemplate, objects)}
    claims = PodClaims(cluster, templates)
    pods = [claims.give(identified(pod)) for pod in of_kind(Pod, objects)]
    wanted = () if pods else _wanted(objects)
    notes += taken_as_permitted((*cluster.claims, *wanted), cluster)
    allocator = Allocator(cluster.inventory, new_share_id=lambda: str(uuid.uuid4()), order=device_order)
    placement = Placement(strategy, device_order)
    allocator.looks_at_mix |= placement.looks_at_mix(cluster.classes)
    learner = MixLearner(cluster, allocator, MixMemory(mix))
    return SimulatedCluster(cluster, allocator, placement, learner, pods, wanted, notes, claims.lacking, quotas)


def _stored(objects: Sequence[Object]) -> list[ResourceClaim]:
    """The claims that the server has: others are still to be made, as those from templates."""
    claims = of_kind(ResourceClaim, objects)
    return [identified(it) for it in claims if it.metadata.uid or it.status.allocation is not None]


def extended_resource(cluster: Cluster, class_: str) -> str:
    """The extended resource that a device class serves; empty if none."""
    found = cluster.classes.get(class_)
    return (found.spec.extended_resource_name or "") if found is not None else ""


def _nodes(objects: Sequence[Object], wanted: Sequence[str] | None) -> list[Node]:
    """Those that are wanted, by default all in the files; ``wanted`` is None where a person cannot name any."""
    known = {node.metadata.name: node for node in of_kind(Node, objects)}
    names = list(wanted or known or _named_by_slices(objects))
    if not names:
        remedy = "" if wanted is None else ", or name one with --node"
        raise BadInput(f"no node to try: add a Node object to the files{remedy}")
    return [known.get(name) or Node(metadata=ObjectMeta(name=name)) for name in names]


def _named_by_slices(objects: Sequence[Object]) -> list[str]:
    slices = of_kind(ResourceSlice, objects)
    names = [slice_.spec.node_name for slice_ in slices]
    names += [device.node_name for slice_ in slices for device in slice_.spec.devices or ()]
    return sorted({name for name in names if name})


def _wanted(objects: Sequence[Object]) -> list[ResourceClaim]:
    claims = map(identified, of_kind(ResourceClaim, objects))
    wanted = [claim for claim in claims if claim.status.allocation is None]
    wanted += [made_from(it, it.metadata.name) for it in of_kind(ResourceClaimTemplate, objects)]
    if not wanted:
        raise BadInput("no claim to try: add a ResourceClaim without allocation, or a ResourceClaimTemplate")
    return wanted
