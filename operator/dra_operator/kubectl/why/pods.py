"""Why a pod is where it is."""

from __future__ import annotations

from dra_api.core import Pod
from dra_api.relations.references import pod_is_done
from dra_api.resource import ResourceClaim

from dra_operator.commands.simulated.cluster import gated_by_others
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.scheduling.state import GATE, is_at_gate

from .bound import unknown_requests, why_bound
from .report import Report
from .schedulers import idle_scheduler, not_ours, refusal_of
from .waiting import why_besides, why_waiting


def why_pod(made: Pipeline, pod: Pod) -> Report:
    """Lines about one pod, and what would help it."""
    report = Report()
    if pod_is_done(pod):
        report.say(f"pod {pod.key} is done ({pod.status.phase or 'deleted before it got a node'})")
        return report
    if pod.spec.node_name:
        report = why_bound(made, pod)
    elif pod.spec.scheduling_gates and not is_at_gate(pod):
        report.object_to(f"pod {pod.key} {gated_by_others(pod)}", indent=0)
        report.take_in(why_besides(made, None, pod, places=False))
    else:
        who_else = not_ours(made, pod)
        if who_else:
            report.say(f"pod {pod.key} {who_else}:")
        elif is_at_gate(pod):
            report.say(
                f"pod {pod.key} waits for devices at the scheduling gate {GATE}, which the operator then removes"
            )
        idle = list(idle_scheduler(made, pod))
        report.take_in(why_waiting(made, pod, places=not who_else and not idle))
        for line in idle:
            report.object_to(line)
        if who_else and report.is_clear and (said := refusal_of(pod)):
            report.object_to(said)
    for line in unknown_requests(pod, _claims(made, pod)):
        report.object_to(line)
    return report


def _claims(made: Pipeline, pod: Pod) -> dict[str, ResourceClaim]:
    """By the name of the pod's entry."""
    uses = made.cluster.claims_of(pod)
    return {use.entry.name: claim for use, claim in uses if use.entry is not None and claim is not None}
