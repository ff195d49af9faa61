"""Pods, nodes in zones and rules between pods, as short as tests of such rules want them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra_api.codec import convert
from dra_api.core import Pod
from dra_operator.scheduling import Nodes, Plan
from placement_lab import allocator, decide, node

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
HOST, ZONE = "kubernetes.io/hostname", "zone"
WEB = {"matchLabels": {"app": "web"}}
DB = {"matchLabels": {"app": "db"}}


def pod(
    name: str,
    labels: dict[str, str] | None = None,
    *,
    on: str = "",
    namespace: str = "ns",
    leaving: bool = False,
    status: object = None,
    **spec: Any,
) -> Pod:
    """A pod; ``on`` is its node, ``leaving`` says that it is being deleted."""
    meta: dict[str, Any] = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels or {}}
    if leaving:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return convert(Pod, {"metadata": meta, "spec": {"nodeName": on, **spec}, "status": status or {}})


def term(selector: dict[str, Any] | None = None, key: str = ZONE, **more: Any) -> dict[str, Any]:
    """An affinity term."""
    return {"topologyKey": key, **({} if selector is None else {"labelSelector": selector}), **more}


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    """``spec.affinity`` of a pod that must be near others."""
    return {"podAffinity": {REQUIRED: list(terms)}}


def away(*terms: dict[str, Any]) -> dict[str, Any]:
    """``spec.affinity`` of a pod that must not be near others."""
    return {"podAntiAffinity": {REQUIRED: list(terms)}}


def spread(selector: dict[str, Any] | None = None, key: str = ZONE, skew: int = 1, **more: Any) -> dict[str, Any]:
    """A topology spread constraint that must be kept."""
    selected = {} if selector is None else {"labelSelector": selector}
    return {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", **selected, **more}


def expression(operator: str, *values: str, key: str = "app") -> dict[str, Any]:
    """A selector of one requirement."""
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def three_nodes(*pods_by_node: Pod) -> Nodes:
    """``a1`` and ``a2`` in zone a, ``b1`` in zone b; the names say which is tried first."""
    return with_residents([(name, {HOST: name, ZONE: name[0]}) for name in ("a1", "a2", "b1")], pods_by_node)


def with_residents(nodes: Sequence[tuple[str, dict[str, str]]], pods_by_node: Sequence[Pod]) -> Nodes:
    """Nodes with these labels, and pods on them."""
    made = Nodes([node(name, labels=labels) for name, labels in nodes])
    for it in pods_by_node:
        made.pods_by_node.put(it, it.spec.node_name)
    return made


def goes_to(comes: Pod, nodes: Nodes) -> str | None:
    """The node that the pod gets."""
    answer = decide(comes, [], nodes, allocator())
    return answer.node if isinstance(answer, Plan) else None
