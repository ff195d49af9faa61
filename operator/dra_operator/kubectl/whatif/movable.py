"""Which pods may be moved: those that say so, that a controller makes again, and that no budget protects now.

Pods of a PodGroup that ends as one stay: a move ends a pod alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dra_api.core import Pod
from dra_api.policy import PodDisruptionBudget
from dra_api.relations.references import group_name, pod_is_done
from dra_api.scheduling import PodGroup

from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.sanitized import MOVABLE
from dra_operator.scheduling.preemption import Budget
from dra_operator.scheduling.state import ends_as_one

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
    return sorted(found, key=lambda pod: pod.key)
