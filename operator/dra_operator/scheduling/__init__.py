"""Which node a pod goes to: filters, devices, score, and the explanation when there is none. Pure.

This is the face of a scheduling cycle. Rooms that are used for themselves have faces of their own: ``state`` (pods and
nodes before anything is asked of them), ``rules`` (reasons, hints, volumes), ``claims``, ``gang`` and ``preemption``.
"""

from .cycle.counting import counted
from .cycle.filter import PodFilter, settled
from .cycle.node_status import Faulty, Fits, Lacking, NodeStatus, Obstructed, Undecided
from .cycle.pause import Elapsed, Pause
from .cycle.placement import Placement
from .cycle.plan import Planning, decided, plan
from .cycle.post_filter import PostFilter, Unschedulable
from .cycle.pre_filter import (
    ConflictCheckDue,
    CycleState,
    Deferring,
    GettingReady,
    NotTried,
    PreFilterResult,
    Stolen,
    Unsettled,
    WriteUnderWay,
    is_alone,
    pre_filter,
)
from .cycle.result import NoPlace, Plan, PostFilterResult
from .cycle.select_host import total
from .cycle.snapshot import ANY_DRIVER, Snapshot
from .cycle.volume_wait import VolumesFailed, VolumesPending
from .nodes import STRATEGIES, Nodes
from .scoring.strategies.every_strategy import ANNOTATION as PLACEMENT_STRATEGY_ANNOTATION
from .scoring.strategies.every_strategy import PLACEMENT_STRATEGIES

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
    "settled",
    "total",
]
