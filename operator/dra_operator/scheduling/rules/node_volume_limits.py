"""CSI drivers attach only so many volumes to a node (kube-scheduler's NodeVolumeLimits).

A volume counts once, however many pods of the node use it. A volume that is still attached, although no pod of the node
uses it, counts as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dra_api.core import Pod
from dra_api.references import volume_uses

from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.scheduling.state.requests import (
    Attachable,
    AttachedVolumes,
    attachable,
    claims_in,
)

VOLUME_LIMIT: Final = Reason(
    "volume-limit", "node(s) exceed max volume count of driver {subject}", ends_with_any_pod=True, is_about_volumes=True
)


@dataclass(frozen=True, slots=True)
class AttachLimits:
    """``wanted`` are the volumes of one pod."""

    wanted: frozenset[Attachable]
    storage: AttachedVolumes

    @classmethod
    def of(cls, pod: Pod, storage: AttachedVolumes) -> AttachLimits:
        """The pod's volumes that drivers attach."""
        return cls(frozenset(attachable((use.key for use in volume_uses(pod)), storage)), storage)

    def obstacle(self, node: str, used: Mapping[str, int]) -> Obstacle | None:
        """A driver that would have to attach too many volumes to the node. ``used``: see ``volume_amounts``."""
        drivers = {it.driver for it in self.wanted}
        limits = {name: most for name, most in self.storage.attach_limits(node).items() if name in drivers}
        claims = claims_in(used)
        attachments = frozenset(self.storage.attachments(node)) if limits else frozenset()
        if len(claims) + len(attachments) + len(self.wanted) <= min(limits.values(), default=math.inf):
            return None  # whatever the claims are
        in_use = frozenset(attachable(claims, self.storage))
        attached = in_use | attachments
        new = self.wanted - in_use
        for driver in sorted({it.driver for it in new} & limits.keys()):
            there, more = (sum(it.driver == driver for it in volumes) for volumes in (attached, new))
            if there + more > limits[driver]:
                return Obstacle(VOLUME_LIMIT, driver)
        return None
