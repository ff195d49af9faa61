"""Which pods have to end so that one of a higher priority fits: preemption, behind the seam of PostFilter."""

from .budgets import Budget
from .nomination import may_preempt, preempt, proven
from .terms import PreemptionTerms, priority

__all__ = [
    "Budget",
    "PreemptionTerms",
    "may_preempt",
    "preempt",
    "priority",
    "proven",
]
