"""Obstacles in words. Those of nodes read well behind a number: ``2 Insufficient cpu``."""

from __future__ import annotations

from typing import Final

from dra_api.resource import RESERVED_FOR_LIMIT

from .gate import GATE
from .obstacle import Kind, Obstacle

_TEXTS: Final[dict[Kind, str]] = {
    Kind.OTHER_NODE: "node(s) not named by the pod",
    Kind.CORDONED: "node(s) were unschedulable",
    Kind.TAINT: "node(s) had untolerated taint {{{subject}: {detail}}}",
    Kind.NODE_SELECTOR: "node(s) didn't match the pod's node selector or affinity",
    Kind.SPREAD: "node(s) didn't match pod topology spread constraints (topology key {subject})",
    Kind.SPREAD_LABEL: "node(s) didn't match pod topology spread constraints (missing required label {subject})",
    Kind.POD_AFFINITY: "node(s) didn't match pod affinity rules (topology key {subject})",
    Kind.POD_ANTI_AFFINITY: "node(s) didn't match pod anti-affinity rules (topology key {subject})",
    Kind.REPELLED: "node(s) didn't satisfy existing pods anti-affinity rules (topology key {subject})",
    Kind.FEATURE: "node(s) didn't declare the feature {subject}",
    Kind.PORT: "{subject} is taken",
    Kind.POD_SLOTS: "too many pods on the node",
    Kind.RESOURCE: "Insufficient {subject}",
    Kind.NOT_OFFERED: "cannot fit resource {subject}: neither the node nor a device class offers it",
    Kind.VOLUME_AFFINITY: "node(s) didn't match PersistentVolume's node affinity",
    Kind.VOLUME_ZONE: "node(s) had no available volume zone",
    Kind.VOLUME_MISSING: (
        "node(s) unavailable: claim {subject} is bound to PersistentVolume {detail}, which does not exist"
    ),
    Kind.VOLUME_BINDING: "node(s) didn't find available persistent volumes to bind",
    Kind.VOLUME_SPACE: "node(s) did not have enough free storage",
    Kind.VOLUME_LIMIT: "node(s) exceed max volume count of driver {subject}",
    Kind.CLAIM_ELSEWHERE: "resourceclaim not available on the node",
    Kind.TOO_FEW_DEVICES: "cannot satisfy {subject} (too few free devices match)",
    Kind.CLAIM_REFERENCE: "{detail}",
    Kind.CLAIM_UNMADE: "{detail}",
    Kind.CLAIM_MISSING: 'resourceclaim "{subject}" not found',
    Kind.CLAIM_DELETED: 'resourceclaim "{subject}" is being deleted',
    Kind.CLAIM_FULL: (
        f"claim {{subject}} is used by {RESERVED_FOR_LIMIT} pods, the most that can share one claim: "
        "wait until one of them ends, or use another claim"
    ),
    Kind.STALE_CLAIM: "waiting for stale extended-resource claim {subject} to be deleted",
    Kind.CLASS_MISSING: "{subject}: device class {detail} does not exist: create it, or correct deviceClassName",
    Kind.ALTERNATIVES_OFF: "resource {subject}: has subrequests, but the DRAPrioritizedList feature is disabled",
    Kind.VOLUMES_UNSEEN: (
        "the pod uses PersistentVolumeClaims, and {subject} cannot be seen: "
        "allow dra-operator to list and watch them (manifests/operator/rbac.yaml)"
    ),
    Kind.VOLUME_CLAIM_MISSING: 'persistentvolumeclaim "{subject}" not found',
    Kind.VOLUME_CLAIM_UNMADE: 'waiting for ephemeral volume controller to create the persistentvolumeclaim "{subject}"',
    Kind.VOLUME_CLAIM_FOREIGN: (
        'persistentvolumeclaim "{subject}" was not created for the pod (the pod is not its owner): delete it'
    ),
    Kind.VOLUME_CLAIM_LOST: 'persistentvolumeclaim "{subject}" bound to non-existent persistentvolume "{detail}"',
    Kind.VOLUME_CLAIM_DELETED: 'persistentvolumeclaim "{subject}" is being deleted',
    Kind.VOLUME_CLAIM_UNBOUND: 'pod has unbound immediate PersistentVolumeClaim "{subject}"',
    Kind.VOLUME_CLAIM_IN_USE: (
        'persistentvolumeclaim "{subject}" has the access mode ReadWriteOncePod and is in use by another pod'
    ),
    Kind.UNSUPPORTED: "{subject} is not supported by dra-operator yet; {detail}",
    Kind.EXTENDED_AT_GATE: (
        f"the pod's scheduler allocates devices for the extended resource {{subject}}: remove the scheduling gate "
        f"{GATE}, or ask for the devices by a claim (spec.resourceClaims)"
    ),
}


def text(obstacle: Obstacle) -> str:
    """The obstacle as a clause, without a full stop."""
    return _TEXTS[obstacle.kind].format(subject=obstacle.subject, detail=obstacle.detail)
