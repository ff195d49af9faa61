"""The operator's cache of the cluster: objects, look-ups, devices in use, and which keys a change concerns."""

from dra_ledger.pools import newest_slices
from dra_ledger.usage import AllocatedDevices, DeviceTaken

from . import evictions
from .bulk import BulkLimits
from .cluster import SCHEDULER_NAME, Cluster, InvariantViolated, check, violations
from .crowds import by_urgency, parts, spread
from .index import any_claim, by_entry, counting_claim, duplicates, is_in_use
from .key import (
    ANOTHER_WRITE,
    BEING_BOUND,
    EVERYTHING,
    FAILED,
    GETTING_READY,
    HINTS_AT_ONCE,
    LEFTOVERS,
    NONE,
    VOLUMES_PENDING,
    WITH_GANG,
    Controller,
    Crowd,
    Hint,
    Key,
    Keys,
    Source,
    TimesFreed,
    WakeConditions,
    Weak,
    Wide,
)
from .loads import StorageView
from .needs import is_unprotected, pod_needs_work
from .store import (
    ClaimTemplate,
    ObjectChange,
    Store,
    UidMemory,
    revision,
    without_bulk,
)

__all__ = [
    "ANOTHER_WRITE",
    "BEING_BOUND",
    "EVERYTHING",
    "FAILED",
    "GETTING_READY",
    "HINTS_AT_ONCE",
    "LEFTOVERS",
    "NONE",
    "SCHEDULER_NAME",
    "VOLUMES_PENDING",
    "WITH_GANG",
    "AllocatedDevices",
    "BulkLimits",
    "ClaimTemplate",
    "Cluster",
    "Controller",
    "Crowd",
    "DeviceTaken",
    "Hint",
    "InvariantViolated",
    "Key",
    "Keys",
    "ObjectChange",
    "Source",
    "StorageView",
    "Store",
    "TimesFreed",
    "UidMemory",
    "WakeConditions",
    "Weak",
    "Wide",
    "any_claim",
    "by_entry",
    "by_urgency",
    "check",
    "counting_claim",
    "duplicates",
    "evictions",
    "is_in_use",
    "is_unprotected",
    "newest_slices",
    "parts",
    "pod_needs_work",
    "revision",
    "spread",
    "violations",
    "without_bulk",
]
