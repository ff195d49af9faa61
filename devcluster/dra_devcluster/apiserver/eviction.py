"""``pods/<name>/eviction``: a deletion that respects disruption budgets."""

from __future__ import annotations

import math
from typing import Any

from aiohttp import web

from .call import Call
from .delete import DeleteOptions, delete
from .errors import Json, not_allowed, success, too_many_requests
from .metadata import dig
from .read import get
from .registry import Registry
from .store import Stored
from .write import check_fields

_FINISHED = ("Succeeded", "Failed")


async def evict(call: Call) -> web.StreamResponse:
    """Delete the pod, or answer 429 when a PodDisruptionBudget forbids it now."""
    if call.request.method != "POST":
        raise not_allowed()
    body = await call.read_object()
    schema = call.registry.structure.schema("policy", "v1", "Eviction")
    if schema is not None:
        check_fields(schema, body, call.query.get("fieldValidation", ""), "Eviction", call.write)
    options = body.get("deleteOptions") or {}
    call.write.dry_run |= bool(options.get("dryRun"))
    stored = get(call.registry, call.resource, call.target.namespace, call.target.name)
    pod = stored.decode()
    if dig(pod, "status.phase") not in (*_FINISHED, "Pending") and not stored.finalizing:
        _check_budgets(call.registry, pod)
    call.write.subresource = ""
    delete(call.write, stored, DeleteOptions.parse(options, {}))
    return web.json_response(success(code=201), status=201)


def _check_budgets(registry: Registry, pod: Json) -> None:
    """Raises a 429 when the eviction would leave fewer healthy pods than a budget wants."""
    namespace = pod["metadata"]["namespace"]
    for stored in registry.store.collection("policy", "poddisruptionbudgets").all(namespace):
        budget = stored.decode()
        selector = dig(budget, "spec.selector")
        if not selects(selector, pod["metadata"].get("labels") or {}):
            continue
        pods = [
            other
            for other in registry.store.collection("", "pods").all(namespace)
            if selects(selector, other.labels) and not other.finalizing
        ]
        healthy = sum(_is_ready(other) for other in pods)
        wanted = _wanted(budget["spec"], len(pods))
        if healthy - 1 < wanted:
            message = f"The disruption budget {stored.name} needs {wanted} healthy pods and has {healthy} currently"
            cause = {"reason": "DisruptionBudget", "message": message}
            raise too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", causes=[cause])


def _wanted(spec: Json, total: int) -> int:
    if "minAvailable" in spec:
        return _amount(spec["minAvailable"], total)
    return total - _amount(spec.get("maxUnavailable", 1), total)


def _amount(value: Any, total: int) -> int:
    """A number, or a percentage of the pods, rounded up."""
    if isinstance(value, int):
        return value
    try:
        return math.ceil(int(str(value).removesuffix("%")) * total / 100)
    except ValueError:
        return total  # a budget that cannot be read protects all


def _is_ready(stored: Stored) -> bool:
    conditions = dig(stored.decode(), "status.conditions") or ()
    return any(entry.get("type") == "Ready" and entry.get("status") == "True" for entry in conditions)


def selects(selector: Json | None, labels: dict[str, str]) -> bool:
    """Whether a LabelSelector matches; None matches nothing, an empty one everything."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_meets(requirement, labels) for requirement in selector.get("matchExpressions") or ())


def _meets(requirement: Json, labels: dict[str, str]) -> bool:
    key, values = requirement.get("key", ""), requirement.get("values") or ()
    match requirement.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False
