"""What can help a waiting pod, apart from a change of the pod, of its claims or of their classes (SC-02).

While an attempt is under way, everything can: it may have looked already at what changes now. When it ends, the answer
says what is worth waiting for. So no change is missed, and a change that cannot help wakes no pod.
"""

from __future__ import annotations

from typing import NamedTuple

from dra_operator.scheduling import ANY_DRIVER
from dra_operator.scheduling.claims import CLAIM_UNMADE
from dra_operator.scheduling.rules import Hint


class TimesFreed(NamedTuple):
    """How often something came free so far."""

    devices: int
    room: int


class WakeConditions(NamedTuple):
    """Which changes of the cluster wake the pod."""

    nodes: bool
    """A node came, or takes other pods than before."""
    room: bool
    """Another pod left its cpu, memory or the like."""
    devices: bool
    """Devices were published or changed."""
    freed: frozenset[str]
    """Devices of one of these drivers were freed; ``ANY_DRIVER`` stands for all drivers."""
    leftovers: bool
    """A claim that an earlier attempt had left over is gone."""
    volumes: bool
    """Volumes or their classes changed."""
    tried_at: TimesFreed | None = None
    """When the last attempt began, or when the last look found that one would be in vain; None: that is not known."""
    hints: frozenset[Hint] = frozenset()
    """What matters to rules between pods, see ``Hinted``."""
    reason: str = "queued"
    """Why it waits, in a word that fits a metric's label."""


EVERYTHING = WakeConditions(
    nodes=True, room=True, devices=True, freed=frozenset({ANY_DRIVER}), leftovers=False, volumes=True
)
"""An attempt that meets a leftover ends at once, so no pod waits for one to go while its attempt is under way."""
NONE = WakeConditions(nodes=False, room=False, devices=False, freed=frozenset(), leftovers=False, volumes=False)
UNMADE = NONE._replace(reason=CLAIM_UNMADE.name)
ANOTHER_WRITE = EVERYTHING._replace(reason="another-write")
WITH_GANG = NONE._replace(reason="with-gang")
BEING_BOUND = NONE._replace(reason="being-bound")
FAILED = NONE._replace(reason="error")
GETTING_READY = NONE._replace(nodes=True, reason="getting-ready")
VOLUMES_PENDING = NONE._replace(nodes=True, volumes=True, reason="volumes-pending")
LEFTOVERS = NONE._replace(leftovers=True)
