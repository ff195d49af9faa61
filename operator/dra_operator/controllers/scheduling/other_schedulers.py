"""Living beside other schedulers that allocate devices: defer to them, check for conflicts, remember their drivers.

*Deference.* When two schedulers decide at the same moment, both may take the same device, and ours loses the contest:
its claim is parked (``scheduling.state.applicants``), and the device serves no pod of ours for as long as the contest
lasts. So it is better that both never take it. What makes another scheduler decide can be seen: its pod comes, or a
device comes free while a claim of it waits. Where another scheduler allocates, or did before, a pod of ours therefore
waits a ``pause``, in which pods that came at the same time are seen. Then it waits until all pods of the others are
decided, and a pause is over since a device came free for them.

No pod of ours waits longer than three pauses for that, so that it has its turn in a stream of pods of another
scheduler as well, and beside pods that name a scheduler which does not exist: those are never decided. It costs a pod
nothing but time, and a look every pause. While the operator does not see what others do, as in the second in which it
starts, a pod waits until it does.

Each contest that ours loses doubles the pauses for the drivers of it, from a quarter of a second up to 4 s: the other
scheduler was slower than the pause. Three pauses are then longer than the 10 s after which kube-scheduler tries a pod
again. A minute without a contest halves them. A pod that waits for so long says so in its condition.

*The check before a binding.* The watch of claims has an order, and every writer's allocations are in it. What another
scheduler decided before it saw ours is written within a ``grace`` after the watch has brought ours back; by then it has
seen ours, and decides no more on the device. So a list of the claims that is asked for after the grace has everything
that matters. Only a list can say that: a watch may be broken, or late, without a sign. The pod is bound when such a
list is in the cache and no device is held twice (``sources.audit`` lists, when a pod ``asked`` for it). The watch
may be faster than the answer to our write, so what it brought last of each claim is remembered. What was allocated
before this process began counts as seen when it began.

Where no other scheduler allocates (``has_shared_driver`` says so) none of this is waited for, and nothing is listed.
While the watch of pods is known to be broken, pods of another scheduler may come unseen, so all drivers count as
shared.

*Memory.* The first pod of another scheduler after a quiet hour comes as unexpectedly as the first one of all: it may be
decided before the operator has heard of it. What another scheduler did in the last day says that it may do so again. So
devices of these drivers are given away with care all the time, which costs a pod a second and more before it is bound.
The memory stands on the Lease, so that the next leader has it; what is allocated when that starts it sees by itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from dra_api.core import Pod
from dra_api.resource import AllocationResult, ResourceClaim

from dra_operator.cache import Cluster, revision
from dra_operator.scheduling import ANY_DRIVER

logger = logging.getLogger(__name__)

KNOWN_DRIVER_SECONDS: Final = 24 * 3600.0
KNOWN_DRIVER_STEP_SECONDS: Final = 600.0
"""What is remembered changes this often, and no oftener."""
MOST_DRIVERS: Final = 200
"""Drivers that are remembered; more than these stand for all."""
LONGEST_TEXT_CHARACTERS: Final = 64_000


class DriverMemory:
    """``met`` a driver, ``knows`` it for a day; ``text`` is what the next leader may ``recall``.

    ``clock`` gives seconds since 1970, which do not begin anew with a process.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._met: dict[str, float] = {}

    def met(self, driver: str) -> None:
        """Another scheduler gave devices of the driver to a pod, or such a pod gave them back."""
        # The memory stands on a Lease, which must not grow without end.
        if driver not in self._met and len(self._met) >= MOST_DRIVERS:
            driver = ANY_DRIVER
        self._met[driver] = self._clock()

    def knows(self, driver: str) -> bool:
        """Return whether another scheduler allocated devices of the driver, or may have, during the last day."""
        latest = max(self._met.get(driver, 0.0), self._met.get(ANY_DRIVER, 0.0))
        if driver == ANY_DRIVER:
            latest = max(self._met.values(), default=0.0)
        return latest > 0 and self._clock() - latest < KNOWN_DRIVER_SECONDS

    @property
    def text(self) -> str:
        """Return the drivers with the time when each was met last; empty if there is none."""
        now, met = self._clock(), dict(self._met)  # a copy: the thread of the Lease asks
        kept = {
            # In steps, so that the Lease does not change with each pod of another scheduler.
            driver: int(at - at % KNOWN_DRIVER_STEP_SECONDS)
            for driver, at in met.items()
            if now - at < KNOWN_DRIVER_SECONDS
        }
        return json.dumps(kept, sort_keys=True, separators=(",", ":")) if kept else ""

    def recall(self, text: str) -> None:
        """Take over what the last leader has left. A text that cannot be read is forgotten."""
        if not text:
            return
        try:
            found: dict[str, float] = json.loads(text[:LONGEST_TEXT_CHARACTERS])
            read = {str(driver): float(at) for driver, at in found.items()}
        except (ValueError, TypeError, AttributeError):
            logger.warning("the drivers on the Lease that other schedulers allocate cannot be read, and are forgotten")
            return
        now = self._clock()
        for driver, at in sorted(read.items(), key=lambda item: -item[1])[:MOST_DRIVERS]:
            # A time in the future, of a clock that was set, would never be forgotten.
            self._met[driver] = max(self._met.get(driver, 0.0), min(at, now))


