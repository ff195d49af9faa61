"""Remedies for rules that keep a pod from a node: taint, cordon, node selector, room, rules between pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dra_api.command_line import kubectl, with_command
from dra_api.core import Node, Pod, Toleration
from dra_api.values.quantity import Quantity
from msgspec.structs import replace

from dra_operator.allocator import node_selectors, scheduler_of
from dra_operator.scheduling.rules import (
    CORDONED,
    NODE_SELECTOR,
    POD_AFFINITY,
    POD_ANTI_AFFINITY,
    RESOURCE,
    SPREAD,
    SPREAD_LABEL,
    TAINT,
)
from dra_operator.scheduling.state import (
    NODE_CONDITION,
    UNSCHEDULABLE,
    LoadedNode,
    Obstacle,
    pod_requests,
    tolerations_of,
    untolerated,
)

from .change import Change, Edit
from .pod_changes import amount_of, less_in, spec_change

BYTES: Final = ("memory", "ephemeral-storage", "hugepages-")
"""Resources whose amounts are written in powers of 1024."""


def node_remedies(obstacle: Obstacle, pod: Pod, state: LoadedNode) -> Iterator[Change]:
    """What may remove the obstacle."""
    reason = obstacle.reason
    if reason is CORDONED:
        yield _uncordon(state.node)
    elif reason is TAINT:
        yield from _taint(pod, state)
    elif reason is NODE_SELECTOR:
        yield from _selector(pod, state.node)
    elif reason is RESOURCE:
        yield from _room(obstacle.subject, pod, state)
    elif reason in (SPREAD, SPREAD_LABEL):
        text = "remove spec.topologySpreadConstraints from the pod"
        yield spec_change(pod, text, 4, topology_spread_constraints=None)
    elif reason in (POD_AFFINITY, POD_ANTI_AFFINITY) and pod.spec.affinity is not None:
        field = "pod_affinity" if reason is POD_AFFINITY else "pod_anti_affinity"
        name = "podAffinity" if reason is POD_AFFINITY else "podAntiAffinity"
        affinity = replace(pod.spec.affinity, **{field: None})
        yield spec_change(pod, f"remove spec.affinity.{name} from the pod", 4, affinity=affinity)


def _uncordon(node: Node) -> Change:
    taints = tuple(taint for taint in node.spec.taints or () if taint.key != UNSCHEDULABLE.key)
    after = replace(node, spec=replace(node.spec, unschedulable=False, taints=taints))
    name = node.metadata.name
    text = with_command("uncordon the node", kubectl("uncordon", names=[name]))
    return Change(text, (Edit(Node, name, after),), 2)


def _taint(pod: Pod, state: LoadedNode) -> Iterator[Change]:
    taint = untolerated(state.taints, tolerations_of(pod))
    if taint is None or scheduler_of(taint) is not None:  # the node of another scheduler stays its
        return
    node = state.node
    if taint.key.startswith(NODE_CONDITION):
        left = tuple(each for each in node.spec.taints or () if each.key != taint.key)
        after = replace(node, spec=replace(node.spec, taints=left))
        condition = taint.key.removeprefix(NODE_CONDITION)
        yield Change(f"end the condition {condition} of node {state.name}", (Edit(Node, state.name, after),), 6)
        return
    how = f'operator: Equal, value: "{taint.value}"' if taint.value else "operator: Exists"
    operator = "Equal" if taint.value else "Exists"
    added = Toleration(key=taint.key, operator=operator, value=taint.value, effect=taint.effect)
    text = f"add the toleration {{key: {taint.key}, {how}, effect: {taint.effect}}} to the pod"
    yield spec_change(pod, text, 1, tolerations=(*(pod.spec.tolerations or ()), added))


def _selector(pod: Pod, node: Node) -> Iterator[Change]:
    """Leave out what the node does not have; or, for the node selector, label the node."""
    labels, wanted = node.metadata.labels or {}, pod.spec.node_selector or {}
    missing = {key: value for key, value in wanted.items() if labels.get(key) != value}
    if missing:
        pairs = ", ".join(f"{key}={value}" for key, value in missing.items())
        left = {key: value for key, value in wanted.items() if key not in missing} or None
        yield spec_change(pod, f"remove {pairs} from spec.nodeSelector of the pod", 2, node_selector=left)
        after = replace(node, metadata=replace(node.metadata, labels={**labels, **missing}))
        name = node.metadata.name
        command = kubectl("label", "node", "--overwrite", names=[name], labels=missing)
        yield Change(with_command("label the node", command), (Edit(Node, name, after),), 4)
    affinity = pod.spec.affinity
    of_nodes = affinity.node_affinity if affinity is not None else None
    required = of_nodes.required_during_scheduling_ignored_during_execution if of_nodes is not None else None
    if affinity and of_nodes and required and not missing and not node_selectors.matches(required, node):
        nodes = replace(of_nodes, required_during_scheduling_ignored_during_execution=None)
        field = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        without = replace(affinity, node_affinity=nodes)
        yield spec_change(pod, f"remove {field} from the pod", 2, affinity=without)


def _room(resource: str, pod: Pod, state: LoadedNode) -> Iterator[Change]:
    """Ask for what is left, if one container asks for all that is too much."""
    left = max(0, state.offered.get(resource, 0) - state.used.get(resource, 0))
    excess = pod_requests(pod).get(resource, 0) - left
    if pod.spec.resources is not None or not left:
        return
    for container in pod.spec.containers or ():
        asked = amount_of(container, resource)
        if asked is not None and asked.nanos > excess:
            amount = Quantity.from_nanos(asked.nanos - excess, binary=resource.startswith(BYTES))
            yield less_in(pod, container, resource, amount)
