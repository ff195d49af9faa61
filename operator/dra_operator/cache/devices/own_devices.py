"""Which devices no other scheduler can be about to take: those of our own territory, for as long as it is respected.

A device of our own (``dra_ledger.taints``) needs neither deference nor a last look before binding. Three
things end that, each by the driver:

- The territory is new. Another scheduler may have decided before it saw the taint, and its write may be on its way. So
  devices that were known before count only ``SETTLED_SECONDS`` after they became our own.
- A claim of another scheduler's pod tolerates the taint, as ``operator: Exists`` without a key does, or the pod itself
  that of our nodes. Such claims are filed a second time, in ``visitors``: for them the rules of shared drivers hold.
- A scheduler takes our devices without tolerating the taint. It does not know the rule, because a feature gate of it is
  off, say. From then on the territory protects nothing, which is logged once, and its devices count as open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from typing import Final

from dra_api.core import Pod, Taint
from dra_api.references import every_toleration
from dra_api.resource import SCHEDULER_KEY, AllocationResult, ResourceClaim, ResourceClaimTemplateSpec

from dra_operator.allocator import DeviceId, Territory, enters
from dra_operator.cache.index import Index
from dra_operator.scheduling import ANY_DRIVER
from dra_operator.scheduling.state import untolerated

from .shared_drivers import OthersDecide, SharedDrivers

logger = logging.getLogger(__name__)

SETTLED_SECONDS: Final = 10.0
"""Seconds after which a scheduler that honours the taint has seen it, and its earlier decisions are written."""


class OwnDevices:
    """``is_safe`` for an allocation, ``contested`` for drivers before a decision.

    ``clock`` gives seconds that only grow.
    """

    def __init__(self, territory: Territory, clock: Callable[[], float]) -> None:
        self._territory, self._clock = territory, clock
        self._of_nodes = Taint(key=SCHEDULER_KEY, value=territory.scheduler, effect="NoSchedule")
        self.visitors = SharedDrivers()
        """Claims of other schedulers' pods that tolerate the taint of our territory."""
        self.entering_pods: Index[str] = Index()
        """Their pods that tolerate the taint of our nodes, by the claims that they use."""
        self._settling: dict[str, tuple[int, float]] = {}
        """By driver: how often it gained devices, and when that was noticed."""
        self._trespassed: dict[str, str] = {}
        """By driver: the claim for which another scheduler ignored the taint."""

    def note(self, driver: str = "") -> None:
        """Notice that devices may have become our own just now: of a driver that publishes, or of any by a mark."""
        for one in (driver,) if driver else tuple(self._territory.gains):
            self._seconds_settled(one)

    def may_enter(self, claim: ResourceClaim | ResourceClaimTemplateSpec) -> bool:
        """Return whether the claim tolerates the taint of our devices."""
        return enters(every_toleration(claim), self._territory.scheduler)

    def may_enter_nodes(self, pod: Pod) -> bool:
        """Return whether the pod tolerates the taint of our nodes, where devices need no taint of their own."""
        return untolerated((self._of_nodes,), pod.spec.tolerations or ()) is None

    def is_safe(self, device: DeviceId) -> bool:
        """Return whether only claims that tolerate the taint can have the device at other schedulers."""
        return self._territory.is_own(device) and self._is_respected(device.driver)

    def contested(self, drivers: Set[str]) -> frozenset[str]:
        """Return the drivers of which every other scheduler may take some device that we may take."""
        if not self._territory.has_any:
            return frozenset(drivers)
        return frozenset(driver for driver in drivers if self._is_contested(driver))

    def allocated_by_others(self, claim: ResourceClaim, allocation: AllocationResult) -> None:
        """Notice that another scheduler ignores the territory, if it took some of it for a claim that may not enter.

        ``claim`` is one of ``visitors`` if it may.
        """
        devices = [DeviceId.of(result) for result in allocation.results if not result.admin_access]
        taken = next((device for device in devices if self.is_safe(device)), None)
        if taken is None or claim.key in self.visitors:
            return
        self._trespassed[taken.driver] = claim.key
        logger.warning(
            "another scheduler allocated %s to claim %s although a taint gives it to %s: it does not honour the taint, "
            "so devices of %s are checked for conflicts again; turn on its feature gates DRADeviceTaints and "
            "DRADeviceTaintRules, in a release later than 1.36.2, or taint the nodes",
            taken,
            claim.key,
            self._territory.scheduler,
            taken.driver,
        )

    def others_decide(self, drivers: Set[str], everybody: SharedDrivers) -> OthersDecide:
        """Return what other schedulers do with devices that we may take as well; ``everybody``: all their claims."""
        contested = self.contested(drivers)
        if contested == drivers:
            return everybody.others_decide(drivers)
        open_ = everybody.others_decide(contested) if contested else OthersDecide(False, False, False, 0)
        guests = self.visitors.others_decide(drivers - contested)
        return OthersDecide(
            open_.present or guests.present,
            open_.waiting or guests.waiting,
            open_.queued or guests.queued,
            open_.cluster_events + guests.cluster_events,
        )

    def _is_contested(self, driver: str) -> bool:
        if driver == ANY_DRIVER:
            return any(map(self._is_contested, self._territory.drivers))
        return self._territory.has_open(driver) or not self._is_respected(driver)

    def _is_respected(self, driver: str) -> bool:
        return driver not in self._trespassed and self._seconds_settled(driver) >= SETTLED_SECONDS

    def _seconds_settled(self, driver: str) -> float:
        now, gains = self._clock(), self._territory.gains[driver]
        known, since = self._settling.get(driver, (-1, now))
        if known != gains:
            self._settling[driver] = (gains, since := now)
            self._trespassed.pop(driver, None)  # marked anew: perhaps the other scheduler honours it by now
        return now - since
