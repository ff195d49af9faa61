"""Sub-resources that act on a pod: binding and eviction.

Binds a pod to a node: POST to ``pods/<name>/binding``, or to ``bindings``, the older way.

``pods/<name>/eviction``: a deletion that respects disruption budgets.
"""

from __future__ import annotations

import math
from typing import Any

import orjson
from aiohttp import web
from dra_api.codec import convert
from dra_api.meta import LabelSelector
from dra_api.releases.release import Release
from dra_api.selectors import Selector

from dra_devcluster.apiserver.endpoints.call import Call
from dra_devcluster.apiserver.errors import Json, bad_request, conflict, invalid, success, too_many_requests
from dra_devcluster.apiserver.faults import required, unsupported
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.served.registry import Registry
from dra_devcluster.apiserver.storage.metadata import dig
from dra_devcluster.apiserver.storage.selectors import has_ended, is_ready
from dra_devcluster.apiserver.storage.store import Stored
from dra_devcluster.apiserver.verbs.checks import check_preconditions
from dra_devcluster.apiserver.verbs.delete import DeleteOptions, delete
from dra_devcluster.apiserver.verbs.read import get
from dra_devcluster.apiserver.verbs.write import store_changed
from dra_devcluster.apiserver.wire.bodies import respond
from dra_devcluster.clock import now

_NOMINATION_ENDS_SINCE = Release.V1_35
"""From this release on (ClearingNominatedNodeNameAfterBinding) a binding takes the nominated node out of the status."""


async def bind(call: Call) -> web.StreamResponse:
    """Set ``spec.nodeName`` once. Raises 409 when the pod has a node already."""
    body = await call.read_posted("", "Binding")
    target, meta = body.get("target") or {}, body.get("metadata") or {}
    name = call.target.name or meta.get("name", "")
    if meta.get("name") != name:
        raise bad_request("name in URL does not match name in Binding object")
    faults = []
    if target.get("kind", "") not in ("", "Node"):
        faults.append(unsupported("target.kind", target["kind"], ["Node", "<empty>"]))
    if not target.get("name"):
        faults.append(required("target.name"))
    if faults:
        raise invalid("", "Binding", name, faults)
    call.write.resource = pods = call.registry.resource("", "v1", "pods")
    stored = get(call.registry, pods, call.target.namespace, name)
    pod = stored.decode()
    check_preconditions(call.write, pod, meta.get("uid"), meta.get("resourceVersion"))
    assign(call.write, stored, pod, target["name"], meta.get("annotations"))
    return respond(orjson.dumps(success(code=201)), code=201)


def assign(write: Write, stored: Stored, pod: Json, node: str, annotations: dict[str, str] | None = None) -> None:
    """Bind the pod, as decoded from ``stored``, to the node. Raises 409 if it can no longer be bound."""
    name, spec = stored.name, pod["spec"]
    write.manager = ""  # no manager becomes the owner of the node's name
    if "deletionTimestamp" in pod["metadata"]:
        raise conflict("", "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        raise conflict("", "pods/binding", name, why)
    if spec.get("schedulingGates"):
        raise conflict("", "pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
    spec["nodeName"] = node
    if annotations:
        pod["metadata"].setdefault("annotations", {}).update(annotations)
    status = pod.setdefault("status", {})
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now()}
    others = [entry for entry in status.get("conditions") or () if entry.get("type") != "PodScheduled"]
    status["conditions"] = [*others, scheduled]
    if write.registry.release >= _NOMINATION_ENDS_SINCE:
        status.pop("nominatedNodeName", None)
    store_changed(write, stored, pod)


async def evict(call: Call) -> web.StreamResponse:
    """Delete the pod, or answer 429 when a PodDisruptionBudget forbids it now."""
    body = await call.read_posted("policy", "Eviction")
    if dig(body, "metadata.name") != call.target.name:
        raise bad_request("name in URL does not match name in Eviction object")
    options = DeleteOptions.parse(body.get("deleteOptions") or {})
    call.write.dry_run |= options.dry_run
    stored = get(call.registry, call.resource, call.target.namespace, call.target.name)
    pod = stored.decode()
    if dig(pod, "status.phase") != "Pending" and not has_ended(pod) and not stored.finalizing:
        _check_budgets(call.registry, pod)
    call.write.subresource = ""
    delete(call.write, stored, options)
    return respond(orjson.dumps(success(code=201)), code=201)


def _check_budgets(registry: Registry, pod: Json) -> None:
    """Raises a 429 when the eviction would leave fewer healthy pods than a budget wants."""
    namespace = pod["metadata"]["namespace"]
    for stored in registry.store.collection("policy", "poddisruptionbudgets").all(namespace):
        budget = stored.decode()
        wanted = dig(budget, "spec.selector")
        selector = Selector.of(None if wanted is None else convert(LabelSelector, wanted))
        if not selector.matches(pod["metadata"].get("labels") or {}):
            continue
        pods = [
            other
            for other in registry.store.collection("", "pods").all(namespace)
            if selector.matches(other.labels) and not other.finalizing
        ]
        healthy = sum(is_ready(other.decode()) for other in pods)
        enough = _wanted(budget["spec"], len(pods))
        if healthy - 1 < enough:
            message = f"The disruption budget {stored.name} needs {enough} healthy pods and has {healthy} currently"
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
