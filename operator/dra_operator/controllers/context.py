"""What all controllers work with: the cluster as it is known, the means to write, the queues, and clocks.

``Control`` makes it once. Each controller takes its part from it, so that one more clock or writer is no new
parameter of ten classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from dra_operator.cache import Cluster, Hint, Key
from dra_operator.controllers.memory import GrowingPauses
from dra_operator.controllers.queue import WorkQueues
from dra_operator.controllers.settings import OwnControllers, TimeSettings
from dra_operator.kube import ClaimWriter, EventRecorder, PodGroupWriter, PodWriter


@dataclass(frozen=True, kw_only=True)
class ControllerContext:
    """``ours``: which controllers are this operator's, now. ``pauses`` slow down work that is undone again and again.

    ``clock`` gives seconds and is never set, ``now`` is the time of day.
    """

    cluster: Cluster
    ours: OwnControllers
    times: TimeSettings
    queues: WorkQueues
    claims: ClaimWriter
    pods: PodWriter
    groups: PodGroupWriter
    events: EventRecorder
    pauses: GrowingPauses
    clock: Callable[[], float]
    now: Callable[[], datetime]

    def wake(self, hints: Iterable[Hint]) -> None:
        """Have the keys looked at, each as urgently as its hint says."""
        self.queues.add(hints)

    def add_after(self, key: Key, seconds: float) -> None:
        """Queue the key after at most this many seconds."""
        self.queues.add_after(key, seconds)
