"""Obstacles in words. Those of nodes read well behind a number: ``2 Insufficient cpu``."""

from __future__ import annotations

from typing import Final

from dra_api.resource import RESERVED_FOR_LIMIT

from .gate import GATE
from .obstacle import Obstacle, ObstacleKind

_TEXTS: Final[dict[ObstacleKind, str]] = {
    ObstacleKind.OTHER_NODE: "node(s) not named by the pod",
    ObstacleKind.CORDONED: "node(s) were unschedulable",
    ObstacleKind.TAINT: "node(s) had untolerated taint {{{subject}: {detail}}}",
    ObstacleKind.NODE_SELECTOR: "node(s) didn't match the pod's node selector or affinity",
    ObstacleKind.SPREAD: "node(s) didn't match pod topology spread constraints (topology key {subject})",
    ObstacleKind.SPREAD_LABEL: (
        "node(s) didn't match pod topology spread constraints (missing required label {subject})"
    ),
    ObstacleKind.POD_AFFINITY: "node(s) didn't match pod affinity rules (topology key {subject})",
    ObstacleKind.POD_ANTI_AFFINITY: "node(s) didn't match pod anti-affinity rules (topology key {subject})",
    ObstacleKind.REPELLED: "node(s) didn't satisfy existing pods anti-affinity rules (topology key {subject})",
    ObstacleKind.FEATURE: "node(s) didn't declare the feature {subject}",
    ObstacleKind.PORT: "{subject} is taken",
    ObstacleKind.POD_SLOTS: "too many pods on the node",
    ObstacleKind.RESOURCE: "Insufficient {subject}",
    ObstacleKind.NOT_OFFERED: "cannot fit resource {subject}: neither the node nor a device class offers it",
    ObstacleKind.VOLUME_AFFINITY: "node(s) didn't match PersistentVolume's node affinity",
    ObstacleKind.VOLUME_ZONE: "node(s) had no available volume zone",
    ObstacleKind.VOLUME_MISSING: (
        "node(s) unavailable: claim {subject} is bound to PersistentVolume {detail}, which does not exist"
    ),
    ObstacleKind.VOLUME_BINDING: "node(s) didn't find available persistent volumes to bind",
    ObstacleKind.VOLUME_SPACE: "node(s) did not have enough free storage",
    ObstacleKind.VOLUME_LIMIT: "node(s) exceed max volume count of driver {subject}",
    ObstacleKind.CLAIM_ELSEWHERE: "resourceclaim not available on the node",
    ObstacleKind.TOO_FEW_DEVICES: "cannot satisfy {subject} (too few free devices match)",
    ObstacleKind.CLAIM_REFERENCE: "{detail}",
    ObstacleKind.CLAIM_UNMADE: "{detail}",
    ObstacleKind.CLAIM_MISSING: 'resourceclaim "{subject}" not found: create it, or correct resourceClaimName',
    ObstacleKind.CLAIM_DELETED: 'resourceclaim "{subject}" is being deleted',
    ObstacleKind.CLAIM_FULL: (
        f"claim {{subject}} is used by {RESERVED_FOR_LIMIT} pods, the most that can share one claim: "
        "wait until one of them ends, or use another claim"
    ),
    ObstacleKind.STALE_CLAIM: "waiting for stale extended-resource claim {subject} to be deleted",
    ObstacleKind.CLASS_MISSING: (
        "{subject}: device class {detail} does not exist: create it, or correct deviceClassName"
    ),
    ObstacleKind.ALTERNATIVES_OFF: (
        "resource {subject}: has subrequests, but the DRAPrioritizedList feature is disabled"
    ),
    ObstacleKind.VOLUMES_UNSEEN: (
        "the pod uses PersistentVolumeClaims, and {subject} cannot be seen: "
        "allow dra-operator to list and watch them (manifests/operator/rbac.yaml)"
    ),
    ObstacleKind.VOLUME_CLAIM_MISSING: 'persistentvolumeclaim "{subject}" not found: create it, or correct claimName',
    ObstacleKind.VOLUME_CLAIM_UNMADE: (
        'waiting for ephemeral volume controller to create the persistentvolumeclaim "{subject}"'
    ),
    ObstacleKind.VOLUME_CLAIM_FOREIGN: (
        'persistentvolumeclaim "{subject}" was not created for the pod (the pod is not its owner): delete it'
    ),
    ObstacleKind.VOLUME_CLAIM_LOST: (
        'persistentvolumeclaim "{subject}" bound to non-existent persistentvolume "{detail}"'
    ),
    ObstacleKind.VOLUME_CLAIM_DELETED: 'persistentvolumeclaim "{subject}" is being deleted',
    ObstacleKind.VOLUME_CLAIM_UNBOUND: 'pod has unbound immediate PersistentVolumeClaim "{subject}"',
    ObstacleKind.VOLUME_CLAIM_IN_USE: (
        'persistentvolumeclaim "{subject}" has the access mode ReadWriteOncePod and is in use by another pod'
    ),
    ObstacleKind.UNSUPPORTED: "{subject} is not supported by dra-operator yet; {detail}",
    ObstacleKind.EXTENDED_AT_GATE: (
        f"the pod's scheduler allocates devices for the extended resource {{subject}}: remove the scheduling gate "
        f"{GATE}, or ask for the devices by a claim (spec.resourceClaims)"
    ),
}


def text(obstacle: Obstacle) -> str:
    """The obstacle as a clause, without a full stop."""
    return _TEXTS[obstacle.kind].format(subject=obstacle.subject, detail=obstacle.detail)
