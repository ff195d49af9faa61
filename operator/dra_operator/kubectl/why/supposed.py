"""The pod without the obstacles that come before any node, so that all causes are named at once.

A missing claim is made from its template, and a name with a likely slip is corrected. Other missing objects, such as
a PersistentVolumeClaim or a class, are left out. All of it happens in the view, and is undone. The module also tells
how the API server would refuse a claim that is still to be made, or its allocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any, Final

from dra_api.core import Pod, PodResourceClaim, PodResourceClaimStatus
from dra_api.meta import Object
from dra_api.quota import ResourceQuota
from dra_api.references import ClaimReferenceError, claim_names, consumer_of, is_pod_group
from dra_api.resource import ResourceClaim, ResourceClaimStatus, ResourceClaimTemplate
from dra_api.scheduling import PodGroup
from msgspec.structs import replace

from dra_operator.cache import ClaimTemplate, Cluster
from dra_operator.commands.simulated import ClaimQuotas, admin_refusal, extended_resource, made_from
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.kubectl.why.changes import Change, pod_change, put_for_trial
from dra_operator.kubectl.why.holders import release_remedies
from dra_operator.kubectl.why.published import likely_meant
from dra_operator.kubectl.why.request_changes import every_request, named, with_fields, with_request
from dra_operator.scheduling import CycleState, NotTried, PreFilterResult
from dra_operator.scheduling.claims import CLAIM_MISSING, CLAIM_UNMADE, CLASS_MISSING
from dra_operator.scheduling.state import Obstacle, size_refusal
from dra_operator.wording import listed

MOST_LOOKS: Final = 8
"""How often one look at a pod goes on behind an obstacle."""


@dataclass(frozen=True)
class Supposed:
    """``pod`` stands in the view so. ``changes`` are corrections that a person has to make for it."""

    pod: Pod
    changes: tuple[Change, ...] = ()
    templates: Mapping[str, ResourceClaimTemplate] = field(default_factory=dict)
    """The templates of claims that were made for the view, by the claims' keys."""
    depth: int = 0
    lacks_claims: bool = False
    """Some claim was left out, so that it is not known which nodes have its devices."""


@contextmanager
def without(
    made: Pipeline, found: PreFilterResult | None, pod: Pod, before: Supposed | None, *, is_summary: bool = False
) -> Iterator[Supposed | None]:
    """What is left of the pod's trouble without what ``found`` says; None if it cannot be thought away.

    ``found`` is None for scheduling gates. ``is_summary``: one missing claim stands for all of them.
    """
    before = before or Supposed(pod)
    with ExitStack() as undoing:
        if before.depth >= MOST_LOOKS:
            yield None
        elif found is None:
            yield _standing(made.cluster, before, replace(pod, spec=replace(pod.spec, scheduling_gates=None)), undoing)
        elif isinstance(found, CycleState):
            yield _released(made.cluster, found, before, undoing)
        elif not isinstance(found, NotTried):
            yield None
        elif found.obstacle.reason is CLASS_MISSING:
            yield _with_class(made, found.obstacle, before, undoing)
        elif found.obstacle.reason.is_about_volumes:
            yield _standing(made.cluster, before, replace(pod, spec=replace(pod.spec, volumes=None)), undoing)
        elif is_summary and found.obstacle.reason is CLAIM_MISSING:
            yield _without_claims(made.cluster, missing_claims(made.cluster, pod), before, undoing)
        else:
            yield _with_claims(made, found.obstacle, before, undoing)


@contextmanager
def without_claims(made: Pipeline, keys: Sequence[str], pod: Pod, before: Supposed | None) -> Iterator[Supposed | None]:
    """The pod without these claims; None if it has none of them."""
    with ExitStack() as undoing:
        yield _without_claims(made.cluster, keys, before or Supposed(pod), undoing)


def missing_claims(cluster: Cluster, pod: Pod) -> list[str]:
    """Return the names of the claims that the pod names and nobody has made."""
    return [use.name for use, claim in cluster.claims_of(pod) if claim is None and not use.must_check_owner]


