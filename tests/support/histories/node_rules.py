"""What pods ask of nodes, and a literal reading of it: nothing of the operator is used.

A rule is a word in a pod's name: ``template-3-cpu-low`` is a pod of the kind ``template`` with two rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from dra_kube import NODES, PODS
from fake_api import FakeStore, key_of
from objects import Make, Obj

from .script import OTHER

ZONE: Final = "zone"
"""The label that says which of the zones ``a`` and ``b`` a node is in."""
GATE: Final = "example.com/quota"
TAINT: Final[Obj] = {"key": "maintenance", "effect": "NoSchedule"}
CPU: Final = 4
"""What each node has; a pod with the rule takes three of them."""
PORT: Final = 80
APART: Final[Obj] = {"team": "apart"}


def _in_zone(pod: Obj) -> None:
    pod["spec"]["nodeSelector"] = {ZONE: "a"}


def _out_of_zone(pod: Obj) -> None:
    terms = [{"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": ["a"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod["spec"].setdefault("affinity", {})["nodeAffinity"] = required


def _apart(pod: Obj) -> None:
    pod["metadata"]["labels"] = APART
    term = {"labelSelector": {"matchLabels": APART}, "topologyKey": "kubernetes.io/hostname"}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    pod["spec"].setdefault("affinity", {})["podAntiAffinity"] = required


def _with_port(pod: Obj) -> None:
    port = {"containerPort": PORT, "hostPort": PORT}
    pod["spec"]["containers"].append({**Make.asking("web"), "ports": [port]})


def _with_cpu(pod: Obj) -> None:
    pod["spec"]["containers"].append(Make.asking("busy", cpu=str(CPU - 1)))


def _set(field: str, value: object) -> Callable[[Obj], None]:
    return lambda pod: pod["spec"].update({field: value})


def _held(pod: Obj) -> None:
    pod["spec"].setdefault("schedulingGates", []).append({"name": GATE})


RULES: Final[Mapping[str, Callable[[Obj], None]]] = {
    "high": _set("priority", 10),
    "low": _set("priority", -10),
    "zone": _in_zone,
    "nozone": _out_of_zone,
    "tolerates": _set("tolerations", [{"operator": "Exists"}]),
    "cpu": _with_cpu,
    "port": _with_port,
    "apart": _apart,
    "held": _held,
    "slow": _set("terminationGracePeriodSeconds", 3600),
    "quick": _set("terminationGracePeriodSeconds", 1),
}
"""What a word does to a pod."""
ROOM: Final = frozenset({"cpu", "port", "apart"})
"""Those that other pods on a node can be in the way of."""


def rules_of(pod: Obj) -> frozenset[str]:
    """The words in its name."""
    return frozenset(pod["metadata"]["name"].split("-")[2:])


def is_held(pod: Obj) -> bool:
    """Whether a gate that is not the operator's holds the pod back."""
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or ())


def is_allowed(store: FakeStore, pod: Obj, name: str) -> bool:
    """Whether the pod's rules let it run on this node, beside the pods that are there."""
    node, rules = store[NODES, name], rules_of(pod)
    zone = node["metadata"]["labels"].get(ZONE)
    if ("zone" in rules and zone != "a") or ("nozone" in rules and zone == "a"):
        return False
    is_closed = bool(node["spec"].get("taints")) or is_cordoned(node)
    if is_closed and "tolerates" not in rules:
        return False
    return not any(is_in_the_way(rules, rules_of(other)) for other in running_on(store, name))


def is_cordoned(node: Obj) -> bool:
    """Whether people have closed the node to new pods."""
    return bool(node["spec"].get("unschedulable"))


def is_in_the_way(rules: frozenset[str], others: frozenset[str]) -> bool:
    """Whether pods with these rules cannot be on one node: three of four CPUs, one port, one of those kept apart."""
    return bool(rules & others & ROOM)


def running_on(store: FakeStore, node: str) -> Iterator[Obj]:
    """Pods that have the node and are not over."""
    for pod in store.of(PODS):
        if pod["spec"].get("nodeName") == node and is_running(pod):
            yield pod


def is_running(pod: Obj) -> bool:
    """Whether it has a node, and is not over."""
    return bool(pod["spec"].get("nodeName")) and pod["status"].get("phase") not in ("Succeeded", "Failed")


def collisions(store: FakeStore, pod: Obj) -> Iterator[str]:
    """Pods beside this one for which the node has no room. Those of another scheduler are its own affair."""
    rules, node = rules_of(pod) & ROOM, pod["spec"].get("nodeName")
    if not rules or not is_running(pod) or pod["spec"]["schedulerName"] == OTHER:
        return
    for other in running_on(store, node):
        is_another = other["metadata"]["uid"] != pod["metadata"]["uid"] and other["spec"]["schedulerName"] != OTHER
        if is_another and (both := sorted(rules & rules_of(other))):
            yield f"{node} has no room for both {key_of(pod)} and {key_of(other)} ({', '.join(both)})"
