"""What can be said to a viewer who may not read all that decides: conditions, events, claims of his namespace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dra_api.core import Event, Pod
from dra_api.references import claims_of_pod, pod_is_done
from dra_api.resource import ResourceClaim

from dra_operator.kubectl.observed import Observed

from .obstacle_report import holding
from .report import Report

NEEDED: Final = (
    "nodes",
    "deviceclasses.resource.k8s.io",
    "resourceslices.resource.k8s.io",
    "resourceclaims.resource.k8s.io",
)
"""Without one of these kinds no node can be asked; a claim that is not seen may hold any device."""


def hidden(seen: Observed) -> list[str]:
    """Those of them that the viewer may not read in the whole cluster."""
    return [kind for kind in NEEDED if kind in seen.unseen]


def why_within_limits(seen: Observed, found: Pod | ResourceClaim) -> Report:
    """What the API server has about the object itself."""
    report = Report()
    if isinstance(found, Pod):
        _pod(report, seen, found)
    else:
        report.say(f"claim {found.key}: {holding(found)}")
        report.is_clear = found.status.allocation is not None
        for pod in _pods(seen, found) if found.status.allocation is None else ():
            _pod(report, seen, pod)
    absent = [seen.unseen[kind] for kind in hidden(seen)]
    if all(" holds no " in why for why in absent):
        report.say(f"{'; '.join(absent)}: with these objects the answer goes node by node, and has changes that help")
        return report
    kinds = ", ".join(kind.partition(".")[0] for kind in hidden(seen))
    role = "the ClusterRole dra-viewer (manifests/operator/viewer.yaml)"
    report.say(f"you may not list {kinds}: with {role} the answer goes node by node, and has changes that help")
    return report


def _pod(report: Report, seen: Observed, pod: Pod) -> None:
    where = f"is assigned to node {pod.spec.node_name}" if pod.spec.node_name else "has no node"
    report.say(f"pod {pod.key} {'is done' if pod_is_done(pod) else where}")
    if not pod.spec.node_name and not pod_is_done(pod):
        report.is_clear = False
    for condition in pod.status.conditions or ():
        if condition.status == "False" and condition.message:
            report.say(f"condition {condition.type} is False, {condition.reason}: {condition.message}", indent=2)
    for use in claims_of_pod(pod):
        report.say(
            f"claim {use.name}: {holding(seen.one(ResourceClaim, f'{pod.metadata.namespace}/{use.name}'))}", indent=2
        )
    report.add(_events(seen, pod))


def _events(seen: Observed, pod: Pod) -> Iterator[str]:
    events = [event for event in seen.every(Event) if event.involved_object.uid == pod.metadata.uid]
    for event in sorted(events, key=lambda it: it.when)[-3:]:
        yield f"event {event.reason}: {event.message}"


def _pods(seen: Observed, claim: ResourceClaim) -> list[Pod]:
    def uses(pod: Pod) -> bool:
        names = {use.name for use in claims_of_pod(pod)}
        return pod.metadata.namespace == claim.metadata.namespace and claim.metadata.name in names

    return [pod for pod in seen.every(Pod) if uses(pod)]
