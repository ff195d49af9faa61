"""The lines of resource.k8s.io: claims, slices, taint rules."""

from datetime import datetime
from typing import Any

from .ages import age
from .parts import NONE, Json, created, name, spec_of, status_of


def claim_cells(claim: Json, now: datetime) -> list[Any]:
    status, going = status_of(claim), bool(claim["metadata"].get("deletionTimestamp"))
    states = ["deleted"] if going else []
    if status.get("allocation") is not None:
        states += ["allocated"] + (["reserved"] if status.get("reservedFor") else [])
    elif not going:
        states.append("pending")
    return [name(claim), ",".join(states), created(claim, now)]


def slice_cells(item: Json, now: datetime) -> list[Any]:
    spec = spec_of(item)
    pool = (spec.get("pool") or {}).get("name", "")
    return [name(item), spec.get("nodeName", ""), spec.get("driver", ""), pool, created(item, now)]


def taint_rule_cells(rule: Json, now: datetime) -> list[Any]:
    taint = spec_of(rule).get("taint") or {}
    added = age(taint.get("timeAdded"), now)
    return [
        name(rule),
        taint.get("key", ""),
        taint.get("value", ""),
        taint.get("effect", ""),
        added,
        created(rule, now),
    ]


def pool_status_cells(request: Json, now: datetime) -> list[Any]:
    """Sums over the pools that the answer lists; nothing before there is one."""
    status = status_of(request)
    pools = status.get("pools") or []
    counts = [sum(pool.get(key) or 0 for pool in pools) for key in _POOL_COUNTS] if pools else ["-"] * 4
    errors = sum(bool(pool.get("validationError")) for pool in pools)
    conditions = {c.get("type"): c for c in status.get("conditions") or [] if c.get("status") == "True"}
    text = "Failed" if "Failed" in conditions else "Complete" if "Complete" in conditions else "Pending"
    finished = conditions.get("Complete") or conditions.get("Failed") or {}
    when = age(finished.get("lastTransitionTime"), now) if finished else NONE
    driver = spec_of(request).get("driver", "")
    return [name(request), driver, *counts, errors, status.get("poolCount", len(pools)), text, when]


_POOL_COUNTS = ("totalDevices", "availableDevices", "allocatedDevices", "unavailableDevices")
