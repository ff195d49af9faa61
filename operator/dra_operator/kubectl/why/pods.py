"""Why a pod is where it is."""

from __future__ import annotations

from dra_api.core import Pod
from dra_api.references import pod_is_done
from dra_api.resource import ResourceClaim

from dra_operator.commands.simulated.cluster import gated_by_others
from dra_operator.kubectl.facts import age
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.scheduling.state import GATE, is_at_gate
from dra_operator.wording import listed

from .bound import unknown_requests, why_bound
from .report import Report
from .schedulers import idle_scheduler, not_ours, refusal_of
from .waiting import why_besides, why_waiting


def why_pod(made: Pipeline, pod: Pod) -> Report:
    """Lines about one pod, and what would help it."""
    report = Report()
    if namespace_ends(made, pod.metadata.namespace):
        report.object_to(namespace_ends(made, pod.metadata.namespace), indent=0)
    if pod_is_done(pod) and not pod.is_terminal:
        since = age(pod.metadata.deletion_timestamp or "", made.now)
        kept = listed(pod.metadata.finalizers or ()) or "none; its deletion is under way"
        text = f"pod {pod.key} was deleted {since or 'a while'} ago, before it got a node"
        report.object_to(f"{text}, and is kept by its finalizers: {kept}", indent=0)
        return report
    if pod_is_done(pod):
        report.say(f"pod {pod.key} is done ({pod.status.phase})")
        return report
    if pod.spec.node_name:
        report.take_in(why_bound(made, pod))
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


def namespace_ends(made: Pipeline, name: str) -> str:
    """That the namespace is being deleted; empty if it is not."""
    namespace = made.cluster.namespaces.get(name)
    if namespace is None or namespace.metadata.deletion_timestamp is None:
        return ""
    since = age(namespace.metadata.deletion_timestamp, made.now) or "a while"
    return f"namespace {name} was deleted {since} ago and terminates: nothing new is made in it"


def _claims(made: Pipeline, pod: Pod) -> dict[str, ResourceClaim]:
    """By the name of the pod's entry."""
    uses = made.cluster.claims_of(pod)
    return {use.entry.name: claim for use, claim in uses if use.entry is not None and claim is not None}
