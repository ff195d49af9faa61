"""The kubelet goes by the claims that a pod records: a pod that records others than it has would never start."""

from __future__ import annotations

from collections.abc import Iterable

from dra_api.core import Pod
from dra_api.relations.references import claims_of_pod
from dra_api.resource import ResourceClaim

from dra_operator.kube import ClaimChanged


def check_recorded(pod: Pod, claims: Iterable[ResourceClaim]) -> None:
    """Raises ClaimChanged unless this version of the pod records all of the claims that were allocated for it.

    To record them may have failed, another controller may have recorded others, or a write that got no answer may have
    landed late.
    """
    recorded = {use.name for use in claims_of_pod(pod)}
    for claim in claims:
        if claim.metadata.name not in recorded:
            raise ClaimChanged(f"pod {pod.key} does not record claim {claim.metadata.name}")