def lost_claims(cycle_state: CycleState) -> list[tuple[ResourceClaim, str]]:
    """The claims that are allocated for a node that is gone, each with its name: no node can use them any more."""
    found = []
    for claim in cycle_state.resource_claims:
        allocation = claim.status.allocation
        selector = allocation.node_selector if allocation is not None else None
        terms = selector.node_selector_terms or () if selector is not None else ()
        fields = [one for term in terms for one in term.match_fields or ()]
        names = [name for one in fields if one.operator == "In" for name in one.values or ()]
        if len(terms) == 1 and len(names) == 1 and len(cycle_state.nodes) and cycle_state.nodes.get(names[0]) is None:
            found.append((claim, names[0]))
    return found


def _released(cluster: Cluster, cycle_state: CycleState, before: Supposed, undoing: ExitStack) -> Supposed | None:
    """Make claims for deleted nodes anew."""
    uids = [claim.metadata.uid for claim, _ in lost_claims(cycle_state)]
    changes = list(release_remedies(cluster, cycle_state, uids))
    for claim, _ in lost_claims(cycle_state):
        _put(cluster, replace(claim, status=ResourceClaimStatus()), undoing)
    return _standing(cluster, before, before.pod, undoing, *changes) if changes else None


def similar_name(word: str, known: Iterable[str]) -> str:
    """Return ``; there is gpu`` with the known name that was probably meant, or an empty text."""
    every = sorted(set(known) - {word})
    similar = likely_meant(word, every) or get_close_matches(word, every, 1)
    return f"; there is {similar[0]}" if similar else ""


def names_in(objects: Iterable[Object], namespace: str) -> Iterator[str]:
    """The names of the objects of a namespace."""
    return (obj.metadata.name for obj in objects if obj.metadata.namespace == namespace)


def _standing(
    cluster: Cluster, before: Supposed, pod: Pod, undoing: ExitStack, *changes: Change, **more: Any
) -> Supposed:
    """Put this version of the pod into the view."""
    _put(cluster, pod, undoing)
    now = cluster.pods.get(pod.key) or pod
    templates = {**before.templates, **more.get("templates", {})}
    lacks = before.lacks_claims or more.get("lacks_claims", False)
    return Supposed(now, (*before.changes, *changes), templates, before.depth + 1, lacks)


def _put(cluster: Cluster, obj: Object, undoing: ExitStack) -> None:
    old = cluster.store_of(type(obj)).get(obj.key)
    if old is not None:
        undoing.callback(put_for_trial, cluster, old)
        put_for_trial(cluster, obj)


def _with_class(made: Pipeline, obstacle: Obstacle, before: Supposed, undoing: ExitStack) -> Supposed | None:
    """Correct the class of the claim. Leave the claim out if no class is similar."""
    cluster, pod = made.cluster, before.pod
    key = obstacle.subject.removeprefix("claim ").partition(",")[0]
    claim = cluster.claims.get(key)
    if claim is None:
        return None
    likely = likely_meant(obstacle.detail, (it.metadata.name for it in cluster.classes))
    if not likely:
        return _without_claims(cluster, [claim.metadata.name], before, undoing)
    changed: Any = claim
    changes = []
    for name, wanted in every_request(claim):
        if wanted.device_class_name == obstacle.detail:
            patch = with_request(claim, name, with_fields(device_class_name=likely[0]))
            changed = patch.make(changed)
            text = f"write deviceClassName {likely[0]} instead of {obstacle.detail} in {named(claim, name)}"
            changes.append(Change(text, (patch,), 1))
    _put(cluster, changed, undoing)
    return _standing(cluster, before, pod, undoing, *changes)


def _with_claims(made: Pipeline, obstacle: Obstacle, before: Supposed, undoing: ExitStack) -> Supposed | None:
    if obstacle.reason is CLAIM_UNMADE:
        return _with_made_claims(made, before, undoing)
    known = names_in(made.cluster.claims, before.pod.metadata.namespace)
    if obstacle.reason is CLAIM_MISSING and (likely := likely_meant(obstacle.subject, known)):
        return _renamed(made.cluster, obstacle.subject, likely[0], before, undoing)
    return _without_claims(made.cluster, [obstacle.subject], before, undoing)


