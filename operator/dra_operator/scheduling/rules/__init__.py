"""One file per rule: what keeps a pod from a node. Others import the reasons for which they know a remedy."""

from .inter_pod_affinity import POD_AFFINITY, POD_ANTI_AFFINITY
from .node_affinity import NODE_SELECTOR
from .node_resources import RESOURCE
from .pod_topology_spread import SPREAD, SPREAD_LABEL
from .taint_toleration import CORDONED, TAINT

__all__ = [
    "CORDONED",
    "NODE_SELECTOR",
    "POD_AFFINITY",
    "POD_ANTI_AFFINITY",
    "RESOURCE",
    "SPREAD",
    "SPREAD_LABEL",
    "TAINT",
]
