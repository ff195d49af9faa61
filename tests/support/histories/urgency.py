"""How long the most urgent pod waits where it could have a place: a rule about time.

The pod has a higher priority than all others. It could have a place as long as there is a node on which it fits beside
pods that may not be preempted, or that take long to finish. If it could for ``BOUND_SECONDS`` in one go, it has to be
bound, whatever the tenants below do. The bound is what the page on preemption says: an attempt each ten seconds; 35
seconds for victims that take longer, of which there is one round; and the grace period of those that do not.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from dra_api.values import parse_time
from dra_kube import NODES, PODS
from dra_operator.scheduling.preemption import OVERDUE_SECONDS, PREEMPTION_PATIENCE_SECONDS
from fake_store import FakeStore, key_of
from objects import Obj

from .preemptions import holds_devices, may_end, without
from .rest import is_of_gang, places_for, waits
from .server import START

URGENT: Final = "99-high"
"""What stands behind the kind in the name of the urgent pod; no other one has this priority."""
TURN_SECONDS = 10.0
QUICK_SECONDS = 20.0
"""The longest grace period of pods that do not outlast the operator's patience."""
BOUND_SECONDS: Final = PREEMPTION_PATIENCE_SECONDS + OVERDUE_SECONDS + 3 * TURN_SECONDS + QUICK_SECONDS + 5.0


class Urgency:
    """``watch`` until cancelled. ``longest``: so many seconds in one go the pod could have had a place."""

    def __init__(self, store: FakeStore) -> None:
        self._store = store
        self.longest = 0.0
        self.finding = ""

    async def watch(self) -> None:
        """Look each second, until something is wrong."""
        now = asyncio.get_running_loop().time
        since: float | None = None
        while not self.finding:
            pod = next((it for it in self._store.of(PODS) if f"-{URGENT}" in it["metadata"]["name"]), None)
            if pod is None or not self._could_have_a_place(pod, now()):
                since = None
            else:
                since = now() if since is None else since
                self.longest = max(self.longest, now() - since)
                if self.longest > BOUND_SECONDS:
                    self.finding = f"pod {key_of(pod)} waits, though it could run for {BOUND_SECONDS:g} s in one go"
            await asyncio.sleep(1.0)

    def _could_have_a_place(self, pod: Obj, now: float) -> bool:
        if not waits(pod):
            return False
        if holds_devices(self._store, pod):  # it has to be bound with them, or to have others
            return True
        for node in self._store.of(NODES):
            name = node["metadata"]["name"]
            quick = [it for it in self._store.of(PODS) if may_end(it, name, pod) and _is_quick(it, now)]
            if name in places_for(without(self._store, quick), pod):
                return True
        return False


def _is_quick(pod: Obj, now: float) -> bool:
    """Return whether the pod is gone soon, if it is deleted now or has been. A gang ends as a whole, on all nodes."""
    ends = parse_time(pod["metadata"].get("deletionTimestamp"))
    if ends is not None:
        return ends - START - timedelta(seconds=now) <= timedelta(seconds=PREEMPTION_PATIENCE_SECONDS)
    return not is_of_gang(pod) and pod["spec"].get("terminationGracePeriodSeconds", 0) <= QUICK_SECONDS
