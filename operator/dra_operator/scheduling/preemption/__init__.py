"""Which pods have to end so that one of a higher priority fits: preemption, behind the seam of PostFilter."""

from .bundles import (
    OVERDUE_SECONDS,
    PREEMPTION_PATIENCE_SECONDS,
    Budget,
    PreemptionTerms,
    leaves_soon,
    priority,
    seconds_left,
)
from .nomination import GangNomination, is_proven, may_preempt, preempt, preempt_for_gang, proven

__all__ = [
    "OVERDUE_SECONDS",
    "PREEMPTION_PATIENCE_SECONDS",
    "Budget",
    "GangNomination",
    "PreemptionTerms",
    "is_proven",
    "leaves_soon",
    "may_preempt",
    "preempt",
    "preempt_for_gang",
    "priority",
    "proven",
    "seconds_left",
]
