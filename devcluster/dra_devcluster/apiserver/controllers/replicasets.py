"""ReplicaSets: keep as many pods as they ask for."""

from __future__ import annotations

from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.storage.pod_state import has_ended, is_ready
from dra_devcluster.apiserver.storage.store import Stored

from .workload import WorkloadController


class ReplicaSetController(WorkloadController):
    """Replaces pods that ended. If there are too many, it deletes those that are not ready first."""

    kind = "ReplicaSet"
    plural = "replicasets"

    def reconcile(self, stored: Stored, obj: Json) -> None:
        wanted = obj["spec"].get("replicas", 1)
        pods = [(pod, pod.decode()) for pod in self.owned_by(stored)]
        alive = [(pod, content) for pod, content in pods if not has_ended(content)]
        for _ in range(wanted - len(alive)):
            self.create_pod(obj, obj["spec"]["template"]["spec"], {})
        surplus = sorted(alive, key=lambda entry: is_ready(entry[1]))[: max(0, len(alive) - wanted)]
        for pod, _ in surplus:
            self.delete(pod)
        ready = sum(is_ready(content) for _, content in alive)
        counts = {"fullyLabeledReplicas": len(alive), "readyReplicas": ready, "availableReplicas": ready}
        status = {"replicas": len(alive), **{key: count for key, count in counts.items() if count}}
        self.set_status(stored, obj, {**status, "observedGeneration": obj["metadata"]["generation"]})
