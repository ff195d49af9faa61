"""Which pods may be moved: those that say so, that a controller makes again, and that no budget protects now.

Pods of a PodGroup that ends as one stay: a move ends a pod alone. A pod of another gang is moved only if each running
pod of the gang may be moved, and if the gang asks for no topology and no attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dra_api.core import Pod
from dra_api.references import group_name, pod_is_done
from dra_api.scheduling import PodDisruptionBudget, PodGroup

from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.sanitized import MOVABLE
from dra_operator.scheduling.preemption import Budget
from dra_operator.scheduling.state import Gang, ends_as_one, gang_of

from .drain import STAYING


def movable_pods(seen: Observed, selected: Callable[[Mapping[str, str] | None], bool] | None) -> list[Pod]:
    """By name. ``selected``: labels instead of the annotation.

    Moves are made one after the other, each when the successor of the one before runs: a budget that allows one
    disruption allows them all.
    """
    budgets = [(it.metadata.namespace, Budget.of(it)) for it in seen.every(PodDisruptionBudget)]
    as_one = {group.key for group in seen.every(PodGroup) if ends_as_one(group)}
    found = []
    for pod in seen.every(Pod):
        meta, owner = pod.metadata, pod.metadata.controller
        allows = selected(meta.labels) if selected is not None else (meta.annotations or {}).get(MOVABLE) == "true"
        if not allows or not pod.spec.node_name or pod_is_done(pod) or meta.deletion_timestamp is not None:
            continue
        if owner is None or owner.kind in STAYING or f"{meta.namespace}/{group_name(pod)}" in as_one:
            continue
        if all(it.allowed > 0 for namespace, it in budgets if namespace == meta.namespace and it.covers(pod)):
            found.append(pod)
    unwilling = _unwilling(seen, {pod.metadata.uid for pod in found})
    return sorted((pod for pod in found if pod.metadata.uid not in unwilling), key=lambda pod: pod.key)


def _unwilling(seen: Observed, movable: set[str]) -> set[str]:
    """The UIDs of running pods of gangs whose pods stay."""
    groups = {group.key: group for group in seen.every(PodGroup)}
    gangs: dict[str, set[str]] = {}
    staying = set[str]()
    for pod in seen.every(Pod):
        gang = gang_of(pod, groups.get(f"{pod.metadata.namespace}/{group_name(pod)}"))
        if pod.spec.node_name and not pod_is_done(pod) and isinstance(gang, Gang):
            gangs.setdefault(gang.key, set()).add(pod.metadata.uid)
            if gang.has_domain or pod.metadata.uid not in movable:
                staying.add(gang.key)
    return {uid for key in staying for uid in gangs[key]}
