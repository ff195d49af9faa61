"""DaemonSets: one pod on every node that fits.

Each pod is pinned to its node by affinity, and put there by the scheduler that it names.
When the template changes, pods are replaced one after the other, each when all others are ready.
"""

from __future__ import annotations

from copy import deepcopy

from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.metadata import dig
from dra_devcluster.apiserver.pod_state import has_ended, is_ready
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.store import Change, Collection, Stored

from .fitting import fits
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
            name = node_of(content)
            if name not in nodes or name in there or has_ended(content):
                self.delete(pod)
            else:
                there[name] = (pod, content)
        for name in sorted(nodes - there.keys()):
            self.create_pod(obj, pinned(spec, name), {REVISION_LABEL: digest})
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
            # A pod that is not ready can be replaced without harm.
            if not waiting or content in waiting:
                self.delete(pod)
                return


def pinned(spec: Json, node: str) -> Json:
    """The spec for that node only. The node replaces other required terms, which were checked before."""
    affinity = deepcopy(spec.get("affinity") or {})
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"nodeSelectorTerms": [term]}
    affinity.setdefault("nodeAffinity", {})["requiredDuringSchedulingIgnoredDuringExecution"] = required
    return {**spec, "affinity": affinity}


def node_of(pod: Json) -> str:
    """The node that the pod is on, or is pinned to."""
    if placed := pod["spec"].get("nodeName"):
        return str(placed)
    required = dig(pod, "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            return str(field["values"][0])
    return ""
