"""What keeps a pod from being placed, as a value: compared, counted and acted on by kind, put in words elsewhere.

An obstacle lies with one node (the pod cannot run there) or with the pod (no node is tried at all). ``wording`` has the
text of each kind; nothing decides by a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class ObstacleKind(StrEnum):
    """Values are stable and fit metric labels."""

    # of a node
    OTHER_NODE = "other-node"
    CORDONED = "cordoned"
    TAINT = "taint"
    NODE_SELECTOR = "node-selector"
    SPREAD = "spread"
    SPREAD_LABEL = "spread-label"
    POD_AFFINITY = "pod-affinity"
    POD_ANTI_AFFINITY = "pod-anti-affinity"
    REPELLED = "repelled"
    FEATURE = "feature"
    PORT = "port"
    POD_SLOTS = "pod-slots"
    RESOURCE = "resource"
    NOT_OFFERED = "not-offered"
    VOLUME_AFFINITY = "volume-affinity"
    VOLUME_ZONE = "volume-zone"
    VOLUME_MISSING = "volume-missing"
    VOLUME_BINDING = "volume-binding"
    VOLUME_SPACE = "volume-space"
    VOLUME_LIMIT = "volume-limit"
    CLAIM_ELSEWHERE = "claim-elsewhere"
    TOO_FEW_DEVICES = "too-few-devices"
    # of the pod
    CLAIM_REFERENCE = "claim-reference"
    CLAIM_UNMADE = "claim-unmade"
    CLAIM_MISSING = "claim-missing"
    CLAIM_DELETED = "claim-deleted"
    CLAIM_FULL = "claim-full"
    STALE_CLAIM = "stale-claim"
    CLASS_MISSING = "class-missing"
    ALTERNATIVES_OFF = "alternatives-off"
    VOLUMES_UNSEEN = "volumes-unseen"
    VOLUME_CLAIM_MISSING = "volume-claim-missing"
    VOLUME_CLAIM_UNMADE = "volume-claim-unmade"
    VOLUME_CLAIM_FOREIGN = "volume-claim-foreign"
    VOLUME_CLAIM_LOST = "volume-claim-lost"
    VOLUME_CLAIM_DELETED = "volume-claim-deleted"
    VOLUME_CLAIM_UNBOUND = "volume-claim-unbound"
    VOLUME_CLAIM_IN_USE = "volume-claim-in-use"
    UNSUPPORTED = "unsupported"
    EXTENDED_AT_GATE = "extended-at-gate"


ENDS_WITH_ANOTHER_POD: Final = frozenset(
    {ObstacleKind.PORT, ObstacleKind.POD_SLOTS, ObstacleKind.RESOURCE, ObstacleKind.VOLUME_LIMIT}
)
"""Obstacles on a node that may go away when any other pod ends."""


OF_VOLUMES: Final = frozenset(kind for kind in ObstacleKind if kind.startswith("volume"))
"""Obstacles that lie with the pod's volumes, or with its claims to them."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """``subject`` is what it is about (a resource, a taint, a claim), ``detail`` what else the text needs."""

    kind: ObstacleKind
    subject: str = ""
    detail: str = ""
