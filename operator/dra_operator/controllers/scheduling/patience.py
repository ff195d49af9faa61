"""A pod that finds no devices waits in silence while claims of pods that are gone end.

Such a claim holds its devices for some milliseconds more, until its deletion and its finalizer are written. A pod that
comes in this time is not told that there are none: that would cost a condition and an event, and be wrong a moment
later. The devices wake it when they are free. Half a second after its first attempt it is told what it lacks, whatever
ends meanwhile; a pod that was told before is told again at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dra_api.core import Pod

from dra_operator.controllers.claims.delayed_deletion import DelayedDeletion
from dra_operator.controllers.memory import Recently

SILENT_SECONDS: Final = 0.5
"""Seconds from the first attempt that found no devices."""


def shows_reason(pod: Pod) -> bool:
    """Whether the pod was told something about its place before."""
    return any(it.type == "PodScheduled" for it in pod.status.conditions or ())


class Patience:
    """``clock`` gives seconds."""

    def __init__(self, delayed_deletion: DelayedDeletion, clock: Callable[[], float]) -> None:
        self._delayed_deletion, self._began = delayed_deletion, Recently(clock)

    def seconds_left(self, pod: Pod) -> float:
        """How long a pod that lacks devices may wait in silence; 0: tell it now."""
        if shows_reason(pod) or not self._delayed_deletion.is_ending(SILENT_SECONDS):
            return 0.0
        uid = pod.metadata.uid
        age = self._began.age(uid)
        if age is None:
            self._began.add(uid)
        return max(SILENT_SECONDS - (age or 0.0), 0.0)
