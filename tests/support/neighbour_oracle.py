"""Rules between pods, read literally: every pod on every node is looked at for every node that is asked.

It works on plain JSON and shares no code with the operator. What it answers is the kind of the obstacle, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class Oracle:
    """``nodes``: labels by name; ``pods``: those on nodes; ``namespaces``: labels by name."""

    def __init__(self, nodes: Mapping[str, Json], pods: list[Json], namespaces: Mapping[str, Json]) -> None:
        self.nodes, self.pods, self.namespaces = nodes, pods, namespaces

    def obstacle(self, incoming: Json, name: str) -> str | None:
        """Why the pod cannot go to the node."""
        here = self.nodes[name]
        if not self._is_near(incoming, here):
            return "pod-affinity"
        for term in terms(incoming, "podAntiAffinity"):
            if any(self._is_about(term, incoming, pod) and self._shares(term, pod, here) for pod in self.pods):
                return "pod-anti-affinity"
        for pod in self.pods:
            for term in terms(pod, "podAntiAffinity"):
                if self._is_about(term, pod, incoming) and self._shares(term, pod, here):
                    return "repelled"
        return None

    def _is_near(self, incoming: Json, here: Json) -> bool:
        wanted = terms(incoming, "podAffinity")
        if any(term["topologyKey"] not in here for term in wanted):
            return False
        group = [pod for pod in self.pods if all(self._is_about(term, incoming, pod) for term in wanted)]
        if all(any(self._shares(term, pod, here) for pod in group) for term in wanted):
            return True
        is_of_group = all(self._is_about(term, incoming, incoming) for term in wanted)
        anywhere = any(
            term["topologyKey"] in self.nodes.get(pod["spec"]["nodeName"], {}) for pod in group for term in wanted
        )
        return is_of_group and not anywhere

    def _shares(self, term: Json, pod: Json, here: Json) -> bool:
        """Whether the pod's node is in the domain of the node with these labels."""
        there, key = self.nodes.get(pod["spec"]["nodeName"], {}), term["topologyKey"]
        return key in there and key in here and there[key] == here[key]

    def _is_about(self, term: Json, owner: Json, pod: Json) -> bool:
        selector, namespace = term.get("namespaceSelector"), pod["metadata"]["namespace"]
        named = term.get("namespaces") or ([owner["metadata"]["namespace"]] if selector is None else [])
        if namespace not in named and not selects(selector, self.namespaces.get(namespace, {})):
            return False
        return selects(term.get("labelSelector"), pod["metadata"]["labels"])


def terms(pod: Json, kind: str) -> list[Json]:
    """Required terms."""
    return list(((pod["spec"].get("affinity") or {}).get(kind) or {}).get(REQUIRED) or [])


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
