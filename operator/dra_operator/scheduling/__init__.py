"""Which node a pod goes to: filters, devices, score, and the explanation when there is none. Pure.

This is the face of a scheduling cycle. Rooms that are used for themselves have faces of their own: ``state`` (pods and
nodes before anything is asked of them), ``rules`` (reasons, hints, volumes), ``claims``, ``gang`` and ``preemption``.
"""

from .claims.readiness import VolumesFailed, VolumesPending
from .cycle.attempt import Planning, PostFilter, Unschedulable, plan
from .cycle.filter import (
    Faulty,
    Fits,
    Lacking,
    NodeStatus,
    NoPlace,
    Obstructed,
    Plan,
    PodFilter,
    PostFilterResult,
    Undecided,
    counted,
)
from .cycle.pre_filter import (
    ANY_DRIVER,
    ConflictCheckDue,
    CycleState,
    Deferring,
    GettingReady,
    NotTried,
    PreFilterResult,
    Snapshot,
    Stolen,
    Unsettled,
    WriteUnderWay,
    is_alone,
    pre_filter,
)
from .cycle.select_host import Placement, total
from .nodes import STRATEGIES, Nodes
from .pieces import Elapsed, InPieces, Pause, decided
from .strategies import ANNOTATION as PLACEMENT_STRATEGY_ANNOTATION
from .strategies import PLACEMENT_STRATEGIES

__all__ = [
    "ANY_DRIVER",
    "PLACEMENT_STRATEGIES",
    "PLACEMENT_STRATEGY_ANNOTATION",
    "STRATEGIES",
    "ConflictCheckDue",
    "CycleState",
    "Deferring",
    "Elapsed",
    "Faulty",
    "Fits",
    "GettingReady",
    "InPieces",
    "Lacking",
    "NoPlace",
    "NodeStatus",
    "Nodes",
    "NotTried",
    "Obstructed",
    "Pause",
    "Placement",
    "Plan",
    "Planning",
    "PodFilter",
    "PostFilter",
    "PostFilterResult",
    "PreFilterResult",
    "Snapshot",
    "Stolen",
    "Undecided",
    "Unschedulable",
    "Unsettled",
    "VolumesFailed",
    "VolumesPending",
    "WriteUnderWay",
    "counted",
    "decided",
    "is_alone",
    "plan",
    "pre_filter",
    "total",
]
