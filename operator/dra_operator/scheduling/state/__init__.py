"""Nodes, the pods on them, placeholder pods and the scheduling gate, as every phase of a cycle sees them."""

from .attachments import Attachable
from .gang import (
    GANG_CROWDED,
    GANG_INCOMPLETE,
    GANG_MALFORMED,
    GANG_MATCH_ATTRIBUTE,
    MOST_GANG_PODS,
    Gang,
    ends_as_one,
    gang_key,
    gang_of,
    names_gang,
)
from .host_ports import host_ports as ports_held
from .inter_pod.anchors import Anchors
from .inter_pod.pods_by_node import PodsByNode, counts_alike
from .inter_pod.selection import Place
from .large import LARGEST_OBJECT_BYTES, pod_without_bulk
from .large_claim import bytes_of_large, claim_without_bulk, metadata_without_bulk, size_refusal, spec_without_bulk
from .node import LoadedNode
from .nominations import NO_NOMINATIONS, Nomination, Nominations
from .obstacle import Obstacle
from .parked import contest, contest_of, is_parked
from .placeholder import (
    ANNOTATION,
    HOLD,
    IMMEDIATE,
    annotation_fault,
    claim_behind,
    is_immediate,
    is_placeholder,
    placeholder_key,
    placeholder_of,
    title,
)
from .requests import (
    MILLI_BILLIONTHS,
    POD_SLOTS,
    add,
    extended_resources,
    milli_cpu_of,
    node_requests,
    pod_requests,
    served_resources,
    subtract,
)
from .scheduling_gate import GATE, GATED, OPENED_LAST, has_gate, is_at_gate, reach
from .taints import NODE_CONDITION, UNSCHEDULABLE, tolerations_of, untolerated

__all__ = [
    "ANNOTATION",
    "GANG_CROWDED",
    "GANG_INCOMPLETE",
    "GANG_MALFORMED",
    "GANG_MATCH_ATTRIBUTE",
    "GATE",
    "GATED",
    "HOLD",
    "IMMEDIATE",
    "LARGEST_OBJECT_BYTES",
    "MILLI_BILLIONTHS",
    "MOST_GANG_PODS",
    "NODE_CONDITION",
    "NO_NOMINATIONS",
    "OPENED_LAST",
    "POD_SLOTS",
    "UNSCHEDULABLE",
    "Anchors",
    "Attachable",
    "Gang",
    "LoadedNode",
    "Nomination",
    "Nominations",
    "Obstacle",
    "Place",
    "PodsByNode",
    "add",
    "annotation_fault",
    "bytes_of_large",
    "claim_behind",
    "claim_without_bulk",
    "contest",
    "contest_of",
    "counts_alike",
    "ends_as_one",
    "extended_resources",
    "gang_key",
    "gang_of",
    "has_gate",
    "is_at_gate",
    "is_immediate",
    "is_parked",
    "is_placeholder",
    "metadata_without_bulk",
    "milli_cpu_of",
    "names_gang",
    "node_requests",
    "placeholder_key",
    "placeholder_of",
    "pod_requests",
    "pod_without_bulk",
    "ports_held",
    "reach",
    "served_resources",
    "size_refusal",
    "spec_without_bulk",
    "subtract",
    "title",
    "tolerations_of",
    "untolerated",
]
