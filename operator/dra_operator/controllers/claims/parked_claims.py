"""Ends contests: gives the devices of a parked claim back when no other scheduler can lose one by that.

kube-scheduler takes a device for free when it sees a claim give it back, whoever else has it. It took the device for
free already when the claim of its own that won the contest gave it back. So the moment matters (``docs/contests.md``):

- No claim but the parked one has a device of it, by a list of all claims that was asked for after that began.
- No pod of another scheduler wants such devices, for a second. If some do, but their scheduler has said that there are
  none for them, it had ``PARKED_REFUSED_SECONDS`` to look at the device that came free: it tries each pod again after
  10 s at the latest. Pods that no scheduler decides on, as theirs does not exist, count for ``PARKED_LONGEST_SECONDS``.

A pod that comes in that very moment may get the device before kube-scheduler sees it given back. Then the parked claim
takes it once more, which puts it back into kube-scheduler's set, and waits for the next end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from dra_api.references import owning_pod
from dra_api.resource import AllocationResult, ResourceClaim, ResourceClaimConsumerReference
from dra_kube import NotFound

from dra_operator.allocator import DeviceId
from dra_operator.cache import Key, Keys
from dra_operator.controllers.context import ControllerContext
from dra_operator.controllers.logbook import devices_in, tell
from dra_operator.kube import ClaimChanged
from dra_operator.scheduling.state import contest, contest_of

logger = logging.getLogger(__name__)

PARKED_QUIET_SECONDS: Final = 1.0
"""Seconds without a pod of another scheduler that wants such devices, or a claim that has one."""
PARKED_REFUSED_SECONDS: Final = 15.0
"""Seconds without such a claim while pods of others wait that were told why."""
PARKED_LONGEST_SECONDS: Final = 60.0
"""Seconds without such a claim while pods of others wait that were told nothing."""
PARKED_LOOK_SECONDS: Final = 1.0
"""Between two looks at a parked claim."""
PARKED_NEWS_SECONDS: Final = 0.02
"""Between two looks whether another claim has one of the devices that are given back."""


class ParkedClaims:
    """``handle`` one claim, again and again until it is parked no more.

    ``is_listed``: whether the cache has all claims as of a time; if not, a list is asked for, which wakes the claim.
    Within ``TimeSettings.grace`` a decision that another scheduler made before it saw ours is written.
    """

    def __init__(self, context: ControllerContext, is_listed: Callable[[ResourceClaim, float], bool]) -> None:
        self._cluster, self._claims, self._is_listed = context.cluster, context.claims, is_listed
        self._clock, self._grace = context.clock, context.times.grace
        self._later, self._wake = context.add_after, context.wake
        self._alone_since: dict[str, tuple[str, float]] = {}
        """By key: the UID of the parked claim, and since when no other claim has a device of it."""

    async def handle(self, claim: ResourceClaim) -> None:
        """Give its devices back if that harms nobody; raises KubeError, NotFound and ClaimChanged."""
        lost, allocation = contest_of(claim), claim.status.allocation
        if lost is None or allocation is None or lost.name != self._cluster.scheduler_name:
            self.ended(claim.key)
            return
        if seconds := self._seconds_left(claim, allocation):
            self._later(Key("release", claim.key), max(seconds, self._grace * PARKED_NEWS_SECONDS))
        elif self._is_listed(claim, self._clock() - PARKED_QUIET_SECONDS):
            self.ended(claim.key)
            await self._give_back(claim, allocation, lost)
        else:
            self._later(Key("release", claim.key), PARKED_LOOK_SECONDS)  # the list brings it back earlier

    def ended(self, key: str) -> None:
        """Note that the claim is not parked, or gone."""
        self._alone_since.pop(key, None)

    def _seconds_left(self, claim: ResourceClaim, allocation: AllocationResult) -> float:
        """Return the seconds until the next look; 0 if the devices may be given back."""
        now, uid = self._clock(), claim.metadata.uid
        if self._rival(claim, allocation) is not None:
            self.ended(claim.key)
            return PARKED_LOOK_SECONDS
        of, since = self._alone_since.get(claim.key, ("", now))
        self._alone_since[claim.key] = uid, (since := since if of == uid else now)
        alone = now - since
        others = self._cluster.others_decide(frozenset(device.driver for device in _devices(allocation)))
        seconds = (
            PARKED_LONGEST_SECONDS
            if others.queued
            else PARKED_REFUSED_SECONDS
            if others.waiting
            else PARKED_QUIET_SECONDS
        )
        return max(0.0, min(seconds - alone, PARKED_LOOK_SECONDS))

    def _rival(self, claim: ResourceClaim, allocation: AllocationResult) -> ResourceClaim | None:
        return next(self._cluster.rivals(claim, _devices(allocation)), None)

    def _taker(self, claim: ResourceClaim, allocation: AllocationResult) -> ResourceClaim | None:
        """Return a claim to which another scheduler gave a device that came free.

        None as well if another claim of ours has the device by now: its allocation is a later write than our release.
        """
        holders = list(self._cluster.sharers(claim, _devices(allocation)))
        if any(map(self._cluster.is_only_for_ours, holders)):
            return None
        return next(iter(holders), None)

    async def _give_back(
        self, claim: ResourceClaim, allocation: AllocationResult, lost: ResourceClaimConsumerReference
    ) -> None:
        unparking, uid = self._cluster.unparking, claim.metadata.uid
        unparking.add(uid)
        try:
            left = await self._claims.deallocate(claim, lost.uid)
            tell(
                logger,
                logging.INFO,
                "claim released",
                claim=claim.key,
                because="a contest is over",
                freed=lambda: devices_in(allocation),
            )
            ends = self._clock() + self._grace
            while self._clock() < ends:
                await asyncio.sleep(self._grace * PARKED_NEWS_SECONDS)
                if (rival := self._taker(claim, allocation)) is not None:
                    await self._take_again(left, allocation, rival)
                    return
        finally:
            unparking.discard(uid)
            self._wake(self._users(claim))

    async def _take_again(self, claim: ResourceClaim, allocation: AllocationResult, rival: ResourceClaim) -> None:
        """Put the devices back into the set of the other scheduler, which may have lost them to our write."""
        again = contest(self._cluster.scheduler_name, rival)
        with suppress(NotFound, ClaimChanged):  # the pod and its claim are gone
            await self._claims.allocate(claim, allocation, again)
            because = f"claim {rival.key} took a device in the moment in which it came free"
            tell(logger, logging.WARNING, "claim parked", claim=claim.key, because=because)

    def _users(self, claim: ResourceClaim) -> Keys:
        """Return the pods that wait for the claim, or for its end: a claim from a template has been replaced by now."""
        waiting = [Key("placement", pod.key) for pod in self._cluster.awaiting(claim)]
        owner = owning_pod(claim)
        made = [Key("templates", f"{claim.metadata.namespace}/{owner.name}")] if owner is not None else []
        return (Key("release", claim.key), *made, *waiting)


def _devices(allocation: AllocationResult) -> Sequence[DeviceId]:
    return [DeviceId.of(result) for result in allocation.results if not result.admin_access]
