"""Remedies for rules that keep a pod from a node: taint, cordon, node selector, room, rules between pods.

A node that is about to go gets none, and one that has yet to come is waited for. Nor are labels written that the
kubelet or a cloud provider writes: they describe the machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from dra_api.command_line import kubectl, with_command
from dra_api.core import Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, Pod, Taint, Toleration
from msgspec.structs import replace

from dra_operator.allocator import node_selectors, scheduler_of
from dra_operator.kubectl.why.changes import (
    Change,
    Effort,
    Patch,
    amount_of,
    containers_of,
    less_in,
    less_in_pod,
    pod_change,
    quantity_of,
)
from dra_operator.kubectl.why.holders import OUT_OF_SERVICE
from dra_operator.kubectl.why.published import likely_meant
from dra_operator.kubectl.why.request_changes import says_broken
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


class Fate(NamedTuple):
    """What taints say of nodes that are not there for long, or not yet."""

    known: Mapping[str, str]
    """In words, by the beginning of the taint's key."""
    words: re.Pattern[str]
    """The same in keys of other tools: ``ebs.csi.aws.com/agent-not-ready``."""
    otherwise: str

    def said_by(self, taint: Taint) -> str:
        """Return what the taint says, or an empty text if it is about something else."""
        if taint.key.startswith(NODE_CONDITION):
            return ""
        said = next((text for start, text in self.known.items() if taint.key.startswith(start)), "")
        return said or (self.otherwise if self.words.search(taint.key) else "")


GOING: Final = Fate(
    {
        "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler is about to delete it",
        "DeletionCandidateOfClusterAutoscaler": "the cluster autoscaler is about to delete it",
        "karpenter.sh/disrupt": "Karpenter is about to delete it",
        "node.cloudprovider.kubernetes.io/shutdown": "its machine is shut down",
        "aws-node-termination-handler/": "its machine is about to be taken away",
        "cloud.google.com/impending-node-termination": "its machine is about to be taken away",
        "kubevirt.io/drain": "it is being drained",
    },
    re.compile(
        r"(?:^|[/\-_.])(?:to-?be-?deleted|deletion|termination|terminating|disrupt\w*|shut-?down|decommission\w*"
        r"|spot-itn)(?:$|[\-_.])",
        re.I,
    ),
    "it is about to go",
)
COMING: Final = Fate(
    {
        "node.cloudprovider.kubernetes.io/uninitialized": "the cloud provider has not initialized it yet",
        "karpenter.sh/unregistered": "Karpenter has not registered it yet",
        "node.cilium.io/agent-not-ready": "its network is not ready yet",
        "startup-taint.cluster-autoscaler.kubernetes.io/": "what it waits for at its start is not ready yet",
        "ignore-taint.cluster-autoscaler.kubernetes.io/": "what it waits for at its start is not ready yet",
    },
    re.compile(
        r"(?:^|[/\-_.])(?:un-?initiali[sz]ed|un-?registered|not-?ready|not-?installed|startup|bootstrap\w*"
        r"|provisioning)(?:$|[\-_.])",
        re.I,
    ),
    "it is not ready for pods yet",
)
CONDITIONS: Final = {
    "not-ready": "is not ready: look at its kubelet",
    "unreachable": "is unreachable: bring the machine or its network back, or delete the node",
    "memory-pressure": "is short of memory: free some",
    "disk-pressure": "is short of disk space: free some",
    "pid-pressure": "is short of process IDs: free some",
    "network-unavailable": "has no network: look at its network plugin",
}
"""Taints of Kubernetes that go when a condition of the node does, without their prefix."""
MACHINE_LABELS: Final = frozenset(
    {
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "node.kubernetes.io/instance-type",
        "node.kubernetes.io/windows-build",
    }
)
MACHINE_LABEL_DOMAINS: Final = (
    "topology.kubernetes.io/",
    "failure-domain.beta.kubernetes.io/",
    "beta.kubernetes.io/",
    "topology.ebs.csi.aws.com/",
    "topology.gke.io/",
    "topology.disk.csi.azure.com/",
    "karpenter.sh/",
    "karpenter.k8s.aws/",
    "eks.amazonaws.com/",
    "cloud.google.com/",
    "kubernetes.azure.com/",
    "feature.node.kubernetes.io/",
    "nvidia.com/",
)
"""Labels that a kubelet, a cloud provider or a discovery daemon writes, and writes again."""


def node_remedies(obstacle: Obstacle, pod: Pod, state: LoadedNode) -> Iterator[Change]:
    """What may remove the obstacle."""
    reason = obstacle.reason
    if leaving_or_coming(state.node):
        yield from _coming(state.node)
        return
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
        yield pod_change(pod, text, 4, lambda _: {"topology_spread_constraints": None})
    elif reason in (POD_AFFINITY, POD_ANTI_AFFINITY) and pod.spec.affinity is not None:
        field = "pod_affinity" if reason is POD_AFFINITY else "pod_anti_affinity"
        name = "podAffinity" if reason is POD_AFFINITY else "podAntiAffinity"
        yield pod_change(pod, f"remove spec.affinity.{name} from the pod", 4, lambda now: _affinity(now, field, None))


