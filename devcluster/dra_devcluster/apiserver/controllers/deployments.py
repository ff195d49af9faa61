"""Deployments: a ReplicaSet per version of the template; the newest scales up, the older ones scale down to zero.

A rolling update scales the new ReplicaSet up at once and deletes an old pod for each new one that is ready, as in a
cluster with enough room. ``Recreate`` deletes all old pods first. Old ReplicaSets beyond ``revisionHistoryLimit`` are
deleted; pauses and progress deadlines are ignored.
"""

from __future__ import annotations

from copy import deepcopy

from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.storage.metadata import dig
from dra_devcluster.apiserver.storage.store import Stored
from dra_devcluster.apiserver.verbs.write import create, update
from dra_devcluster.clock import now

from .workload import WorkloadController, owner_reference, template_hash

HASH_LABEL = "pod-template-hash"


class DeploymentController(WorkloadController):
    """Makes and scales ReplicaSets; those make the pods."""

    kind = "Deployment"
    plural = "deployments"
    owned = ("apps", "replicasets")

    def reconcile(self, stored: Stored, obj: Json) -> None:
        digest = template_hash(obj["spec"]["template"])
        sets = [(owned, owned.decode()) for owned in self.owned_by(stored)]
        older = [(owned, content) for owned, content in sets if owned.labels.get(HASH_LABEL) != digest]
        current = next((entry for entry in sets if entry[0].labels.get(HASH_LABEL) == digest), None)
        wanted = obj["spec"].get("replicas", 1)
        recreate = dig(obj, "spec.strategy.type") == "Recreate"
        if current is None:
            if not (recreate and any(_count(content, "replicas") for _, content in older)):
                self._create_set(obj, digest, wanted)
        else:
            self._scale(*current, wanted)
        ready = _count(current[1], "readyReplicas") if current else 0
        left = 0 if recreate else max(0, wanted - ready)
        for owned, content in reversed(older):
            keep = min(left, content["spec"].get("replicas", 0))
            left -= keep
            self._scale(owned, content, keep)
        self._forget(obj, older)
        self.set_status(stored, obj, _status(obj, [content for _, content in sets], current[1] if current else None))

    def _create_set(self, obj: Json, digest: str, replicas: int) -> None:
        template = deepcopy(obj["spec"]["template"])
        labels = template.setdefault("metadata", {}).setdefault("labels", {})
        labels[HASH_LABEL] = digest
        selector = deepcopy(obj["spec"]["selector"])
        selector.setdefault("matchLabels", {})[HASH_LABEL] = digest
        meta = obj["metadata"]
        body = {
            "metadata": {
                "name": f"{meta['name']}-{digest}",
                "namespace": meta["namespace"],
                "labels": dict(labels),
                "ownerReferences": [owner_reference(self.resource, obj)],
            },
            "spec": {"replicas": replicas, "selector": selector, "template": template},
        }
        create(self.write(*self.owned, meta["namespace"], "create"), body)

    def _scale(self, owned: Stored, content: Json, replicas: int) -> None:
        if content["spec"].get("replicas") != replicas:
            content["spec"]["replicas"] = replicas
            update(self.write(*self.owned, owned.namespace, "update"), owned, content)

    def _forget(self, obj: Json, older: list[tuple[Stored, Json]]) -> None:
        empty = [
            owned for owned, content in older if not _count(content, "replicas") and not content["spec"]["replicas"]
        ]
        for owned in empty[: max(0, len(empty) - obj["spec"].get("revisionHistoryLimit", 10))]:
            self.delete(owned)


def _count(replica_set: Json, field: str) -> int:
    return int(dig(replica_set, f"status.{field}") or 0)


def _status(obj: Json, sets: list[Json], current: Json | None) -> Json:
    wanted = obj["spec"].get("replicas", 1)
    total = sum(_count(content, "replicas") for content in sets)
    available = sum(_count(content, "availableReplicas") for content in sets)
    updated = _count(current, "replicas") if current else 0
    counts = {
        "replicas": total,
        "updatedReplicas": updated,
        "readyReplicas": sum(_count(content, "readyReplicas") for content in sets),
        "availableReplicas": available,
        "unavailableReplicas": max(0, wanted - available),
    }
    is_complete = updated == total == wanted == (_count(current, "availableReplicas") if current else 0)
    conditions = [
        _condition(obj, "Available", available >= wanted, "MinimumReplicasAvailable", "MinimumReplicasUnavailable"),
        _condition(obj, "Progressing", True, "NewReplicaSetAvailable" if is_complete else "ReplicaSetUpdated", ""),
    ]
    status = {key: count for key, count in counts.items() if count}
    return {**status, "observedGeneration": obj["metadata"]["generation"], "conditions": conditions}


def _condition(obj: Json, kind: str, holds: bool, reason: str, otherwise: str) -> Json:
    """The condition as it is, or with a new time when it has changed."""
    new = {"type": kind, "status": "True" if holds else "False", "reason": reason if holds else otherwise}
    for old in dig(obj, "status.conditions") or ():
        if all(old.get(key) == value for key, value in new.items()):
            return dict(old)
    return {**new, "lastUpdateTime": now(), "lastTransitionTime": now(), "message": f"{kind}: {new['reason']}"}
