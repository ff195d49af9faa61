"""Rules: what keeps a pod from a node.

Others import reasons for which they know a remedy, what changes can help a pod, and the volumes of pods.
"""

from .inter_pod_affinity import POD_AFFINITY, POD_ANTI_AFFINITY
from .node_rules import (
    CORDONED,
    GROUP_GATED,
    GROUP_MISSING,
    GROUP_UNSUPPORTED,
    NODE_SELECTOR,
    NOT_OFFERED,
    PORT,
    RESOURCE,
    TAINT,
    TOO_MANY_PODS,
    NodeResources,
)
from .pod_topology_spread import DO_NOT_SCHEDULE, SPREAD, SPREAD_LABEL
from .rule import ANY_CHANGE, ClusterEvent, Hint
from .volume_binding import NO_BINDINGS, NO_PROVISIONER, Bindings, UnboundClaim, reference, with_claim, with_node
from .volumes import NO_VOLUMES, READ_WRITE_ONCE_POD, VOLUME_CLAIM_MISSING, VolumeWait, volumes_of

__all__ = [
    "ANY_CHANGE",
    "CORDONED",
    "DO_NOT_SCHEDULE",
    "GROUP_GATED",
    "GROUP_MISSING",
    "GROUP_UNSUPPORTED",
    "NODE_SELECTOR",
    "NOT_OFFERED",
    "NO_BINDINGS",
    "NO_PROVISIONER",
    "NO_VOLUMES",
    "POD_AFFINITY",
    "POD_ANTI_AFFINITY",
    "PORT",
    "READ_WRITE_ONCE_POD",
    "RESOURCE",
    "SPREAD",
    "SPREAD_LABEL",
    "TAINT",
    "TOO_MANY_PODS",
    "VOLUME_CLAIM_MISSING",
    "Bindings",
    "ClusterEvent",
    "Hint",
    "NodeResources",
    "UnboundClaim",
    "VolumeWait",
    "reference",
    "volumes_of",
    "with_claim",
    "with_node",
]
