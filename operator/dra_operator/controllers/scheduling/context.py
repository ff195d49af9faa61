"""The context of attempts to place pods, beside the context of all controllers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dra_api.core import Pod
from dra_api.resource import ResourceClaim

from dra_operator.cache import Key
from dra_operator.controllers.claims.delayed_deletion import DelayedDeletion
from dra_operator.controllers.claims.generate import ClaimMaker
from dra_operator.controllers.claims.names import NamesBeingWritten
from dra_operator.controllers.context import ControllerContext
from dra_operator.controllers.metrics import PlacementMetrics
from dra_operator.controllers.scheduling.other_schedulers import ConflictCheck, Deference
from dra_operator.kube import VolumeWriter
from dra_operator.scheduling.claims import ClaimReadiness, claim_readiness


@dataclass(frozen=True, kw_only=True)
class SchedulingContext(ControllerContext):
    """``wake`` has those looked at who may use what an attempt gives back; ``pauses`` are of pods that give claims up.

    ``group_waits`` gets a pod, its PodGroup and the reason why it waits. ``claim_failure`` returns why the
    claims of a pod could not be made when that was tried last, or an empty text.
    """

    volumes: VolumeWriter
    metrics: PlacementMetrics
    maker: ClaimMaker
    names_being_written: NamesBeingWritten
    delayed_deletion: DelayedDeletion
    deference: Deference
    conflict_check: ConflictCheck
    group_waits: Callable[[Pod, str, str], None]
    claim_failure: Callable[[Pod], str]

    def look_again(self, pod: str, after: float = 0.0) -> None:
        """Have the pod of this key looked at once more, after so many seconds at the latest."""
        key = Key("placement", pod)
        if after > 0:
            self.queues.add_after(key, after)
        else:
            self.queues.add((key,))

    def is_working(self, pod: str) -> bool:
        """Return whether the pod of this key is being decided on, or a decision about it is being written."""
        return self.queues.of("placement").is_working(Key("placement", pod))

    def readiness(self, claim: ResourceClaim) -> ClaimReadiness:
        """Return how far the claim's devices are."""
        return claim_readiness(claim, self.now(), self.times.binding_timeout)
