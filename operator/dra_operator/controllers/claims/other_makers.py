"""Whether another controller makes the claims of pods, as their statuses show.

Names of claims that this operator makes follow from pod and entry, also if another operator of this kind makes them. So
another name in the status of a pod is the work of another claim controller. Only what a status says counts, since users
of a namespace may not write it, while they may make claims that look like any; and only the status of a pod without a
node, since a node may write that of its own pods. A pod of a PodGroup shows nothing: it may record a claim of the
group, whose name follows from the group.
"""

from __future__ import annotations

from dra_api.core import Pod

from .claim_names import is_ours


def records_claim_of_others(before: Pod | None, now: Pod) -> bool:
    """Whether between these two versions of a pod another controller recorded a claim for one of its entries."""
    if before is None or before.metadata.uid != now.metadata.uid:
        return False
    if now.spec.node_name or now.spec.scheduling_group is not None:
        return False
    known, new = _recorded(before), _recorded(now)
    meta = now.metadata
    changed = [(entry, claim) for entry, claim in new.items() if claim and known.get(entry) != claim]
    return any(not is_ours(claim, meta.name, meta.uid, entry) for entry, claim in changed)


def _recorded(pod: Pod) -> dict[str, str | None]:
    return {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses or ()}
