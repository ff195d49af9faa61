"""The cluster's default scheduler: puts a pod on the fitting node that has the fewest pods.

It does not allocate devices: the operator does. A pod with claims has to name the operator as its scheduler, or to be
held back by the operator's scheduling gate until its claims are reserved for it. Any other gets a condition that says
so.
"""

from __future__ import annotations

from collections import Counter

from dra_api.values import now

from dra_devcluster.apiserver.controllers.worker import Worker
from dra_devcluster.apiserver.endpoints.subresources import assign
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.metadata import dig
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.selectors import has_ended, is_ready, selects
from dra_devcluster.apiserver.store import Change, Collection, Key, Stored
from dra_devcluster.apiserver.verbs.write import update


def fits(spec: Json, node: Json) -> bool:
    """Whether a pod of this spec may run on the node: selector, required affinity, taints."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = dig(spec, "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution")
    if required and not selects(required, node):
        return False
    taints = [taint for taint in dig(node, "spec.taints") or () if taint.get("effect") != "PreferNoSchedule"]
    tolerations = spec.get("tolerations") or []
    return all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in taints)


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint.get("key")):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


NAME = "default-scheduler"
NEEDS_DEVICES = (
    "the pod has resource claims, which only the operator can allocate: set spec.schedulerName to dra-scheduler, or "
    "add the scheduling gate dra.kopf.dev/allocate"
)


class DefaultScheduler(Worker[Key]):
    """Looks at a pod when it changes, and at all waiting pods when a node changes."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self._resource = registry.resource("", "v1", "pods")
        self._pods = registry.store.collection("", "pods")
        self._nodes = registry.store.collection("", "nodes")
        self._claims = registry.store.collection("resource.k8s.io", "resourceclaims")
        self._waiting: set[Key] = set()
        for stored in self._pods.all():
            self.add(stored.key)

    def see(self, collection: Collection, change: Change) -> None:
        if collection is self._pods and change.type != "DELETED":
            self.add(change.stored.key)
        elif collection is self._nodes:
            for key in self._waiting:
                self.add(key)

    def handle(self, key: Key) -> None:
        stored = self._pods.get(*key)
        self._waiting.discard(key)
        if stored is None or stored.finalizing or stored.fields["spec.schedulerName"] != NAME:
            return
        pod = stored.decode()
        spec = pod["spec"]
        if spec.get("nodeName") or spec.get("schedulingGates") or has_ended(pod):
            return
        if not self._has_its_claims(pod):
            self._refuse(stored, pod, NEEDS_DEVICES)
            return
        nodes = [node.name for node in self._nodes.all() if takes(node.decode(), spec)]
        if nodes:
            load = Counter(other.fields["spec.nodeName"] for other in self._pods.all())
            assign(self._write(key), stored, pod, min(nodes, key=lambda name: (load[name], name)))
        else:
            self._waiting.add(key)
            self._refuse(stored, pod, f"0/{sum(1 for _ in self._nodes.all())} nodes are available")

    def _has_its_claims(self, pod: Json) -> bool:
        recorded = dig(pod, "status.resourceClaimStatuses") or ()
        made = {entry["name"]: entry.get("resourceClaimName") for entry in recorded}
        for entry in pod["spec"].get("resourceClaims") or ():
            name = entry.get("resourceClaimName") or made.get(entry["name"], "")
            if name is None:
                continue  # recorded as not needed
            claim = self._claims.get(pod["metadata"]["namespace"], name)
            consumers = dig(claim.decode(), "status.reservedFor") or () if claim is not None else ()
            if all(consumer.get("uid") != pod["metadata"]["uid"] for consumer in consumers):
                return False
        return True

    def _refuse(self, stored: Stored, pod: Json, message: str) -> None:
        conditions = pod.setdefault("status", {}).get("conditions") or []
        if any(entry.get("type") == "PodScheduled" and entry.get("message") == message for entry in conditions):
            return
        refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        others = [entry for entry in conditions if entry.get("type") != "PodScheduled"]
        pod["status"]["conditions"] = [*others, {**refused, "lastTransitionTime": now()}]
        update(self._write(stored.key, "status"), stored, pod)

    def _write(self, key: Key, subresource: str = "") -> Write:
        return Write(
            self.registry, self._resource, namespace=key[0], verb="update", subresource=subresource, manager=NAME
        )


def takes(node: Json, spec: Json) -> bool:
    """The node is ready, open for pods, and fits."""
    return is_ready(node) and not dig(node, "spec.unschedulable") and fits(spec, node)
