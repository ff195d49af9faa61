"""Why a claim is as it is."""

from __future__ import annotations

from dra_api.resource import ResourceClaim

from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.scheduling.state import ANNOTATION, IMMEDIATE, annotation_fault, is_immediate, placeholder_of

from .obstacle_report import holding
from .pods import why_pod
from .report import Report
from .waiting import why_waiting


def why_claim(made: Pipeline, claim: ResourceClaim) -> Report:
    """Lines about one claim, and about the pods that wait with it."""
    report = Report()
    report.say(f"claim {claim.key}: {holding(claim)}")
    if claim.metadata.deletion_timestamp is not None:
        users = ", ".join(consumer.name for consumer in claim.status.reserved_for or ())
        finalizers = ", ".join(claim.metadata.finalizers or ()) or "none"
        waits = f"waits for its consumers to end: {users}" if users else f"waits for its finalizers: {finalizers}"
        report.object_to(f"being deleted; {waits}")
    report.take_in(_ahead(made, claim), indent=2)
    if claim.status.allocation is not None:
        return report
    keys = made.cluster.pods_by_claim.keys(claim.key)
    pods = [pod for key in keys if (pod := made.cluster.pods.get(key)) is not None]
    if not pods and not is_immediate(claim):
        report.say("no pod uses it; devices are allocated when one does", indent=2)
    for pod in pods:
        report.take_in(why_pod(made, pod), indent=2)
    return report


def _ahead(made: Pipeline, claim: ResourceClaim) -> Report:
    """What the annotation of an immediate claim leads to, or what is wrong with it."""
    report = Report()
    if fault := annotation_fault(claim):
        report.object_to(fault, indent=0)
    if not is_immediate(claim):
        return report
    waiting = sorted(pod.metadata.name for pod in made.cluster.awaiting(claim))
    if claim.status.allocation is not None:
        report.say(f"keeps its devices as long as it has the annotation {ANNOTATION}: {IMMEDIATE}")
    elif not made.controllers.allocation:
        report.object_to(
            "is to be allocated at once, but the operator runs without the controller allocation", indent=0
        )
    elif waiting:
        report.say(f"is allocated together with a node for one of its waiting pods: {', '.join(waiting)}")
    else:
        report.say("is to be allocated at once")
        report.take_in(why_waiting(made, placeholder_of(claim, made.cluster.scheduler_name), places=True))
    return report