def leaving_or_coming(node: Node) -> str:
    """Return why a node does not count, because it is about to go or not there yet, or an empty text."""
    if node.metadata.deletion_timestamp is not None:
        kept = ", ".join(node.metadata.finalizers or ()) or "no finalizer"
        return f"it is being deleted, so it does not count (kept by {kept})"
    for taint in node.spec.taints or ():
        if going := GOING.said_by(taint):
            return f"{going}, so it does not count (taint {taint.key})"
        if coming := COMING.said_by(taint):
            return f"{coming}: wait (taint {taint.key})"
    return ""


def is_leaving(node: Node) -> bool:
    """Return whether the node is about to go, so that no change for it is worth its while."""
    return node.metadata.deletion_timestamp is not None or any(map(GOING.said_by, node.spec.taints or ()))


def _coming(node: Node) -> Iterator[Change]:
    """Wait for a node that has yet to come; for one that is about to go there is nothing to do."""
    coming = [taint for taint in node.spec.taints or () if COMING.said_by(taint)]
    if coming and not is_leaving(node):
        name, taint = node.metadata.name, coming[0]
        text = f"wait until the taint {taint.key} goes: node {name} is not there yet, {COMING.said_by(taint)}"
        patch = _without_taints(name, lambda it: bool(COMING.said_by(it)))
        yield Change(text, (patch,), Effort.WAIT_FOR_REPAIR)


def is_of_machine(label: str) -> bool:
    """Whether a label is written by the kubelet, a cloud provider or a discovery daemon."""
    return label in MACHINE_LABELS or label.startswith(MACHINE_LABEL_DOMAINS)


def _affinity(pod: Pod, field: str, value: Any) -> dict[str, Any]:
    affinity = pod.spec.affinity
    return {"affinity": replace(affinity, **{field: value}) if affinity is not None else None}


def _uncordon(node: Node) -> Change:
    name = node.metadata.name
    text = with_command("uncordon the node", kubectl("uncordon", names=[name]))
    patch = _without_taints(name, lambda it: it.key == UNSCHEDULABLE.key, unschedulable=False)
    return Change(text, (patch,), 2)


def _without_taints(name: str, goes: Callable[[Taint], bool], **more: object) -> Patch:
    """The node without some taints, and with ``more`` fields of its spec."""

    def make(now: Node) -> Node:
        left = tuple(it for it in now.spec.taints or () if not goes(it))
        return replace(now, spec=replace(now.spec, taints=left, **more))

    return Patch(Node, name, make)


def _taint(pod: Pod, state: LoadedNode) -> Iterator[Change]:
    taint = untolerated(state.taints, tolerations_of(pod))
    if taint is None or scheduler_of(taint) is not None:  # the node of another scheduler stays its
        return
    name, its = state.name, (taint.key, taint.effect)
    patch = _without_taints(name, lambda it: (it.key, it.effect) == its)
    if taint.key == OUT_OF_SERVICE or taint.key.startswith(NODE_CONDITION):
        command = kubectl("taint", "nodes", names=[name], then=[f"{taint.key}:{taint.effect}-"])
        text = with_command(f"remove the taint {taint.key} from node {name}", command)
        if taint.key == OUT_OF_SERVICE:
            text = f"{text} if the machine is repaired"
        elif condition := CONDITIONS.get(taint.key.removeprefix(NODE_CONDITION)):
            text = f"wait until the taint {taint.key} goes: node {name} {condition}"
        yield Change(text, (patch,), 6)
        return
    how = f'operator: Equal, value: "{taint.value}"' if taint.value else "operator: Exists"
    operator = "Equal" if taint.value else "Exists"
    added = Toleration(key=taint.key, operator=operator, value=taint.value, effect=taint.effect)
    text = f"add the toleration {{key: {taint.key}, {how}, effect: {taint.effect}}} to the pod"
    is_broken = says_broken(taint.key, taint.value)
    if is_broken:
        yield Change(
            f"wait until node {name} is repaired and loses the taint {taint.key}", (patch,), Effort.WAIT_FOR_REPAIR
        )
        text = f"{text}, although the taint says that the hardware is broken"

    def tolerate(now: Pod) -> dict[str, Any]:
        return {"tolerations": (*(now.spec.tolerations or ()), added)}

    yield pod_change(pod, text, Effort.TOLERATED_BREAKAGE if is_broken else 1, tolerate)


