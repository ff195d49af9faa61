"""Rules between pods: pods, nodes and zones to try them on, and the rules read literally as an oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dra_api.codec import convert
from dra_api.core import Pod
from dra_operator.scheduling import Nodes, Plan
from hypothesis import strategies as st
from placement_lab import allocator, decide, node

Json = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class Oracle:
    """``nodes``: labels by name; ``taints``: keys by node; ``pods``: those on nodes; ``namespaces``: labels by name."""

    def __init__(self, nodes: Mapping[str, Json], pods: list[Json], namespaces: Mapping[str, Json]) -> None:
        self.nodes, self.pods, self.namespaces = nodes, pods, namespaces
        self.taints: Mapping[str, list[str]] = {}

    def obstacle(self, incoming: Json, name: str) -> str | None:
        here = self.nodes[name]
        if (unkept := self._spread(incoming, here)) is not None:
            return unkept
        if not self._is_near(incoming, here):
            return "pod-affinity"
        for term in terms(incoming, "podAntiAffinity"):
            if any(self.is_about(term, incoming, pod) and self.shares(term, pod, here) for pod in self.pods):
                return "pod-anti-affinity"
        for pod in self.pods:
            for term in terms(pod, "podAntiAffinity"):
                if self.is_about(term, pod, incoming) and self.shares(term, pod, here):
                    return "repelled"
        return None

    def _spread(self, incoming: Json, here: Json) -> str | None:
        constraints = incoming["spec"].get("topologySpreadConstraints") or []
        hard = [each for each in constraints if each["whenUnsatisfiable"] == "DoNotSchedule"]
        for each in hard:
            key, selector = each["topologyKey"], label_keys(each, incoming)
            if key not in here:
                return "spread-label"
            found: dict[str, int] = {}
            for name, its in self.nodes.items():
                if all(other["topologyKey"] in its for other in hard) and self.counts(each, incoming, name):
                    found.setdefault(its[key], 0)
                    found[its[key]] += sum(self.is_counted(selector, incoming, pod, name) for pod in self.pods)
            fewest = min(found.values()) if found and len(found) >= each.get("minDomains", 1) else 0
            itself = selects(selector, incoming["metadata"]["labels"])
            if found.get(here[key], 0) + itself - fewest > each["maxSkew"]:
                return "spread"
        return None

    def counts(self, constraint: Json, incoming: Json, name: str) -> bool:
        selector, tolerated = incoming["spec"].get("nodeSelector", {}), incoming["spec"].get("tolerations", [])
        if constraint.get("nodeAffinityPolicy", "Honor") == "Honor":
            for key, value in selector.items():
                if self.nodes[name].get(key) != value:
                    return False
        if constraint.get("nodeTaintsPolicy", "Ignore") == "Honor":
            return all(taint in [each["key"] for each in tolerated] for taint in self.taints.get(name, []))
        return True

    def is_counted(self, selector: Json | None, incoming: Json, pod: Json, name: str) -> bool:
        if pod["spec"]["nodeName"] != name or pod["metadata"]["namespace"] != incoming["metadata"]["namespace"]:
            return False
        if selector is not None and not selector.get("matchLabels") and not selector.get("matchExpressions"):
            return False  # an empty selector counts no pod
        return "deletionTimestamp" not in pod["metadata"] and selects(selector, pod["metadata"]["labels"])

    def _is_near(self, incoming: Json, here: Json) -> bool:
        wanted = terms(incoming, "podAffinity")
        if any(term["topologyKey"] not in here for term in wanted):
            return False
        group = [pod for pod in self.pods if all(self.is_about(term, incoming, pod) for term in wanted)]
        if all(any(self.shares(term, pod, here) for pod in group) for term in wanted):
            return True
        is_of_group = all(self.is_about(term, incoming, incoming) for term in wanted)
        anywhere = any(
            term["topologyKey"] in self.nodes.get(pod["spec"]["nodeName"], {}) for pod in group for term in wanted
        )
        return is_of_group and not anywhere

    def shares(self, term: Json, pod: Json, here: Json) -> bool:
        """Whether the pod's node is in the domain of the node with these labels."""
        there, key = self.nodes.get(pod["spec"]["nodeName"], {}), term["topologyKey"]
        return key in there and key in here and there[key] == here[key]

    def is_about(self, term: Json, owner: Json, pod: Json) -> bool:
        selector, namespace = term.get("namespaceSelector"), pod["metadata"]["namespace"]
        named = term.get("namespaces") or ([owner["metadata"]["namespace"]] if selector is None else [])
        if namespace not in named and not selects(selector, self.namespaces.get(namespace, {})):
            return False
        return selects(term.get("labelSelector"), pod["metadata"]["labels"])


