"""Binds a pod to a node: POST to ``pods/<name>/binding``, or to ``bindings``, the older way."""

from __future__ import annotations

import orjson
from aiohttp import web
from dra_api.releases.release import Release

from dra_devcluster.apiserver.errors import Json, bad_request, conflict, invalid, success
from dra_devcluster.apiserver.faults import required, unsupported
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.storage.store import Stored
from dra_devcluster.apiserver.verbs.checks import check_preconditions
from dra_devcluster.apiserver.verbs.read import get
from dra_devcluster.apiserver.verbs.write import store_changed
from dra_devcluster.apiserver.wire.bodies import respond
from dra_devcluster.clock import now

from .call import Call

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
