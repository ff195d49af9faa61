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
    Kind.UNSUPPORTED: "{subject} is not supported by dra-operator yet; {detail}",
    Kind.EXTENDED_AT_GATE: (
        f"the pod's scheduler allocates devices for the extended resource {{subject}}: remove the scheduling gate "
        f"{GATE}, or ask for the devices by a claim (spec.resourceClaims)"
    ),
}


def text(obstacle: Obstacle) -> str:
    """The obstacle as a clause, without a full stop."""
    return _TEXTS[obstacle.kind].format(subject=obstacle.subject, detail=obstacle.detail)