def terms(pod: Json, kind: str) -> list[Json]:
    return list(((pod["spec"].get("affinity") or {}).get(kind) or {}).get(REQUIRED) or [])


def label_keys(constraint: Json, pod: Json) -> Json | None:
    """The selector with what ``matchLabelKeys`` add."""
    selector, labels = constraint.get("labelSelector"), pod["metadata"]["labels"]
    if selector is None:
        return None
    same = [
        {"key": key, "operator": "In", "values": [labels[key]]}
        for key in constraint.get("matchLabelKeys", [])
        if key in labels
    ]
    return {**selector, "matchExpressions": [*selector.get("matchExpressions", []), *same]}


def selects(selector: Json | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector selects these labels."""
    if selector is None:
        return False
    for key, value in selector.get("matchLabels", {}).items():
        if key not in labels or labels[key] != value:
            return False
    for each in selector.get("matchExpressions", []):
        key, values = each["key"], each.get("values", [])
        met = {
            "In": key in labels and labels[key] in values,
            "NotIn": key not in labels or labels[key] not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not met[each["operator"]]:
            return False
    return True


# --- Labels and selectors that often meet, for properties of rules between pods ---

VALUES = st.sampled_from(["x", "x", "y"])
labels = st.fixed_dictionaries({"app": VALUES}, optional={"tier": VALUES})
node_labels = st.fixed_dictionaries({"zone": VALUES}, optional={"rack": VALUES})


@st.composite
def selectors(draw: st.DrawFn) -> Json:
    """One label most of the time, and any requirement now and then."""
    if draw(st.integers(0, 2)):
        return {"matchLabels": {"app": draw(VALUES)}}
    operator = draw(st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]))
    values = draw(st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=2)) if operator.endswith("In") else []
    wish = {"key": draw(st.sampled_from(["app", "tier"])), "operator": operator, "values": values}
    return {"matchExpressions": [wish]}


# --- Pods, nodes in zones and rules between pods, as short as tests of such rules want them ---


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
    return {"topologyKey": key, **({} if selector is None else {"labelSelector": selector}), **more}


def near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAffinity": {REQUIRED: list(terms)}}


def away(*terms: dict[str, Any]) -> dict[str, Any]:
    """``spec.affinity`` of a pod that must not be near others."""
    return {"podAntiAffinity": {REQUIRED: list(terms)}}


def spread(selector: dict[str, Any] | None = None, key: str = ZONE, skew: int = 1, **more: Any) -> dict[str, Any]:
    """A topology spread constraint that must be kept."""
    selected = {} if selector is None else {"labelSelector": selector}
    return {"maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", **selected, **more}


def expression(operator: str, *values: str, key: str = "app") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def three_nodes(*pods_by_node: Pod) -> Nodes:
    """``a1`` and ``a2`` in zone a, ``b1`` in zone b; the names say which is tried first."""
    return with_residents([(name, {HOST: name, ZONE: name[0]}) for name in ("a1", "a2", "b1")], pods_by_node)


def with_residents(nodes: Sequence[tuple[str, dict[str, str]]], pods_by_node: Sequence[Pod]) -> Nodes:
    made = Nodes([node(name, labels=labels) for name, labels in nodes])
    for it in pods_by_node:
        made.pods_by_node.put(it, it.spec.node_name)
    return made


def goes_to(comes: Pod, nodes: Nodes) -> str | None:
    answer = decide(comes, [], nodes, allocator())
    return answer.node if isinstance(answer, Plan) else None
