"""Workloads that make pods: ReplicaSets, Deployments and DaemonSets.

A ReplicaSet keeps as many pods as it asks for. A Deployment has a ReplicaSet per version of its template; the newest
scales up, the older ones scale down to zero.

A rolling update scales the new ReplicaSet up at once and deletes an old pod for each new one that is ready, as in a
cluster with enough room. ``Recreate`` deletes all old pods first. Old ReplicaSets beyond ``revisionHistoryLimit`` are
deleted; pauses and progress deadlines are ignored.

A DaemonSet has one pod on every node that fits. Each pod is pinned to its node by affinity, and put there by the
scheduler that it names. When the template changes, pods are replaced one after the other, each when all others are
ready. With ``maxSurge`` the new pod of a node comes first. The old pod beside it goes when the new one is ready.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from copy import deepcopy
from typing import NamedTuple

import orjson
from dra_api.values import now

from dra_devcluster.apiserver.controllers import worker
from dra_devcluster.apiserver.controllers.scheduler import fits
from dra_devcluster.apiserver.controllers.worker import Worker
from dra_devcluster.apiserver.errors import Json, StatusError
from dra_devcluster.apiserver.kinds import Write
from dra_devcluster.apiserver.metadata import dig
from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.selectors import has_ended, is_ready
from dra_devcluster.apiserver.store import Change, Collection, Key, Stored
from dra_devcluster.apiserver.structure import Resource
from dra_devcluster.apiserver.verbs.write import DeleteOptions, create, delete, update

MANAGER = "dra-devcluster"
BATCH_PODS = 500
"""Pods that one look at an object makes or deletes. Their changes bring it back, after requests had their turn."""


Owned = tuple[Stored, Json]
"""A dependent, and its content."""


class WorkloadController(Worker[Key]):
    """Works on the objects of one resource: on each when it or a dependent changes."""

    group = "apps"
    kind = ""
    plural = ""
    owned = ("", "pods")

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self.resource = registry.resource(self.group, "v1", self.plural)
        self.objects = registry.collection(self.resource)
        self.dependents = registry.store.collection(*self.owned)
        for stored in self.objects.all():
            self.add(stored.key)

    def see(self, collection: Collection, change: Change) -> None:
        """A change: have the objects that it concerns looked at."""
        if collection is self.objects:
            self.add(change.stored.key)
        elif collection is self.dependents and change.stored.owners:
            owner = controller_of(change.stored.decode())
            if owner.get("kind") == self.kind:
                self.add((change.stored.namespace, owner["name"]))

    def handle(self, key: Key) -> None:
        stored = self.objects.get(*key)
        if stored is not None and not stored.finalizing:
            self.reconcile(stored, stored.decode())

    @abstractmethod
    def reconcile(self, stored: Stored, obj: Json) -> None:
        """Make what exists fit to the object."""

    def owned_by(self, owner: Stored, *, also_in_deletion: bool = False) -> list[Owned]:
        """The dependents that the object controls, oldest first."""
        found = [
            (stored, content)
            for stored in self.dependents.all(owner.namespace)
            if owner.uid in stored.owners
            and (also_in_deletion or not stored.finalizing)
            and controller_of(content := stored.decode()).get("uid") == owner.uid
        ]
        return sorted(found, key=lambda entry: entry[1]["metadata"]["creationTimestamp"])

    def create_pod(self, owner: Json, spec: Json, labels: dict[str, str], more: Json | None = None) -> bool:
        """Create a pod from the template in the owner's spec.

        If it cannot be made, an event reports that, and the owner is looked at again later. ``more`` is further
        metadata. Returns whether the pod was made.
        """
        template = (owner["spec"].get("template") or {}).get("metadata") or {}
        name, namespace = owner["metadata"]["name"], owner["metadata"]["namespace"]
        meta = {
            "generateName": f"{name}-",
            "namespace": namespace,
            "labels": {**(template.get("labels") or {}), **labels},
            "ownerReferences": [owner_reference(self.resource, owner)],
        }
        if annotations := template.get("annotations"):
            meta["annotations"] = annotations  # none at all rather than empty ones, as after any request
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta | (more or {}), "spec": deepcopy(spec)}
        try:
            create(self.write("", "pods", namespace, "create"), body)
        except StatusError as error:
            self.report(owner, "FailedCreate", f"Error creating: {error}")
            self.add_later((namespace, name), worker.RETRY_SECONDS)
            return False
        return True

    def delete(self, stored: Stored) -> None:
        delete(self.write(*self.owned, stored.namespace, "delete"), stored, DeleteOptions(uid=stored.uid))

    def set_status(self, stored: Stored, obj: Json, status: Json) -> None:
        """Write the status if it differs; the object has not changed since ``stored``."""
        if obj.get("status") != status:
            write = self.write(self.group, self.plural, stored.namespace, "update", subresource="status")
            update(write, stored, {**obj, "status": status})

    def write(self, group: str, plural: str, namespace: str, verb: str, *, subresource: str = "") -> Write:
        resource = self.registry.resource(group, "v1", plural)
        return Write(self.registry, resource, namespace=namespace, verb=verb, subresource=subresource, manager=MANAGER)

    def report(self, owner: Json, reason: str, message: str, kind: str = "Warning") -> None:
        """Write an event about an object of this resource; one that says the same is counted."""
        meta, moment = owner["metadata"], now()
        about = {"kind": self.kind, "apiVersion": self.resource.api_version}
        about |= {key: meta[key] for key in ("name", "namespace", "uid")}
        said = hashlib.blake2b(f"{meta['uid']} {reason} {message}".encode(), digest_size=8).hexdigest()
        name = f"{meta['name'][:200]}.{said}"
        event = {
            "metadata": {"name": name, "namespace": meta["namespace"]},
            "involvedObject": about,
            "reason": reason,
            "message": message,
            "type": kind,
            "source": {"component": MANAGER},
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }
        with suppress(StatusError):  # the namespace may be in deletion
            known = self.registry.store.collection("", "events").get(meta["namespace"], name)
            if known is None:
                create(self.write("", "events", meta["namespace"], "create"), event)
            else:
                again = known.decode()
                again |= {"lastTimestamp": moment, "count": again.get("count", 0) + 1}
                update(self.write("", "events", meta["namespace"], "update"), known, again)


def controller_of(obj: Json) -> Json:
    """The owner reference that says ``controller: true``; empty when there is none."""
    owners: list[Json] = obj["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), {})


def owner_reference(resource: Resource, owner: Json) -> Json:
    """The reference by which an object controls what it has made."""
    meta = owner["metadata"]
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def template_hash(template: Json) -> str:
    return hashlib.blake2b(orjson.dumps(template, option=orjson.OPT_SORT_KEYS), digest_size=5).hexdigest()


class ReplicaSetController(WorkloadController):
    """Replaces pods that ended. If there are too many, it deletes those that are not ready first."""

    kind = "ReplicaSet"
    plural = "replicasets"

    def reconcile(self, stored: Stored, obj: Json) -> None:
        wanted = obj["spec"].get("replicas", 1)
        alive = [(pod, content) for pod, content in self.owned_by(stored) if not has_ended(content)]
        for _ in range(min(wanted - len(alive), BATCH_PODS)):
            if not self.create_pod(obj, obj["spec"]["template"]["spec"], {}):
                break  # the others would be refused as well, each with an event
        surplus = sorted(alive, key=lambda entry: is_ready(entry[1]))[: max(0, len(alive) - wanted)]
        for pod, _ in surplus[:BATCH_PODS]:
            self.delete(pod)
        ready = sum(is_ready(content) for _, content in alive)
        counts = {"fullyLabeledReplicas": len(alive), "readyReplicas": ready, "availableReplicas": ready}
        status = {"replicas": len(alive), **{key: count for key, count in counts.items() if count}}
        self.set_status(stored, obj, {**status, "observedGeneration": obj["metadata"]["generation"]})


HASH_LABEL = "pod-template-hash"


class DeploymentController(WorkloadController):
    """Makes and scales ReplicaSets; those make the pods."""

    kind = "Deployment"
    plural = "deployments"
    owned = ("apps", "replicasets")

    def reconcile(self, stored: Stored, obj: Json) -> None:
        digest = template_hash(obj["spec"]["template"])
        sets = self.owned_by(stored)
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
        empty = [owned for owned, content in older if not (_count(content, "replicas") or content["spec"]["replicas"])]
        for owned in empty[: max(0, len(empty) - obj["spec"].get("revisionHistoryLimit", 10))]:
            self.delete(owned)
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


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
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


class Daemon(NamedTuple):
    """One pod of a DaemonSet; ``digest`` is that of the template now."""

    stored: Stored
    content: Json
    digest: str

    @property
    def is_outdated(self) -> bool:
        """Whether the pod was made from another template."""
        return self.stored.labels.get(REVISION_LABEL) != self.digest

    @property
    def is_ready(self) -> bool:
        return is_ready(self.content)


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
        # On how many nodes an update may have two pods: a number, or a percentage of the nodes.
        surge = dig(obj, "spec.updateStrategy.rollingUpdate.maxSurge") or 0
        limit = surge if isinstance(surge, int) else math.ceil(int(surge.removesuffix("%")) * len(nodes) / 100)
        there = self._sorted_out((Daemon(*owned, digest) for owned in self.owned_by(stored)), nodes, limit)
        new = sorted(nodes - there.keys())
        if not new:  # else the pods that are made now are not ready yet
            new = self._roll_out(obj, there, limit)
        for name in new:
            if not self.create_pod(obj, pinned(spec, name), {REVISION_LABEL: digest}):
                break  # the others would be refused as well
        ready = sum(any(daemon.is_ready for daemon in daemons) for daemons in there.values())
        status = {
            "desiredNumberScheduled": len(nodes),
            "currentNumberScheduled": len(there),
            "numberMisscheduled": 0,
            "updatedNumberScheduled": sum(not any(one.is_outdated for one in daemons) for daemons in there.values()),
            "numberReady": ready,
            "numberAvailable": ready,
            "numberUnavailable": len(nodes) - ready,
            "observedGeneration": obj["metadata"]["generation"],
        }
        self.set_status(stored, obj, status)

    def _sorted_out(self, daemons: Iterable[Daemon], nodes: set[str], limit: int) -> dict[str, list[Daemon]]:
        """The pods of each node, after those that are too many were deleted.

        A node keeps one pod, or with a surge one outdated and one new, and rather one that is ready.
        """
        there: dict[str, list[Daemon]] = {}
        for daemon in sorted(daemons, key=lambda daemon: not daemon.is_ready):
            name = node_of(daemon.content)
            kept = there.get(name, [])
            is_surplus = any(not limit or other.is_outdated == daemon.is_outdated for other in kept)
            if name not in nodes or is_surplus or has_ended(daemon.content):
                self.delete(daemon.stored)
            else:
                there[name] = [*kept, daemon]
        return there

    def _roll_out(self, obj: Json, there: dict[str, list[Daemon]], limit: int) -> list[str]:
        """Delete what an update replaces; returns the nodes that get a new pod beside an outdated one."""
        if dig(obj, "spec.updateStrategy.type") == "OnDelete":
            return []
        if limit:
            return self._surge_on(there, limit)
        daemons = [daemon for found in there.values() for daemon in found]
        all_ready = all(daemon.is_ready for daemon in daemons)
        for daemon in daemons:
            # A pod that is not ready can be replaced without harm.
            if daemon.is_outdated and (all_ready or not daemon.is_ready):
                self.delete(daemon.stored)
                break
        return []

    def _surge_on(self, there: dict[str, list[Daemon]], limit: int) -> list[str]:
        """Nodes that get a new pod: those whose outdated pod is not ready, and as many others as the surge allows."""
        urgent: list[str] = []
        waiting: list[str] = []
        for name, daemons in there.items():
            outdated = [daemon for daemon in daemons if daemon.is_outdated]
            new = [daemon for daemon in daemons if not daemon.is_outdated]
            if outdated and not new:
                (waiting if outdated[0].is_ready else urgent).append(name)
            elif outdated and new[0].is_ready:
                self.delete(outdated[0].stored)
            elif outdated:
                limit -= 1
        return urgent + waiting[: max(0, limit)]


def pinned(spec: Json, node: str) -> Json:
    """The spec for that node only. The node replaces other required terms, which were checked before."""
    affinity = deepcopy(spec.get("affinity") or {})
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity.setdefault("nodeAffinity", {})[_REQUIRED] = {"nodeSelectorTerms": [term]}
    return {**spec, "affinity": affinity}


def node_of(pod: Json) -> str:
    """The node that the pod is on, or is pinned to."""
    if placed := pod["spec"].get("nodeName"):
        return str(placed)
    terms = dig(pod, f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms") or ()
    return next((str(field["values"][0]) for term in terms for field in term.get("matchFields") or ()), "")
