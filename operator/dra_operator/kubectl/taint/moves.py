"""Where pods that end could go again: they are placed one after the other, in a cluster from which they are gone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from dra_api.core import Pod, PodSpec
from dra_api.meta import Object
from dra_api.resource import ResourceClaim, ResourceClaimConsumerReference, ResourceClaimStatus
from msgspec import structs

from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Pipeline, Settings, pipeline
from dra_operator.scheduling import CycleState, Plan, pre_filter

_VERSIONS: Final = count(1)


@dataclass(frozen=True, slots=True)
class Move:
    """``node`` is empty if no node takes the pod, and ``why`` says what is in the way."""

    node: str = ""
    why: str = ""


def moves(seen: Observed, pods: Sequence[Pod], settings: Settings) -> Mapping[str, Move]:
    """By the key of the pod. Pods of higher priority choose first, and each leaves less for the next."""
    leaving = {pod.metadata.uid for pod in pods}
    made = pipeline(replace(seen, objects=[_without(obj, leaving) for obj in seen.objects]), settings)
    in_order = sorted(pods, key=lambda pod: (-(pod.spec.priority or 0), pod.key))
    return {pod.key: _placed(made, pod.key) for pod in in_order}


def _without(obj: Object, leaving: Collection[str]) -> Object:
    """Pods that leave are without a node, and claims that they alone use without devices."""
    if isinstance(obj, Pod) and obj.metadata.uid in leaving:
        spec: PodSpec = structs.replace(obj.spec, node_name="")
        return structs.replace(obj, spec=spec, status=structs.replace(obj.status, phase="Pending", conditions=None))
    if isinstance(obj, ResourceClaim) and obj.status.reserved_for:
        left = tuple(user for user in obj.status.reserved_for if user.uid not in leaving)
        if len(left) < len(obj.status.reserved_for):
            return structs.replace(
                obj, status=structs.replace(obj.status, reserved_for=left) if left else ResourceClaimStatus()
            )
    return obj


def _placed(made: Pipeline, key: str) -> Move:
    pod = made.cluster.pods.get(key)
    if pod is None:
        return Move(why="it is gone")
    found = pre_filter(pod, made.cluster.snapshot(made.allocator, made.now))
    if not isinstance(found, CycleState):
        return Move(why=found.text)
    answer = made.planned(found)
    if not isinstance(answer, Plan):
        return Move(why=answer.message)
    user = ResourceClaimConsumerReference(resource="pods", name=pod.metadata.name, uid=pod.metadata.uid)
    made_for_it = (answer.extended.claim,) if answer.extended is not None else ()
    for claim in (*found.resource_claims, *made_for_it):
        allocation = answer.allocations.get(claim.metadata.uid, claim.status.allocation)
        status = ResourceClaimStatus(allocation=allocation, reserved_for=(*(claim.status.reserved_for or ()), user))
        _put(made, structs.replace(claim, status=status))
    _put(made, structs.replace(pod, spec=structs.replace(pod.spec, node_name=answer.node)))
    return Move(node=answer.node)


def _put(made: Pipeline, obj: Object) -> None:
    """As news: texts are no revisions, so that each differs from all others."""
    version = f"move-{next(_VERSIONS)}"
    made.cluster.apply(structs.replace(obj, metadata=structs.replace(obj.metadata, resource_version=version)))
