"""Devices and drivers in the view of other schedulers, and devices that pods are nominated for.

Two schedulers that decide at the same moment may give one device to two claims: neither has seen the other's write.
A scheduler that knows of the danger can wait until its own write has come back on the watch, and look again. Where no
other scheduler allocates, that wait would be for nothing. So ``SharedDrivers`` counts the claims that a pod of another
scheduler uses, allocated or still waiting, and calls their drivers *shared*.

An allocated claim names its drivers. A waiting one names classes, and a class names its driver in a selector such as
``device.driver == "gpu.example.com"``; a class that does not say so stands for every driver.

A claim or pod is *queued* as long as its scheduler has not said whether it can be placed: it may be deciding right
now. What starts such decisions is counted as a *cluster event*: something was queued, or devices came free while a
claim of theirs waits.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Final, NamedTuple

from dra_api.core import Pod, Taint
from dra_api.references import every_toleration
from dra_api.resource import SCHEDULER_KEY, AllocationResult, DeviceClass, ResourceClaim, ResourceClaimTemplateSpec

from dra_operator.allocator import DeviceId, Territory, enters
from dra_operator.cache.index import Index
from dra_operator.scheduling import ANY_DRIVER
from dra_operator.scheduling.state import NO_NOMINATIONS, Nomination, Nominations, untolerated

_DRIVER = re.compile(r"""\s*\(?\s*device\.driver\s*==\s*(?:"([^"\\]+)"|'([^'\\]+)')\s*\)?\s*""")


class OthersDecide(NamedTuple):
    """Whether claims of theirs have or want devices, want some, are queued, and how many cluster events there were."""

    present: bool
    waiting: bool
    queued: bool
    cluster_events: int


class SharedDrivers:
    """Claims of other schedulers' pods, and pods with extended resources, by driver or by class."""

    def __init__(self) -> None:
        self._drivers: Index[str] = Index()
        self._classes: Index[str] = Index()
        self._queued: Index[str] = Index()
        self._class_drivers: dict[str, str] = {}
        self._gone_classes: set[str] = set()
        """Those of them that do not exist any more."""
        self._cluster_events: Counter[str] = Counter()

    def file(
        self, key: str, drivers: Iterable[str] = (), classes: Iterable[str] = (), *, is_queued: bool = False
    ) -> None:
        """A claim or pod of theirs holds devices of these drivers, or wants some of these classes; none: forget it."""
        wanted, before = frozenset(classes), self._classes.values_of(key)
        self._drivers.file(key, drivers)
        self._classes.file(key, wanted)
        # Nobody may want a class that is gone any more.
        self._forget_gone(before - wanted)
        # Only the moment at which it is queued starts a decision; a second version of the same pod does not.
        if is_queued and key not in self._queued:
            self._cluster_events.update(map(self.driver_of_class, wanted))
        self._queued.file(key, wanted if is_queued else ())

    def freed(self, drivers: Iterable[str]) -> None:
        """Devices of the drivers came free, or were published."""
        self._cluster_events.update(drivers)

    def put_class(self, class_: DeviceClass) -> None:
        """A class was added or changed."""
        self._gone_classes.discard(class_.metadata.name)
        self._class_drivers[class_.metadata.name] = driver_of(class_)

    def remove_class(self, name: str) -> None:
        """A class is gone. It counts while they want it: what they decided before may be on its way."""
        # Its driver is kept while somebody wants the class, since otherwise the class would stand for every driver.
        self._gone_classes.add(name)
        self._forget_gone((name,))

    def _forget_gone(self, classes: Iterable[str]) -> None:
        for name in self._gone_classes.intersection(classes):
            if not self._classes.has(name):
                self._gone_classes.discard(name)
                self._class_drivers.pop(name, None)

    def driver_of_class(self, name: str) -> str:
        """The only driver whose devices can be in the class, or ``ANY_DRIVER``."""
        return self._class_drivers.get(name, ANY_DRIVER)

    def is_shared(self, driver: str) -> bool:
        """Whether another scheduler allocates devices of the driver, or may be about to."""
        return bool(self._drivers.keys(driver)) or self._is_among(self._classes, {driver})

    def others_decide(self, drivers: Set[str]) -> OthersDecide:
        """Whether other schedulers may be giving away devices of the drivers."""
        # A class that does not name its driver stands for every one: so each event counts.
        is_any = ANY_DRIVER in drivers
        is_wanted = self._is_among(self._classes, drivers)
        is_held = any(map(self._drivers.keys, self._drivers.values() if is_any else drivers))
        counts = self._cluster_events
        events = counts.total() if is_any else sum(counts[driver] for driver in {*drivers, ANY_DRIVER})
        return OthersDecide(is_wanted or is_held, is_wanted, self._is_among(self._queued, drivers), events)

    def _is_among(self, wanted: Index[str], drivers: Set[str]) -> bool:
        """Goes through the classes that there are: pods may name others by the thousand."""
        # Over the classes that exist, not over those that are wanted: a tenant chooses how many of these there are.
        if not len(wanted):
            return False
        every = wanted.has(EVERY_CLASS)
        known = (driver for name, driver in self._class_drivers.items() if every or wanted.has(name))
        return any(ANY_DRIVER in (driver, *drivers) or driver in drivers for driver in known)

    def namespaces(self) -> set[str]:
        """Return the namespaces whose pods or claims are filed."""
        return {key.removeprefix("pod ").partition("/")[0] for key in (*self._drivers, *self._classes)}

    def __contains__(self, key: str) -> bool:
        return key in self._drivers or key in self._classes

    def __bool__(self) -> bool:
        return bool(len(self._drivers) or len(self._classes))


