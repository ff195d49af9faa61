"""Claims of ours that lost a contest: another scheduler gave a device of theirs to another claim at the same time.

Such a claim is *parked*. It keeps its devices, no pod runs with them, and in ``status.reservedFor`` stands the contest
instead of pods. It must not give them back as long as the other claim has one. kube-scheduler keeps the devices in use
as a set and counts no holders: when it sees one of two claims lose a device, it takes the device for free, although a
claim of its own has it, and gives it to the next pod (``docs/contests.md``).

The reservation says all of that to the next leader, and keeps other controllers from taking the devices back when the
pod of the claim goes: kube-controller-manager leaves consumers alone whose kind it does not know.
"""

from __future__ import annotations

from typing import Final

from dra_api.resource import ResourceClaim, ResourceClaimConsumerReference

PARKED_GROUP: Final = "dra.kopf.dev"
CONTESTS: Final = "contests"


def contest(scheduler: str, rival: ResourceClaim) -> ResourceClaimConsumerReference:
    """Return the consumer of a claim that lost a device to ``rival``. The scheduler of this name ends the contest."""
    return ResourceClaimConsumerReference(PARKED_GROUP, CONTESTS, scheduler, rival.metadata.uid)


def contest_of(claim: ResourceClaim) -> ResourceClaimConsumerReference | None:
    """Return the contest for which the claim is reserved, or None."""
    consumers = claim.status.reserved_for or ()
    return next((it for it in consumers if (it.api_group, it.resource) == (PARKED_GROUP, CONTESTS)), None)


def is_parked(claim: ResourceClaim) -> bool:
    """Return whether the claim keeps its devices for a contest, so that no pod may use them."""
    return contest_of(claim) is not None
