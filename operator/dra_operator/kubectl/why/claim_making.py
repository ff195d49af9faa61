"""What the API server would say to a pod's claims: to those that are still to be made, and to their allocation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dra_api.core import Event, Pod, PodResourceClaim
from dra_api.quota import ResourceQuota
from dra_api.references import consumer_of, is_pod_group
from dra_api.resource import ResourceClaim, ResourceClaimTemplate
from dra_api.scheduling import PodGroup

from dra_operator.cache import ClaimTemplate
from dra_operator.commands.simulated.claims import ClaimQuotas, admin_refusal, made_from
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.scheduling.state import size_refusal
from dra_operator.wording import listed

from .supposed import names_in, similar_name

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
    if group is not None and (name := dict(_recorded(group)).get(entry.name)):
        return f"is claim {name} of PodGroup {group.key}; its name is recorded in the pod next"
    key = f"{pod.metadata.namespace}/{entry.resource_claim_template_name}"
    template = made.cluster.templates.get(key)
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
    """A template with a similar name, or with this one in another namespace, where it is of no use."""
    every = made.cluster.templates
    if similar := similar_name(name, names_in(every, namespace)):
        return similar
    others = sorted(it.metadata.namespace for it in every if it.metadata.name == name)
    where = f"; there is one in namespace {listed(others)}, but a pod uses only templates of its own namespace"
    return where if others else ""


def _sharing(made: Pipeline, pod: Pod, entry: PodResourceClaim) -> PodGroup | None:
    """The PodGroup of the pod, if the entry means a claim of it."""
    group = made.cluster.groups.of(pod)
    return group if group is not None and is_pod_group(consumer_of(pod, group, entry)) else None


def _recorded(group: PodGroup) -> Iterator[tuple[str, str]]:
    for status in group.status.resource_claim_statuses or ():
        if status.resource_claim_name is not None:
            yield status.name, status.resource_claim_name


def _refusal(made: Pipeline, pod: Pod, entry: PodResourceClaim, kept: ClaimTemplate) -> str:
    """What a quota, or the label of the namespace, has against the claim."""
    template = ResourceClaimTemplate(metadata=kept.metadata, spec=kept.typed())
    claim = made_from(template, f"{pod.metadata.name}-{entry.name}", pod, entry.name)
    stored = made.seen.every(ResourceClaim)
    quotas = ClaimQuotas(made.seen.every(ResourceQuota), stored, lambda name: _resource(made, name))
    refused = admin_refusal([claim], made.cluster) or quotas.refusal([claim], lasting=False)
    return refused.reason if refused is not None else ""


def _resource(made: Pipeline, class_: str) -> str:
    found = made.cluster.classes.get(class_)
    return (found.spec.extended_resource_name or "") if found is not None else ""


def _events(made: Pipeline, pod: Pod) -> Iterator[str]:
    """The last event about a claim that could not be made, for the pod or its group."""
    group = made.cluster.groups.of(pod)
    uids = {pod.metadata.uid} | ({group.metadata.uid} if group is not None else set())
    about = [event for event in made.seen.every(Event) if event.reason == EVENT and event.involved_object.uid in uids]
    if about:
        last = max(about, key=lambda event: event.when)
        yield f"event {EVENT}: {last.message}"
