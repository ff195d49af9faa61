"""The kinds that the operator watches: all, those that it cannot do without, and those that settings ask for."""

from __future__ import annotations

from typing import Final

from dra_api.meta import (
    DEVICE_TAINT_RULES,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_POOL_STATUS_REQUESTS,
)

from dra_operator.allocator import Features
from dra_operator.cache import ClaimTemplate

from .kind_table import OF_KUEUE, OF_STORAGE, TABLE, Kinds

WATCHED: Final[Kinds] = {**TABLE, **OF_KUEUE, RESOURCE_CLAIM_TEMPLATES: ClaimTemplate}
REQUIRED: Final = frozenset(WATCHED) - {
    DEVICE_TAINT_RULES,
    RESOURCE_POOL_STATUS_REQUESTS,
    POD_DISRUPTION_BUDGETS,
    POD_GROUPS,
    *OF_STORAGE,
    *OF_KUEUE,
}


def watched_kinds(features: Features, *, preemption: bool = False, admission: bool = False) -> Kinds:
    """Those that matter with these gates and settings: some kinds have one of their own."""
    is_on = {
        DEVICE_TAINT_RULES: features.taint_rules and features.device_taints,
        RESOURCE_POOL_STATUS_REQUESTS: features.pool_status,
        POD_DISRUPTION_BUDGETS: preemption,
        POD_GROUPS: features.generic_workload,
        **dict.fromkeys(OF_KUEUE, admission),
    }
    return {resource: kind for resource, kind in WATCHED.items() if is_on.get(resource, True)}
