"""Which node a pod goes to: filters, devices, score, and the explanation when there is none. Pure."""

from .anchors import Anchors
from .answer import NoPlace, Plan
from .attach_limits import Attachable, AttachLimits
from .claims import NotReady, PodClaim, crowded, extended_claims, ready_claims, unservable
from .demand import Demand, Demands
from .elsewhere import Allocations
from .examination import Case, Examination, GettingReady, NotTried, Stolen, WriteUnderWay, examine, is_alone
from .extended import ExtendedClaim, ExtendedResources
from .filters import NodeFilter
from .gate import GATE, GATED, OPENED_LAST, has_gate, is_at_gate, reach
from .hints import Elsewhere, Hint, PodsChange, RepellerGone, Turn
from .immediate import (
    ANNOTATION,
    HOLD,
    IMMEDIATE,
    annotation_fault,
    claim_behind,
    is_immediate,
    is_stand_in,
    stand_in,
    stand_in_key,
    title,
)
from .node import LoadedNode
from .node_answer import Faulty, Fits, Lacking, NodeAnswer, Obstructed, Undecided
from .nodes import STRATEGIES, Nodes
from .obstacle import OF_VOLUMES, Obstacle, ObstacleKind
from .pause import Pause
from .plan import Planning, decided, plan
from .question import Question, settled
from .readiness import BINDING_TIMEOUT, ClaimReadiness, Readiness, age_of_allocation, claim_readiness, unready
from .requests import (
    POD_SLOTS,
    Amounts,
    add,
    extended_resources,
    node_requests,
    pod_requests,
    served_resources,
    subtract,
)
from .residents import Place, Residents, counts_alike
from .score import total
from .snapshot import Snapshot
from .unbound import NO_BINDINGS, Bindings
from .unsupported import unsupported
from .volume_wait import VolumesFailed, VolumesPending
from .volumes import NO_VOLUMES, PodVolumes, Storage, VolumeWait, volumes_of
from .wording import text

__all__ = [
    "ANNOTATION",
    "BINDING_TIMEOUT",
    "GATE",
    "GATED",
    "HOLD",
    "IMMEDIATE",
    "NO_BINDINGS",
    "NO_VOLUMES",
    "OF_VOLUMES",
    "OPENED_LAST",
    "POD_SLOTS",
    "STRATEGIES",
    "Allocations",
    "Amounts",
    "Anchors",
    "AttachLimits",
    "Attachable",
    "Bindings",
    "Case",
    "ClaimReadiness",
    "Demand",
    "Demands",
    "Elsewhere",
    "Examination",
    "ExtendedClaim",
    "ExtendedResources",
    "Faulty",
    "Fits",
    "GettingReady",
    "Hint",
    "Lacking",
    "LoadedNode",
    "NoPlace",
    "NodeAnswer",
    "NodeFilter",
    "Nodes",
    "NotReady",
    "NotTried",
    "Obstacle",
    "ObstacleKind",
    "Obstructed",
    "Pause",
    "Place",
    "Plan",
    "Planning",
    "PodClaim",
    "PodVolumes",
    "PodsChange",
    "Question",
    "Readiness",
    "RepellerGone",
    "Residents",
    "Snapshot",
    "Stolen",
    "Storage",
    "Turn",
    "Undecided",
    "VolumeWait",
    "VolumesFailed",
    "VolumesPending",
    "WriteUnderWay",
    "add",
    "age_of_allocation",
    "annotation_fault",
    "claim_behind",
    "claim_readiness",
    "counts_alike",
    "crowded",
    "decided",
    "examine",
    "extended_claims",
    "extended_resources",
    "has_gate",
    "is_alone",
    "is_at_gate",
    "is_immediate",
    "is_stand_in",
    "node_requests",
    "plan",
    "pod_requests",
    "reach",
    "ready_claims",
    "served_resources",
    "settled",
    "stand_in",
    "stand_in_key",
    "subtract",
    "text",
    "title",
    "total",
    "unready",
    "unservable",
    "unsupported",
    "volumes_of",
]