def _selector(pod: Pod, node: Node) -> Iterator[Change]:
    """Leave out what the node does not have; or, for the node selector, label the node."""
    labels, wanted = node.metadata.labels or {}, pod.spec.node_selector or {}
    missing = {key: value for key, value in wanted.items() if labels.get(key) != value}
    if missing:
        yield from _label_meant(pod, missing, labels)
        pairs = ", ".join(f"{key}={value}" for key, value in missing.items())

        def less(now: Pod) -> dict[str, Any]:
            left = {key: value for key, value in (now.spec.node_selector or {}).items() if key not in missing}
            return {"node_selector": left or None}

        yield pod_change(pod, f"remove {pairs} from spec.nodeSelector of the pod", 2, less)
        if not any(map(is_of_machine, missing)):

            def labelled(now: Node) -> Node:
                return replace(now, metadata=replace(now.metadata, labels={**(now.metadata.labels or {}), **missing}))

            name = node.metadata.name
            command = kubectl("label", "node", "--overwrite", names=[name], labels=missing)
            yield Change(with_command("label the node", command), (Patch(Node, name, labelled),), 4)
    affinity = pod.spec.affinity
    of_nodes = affinity.node_affinity if affinity is not None else None
    required = of_nodes.required_during_scheduling_ignored_during_execution if of_nodes is not None else None
    if affinity and of_nodes and required and not missing and not node_selectors.matches(required, node):
        yield from _term_meant(pod, of_nodes, required, node)
        nodes = replace(of_nodes, required_during_scheduling_ignored_during_execution=None)
        field = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        yield pod_change(pod, f"remove {field} from the pod", 2, lambda now: _affinity(now, "node_affinity", nodes))


def _label_meant(pod: Pod, missing: Mapping[str, str], labels: Mapping[str, str]) -> Iterator[Change]:
    """Correct likely typing errors in a key or value of the node selector, if all that the node lacks are such."""
    meant: dict[str, tuple[str, str]] = {}
    for key, value in missing.items():
        keys = [key] if key in labels else likely_meant(key, (it for it in labels if labels[it] == value))
        if keys and (labels[keys[0]] == value or labels[keys[0]] in likely_meant(value, [labels[keys[0]]])):
            meant[key] = keys[0], labels[keys[0]]
    if not missing.keys() <= meant.keys():
        return

    def corrected(now: Pod) -> dict[str, Any]:
        return {"node_selector": dict(meant.get(key, (key, it)) for key, it in (now.spec.node_selector or {}).items())}

    pairs = (f"{meant[key][0]}={meant[key][1]} instead of {key}={value}" for key, value in missing.items())
    yield pod_change(pod, f"write {', '.join(pairs)} in spec.nodeSelector of the pod", 1, corrected)


def _term_meant(pod: Pod, of_nodes: NodeAffinity, required: NodeSelector, node: Node) -> Iterator[Change]:
    """Correct likely typing errors in one term of the node affinity, if the node matches the term then."""
    labels, terms = node.metadata.labels or {}, required.node_selector_terms or ()
    for place, term in enumerate(terms):
        pairs = [(one, _expression_meant(one, labels)) for one in term.match_expressions or ()]
        meant = replace(term, match_expressions=tuple(new for _, new in pairs) or None)
        if meant == term or not node_selectors.matches(NodeSelector(node_selector_terms=(meant,)), node):
            continue
        selector = NodeSelector(node_selector_terms=(*terms[:place], meant, *terms[place + 1 :]))
        nodes = replace(of_nodes, required_during_scheduling_ignored_during_execution=selector)
        texts = (f"{_in(new)} instead of {_in(old)}" for old, new in pairs if new != old)
        text = f"write {', '.join(texts)} in spec.affinity.nodeAffinity of the pod"
        yield pod_change(pod, text, 1, partial(_affinity, field="node_affinity", value=nodes))
        return


def _in(one: NodeSelectorRequirement) -> str:
    return f"{one.key} In {', '.join(one.values or ())}"


def _expression_meant(one: NodeSelectorRequirement, labels: Mapping[str, str]) -> NodeSelectorRequirement:
    """The expression with the key, or the value, that was probably meant."""
    values = one.values or ()
    if one.operator != "In" or labels.get(one.key) in values:
        return one
    if one.key not in labels:
        keys = likely_meant(one.key, (it for it in labels if labels[it] in values))
        return replace(one, key=keys[0]) if keys else one
    has = labels[one.key]
    wrong = next((it for it in values if likely_meant(it, [has])), None)
    return replace(one, values=tuple(has if it == wrong else it for it in values))


def _room(resource: str, pod: Pod, state: LoadedNode) -> Iterator[Change]:
    """Ask for the rest of the node, if one container or the pod itself asks for all that is too much."""
    left = max(0, state.offered.get(resource, 0) - state.used.get(resource, 0))
    excess = pod_requests(pod).get(resource, 0) - left
    if not left:
        return
    if pod.spec.resources is not None and (of_pod := (pod.spec.resources.requests or {}).get(resource)) is not None:
        of_containers = pod_requests(replace(pod, spec=replace(pod.spec, resources=None))).get(resource, 0)
        if (nanos := of_pod.nanos - excess) >= of_containers and nanos > 0:
            yield less_in_pod(pod, resource, quantity_of(resource, nanos))
        return
    for field, container in containers_of(pod):
        asked = amount_of(container, resource)
        if asked is not None and asked.nanos > excess:
            yield less_in(pod, field, container, resource, quantity_of(resource, asked.nanos - excess))
