"""DaemonSets: one pod on every node that fits.

The pods get their node from this controller, as they did before Kubernetes 1.12, since there need not be a scheduler.
When the template changes, pods are replaced one after the other, each when all others are ready.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.label_selector import meets
from dra_devcluster.apiserver.metadata import dig
from dra_devcluster.apiserver.pod_state import has_ended, is_ready
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.store import Change, Collection, Stored

from .workload import WorkloadController, template_hash

REVISION_LABEL = "controller-revision-hash"
_CONDITIONS = ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
_EVERYWHERE: list[Json] = [
    {
        "key": f"node.kubernetes.io/{name}",
        "operator": "Exists",
        "effect": "NoExecute" if name in ("not-ready", "unreachable") else "NoSchedule",
    }
    for name in _CONDITIONS
]


class DaemonSetController(WorkloadController):
    """Looks at all DaemonSets again when a node comes, goes or is labelled."""

    kind = "DaemonSet"
    plural = "daemonsets"

    def __init__(self, registry: Registry) -> None:
        self._nodes = registry.store.collection("", "nodes")
        super().__init__(registry)

    def see(self, collection: Collection, change: Change) -> None:
        if collection is self._nodes:
            for stored in self.objects.all():
                self.add(stored.key)
        else:
            super().see(collection, change)

    def reconcile(self, stored: Stored, obj: Json) -> None:
        template = obj["spec"]["template"]
        digest = template_hash(template)
        spec = deepcopy(template["spec"])
        spec["tolerations"] = [*(spec.get("tolerations") or []), *_EVERYWHERE]
        nodes = {node.name for node in self._nodes.all() if fits(spec, node.decode())}
        there: dict[str, tuple[Stored, Json]] = {}
        for pod in self.owned_by(stored):
            content = pod.decode()
            name = content["spec"].get("nodeName", "")
            if name not in nodes or name in there or has_ended(content):
                self.delete(pod)
            else:
                there[name] = (pod, content)
        for name in sorted(nodes - there.keys()):
            self.create_pod(obj, {**spec, "nodeName": name}, {REVISION_LABEL: digest})
        if nodes == there.keys():  # else the pods just made are not ready yet
            self._replace_outdated(obj, list(there.values()), digest)
        ready = sum(is_ready(content) for _, content in there.values())
        updated = sum(pod.labels.get(REVISION_LABEL) == digest for pod, _ in there.values())
        status = {
            "desiredNumberScheduled": len(nodes),
            "currentNumberScheduled": len(there),
            "numberMisscheduled": 0,
            "updatedNumberScheduled": updated,
            "numberReady": ready,
            "numberAvailable": ready,
            "numberUnavailable": len(nodes) - ready,
            "observedGeneration": obj["metadata"]["generation"],
        }
        self.set_status(stored, obj, status)

    def _replace_outdated(self, obj: Json, pods: list[tuple[Stored, Json]], digest: str) -> None:
        if dig(obj, "spec.updateStrategy.type") == "OnDelete":
            return
        outdated = [(pod, content) for pod, content in pods if pod.labels.get(REVISION_LABEL) != digest]
        waiting = [content for _, content in pods if not is_ready(content)]
        for pod, content in outdated:
            # One that is not ready anyhow can go without making anything worse.
            if not waiting or content in waiting:
                self.delete(pod)
                return


def fits(spec: Json, node: Json) -> bool:
    """Whether a pod of this spec may run on the node: selector, required affinity, taints."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = dig(spec, "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution")
    fields = {"metadata.name": node["metadata"]["name"]}
    if required and not any(_is_met(term, labels, fields) for term in required.get("nodeSelectorTerms") or ()):
        return False
    taints = [taint for taint in dig(node, "spec.taints") or () if taint.get("effect") != "PreferNoSchedule"]
    tolerations = spec.get("tolerations") or []
    return all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in taints)


def _is_met(term: Json, labels: dict[str, Any], fields: dict[str, str]) -> bool:
    expressions, by_field = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not by_field:
        return False
    return all(meets(item, labels) for item in expressions) and all(meets(item, fields) for item in by_field)


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("key") not in (None, "", taint.get("key")):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
