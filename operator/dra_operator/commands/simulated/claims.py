"""The claims of pods in files: those that are there, and those that the operator would make from templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, count

import msgspec
from dra_api.core import Pod, PodResourceClaim, PodResourceClaimStatus
from dra_api.meta import ObjectMeta, OwnerReference
from dra_api.relations.references import pod_is_done
from dra_api.resource import POD_CLAIM_NAME_ANNOTATION, ResourceClaim, ResourceClaimTemplate

from dra_operator.cache import Cluster

from .held_back import HeldBack, Hindrance


@dataclass(frozen=True, slots=True)
class PodClaims:
    """``lacking`` says, by the key of a pod, what is lacking of its claims ``where`` they were looked for."""

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
        template = self.templates.get(f"{namespace}/{entry.resource_claim_template_name}")
        if template is None or entry.resource_claim_name is not None:
            return _missing(entry, namespace, name, self.where)
        name = name or self._free(namespace, f"{pod.metadata.name}-{entry.name}")
        self.cluster.apply(made_from(template, name, pod, entry.name))
        statuses[entry.name] = PodResourceClaimStatus(name=entry.name, resource_claim_name=name)
        return None

    def _free(self, namespace: str, name: str) -> str:
        """The name, or a longer one if that is taken: entry ``b-c`` of pod ``a`` and ``c`` of ``a-b`` have one name."""
        names = chain([name], (f"{name}-{number}" for number in count(2)))
        return next(it for it in names if f"{namespace}/{it}" not in self.cluster.claims)


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
