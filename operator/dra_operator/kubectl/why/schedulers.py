"""Who places a pod, and whether that scheduler works: by its Lease, and by whether any has looked at the pod."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dra_api import api_resources as resources
from dra_api.core import Pod
from dra_api.leases import Lease

from dra_operator.kubectl.facts import age
from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.scheduling.state import GATE, is_at_gate

DEFAULT: Final = "default-scheduler"
INSTALL: Final = "install the operator (kubectl apply -k manifests)"
LEASES: Final = {DEFAULT: "kube-scheduler"}
"""By the name of the scheduler; the operator's Lease has the name in its own."""


def not_ours(made: Pipeline, pod: Pod) -> str:
    """Why the operator does nothing for the pod; empty if it does."""
    controllers, cluster = made.controllers, made.cluster
    if is_at_gate(pod):
        gated = f"waits at the scheduling gate {GATE}, but the operator runs without the controller allocation"
        return "" if controllers.allocation else f"{gated}; what dra-operator would do"
    if pod.spec.scheduler_name != cluster.scheduler_name:
        name = pod.spec.scheduler_name or DEFAULT
        return f"is placed by {name}, not by {cluster.scheduler_name}; what dra-operator would do"
    missing = "is not placed: the operator runs without the controller placement; what dra-operator would do"
    return "" if controllers.placement else missing


def idle_scheduler(made: Pipeline, pod: Pod) -> Iterator[str]:
    """What is wrong with the scheduler itself.

    Where no Lease was read, it is not known which schedulers work. If none exists, the operator does not.
    """
    leases = {lease.metadata.name: lease for lease in made.seen.every(Lease)}
    name = made.cluster.scheduler_name if is_at_gate(pod) else pod.spec.scheduler_name or DEFAULT
    is_operators = name == made.cluster.scheduler_name or f"dra-operator-{name}" in leases
    if not leases and not (is_operators and made.seen.is_whole and str(resources.LEASES) not in made.seen.unseen):
        return
    title = LEASES.get(name, f"dra-operator-{name}" if is_operators else name)
    lease = leases.get(title)
    if lease is not None and not lease.is_held(made.now):
        since = age(lease.spec.renew_time or "", made.now) or "a while"
        holder = lease.spec.holder_identity or "nobody"
        yield f"no scheduler leads: Lease {lease.key} of {holder} was renewed {since} ago; start the scheduler"
    elif lease is None and not was_looked_at(pod) and (is_operators or not _lacks_claims(made, pod)):
        kind, remedy = ("dra-operator", INSTALL) if is_operators else ("scheduler", "start that scheduler")
        seems = f"there is no Lease {title}, and no scheduler has looked at the pod"
        other = "" if is_at_gate(pod) else ", or correct the pod's schedulerName"
        yield f"apparently no {kind} serves the scheduler name {name}: {seems}; {remedy}{other}"


def _lacks_claims(made: Pipeline, pod: Pod) -> bool:
    """kube-scheduler does not try such a pod, and says nothing of it."""
    claims = [claim for _, claim in made.cluster.claims_of(pod)]
    is_short = len(claims) < len(pod.spec.resource_claims or ())
    return is_short or any(claim is None or claim.metadata.deletion_timestamp is not None for claim in claims)


def refusal_of(pod: Pod) -> str:
    """What the scheduler that places the pod said when it refused it last; empty if it has not refused it."""
    conditions = (one for one in pod.status.conditions or () if one.type == "PodScheduled" and one.status == "False")
    said = next((one.message for one in conditions if one.reason != "SchedulingGated"), "")
    return f"{pod.spec.scheduler_name or DEFAULT} says: {said}" if said else ""


def was_looked_at(pod: Pod) -> bool:
    """A scheduler has written why the pod waits."""
    return any(one.type == "PodScheduled" and one.reason != "SchedulingGated" for one in pod.status.conditions or ())
