"""Whether another controller makes the claims of pods, as their statuses show.

Names of claims that this operator makes follow from pod and entry, also if another operator of this kind makes them. So
another name in the status of a pod is the work of another claim controller. Only what a status says counts, since users
of a namespace may not write it, while they may make claims that look like any; and only the status of a pod without a
node, since a node may write that of its own pods. What this process records shows nothing, although the watch may be
faster than the answer: users may make a claim for a pod of theirs, which is recorded like any other. A pod of a
PodGroup shows nothing: it may record a claim of the group, whose name follows from the group.
"""

from __future__ import annotations

from collections.abc import Callable

from dra_api.core import Pod

from .claim_names import is_ours


def records_claim_of_others(before: Pod | None, now: Pod, records_here: Callable[[Pod, str], bool]) -> bool:
    """Whether between these two versions of a pod another controller recorded a claim for one of its entries.

    ``records_here``: whether the claim of that name is being recorded in the pod by this process, or may have been.
    """
    if before is None or before.metadata.uid != now.metadata.uid:
        return False
    if now.spec.node_name or now.spec.scheduling_group is not None:
        return False
    known, new = _recorded(before), _recorded(now)
    meta = now.metadata
    changed = [(entry, claim) for entry, claim in new.items() if claim and known.get(entry) != claim]
    return any(
        not is_ours(claim, meta.name, meta.uid, entry) and not records_here(now, claim) for entry, claim in changed
    )


def _recorded(pod: Pod) -> dict[str, str | None]:
    return {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses or ()}
