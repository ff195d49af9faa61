"""Which node a pod goes to: filters, devices, score, and the explanation when there is none. Pure.

Two rooms have faces of their own: ``state`` (pods and nodes before anything is asked of them) and ``rules`` (reasons).
"""

from .claims.binding_conditions import (
    BINDING_TIMEOUT_SECONDS,
    ClaimReadiness,
    Readiness,
    age_of_allocation,
    claim_readiness,
)
from .claims.demand import Demand
from .claims.extended_resources import ExtendedClaim, ExtendedResources
from .claims.usable import CLAIM_DELETED, CLAIM_UNMADE, PodClaim
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
from .gang.domains import SameValues
from .gang.joint_plan import JointPlan, joint_plan
from .nodes import STRATEGIES, Nodes
from .preemption.budgets import Budget
from .preemption.preempt import may_preempt, preempt, proven
from .preemption.terms import PreemptionTerms, priority
from .rules.queueing_hints import ANY_CHANGE, ClusterEvent, Hint
from .rules.volume_binding import Bindings
from .rules.volumes import NO_VOLUMES, VolumeWait, volumes_of
from .scoring.strategies.every_strategy import ANNOTATION as PLACEMENT_STRATEGY_ANNOTATION
from .scoring.strategies.every_strategy import PLACEMENT_STRATEGIES

__all__ = [
    "ANY_CHANGE",
    "ANY_DRIVER",
    "BINDING_TIMEOUT_SECONDS",
    "CLAIM_DELETED",
    "CLAIM_UNMADE",
    "NO_VOLUMES",
    "PLACEMENT_STRATEGIES",
    "PLACEMENT_STRATEGY_ANNOTATION",
    "STRATEGIES",
    "Bindings",
    "Budget",
    "ClaimReadiness",
    "ClusterEvent",
    "ConflictCheckDue",
    "CycleState",
    "Deferring",
    "Demand",
    "Elapsed",
    "ExtendedClaim",
    "ExtendedResources",
    "Faulty",
    "Fits",
    "GettingReady",
    "Hint",
    "JointPlan",
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
    "PodClaim",
    "PodFilter",
    "PostFilter",
    "PostFilterResult",
    "PreFilterResult",
    "PreemptionTerms",
    "Readiness",
    "SameValues",
    "Snapshot",
    "Stolen",
    "Undecided",
    "Unschedulable",
    "Unsettled",
    "VolumeWait",
    "VolumesFailed",
    "VolumesPending",
    "WriteUnderWay",
    "age_of_allocation",
    "claim_readiness",
    "counted",
    "decided",
    "is_alone",
    "joint_plan",
    "may_preempt",
    "plan",
    "pre_filter",
    "preempt",
    "priority",
    "proven",
    "settled",
    "total",
    "volumes_of",
]