def drivers_in(allocation: AllocationResult) -> set[str]:
    """The drivers whose devices an allocation takes; admin access takes none."""
    return {result.driver for result in allocation.results if not result.admin_access}


def driver_of(class_: DeviceClass) -> str:
    """The only driver whose devices can be in the class, or ``ANY_DRIVER`` if the selectors do not plainly say."""
    for selector in class_.spec.selectors or ():
        expression = selector.cel.expression if selector.cel is not None else ""
        # One side of an alternative may name the driver, and the other one let any device through.
        if "||" in expression or "?" in expression:
            continue
        for part in expression.split("&&"):
            if match := _DRIVER.fullmatch(part):
                return match[1] or match[2]
    return ANY_DRIVER


logger = logging.getLogger(__name__)

SETTLED_SECONDS: Final = 10.0
"""Seconds after which a scheduler that honours the taint has seen it, and its earlier decisions are written."""
EVERY_CLASS: Final = "*"
"""Stands for all classes, where it is not known which ones a pod wants. No class has this name."""


class OwnDevices:
    """Devices that no other scheduler can be about to take: those of our territory, as long as it is respected.

    A device of our own (``dra_ledger.taints``) needs neither deference nor a last look before binding. Three things end
    that, each by the driver:

    - The territory is new. Another scheduler may have decided before it saw the taint, and its write may be on its way.
      So devices that were known before count only ``SETTLED_SECONDS`` after they became our own.
    - A claim of another scheduler's pod tolerates the taint, as ``operator: Exists`` without a key does, or the pod
      itself that of our nodes. Such claims are filed a second time, in ``visitors``: for them the rules of shared
      drivers hold.
    - A scheduler takes our devices without tolerating the taint. It does not know the rule, because a feature gate of
      it is off, say. From then on the territory protects nothing, which is logged once, and its devices count as open.

    ``is_safe`` is asked for an allocation, ``contested`` for drivers before a decision.
    """

    def __init__(self, territory: Territory) -> None:
        self._territory, self._clock = territory, time.monotonic
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
        # Without a territory, as in most clusters, every device is contested.
        if not self._territory.owned:
            return frozenset(drivers)
        return frozenset(driver for driver in drivers if self._is_contested(driver))

    def allocated_by_others(self, claim: ResourceClaim, allocation: AllocationResult) -> None:
        """Notice that another scheduler ignores the territory, if it took some of it for a claim that may not enter.

        ``claim`` is one of ``visitors`` if it may.
        """
        devices = [DeviceId.of(result) for result in allocation.results if not result.admin_access]
        # Only a device that was safe shows that the taint was ignored; one that had just become ours may have been
        # taken before.
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
        # The usual case, without a look at visitors, who are among everybody.
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
            # A class without a driver in its selectors may hold devices of each of them.
            return any(map(self._is_contested, self._territory.drivers))
        return self._territory.has_open(driver) or not self._is_respected(driver)

    def _is_respected(self, driver: str) -> bool:
        return driver not in self._trespassed and self._seconds_settled(driver) >= SETTLED_SECONDS

    def _seconds_settled(self, driver: str) -> float:
        now, gains = self._clock(), self._territory.gains[driver]
        # The first look counts as the moment: an operator that starts does not know since when devices are tainted.
        known, since = self._settling.get(driver, (-1, now))
        if known != gains:
            self._settling[driver] = (gains, since := now)
            self._trespassed.pop(driver, None)  # marked anew: perhaps the other scheduler honours it by now
        return now - since


