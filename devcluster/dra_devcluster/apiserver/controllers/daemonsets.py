"""DaemonSets: one pod on every node that fits.

Each pod is pinned to its node by affinity, and put there by the scheduler that it names.
When the template changes, pods are replaced one after the other, each when all others are ready. With ``maxSurge``
the new pod of a node comes first, beside the old one, which goes when the new one is ready.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import deepcopy
from typing import NamedTuple

from dra_devcluster.apiserver.controllers.scheduler import fits
from dra_devcluster.apiserver.errors import Json
from dra_devcluster.apiserver.served.registry import Registry
from dra_devcluster.apiserver.storage.metadata import dig
from dra_devcluster.apiserver.storage.selectors import has_ended, is_ready
from dra_devcluster.apiserver.storage.store import Change, Collection, Stored

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
        """Whether the pod serves."""
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
        limit = _surge(obj, len(nodes))
        there = self._sorted_out((Daemon(pod, pod.decode(), digest) for pod in self.owned_by(stored)), nodes, limit)
        new = sorted(nodes - there.keys())
        if not new:  # else the pods that are made now are not ready yet
            new = self._roll_out(obj, there, limit)
        for name in new:
            self.create_pod(obj, pinned(spec, name), {REVISION_LABEL: digest})
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


def _surge(obj: Json, nodes: int) -> int:
    """On how many nodes an update may have two pods: a number, or a percentage of the nodes."""
    wish = dig(obj, "spec.updateStrategy.rollingUpdate.maxSurge") or 0
    return wish if isinstance(wish, int) else math.ceil(int(wish.removesuffix("%")) * nodes / 100)


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
