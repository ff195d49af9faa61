"""What the page shows of one read of the cluster. Pure, apart from the lock of those who ask: see ``feed``."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import msgspec
from dra_api.codec import to_dict
from dra_api.core import Node, Pod
from dra_api.resource import ResourceClaim
from dra_api.values import format_time

from dra_operator.kubectl.facts import DeviceFact, age, devices_of
from dra_operator.kubectl.observed import Observed, notes_on
from dra_operator.kubectl.pipeline import Pausing, pipeline
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.topology import Topology
from dra_operator.kubectl.why.answer import hidden, is_waiting, waiting_groups, why_within_limits
from dra_operator.kubectl.why.pods import ready_state, why_claim, why_pod
from dra_operator.scheduling.state import is_immediate

JSON = dict[str, Any]
SEVERAL = "(several nodes)"
"""Where devices are that name no node."""


class View:
    """Only ``overview`` is ready when this is made; the rest is worked out when it is asked for."""

    def __init__(self, seen: Observed, settings: Settings, *, live: bool) -> None:
        self._seen = seen
        self._made = pipeline(seen, settings)
        self._facts = devices_of(self._made)
        shown = self._overview()
        self.revision = hashlib.sha256(msgspec.json.encode(shown)).hexdigest()[:16]
        """Equal for reads that show the same."""
        about = {"revision": self.revision, "taken": format_time(seen.taken), "live": live}
        self.overview: JSON = {**about, **shown}

    @property
    def pausing(self) -> Pausing:
        """Called while ``why`` and ``waiting`` are worked out."""
        return self._made.pausing

    def device(self, id_: str) -> JSON | None:
        """All facts of a device."""
        fact = next((one for one in self._facts if one.id == id_), None)
        if fact is None:
            return None
        holders = [{**to_dict(one), "age": age(one.since, self._seen.taken)} for one in fact.holders]
        return {**to_dict(fact), "id": fact.id, "holders": holders}

    def topology(self, node: str) -> JSON | None:
        """The tree of a node."""
        if not any(fact.node == node for fact in self._facts):
            return None
        found: JSON = to_dict(self._topology.of(node))
        return found

    @cached_property
    def _topology(self) -> Topology:
        return Topology(self._made, self._facts)

    @cached_property
    def waiting(self) -> JSON:
        """Pods without a node that ask for devices, and claims that wait for theirs, by what keeps them."""
        if hidden(self._seen):
            groups = list(self._by_condition())
        else:
            groups = [
                {"reason": group.reason, "clear": group.is_clear, "kind": "pod", "keys": list(group.pods)}
                for group in waiting_groups(self._made, self._seen.every(Pod))
            ]
            groups += self._immediate_claims()
        return {"revision": self.revision, "groups": groups}

    def why(self, kind: str, key: str) -> JSON | None:
        """Lines and proven fixes, as ``kubectl dra why`` has them."""
        found = self._seen.one(Pod, key) if kind == "pod" else self._seen.one(ResourceClaim, key)
        if found is None:
            return None
        if hidden(self._seen):
            report = why_within_limits(self._seen, found)
        else:
            report = why_pod(self._made, found) if isinstance(found, Pod) else why_claim(self._made, found)
        fixes = [{"node": fix.node, "text": fix.text} for fix in report.fixes]
        return {"kind": kind, "key": key, "clear": report.is_clear, "lines": report.lines, "fixes": fixes}

    def _overview(self) -> JSON:
        states = Counter(fact.state for fact in self._facts)
        by_node: dict[str, list[DeviceFact]] = defaultdict(list)
        for fact in self._facts:
            by_node[fact.node or SEVERAL].append(fact)
        nodes = {node.metadata.name: _condition(node) for node in self._seen.every(Node)}
        return {
            "totals": {"all": len(self._facts), **states},
            "waiting": sum(1 for _ in self._waiting_pods()),
            "nodes": [
                {"name": name, "condition": nodes.get(name, ""), "devices": list(map(_tile, by_node[name]))}
                for name in sorted(by_node)
            ],
            "empty": sum(name not in by_node for name in nodes),
            "notes": notes_on(self._seen),
        }

    def _waiting_pods(self) -> Iterator[Pod]:
        for pod in self._seen.every(Pod):
            if is_waiting(pod) and (pod.spec.resource_claims or self._made.cluster.classes_serving(pod)):
                yield pod

    def _by_condition(self) -> Iterator[JSON]:
        """For viewers who may not read what decides: in the words of the scheduler."""
        found: dict[str, list[str]] = defaultdict(list)
        for pod in self._waiting_pods():
            said = [one.message for one in pod.status.conditions or () if one.type == "PodScheduled" and one.message]
            found[said[0] if said else "no scheduler has said anything yet"].append(pod.key)
        for reason, keys in found.items():
            yield {"reason": reason, "clear": False, "kind": "pod", "keys": keys}

    def _immediate_claims(self) -> Iterator[JSON]:
        """Claims that are to be allocated at once, without a pod."""
        for claim in self._seen.every(ResourceClaim):
            if is_immediate(claim) and claim.status.allocation is None and not list(self._made.cluster.awaiting(claim)):
                reason = "is to be allocated at once, and has no devices yet"
                yield {"reason": reason, "clear": False, "kind": "claim", "keys": [claim.key]}


def _condition(node: Node) -> str:
    """What is wrong with a node, in a word or two."""
    if ready_state(node) != "True":
        return "not ready"
    return "cordoned" if node.spec.unschedulable else ""


def _tile(fact: DeviceFact) -> list[str]:
    return [fact.id, fact.state, ", ".join(holder.claim for holder in fact.holders)]
