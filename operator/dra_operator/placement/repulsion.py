"""Pods that keep others away: required anti-affinity of pods on nodes (one half of kube-scheduler's InterPodAffinity).

A term repels the pods of certain namespaces with certain labels from every node that has the same value of one label
(the topology key) as the node of the term's own pod. So an attempt asks once which values are out for its pod, and then
compares labels only. Terms are filed by the namespaces that they are about, because most are about their own.

Namespaces and their labels are not watched: a term with a ``namespaceSelector`` is taken to be about all namespaces. A
pod may so wait for a node that kube-scheduler would give it, and never gets one that kube-scheduler would refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dra_api.core import Pod, PodAffinityTerm
from dra_api.meta import LabelSelector, LabelSelectorRequirement
from dra_api.references import pod_is_done

Labels = Mapping[str, str]
_EVERYWHERE = ""


class Repulsion:
    """The terms of all pods on nodes, by the keys of these pods."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, dict[str, list[tuple[str, PodAffinityTerm]]]] = {}
        self._namespaces: dict[str, set[str]] = {}

    def put(self, pod: Pod) -> None:
        """The pod is new or changed, or has the name of another one that is gone."""
        self.remove(pod.key)
        if not pod.spec.node_name or pod_is_done(pod):
            return
        for term in _terms(pod):
            for namespace in _namespaces(pod, term):
                self._namespaces.setdefault(pod.key, set()).add(namespace)
                terms = self._by_namespace.setdefault(namespace, {}).setdefault(pod.key, [])
                terms.append((pod.spec.node_name, term))

    def remove(self, key: str) -> None:
        """The pod is gone; one without terms is ignored."""
        for namespace in self._namespaces.pop(key, ()):
            del self._by_namespace[namespace][key]

    def against(self, pod: Pod) -> Iterator[tuple[str, str]]:
        """Where a pod cannot go: nodes that are like this one in this label."""
        labels = pod.metadata.labels or {}
        for namespace in (pod.metadata.namespace, _EVERYWHERE):
            for terms in self._by_namespace.get(namespace, {}).values():
                for node, term in terms:
                    if _selects(term.label_selector, labels):
                        yield node, term.topology_key


def _terms(pod: Pod) -> tuple[PodAffinityTerm, ...]:
    affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity is not None else None
    return (affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None) or ()


def _namespaces(pod: Pod, term: PodAffinityTerm) -> frozenset[str]:
    if term.namespace_selector is not None:
        return frozenset((_EVERYWHERE,))
    return frozenset(term.namespaces or (pod.metadata.namespace,))


def _selects(selector: LabelSelector | None, labels: Labels) -> bool:
    """No selector selects nothing, an empty one everything."""
    if selector is None:
        return False
    wanted = (selector.match_labels or {}).items()
    return all(labels.get(name) == value for name, value in wanted) and all(
        _holds(requirement, labels) for requirement in selector.match_expressions or ()
    )


def _holds(requirement: LabelSelectorRequirement, labels: Labels) -> bool:
    key, values = requirement.key, requirement.values or ()
    match requirement.operator:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return True  # unknown here: to repel a pod needlessly is the lesser harm
