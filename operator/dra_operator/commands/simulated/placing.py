"""Places pods in a simulated cluster: what keeps one from being tried, and what a placed one takes from the next.

Each write has a version of its own, as on an API server: a store takes in nothing that it knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.relations.references import is_reserved_for, pod_as_consumer
from dra_api.resource import ResourceClaim
from msgspec.structs import replace

from dra_operator.cache import Cluster
from dra_operator.scheduling import CycleState, Plan

from .admin_label import admin_refusal
from .claim_quotas import ClaimQuotas
from .gate_report import gated_by_others, gates_of_others
from .held_back import HeldBack, Hindrance

_VERSIONS: Final = count(1)


def apply_changed(cluster: Cluster, obj: Object) -> None:
    """Apply another state of an object, which is news whatever version it has."""
    version = f"simulated-{next(_VERSIONS)}"
    cluster.apply(replace(obj, metadata=replace(obj.metadata, resource_version=version)))


def refusal(
    claims: Sequence[ResourceClaim], cluster: Cluster, quotas: ClaimQuotas, *, lasting: bool
) -> HeldBack | None:
    """What the API server would not let in of the claims."""
    return admin_refusal(claims, cluster) or quotas.refusal(claims, lasting=lasting)


def closed_gate(pod: Pod) -> HeldBack | None:
    """The gates of other controllers."""
    gates = gates_of_others(pod)
    return HeldBack(Hindrance.SCHEDULING_GATE, ", ".join(gates), f"the pod {gated_by_others(pod)}") if gates else None


def reserve(cycle_state: CycleState, found: Plan, cluster: Cluster) -> None:
    """Take devices and room for the pod, as the operator would, so that the next pod finds what is left."""
    pod = cycle_state.pod
    extended = (found.extended.claim,) if found.extended is not None else ()
    for claim in (*cycle_state.resource_claims, *extended):
        status = claim.status
        if claim.metadata.uid in found.allocations:
            status = replace(status, allocation=found.allocations[claim.metadata.uid])
        if not is_reserved_for(pod, claim) and pod.metadata.uid:
            status = replace(status, reserved_for=(*(status.reserved_for or ()), pod_as_consumer(pod)))
        apply_changed(cluster, replace(claim, status=status))
    cluster.assume_placed(pod, found.node, found.served, found.node_use.amounts)
    cluster.storage.assume(pod.metadata.uid, found.node, found.volumes)
