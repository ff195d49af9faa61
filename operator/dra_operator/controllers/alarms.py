"""Warns in the log of work that is late, and of invariants that are violated.

``LateWork``: nothing is decided or written for a key for more than five seconds. What a decision finds out stands in
the pod's condition. Two causes of a wait lie outside of decisions, and are the same for many pods at once, so the log
has them, once a minute while they last:

* *work*: a key was taken, and the requests for it are not answered. No other decision about the pod is made meanwhile,
  and with all workers taken none about any other pod.
* *turn*: a key is ready, and others come first: too many are ready, decisions take long, or the namespace has had its
  share. Keys of pods that were told something before do not count: the condition of such a pod says why it waits.

``ViolationLog`` logs and counts each violated invariant once, and again only after it was gone. The news of two objects
may come in either order: a device that one claim has given back and another one got has two holders for a moment. So a
violation is reported when it has lasted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from dra_operator.cache import Controller, Key
from dra_operator.controllers.logbook import tell
from dra_operator.controllers.queue import WorkQueue
from dra_operator.controllers.settings import ROUNDING_SECONDS

logger = logging.getLogger(__name__)

LATE_SECONDS: Final = 4.0
"""Seconds after which a key is late; with the second between two looks it is seen within five."""
LOOK_SECONDS: Final = 1.0
WARN_SECONDS: Final = 60.0
"""Seconds between two warnings of the same kind while keys are late."""
OLDEST_PODS: Final = 100
"""Pods whose keys have waited longest for their turn, which are looked at one by one."""
BINDING: Final[tuple[Controller, ...]] = ("templates", "pod-groups", "placement")
"""Controllers without whose work no pod is bound."""


class LateWork:
    """``look`` at the queues; ``is_told``: return whether the object of a key already shows why it waits."""

    def __init__(
        self, queues: Mapping[Controller, WorkQueue], is_told: Callable[[Key], bool], clock: Callable[[], float]
    ) -> None:
        self._queues, self._is_told, self._clock = queues, is_told, clock
        self._warned: dict[tuple[Controller, str], float] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Warn of what is late now."""
        for controller in BINDING:
            queue = self._queues[controller]
            taken = next(queue.taken(), None)
            self._judge(controller, "work on a key is not done, requests for it may be unanswered", taken, queue)
            ready = (it for it in islice(queue.ready(), OLDEST_PODS) if not self._is_told(it[0]))
            self._judge(controller, "keys wait for their turn", next(ready, None), queue)

    def _judge(self, controller: Controller, what: str, oldest: tuple[Key, float] | None, queue: WorkQueue) -> None:
        kind, now = (controller, what), self._clock()
        if oldest is None or oldest[1] < LATE_SECONDS:
            self._warned.pop(kind, None)
            return
        if now - self._warned.get(kind, now - WARN_SECONDS) < WARN_SECONDS:
            return
        self._warned[kind] = now
        key, seconds = oldest
        fields = {"controller": controller, "object": key.object, "ready": queue.depth, "seconds": f"{seconds:.3g}"}
        tell(logger, logging.WARNING, what, **fields)


LASTING_SECONDS: Final = 1.0


class ViolationLog:
    """``report`` is given all violations that hold at the moment; ``clock`` gives seconds."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._told: set[str] = set()
        self._count = Counter(
            "dra_operator_invariant_violations", "Violations of invariants that lasted", registry=registry
        )

    def report(self, violations: Iterable[str]) -> float | None:
        """Log and count those that have lasted. The seconds after which to look again; None if none is younger."""
        now = self._clock()
        self._since = {violation: self._since.get(violation, now) for violation in violations}
        self._told &= self._since.keys()
        for violation in [one for one in self._since if one not in self._told]:
            if now - self._since[violation] >= LASTING_SECONDS:
                logger.error("invariant violated: %s", violation)
                self._count.inc()
                self._told.add(violation)
        young = [since for one, since in self._since.items() if one not in self._told]
        return min(young) + LASTING_SECONDS - now + ROUNDING_SECONDS if young else None
