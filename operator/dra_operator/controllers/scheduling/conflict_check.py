"""Allocations of ours with which no pod may be bound yet, where another scheduler may have taken the same devices.

The watch of claims has an order, and every writer's allocations are in it. What another scheduler decided before it saw
ours is written within a ``grace`` after the watch has brought ours back; by then it has seen ours, and decides no
more on the device. So a list of the claims that is asked for after the grace has everything that matters. Only a list
can say that: a watch may be broken, or late, without a sign. The pod is bound when such a list is in the cache and no
device is held twice (``sources.last_look`` lists, when a pod ``asked`` for it).

The watch may be faster than the answer to our write, so what it brought last of each claim is remembered. What was
allocated before this process began counts as seen when it began.

Where no other scheduler allocates (``has_shared_driver`` says so) none of this is waited for, and nothing is listed.
While the watch of pods is known to be broken, pods of another scheduler may come unseen, so all drivers count as
shared.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dra_api.resource import AllocationResult, ResourceClaim

from dra_operator.cache import revision


@dataclass(slots=True)
class _Written:
    resource_version: str
    seen: float = math.inf
    """When the watch brought it."""
    is_awaited: bool = False
    """Whether a pod was told to wait for that."""


class ConflictCheck:
    """``wrote`` our allocations, ``seen`` what the watch brings, ``listed`` all claims; ``wait`` before binding.

    ``holds``: whether the claim of a UID has devices. ``knows_shared`` is ``has_shared_driver`` without the doubt of a
    moment in which nothing is seen.
    """

    def __init__(
        self,
        has_shared_driver: Callable[[AllocationResult], bool],
        holds: Callable[[str], bool],
        clock: Callable[[], float],
        grace: float,
        knows_shared: Callable[[AllocationResult], bool] = lambda _: False,
    ) -> None:
        self._knows_shared = knows_shared
        self._has_shared_driver, self._holds, self._clock, self._grace = has_shared_driver, holds, clock, grace
        self._began = clock()
        self._written: dict[str, _Written] = {}
        self._shown: dict[str, str] = {}
        self._as_of = -math.inf
        self._unlisted: dict[str, None] = {}
        self._former: set[str] = set()
        self.asked = asyncio.Event()
        """Set when a claim waits for a list."""
        self.obstacle = ""
        """Why the list does not come, in words for pods that wait for it; empty if it is on its way."""

    def wrote(self, claim: ResourceClaim) -> None:
        """The server has answered that the claim is allocated as we wanted, to that write or to a later question."""
        uid, version = claim.metadata.uid, claim.metadata.resource_version
        self._written[uid] = _Written(version)
        self._former.discard(uid)
        if _is_at_least(self._shown.get(uid, ""), version):
            self._written[uid].seen = self._clock()

    def seen(self, claim: ResourceClaim) -> bool:
        """The watch brought this version of a claim; whether a pod waits for that: it shows an allocation of ours."""
        uid, version = claim.metadata.uid, claim.metadata.resource_version
        if not _is_at_least(self._shown.get(uid, ""), version):  # a list may be older than what the watch has shown
            self._shown[uid] = version
        written = self._written.get(uid)
        if written is None or written.seen < math.inf or not _is_at_least(version, written.resource_version):
            return False
        written.seen = self._clock()
        return written.is_awaited

    def listed(self, as_of: float) -> list[str]:
        """The cache has all claims as of this time; the keys of the claims that waited for that, or a later one."""
        self._as_of = max(self._as_of, as_of)
        keys, self._unlisted = list(self._unlisted), {}
        return keys

    def forget(self, claims: Iterable[ResourceClaim]) -> None:
        """A pod is bound with the claims."""
        for claim in claims:
            self._written.pop(claim.metadata.uid, None)
            self._former.discard(claim.metadata.uid)

    def given_up(self, claims: Iterable[ResourceClaim]) -> None:
        """A pod gave the claims up. Other pods may share one, which then still has devices, and wait with it."""
        self.forget(claim for claim in claims if not self._holds(claim.metadata.uid))

    def gone(self, uid: str) -> None:
        """The claim does not exist any more."""
        self._written.pop(uid, None)
        self._shown.pop(uid, None)
        self._former.discard(uid)

    def is_unseen(self, claim: ResourceClaim) -> bool:
        """Whether the moment counts at which the watch shows the claim."""
        written = self._written.get(claim.metadata.uid)
        return written is not None and written.seen == math.inf and self._is_shared(claim)

    def wait(self, claims: Iterable[ResourceClaim]) -> float:
        """Seconds until a pod with these claims may be bound: 0 now, infinity if watch or list have to come first."""
        now = self._clock()
        return max((self._left(claim, now) for claim in claims), default=0.0)

    def begins(self, claims: Iterable[ResourceClaim]) -> None:
        """A former process allocated these claims for pods that wait. What it knew of contests for them is lost."""
        self._former = {claim.metadata.uid for claim in claims}

    def is_unbound(self, claim: ResourceClaim) -> bool:
        """Return whether the claim was allocated for pods of ours none of which is bound."""
        return claim.metadata.uid in self._written or claim.metadata.uid in self._former

    def is_doubtful(self, claim: ResourceClaim) -> bool:
        """Return whether another scheduler may have had a device of the claim, and given it back, unseen."""
        allocation = claim.status.allocation
        return claim.metadata.uid in self._former and allocation is not None and self._knows_shared(allocation)

    def is_listed(self, claim: ResourceClaim, since: float) -> bool:
        """Return whether the cache has all claims as of this time; if not, ask for a list, which wakes the claim."""
        if self._as_of >= since:
            return True
        self._unlisted[claim.key] = None
        self.asked.set()
        return False

    def _left(self, claim: ResourceClaim, now: float) -> float:
        if not self._is_shared(claim):
            return 0.0
        written = self._written.get(claim.metadata.uid)
        due = (self._began if written is None else written.seen) + self._grace
        if self._as_of >= due:
            return 0.0
        if now < due:
            if written is not None:
                written.is_awaited = True
            return due - now
        self._unlisted[claim.key] = None
        self.asked.set()
        return math.inf

    def _is_shared(self, claim: ResourceClaim) -> bool:
        allocation = claim.status.allocation
        return allocation is not None and self._has_shared_driver(allocation)


def _is_at_least(shown: str, written: str) -> bool:
    now, then = revision(shown), revision(written)
    if now is None or then is None:  # opaque versions: only the very same one is certain
        return shown == written
    return now >= then
