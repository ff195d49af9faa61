"""What the attempts to place pods have in common: the cluster, the means to write, and when to look again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from dra_api.core import Pod
from dra_api.resource import ResourceClaim

from dra_operator.cache import Cluster, Key, Keys
from dra_operator.controllers.claims.delayed_deletion import DelayedDeletion
from dra_operator.controllers.claims.make_claim import ClaimMaker
from dra_operator.controllers.memory import GrowingPauses
from dra_operator.controllers.queue import WorkQueue
from dra_operator.controllers.settings import TimeSettings
from dra_operator.kube import EventRecorder
from dra_operator.scheduling.claims import ClaimReadiness, claim_readiness

from .binding_cycle import Writing
from .deference import Deference


@dataclass(frozen=True, slots=True)
class SchedulingContext:
    """``wake`` gets the keys of those who may use what an attempt gives back."""

    cluster: Cluster
    writing: Writing
    events: EventRecorder
    queue: WorkQueue
    wake: Callable[[Keys], None]
    clock: Callable[[], datetime]
    times: TimeSettings
    deference: Deference
    delayed_deletion: DelayedDeletion
    pauses: GrowingPauses
    """Of pods that give claims up again and again."""
    group_waits: Callable[[Pod, str, str], None]
    """Told of a pod for what reason it waits, and its PodGroup."""
    claim_failure: Callable[[Pod], str]
    """Return why the claims of a pod could not be made when that was tried last, or an empty text."""
    maker: ClaimMaker

    def look_again(self, pod: str, after: float = 0.0) -> None:
        """Have the pod of this key looked at once more, after so many seconds at the latest."""
        if after > 0:
            self.queue.add_after(Key("placement", pod), after)
        else:
            self.queue.add([Key("placement", pod)])

    def is_working(self, pod: str) -> bool:
        """Whether the pod of this key is being decided on, or a decision about it is being written."""
        return self.queue.is_working(Key("placement", pod))

    def readiness(self, claim: ResourceClaim) -> ClaimReadiness:
        """How far the claim's devices are."""
        return claim_readiness(claim, self.clock(), self.times.binding_timeout)