PAUSES_PER_GRACE = 4  # per grace
MOST_PAUSES = 3  # per pod
MOST_DOUBLING_STEPS = 4
HALVED_SECONDS = 60.0
"""Seconds without a contest after which the pauses are half as long."""
UNSEEN_SECONDS = 2.0
"""Seconds that a pod waits, at most, for the watches by which the operator sees what others do."""
MET_OTHERS_SECONDS = 60.0
"""Seconds for which a pod that is not tried again is remembered, and others that had or wanted devices."""
KEPT_DRIVER_SETS: Final = 1000
"""Sets of drivers that are remembered. Tenants choose them by the classes that a pod asks for."""


T = TypeVar("T")


class Deference:
    """``wait`` before each decision on devices; ``clashed`` when a contest was lost.

    ``sees_others``: whether it is seen what other schedulers have and want. ``knows``: whether they had or wanted
    devices of a driver before.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], float],
        grace: float,
        sees_others: Callable[[], bool] = lambda: True,
        knows: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._cluster, self._clock, self._pause = cluster, clock, grace / PAUSES_PER_GRACE
        self._sees_others, self._knows = sees_others, knows
        self._met: dict[frozenset[str], float] = {}
        """By drivers: when others were seen there."""
        self._events: dict[frozenset[str], tuple[int, float]] = {}
        """By drivers: the cluster events that were counted, and since when there are so many."""
        self._waiting: dict[str, float] = {}
        """By uid, oldest first: pods that defer to others, and since when."""
        self._doublings: dict[str, tuple[int, float]] = {}
        """By driver: how often the pauses are doubled, and since when."""

    def wait(self, pod: Pod, drivers: frozenset[str]) -> float:
        """Return the seconds after which the pod is to be looked at again before it may take devices of the drivers; 0:
        now."""
        uid, now = pod.metadata.uid, self._clock()
        # A pod that waits for no devices meets nobody.
        pause = self._pause_for(uid, drivers, now) if drivers else 0.0
        if pause:
            self._forget_old(now)
        else:
            self._waiting.pop(uid, None)
        return pause

    def _pause_for(self, uid: str, drivers: frozenset[str], now: float) -> float:
        # The wishes of others are unknown for a moment, as at the start: no pod waits long for that.
        if not self._sees_others():
            waits = now - self._waiting.setdefault(uid, now) < UNSEEN_SECONDS
            return self._pause_of(drivers, now) if waits else 0.0
        others, own = self._cluster.others_decide(drivers), self._cluster.own_devices
        if others.present:
            _keep(self._met, drivers, now)
        was_there = now - self._met.get(drivers, -math.inf) <= MET_OTHERS_SECONDS
        # Nobody allocates such devices, or nobody may take them: nearly all clusters end here.
        if not was_there and not any(map(self._knows, own.contested(drivers))):
            return 0.0
        counted, since = self._events.get(drivers, (-1, now))
        if counted != others.cluster_events:
            since = now
        _keep(self._events, drivers, (others.cluster_events, since))
        pause = self._pause_of(drivers, now)
        waited, most = now - self._waiting.setdefault(uid, now), MOST_PAUSES * pause
        # Pods of a scheduler that does not exist are never decided.
        if waited >= most:
            return 0.0
        is_deciding = others.waiting and now - since < (most if others.queued else pause)
        return pause if waited < pause or is_deciding else 0.0

    def _pause_of(self, drivers: Iterable[str], now: float) -> float:
        return self._pause * 2.0 ** self._doubled(drivers, now)

    def clashed(self, drivers: Iterable[str]) -> None:
        """Note that a pod of ours lost devices of these drivers to another scheduler."""
        now = self._clock()
        # Entries that have halved to nothing.
        self._doublings = {driver: it for driver, it in self._doublings.items() if _left(*it, now)}
        for driver in drivers:
            self._doublings[driver] = (min(self._doubled({driver}, now) + 1, MOST_DOUBLING_STEPS), now)

    def longest(self, drivers: Iterable[str]) -> float:
        """Return the most seconds that a pod waits for devices of the drivers, if that is more than usual; else 0."""
        doubled = self._doubled(drivers, self._clock())
        return MOST_PAUSES * self._pause * 2.0**doubled if doubled else 0.0

    def _doubled(self, drivers: Iterable[str], now: float) -> int:
        named = set(drivers)
        found = self._doublings.items() if ANY_DRIVER in named else ((it, self._doublings.get(it)) for it in named)
        return max((_left(*doubled, now) for _, doubled in found if doubled is not None), default=0)

    def _forget_old(self, now: float) -> None:
        while now - (oldest := next(iter(self._waiting.items())))[1] > MET_OTHERS_SECONDS:
            del self._waiting[oldest[0]]


def _keep(memory: dict[frozenset[str], T], drivers: frozenset[str], value: T) -> None:
    """Remember the value. The set of drivers that was asked about the longest time ago is forgotten first."""
    memory.pop(drivers, None)
    memory[drivers] = value
    if len(memory) > KEPT_DRIVER_SETS:
        del memory[next(iter(memory))]


def _left(doubled: int, since: float, now: float) -> int:
    return max(0, doubled - math.floor((now - since) / HALVED_SECONDS))


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
        knows_shared: Callable[[AllocationResult], bool],
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
        """Note that the server has answered that the claim is allocated as we wanted, to that write or to a later
        question."""
        uid, version = claim.metadata.uid, claim.metadata.resource_version
        self._written[uid] = _Written(version)
        self._former.discard(uid)
        # The watch may be faster than the answer to our write.
        if _is_at_least(self._shown.get(uid, ""), version):
            self._written[uid].seen = self._clock()

    def seen(self, claim: ResourceClaim) -> bool:
        """Note that the watch brought this version of a claim. Return whether a pod waits for that."""
        uid, version = claim.metadata.uid, claim.metadata.resource_version
        if not _is_at_least(self._shown.get(uid, ""), version):  # a list may be older than what the watch has shown
            self._shown[uid] = version
        written = self._written.get(uid)
        # The first time counts: the grace begins when others can have seen our write.
        if written is None or written.seen < math.inf or not _is_at_least(version, written.resource_version):
            return False
        written.seen = self._clock()
        return written.is_awaited

    def listed(self, as_of: float) -> list[str]:
        """Note that the cache has all claims as of this time. Return the keys of claims that waited for that."""
        # Lists may end in another order than they began.
        self._as_of = max(self._as_of, as_of)
        keys, self._unlisted = list(self._unlisted), {}
        return keys

    def forget(self, claims: Iterable[ResourceClaim]) -> None:
        """Note that a pod is bound with the claims."""
        for claim in claims:
            self._written.pop(claim.metadata.uid, None)
            self._former.discard(claim.metadata.uid)

    def given_up(self, claims: Iterable[ResourceClaim]) -> None:
        """Note that a pod gave the claims up.

        Other pods may share one, which then still has devices, and wait with it.
        """
        self.forget(claim for claim in claims if not self._holds(claim.metadata.uid))

    def gone(self, uid: str) -> None:
        """Note that the claim does not exist any more."""
        self._written.pop(uid, None)
        self._shown.pop(uid, None)
        self._former.discard(uid)

    def wait(self, claims: Iterable[ResourceClaim]) -> float:
        """Return the seconds until a pod with these claims may be bound: 0 now, infinity if watch or list have to come
        first."""
        now = self._clock()
        return max((self._left(claim, now) for claim in claims), default=0.0)

    def begins(self, claims: Iterable[ResourceClaim]) -> None:
        """Note that a former process allocated these claims for pods that wait.

        What it knew of contests for them is lost.
        """
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
        allocation = claim.status.allocation
        if allocation is None or not self._has_shared_driver(allocation):
            return 0.0
        written = self._written.get(claim.metadata.uid)
        # What was allocated before this process counts as seen when that began.
        due = (self._began if written is None else written.seen) + self._grace
        if self._as_of >= due:
            return 0.0
        # Too early for a list: what others decided before they saw our write may still be on its way.
        if now < due:
            if written is not None:
                written.is_awaited = True
            return due - now
        self._unlisted[claim.key] = None
        self.asked.set()
        return math.inf


def _is_at_least(shown: str, written: str) -> bool:
    now, then = revision(shown), revision(written)
    if now is None or then is None:  # opaque versions: only the very same one is certain
        return shown == written
    return now >= then
