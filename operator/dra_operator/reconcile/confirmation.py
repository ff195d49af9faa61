"""Allocations of ours that the watch has not brought back yet, where another scheduler may have taken the same devices.

The watch of claims has an order, and every writer's allocations are in it. When ours has come back, all that were
written before are in the view, and a device that two claims hold can be seen. What another scheduler had decided but
not written by then follows at once: it has seen our allocation, too, and decides on the device no more. So a pod is
bound when its allocations have come back, a ``grace`` has passed, and no device is held twice.

The watch may be faster than the answer to our write, so what it brought last of each claim is remembered.

Where no other scheduler allocates (``contested`` says so) none of this is waited for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dra_api.resource import AllocationResult, ResourceClaim

from dra_operator.cluster import revision


@dataclass(slots=True)
class _Written:
    resource_version: str
    seen: float = math.inf
    """When the watch brought it."""


class Confirmations:
    """``wrote`` our allocations, ``seen`` what the watch brings; ``wait`` says how long to wait before binding."""

    def __init__(self, contested: Callable[[AllocationResult], bool], clock: Callable[[], float], grace: float) -> None:
        self._contested, self._clock, self._grace = contested, clock, grace
        self._written: dict[str, _Written] = {}
        self._shown: dict[str, str] = {}

    def wrote(self, claim: ResourceClaim) -> None:
        """The server has answered that the claim is allocated as we wanted."""
        uid, version = claim.metadata.uid, claim.metadata.resource_version
        self._written[uid] = _Written(version)
        if _is_at_least(self._shown.get(uid, ""), version):
            self._written[uid].seen = self._clock()

    def seen(self, claim: ResourceClaim) -> bool:
        """The watch brought this version of a claim; whether it confirms an allocation of ours."""
        uid, version = claim.metadata.uid, claim.metadata.resource_version
        self._shown[uid] = version
        written = self._written.get(uid)
        if written is None or written.seen < math.inf or not _is_at_least(version, written.resource_version):
            return False
        written.seen = self._clock()
        return True

    def forget(self, claims: Iterable[ResourceClaim]) -> None:
        """The pod of the claims is bound, or they are given back."""
        for claim in claims:
            self._written.pop(claim.metadata.uid, None)

    def gone(self, uid: str) -> None:
        """The claim does not exist any more."""
        self._written.pop(uid, None)
        self._shown.pop(uid, None)

    def wait(self, claims: Iterable[ResourceClaim]) -> float:
        """Seconds until a pod with these claims may be bound: 0 now, infinity if the watch has to come first."""
        now = self._clock()
        return max((self._left(claim, now) for claim in claims), default=0.0)

    def _left(self, claim: ResourceClaim, now: float) -> float:
        written, allocation = self._written.get(claim.metadata.uid), claim.status.allocation
        if written is None or allocation is None or not self._contested(allocation):
            return 0.0
        return max(0.0, written.seen + self._grace - now)


def _is_at_least(shown: str, written: str) -> bool:
    now, then = revision(shown), revision(written)
    if now is None or then is None:  # opaque versions: only the very same one is certain
        return shown == written
    return now >= then
