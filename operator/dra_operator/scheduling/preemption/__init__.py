"""Which pods have to end so that one of a higher priority fits: preemption, behind the seam of PostFilter."""

from .budgets import Budget
from .gang_victims import GangNomination, is_proven, preempt_for_gang
from .nomination import may_preempt, preempt, proven
from .terms import PreemptionTerms, priority

__all__ = [
    "Budget",
    "GangNomination",
    "PreemptionTerms",
    "is_proven",
    "may_preempt",
    "preempt",
    "preempt_for_gang",
    "priority",
    "proven",
]
