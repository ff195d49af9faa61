"""What the attempts to place pods have in common: the cluster, the means to write, and when to look again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from dra_api.resource import ResourceClaim

from dra_operator.cluster import Cluster, Key, Keys
from dra_operator.kube import EventRecorder
from dra_operator.placement import ClaimReadiness, claim_readiness

from .commit import Writing
from .growing_pauses import GrowingPauses
from .lingering import Lingering
from .pace import Pace
from .queue import WorkQueue
from .right_of_way import RightOfWay


@dataclass(frozen=True, slots=True)
class Placing:
    """``wake`` gets the keys of those who may use what an attempt gives back."""

    cluster: Cluster
    writing: Writing
    events: EventRecorder
    queue: WorkQueue
    wake: Callable[[Keys], None]
    clock: Callable[[], datetime]
    pace: Pace
    right_of_way: RightOfWay
    lingering: Lingering
    pauses: GrowingPauses
    """Of pods that give claims up again and again."""

    def look_again(self, pod: str, after: float = 0.0) -> None:
        """Have the pod of this key looked at once more, after so many seconds at the latest."""
        if after > 0:
            self.queue.add_after(Key("place", pod), after)
        else:
            self.queue.add([Key("place", pod)])

    def readiness(self, claim: ResourceClaim) -> ClaimReadiness:
        """How far the claim's devices are."""
        return claim_readiness(claim, self.clock(), self.pace.binding_timeout)
