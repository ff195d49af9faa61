"""Decides which pods have to leave their tainted devices, why, and when (scheduling.md section 10). Pure.

In this package, a section without a page is a section of scheduling.md.
"""

from dra_ledger.taints import rule_selects as selects

from .due import (
    EVICTION_IN_PROGRESS,
    Cause,
    DeviceTaints,
    Eviction,
    RuleCounts,
    TaintOfDevice,
    claim_eviction,
    condition_of,
    eviction_condition,
    evicts,
    may_evict,
    pod_eviction,
)

__all__ = [
    "EVICTION_IN_PROGRESS",
    "Cause",
    "DeviceTaints",
    "Eviction",
    "RuleCounts",
    "TaintOfDevice",
    "claim_eviction",
    "condition_of",
    "eviction_condition",
    "evicts",
    "may_evict",
    "pod_eviction",
    "selects",
]
