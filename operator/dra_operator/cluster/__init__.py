"""The in-memory view of the cluster: objects, look-ups, devices in use, and which keys a change concerns."""

from . import evictions
from .duplicates import counting_claim, duplicates, is_in_use
from .holdings import DeviceTaken, Holdings, InFlight
from .invariants import InvariantViolated, check, violations
from .key import NOTHING, Concern, Key, Keys
from .newest_slices import newest_slices
from .pool_status import incomplete_pools, pool_answer
from .storage import StorageView
from .store import Change, Store, UidMemory, revision
from .template import ClaimTemplate
from .triggers import classes_of
from .view import SCHEDULER_NAME, Cluster
from .wake_conditions import (
    ANOTHER_WRITE,
    BEING_BOUND,
    EVERYTHING,
    FAILED,
    GETTING_READY,
    LEFTOVERS,
    NONE,
    VOLUMES_PENDING,
    WakeConditions,
)

__all__ = [
    "ANOTHER_WRITE",
    "BEING_BOUND",
    "EVERYTHING",
    "FAILED",
    "GETTING_READY",
    "LEFTOVERS",
    "NONE",
    "NOTHING",
    "SCHEDULER_NAME",
    "VOLUMES_PENDING",
    "Change",
    "ClaimTemplate",
    "Cluster",
    "Concern",
    "DeviceTaken",
    "Holdings",
    "InFlight",
    "InvariantViolated",
    "Key",
    "Keys",
    "StorageView",
    "Store",
    "UidMemory",
    "WakeConditions",
    "check",
    "classes_of",
    "counting_claim",
    "duplicates",
    "evictions",
    "incomplete_pools",
    "is_in_use",
    "newest_slices",
    "pool_answer",
    "revision",
    "violations",
]
