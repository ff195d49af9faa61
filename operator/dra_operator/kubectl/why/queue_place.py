"""A pod's place in the queue: by priority, then age, among the pods that wait for devices of the same classes."""

from __future__ import annotations

from collections.abc import Iterator

from dra_api.core import Pod
from dra_api.references import pod_is_done
from dra_api.resource import ResourceClaim

from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.wording import counted, listed


def ahead_in_line(made: Pipeline, pod: Pod) -> Iterator[str]:
    """Who of higher priority waits for devices of the same classes, and the pod's place among all that do."""
    cluster, rank = made.cluster, made.cluster.priority_of
    classes = {name for _, claim in cluster.claims_of(pod) if claim is not None for name in _classes(claim)}

    def wants_the_same(other: Pod) -> bool:
        keys = cluster.pods_by_claim.values_of(other.key)
        return any(classes & cluster.claims_by_class.values_of(key) for key in keys)

    waiting = [it for it in cluster.pods if not it.spec.node_name and not pod_is_done(it) and it.key != pod.key]
    rivals = [other for other in waiting if wants_the_same(other)]
    ahead = sorted(other.key for other in rivals if rank(other) > rank(pod))
    if ahead:
        wait = "waits" if len(ahead) == 1 else "wait"
        what = f"{counted(len(ahead), 'pod')} of higher priority {wait} for devices of the same classes"
        yield f"{what}: {listed(ahead)}"
    before = [it for it in rivals if (-rank(it), _since(it)) < (-rank(pod), _since(pod))]
    if rivals and any(map(_since, (pod, *rivals))):
        place = f"number {len(before) + 1} of the {len(rivals) + 1} pods that wait for devices of these classes"
        yield f"by priority and age it is {place}"


def _since(pod: Pod) -> str:
    return pod.metadata.creation_timestamp or ""


def _classes(claim: ResourceClaim) -> Iterator[str]:
    """Those that a claim without devices asks for."""
    if claim.status.allocation is None:
        for request in claim.spec.devices.requests or ():
            if request.exactly is not None:
                yield request.exactly.device_class_name
            yield from (sub.device_class_name for sub in request.first_available or ())