def _renamed(cluster: Cluster, old: str, new: str, before: Supposed, undoing: ExitStack) -> Supposed:
    """Correct the name of a claim or template in the pod's entries."""

    def make(now: Pod) -> dict[str, Any]:
        return {"resource_claims": tuple(_entry_named(it, old, new) for it in now.spec.resource_claims or ())}

    is_claim = any(it.resource_claim_name == old for it in before.pod.spec.resource_claims or ())
    what = "resourceClaimName" if is_claim else "resourceClaimTemplateName"
    change = pod_change(before.pod, f"write {what} {new} instead of {old} in the pod", 1, make)
    pod = change.patches[0].make(before.pod)
    assert isinstance(pod, Pod)
    return _standing(cluster, before, pod, undoing, change)


def _entry_named(entry: PodResourceClaim, old: str, new: str) -> PodResourceClaim:
    if entry.resource_claim_name == old:
        return replace(entry, resource_claim_name=new)
    if entry.resource_claim_template_name == old:
        return replace(entry, resource_claim_template_name=new)
    return entry


def _without_claims(cluster: Cluster, subjects: Iterable[str], before: Supposed, undoing: ExitStack) -> Supposed | None:
    """Without the entries that lead to claims, by their names or keys, or by the names of the entries."""
    pod = before.pod
    names = {name for subject in subjects for name in (subject, subject.rpartition("/")[2])}
    name_of = claim_names(pod)

    def leads(entry: PodResourceClaim) -> bool:
        try:
            return entry.name in names or name_of(entry)[0] in names
        except ClaimReferenceError:
            return entry.name in names

    left = tuple(entry for entry in pod.spec.resource_claims or () if not leads(entry))
    if len(left) == len(pod.spec.resource_claims or ()):
        return None
    spec = replace(pod.spec, resource_claims=left or None)
    return _standing(cluster, before, replace(pod, spec=spec), undoing, lacks_claims=True)


def _with_made_claims(made: Pipeline, before: Supposed, undoing: ExitStack) -> Supposed | None:
    """Make the claims of its templates, as a controller would. Entries without a template are left out."""
    cluster, pod = made.cluster, before.pod
    every = made.seen.templates
    namespace = pod.metadata.namespace
    statuses = {it.name: it for it in pod.status.resource_claim_statuses or ()}
    entries: list[PodResourceClaim] = []
    templates: dict[str, ResourceClaimTemplate] = {}
    for entry in pod.spec.resource_claims or ():
        recorded = statuses.get(entry.name)
        name = recorded.resource_claim_name if recorded is not None else None
        is_there = recorded is not None and (name is None or f"{namespace}/{name}" in cluster.claims)
        if entry.resource_claim_template_name is None or is_there:
            entries.append(entry)
            continue
        template = every.get(f"{namespace}/{entry.resource_claim_template_name}")
        if template is None:
            if likely := likely_meant(entry.resource_claim_template_name, names_in(made.cluster.templates, namespace)):
                return _renamed(cluster, entry.resource_claim_template_name, likely[0], before, undoing)
            continue
        claim = made_from(template, f"{pod.metadata.name}-{entry.name}", pod, entry.name)
        if claim.key in cluster.claims:
            continue
        cluster.apply(claim)
        undoing.callback(cluster.retract, ResourceClaim, claim.key)
        templates[claim.key] = template
        statuses[entry.name] = PodResourceClaimStatus(name=entry.name, resource_claim_name=claim.metadata.name)
        entries.append(entry)
    if len(entries) == len(pod.spec.resource_claims or ()) and not templates:
        return None
    spec = replace(pod.spec, resource_claims=tuple(entries) or None)
    status = replace(pod.status, resource_claim_statuses=tuple(statuses.values()) or None)
    after, lacks = replace(pod, spec=spec, status=status), len(entries) < len(pod.spec.resource_claims or ())
    return _standing(cluster, before, after, undoing, templates=templates, lacks_claims=lacks)


EVENT = "FailedResourceClaimCreation"