class NominatedPods:
    """Waiting pods that are to get a node, room and devices once others have ended (``scheduling.state.node``).

    ``is_placed`` says of a UID whether the pod has its node, or is on its way there: then it counts by itself.

    ``gang_of`` has the key of a pod's gang, ``priority_of`` the priority by which pods are preempted.

    ``is_on``: a pod that is in no nomination here is asked about the node that its status names, as after a restart.
    """

    def __init__(
        self,
        is_placed: Callable[[str], bool],
        gang_of: Callable[[Pod], str | None],
        priority_of: Callable[[Pod], int],
    ) -> None:
        self._is_placed, self._gang_of, self._priority_of = is_placed, gang_of, priority_of
        self._by_uid: dict[str, Nomination] = {}
        self.is_on = False

    def put(self, nomination: Nomination) -> Nomination | None:
        """Nominate the pod. Return its former nomination, or None."""
        before = self._by_uid.get(nomination.pod.metadata.uid)
        self._by_uid[nomination.pod.metadata.uid] = nomination
        return before

    def drop(self, uid: str) -> Nomination | None:
        """Take the pod's nomination back, and return it; None if it had none."""
        return self._by_uid.pop(uid, None)

    def get(self, uid: str) -> Nomination | None:
        """Return the pod's nomination, or None."""
        return self._by_uid.get(uid)

    def as_seen_by(self, pod: Pod) -> Nominations:
        """Return the nominations that the pod has to respect, and its own node."""
        # Without preemption nobody is nominated, and no pod respects a name in a status.
        if not self.is_on:
            return NO_NOMINATIONS
        own = self._by_uid.get(pod.metadata.uid)
        return Nominations.of(own.node if own is not None else pod.status.nominated_node_name, self._before(pod))

    def _before(self, pod: Pod) -> Iterator[Nomination]:
        if not self._by_uid:
            return
        gang, own = self._gang_of(pod), self._priority_of(pod)
        for uid, it in self._by_uid.items():
            # Devices kept for a gang or a Workload are kept for each of its pods.
            if (gang is not None and it.gang == gang) or (it.workload is not None and it.workload.owns(pod)):
                continue
            # A pod may take devices kept for one of lower priority: it would preempt that otherwise.
            is_lower = self._priority_of(it.pod) < own
            if uid != pod.metadata.uid and not is_lower and not self._is_placed(uid):
                yield it

    def __iter__(self) -> Iterator[Nomination]:
        return iter(self._by_uid.values())

    def __len__(self) -> int:
        return len(self._by_uid)
