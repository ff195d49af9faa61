"""A pod's place in the queue: waiting pods of higher priority that want devices of the same classes."""

from __future__ import annotations

from collections.abc import Iterator

from dra_api.core import Pod
from dra_api.relations.references import pod_is_done
from dra_api.resource import ResourceClaim

from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.wording import counted, listed


def ahead_in_line(made: Pipeline, pod: Pod) -> Iterator[str]:
    """One line if there are some."""
    cluster, rank = made.cluster, pod.spec.priority or 0
    classes = {name for _, claim in cluster.claims_of(pod) if claim is not None for name in _classes(claim)}
    waiting = (other for other in cluster.pods if not other.spec.node_name and not pod_is_done(other))
    ahead = sorted(
        other.key
        for other in waiting
        if (other.spec.priority or 0) > rank
        and any(classes & cluster.claims_by_class.values_of(key) for key in cluster.pods_by_claim.values_of(other.key))
    )
    if ahead:
        wait = "waits" if len(ahead) == 1 else "wait"
        what = f"{counted(len(ahead), 'pod')} of higher priority {wait} for devices of the same classes"
        yield f"{what}: {listed(ahead)}"


def _classes(claim: ResourceClaim) -> Iterator[str]:
    """Those that a claim without devices asks for."""
    if claim.status.allocation is None:
        for request in claim.spec.devices.requests or ():
            if request.exactly is not None:
                yield request.exactly.device_class_name
            yield from (sub.device_class_name for sub in request.first_available or ())