def refused_devices(made: Pipeline, claims: Iterable[ResourceClaim]) -> str:
    """Why the API server would refuse the allocation; empty if it would not."""
    refused = admin_refusal(claims, made.cluster)
    return f"gets no devices: {refused.reason}" if refused is not None else ""


def unmade(made: Pipeline, pod: Pod) -> Iterator[str]:
    """What is known of each of them."""
    recorded = {entry.name for entry in pod.status.resource_claim_statuses or ()}
    for entry in pod.spec.resource_claims or ():
        if entry.resource_claim_template_name and entry.name not in recorded:
            yield f"entry {entry.name}: {_entry(made, pod, entry)}"
    yield from _events(made, pod)


def _entry(made: Pipeline, pod: Pod, entry: PodResourceClaim) -> str:
    group = _sharing(made, pod, entry)
    if group is not None:
        recorded = {it.name: it.resource_claim_name for it in group.status.resource_claim_statuses or ()}
        if name := recorded.get(entry.name):
            return f"is claim {name} of PodGroup {group.key}; its name is recorded in the pod next"
    key = f"{pod.metadata.namespace}/{entry.resource_claim_template_name}"
    template = made.template(key)
    if template is None:
        said = f"ResourceClaimTemplate {key} does not exist: create it, or correct resourceClaimTemplateName"
        return said + _similar_template(made, pod.metadata.namespace, entry.resource_claim_template_name or "")
    if (size := template.bytes_of_spec) is not None:
        return f"ResourceClaimTemplate {key} {size_refusal(size)}"
    if refusal := _refusal(made, pod, entry, template):
        return f"the API server refuses the claim from ResourceClaimTemplate {key}: {refusal}"
    who = "kube-controller-manager, or else the operator, makes the claim"
    if group is not None:
        about = f"of PodGroup {group.key} from ResourceClaimTemplate {key}"
        return f"{who} {about}; events of the group ({EVENT}) say why if they cannot"
    why = f"events of the pod ({EVENT}) say why if they cannot"
    return f"{who} from ResourceClaimTemplate {key}; {why}"


def _similar_template(made: Pipeline, namespace: str, name: str) -> str:
    """A claim of this name, a template with a similar one, or with this one in a namespace where it is of no use."""
    every = made.cluster.templates
    if f"{namespace}/{name}" in made.cluster.claims:
        return "; there is a ResourceClaim of that name: write resourceClaimName"
    if similar := similar_name(name, names_in(every, namespace)):
        return similar
    others = sorted(it.metadata.namespace for it in every if it.metadata.name == name)
    where = f"; there is one in namespace {listed(others)}, but a pod uses only templates of its own namespace"
    return where if others else ""


def _sharing(made: Pipeline, pod: Pod, entry: PodResourceClaim) -> PodGroup | None:
    """The PodGroup of the pod, if the entry means a claim of it."""
    group = made.cluster.groups.of(pod)
    return group if group is not None and is_pod_group(consumer_of(pod, group, entry)) else None


def _refusal(made: Pipeline, pod: Pod, entry: PodResourceClaim, kept: ClaimTemplate) -> str:
    """What a quota, or the label of the namespace, has against the claim."""
    template = ResourceClaimTemplate(metadata=kept.metadata, spec=kept.typed())
    claim = made_from(template, f"{pod.metadata.name}-{entry.name}", pod, entry.name)
    stored = made.seen.every(ResourceClaim)
    quotas = ClaimQuotas(made.seen.every(ResourceQuota), stored, partial(extended_resource, made.cluster))
    refused = admin_refusal([claim], made.cluster) or quotas.refusal([claim], lasting=False)
    return refused.reason if refused is not None else ""


def _events(made: Pipeline, pod: Pod) -> Iterator[str]:
    """The last event about a claim that could not be made, for the pod or its group."""
    group = made.cluster.groups.of(pod)
    uids = {pod.metadata.uid} | ({group.metadata.uid} if group is not None else set())
    about = [event for uid in uids for event in made.seen.events_about(uid) if event.reason == EVENT]
    if about:
        last = max(about, key=lambda event: event.when)
        yield f"event {EVENT}: {last.message}"
