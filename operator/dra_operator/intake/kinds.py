"""The kinds that the operator watches, and the struct each is decoded into."""

from __future__ import annotations

from typing import Final

from dra_api.api_resources import DEVICE_TAINT_RULES, RESOURCE_CLAIM_TEMPLATES, RESOURCE_POOL_STATUS_REQUESTS

from dra_operator.allocator import Features
from dra_operator.cluster import ClaimTemplate

from .kind_table import OF_STORAGE, TABLE, Kinds

WATCHED: Final[Kinds] = {**TABLE, RESOURCE_CLAIM_TEMPLATES: ClaimTemplate}
REQUIRED: Final = frozenset(WATCHED) - {DEVICE_TAINT_RULES, RESOURCE_POOL_STATUS_REQUESTS, *OF_STORAGE}


def watched_kinds(features: Features) -> Kinds:
    """Those that matter with these gates: some kinds have a gate of their own."""
    is_on = {
        DEVICE_TAINT_RULES: features.taint_rules and features.device_taints,
        RESOURCE_POOL_STATUS_REQUESTS: features.pool_status,
    }
    return {resource: kind for resource, kind in WATCHED.items() if is_on.get(resource, True)}
