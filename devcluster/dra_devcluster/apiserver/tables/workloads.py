"""The lines of workloads."""

from datetime import datetime
from typing import Any

from .parts import Json, created, joined, label_text, name, selector_text, spec_of, status_of


def _template(obj: Json) -> tuple[str, str]:
    containers = ((spec_of(obj).get("template") or {}).get("spec") or {}).get("containers") or []
    return joined(c.get("name", "") for c in containers), joined(c.get("image", "") for c in containers)


def deployment_cells(obj: Json, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    ready = f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 1)}"
    updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    return [
        name(obj),
        ready,
        updated,
        available,
        created(obj, now),
        *_template(obj),
        selector_text(spec.get("selector")),
    ]


def replica_set_cells(obj: Json, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    counts = [spec.get("replicas", 1), status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [name(obj), *counts, created(obj, now), *_template(obj), selector_text(spec.get("selector"))]


def stateful_set_cells(obj: Json, now: datetime) -> list[Any]:
    ready = f"{status_of(obj).get('readyReplicas', 0)}/{spec_of(obj).get('replicas', 1)}"
    return [name(obj), ready, created(obj, now), *_template(obj)]


def daemon_set_cells(obj: Json, now: datetime) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    keys = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    counts = [status.get(key, 0) for key in keys]
    node_selector = ((spec.get("template") or {}).get("spec") or {}).get("nodeSelector")
    tail = [created(obj, now), *_template(obj), selector_text(spec.get("selector"))]
    return [name(obj), *counts, label_text(node_selector), *tail]


def disruption_budget_cells(obj: Json, now: datetime) -> list[Any]:
    spec = spec_of(obj)
    bounds = [str(spec.get(key, "N/A")) for key in ("minAvailable", "maxUnavailable")]
    return [name(obj), *bounds, status_of(obj).get("disruptionsAllowed", 0), created(obj, now)]
