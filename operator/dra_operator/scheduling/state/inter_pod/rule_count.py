"""How much work a pod's rules are, so that one pod with thousands of them costs other pods nothing.

Rules between pods are the terms of affinity and anti-affinity, required or preferred, and topology spread constraints.
Each of them is compared with all pods of its namespaces. People write a few; an object of the size that the API server
admits has room for thousands, which would take seconds. So a pod with more than ``MOST_RULES``, or whose
rules ask for more than ``MOST_LABELS`` in sum, is not placed (``unsupported``), and keeps no other pod away. A spread
constraint also asks for what selects the nodes that count: each node is compared with that for each constraint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dra_api.core import NodeSelector, NodeSelectorTerm, Pod, PodAffinityTerm, TopologySpreadConstraint
from dra_api.meta import LabelSelector

MOST_RULES: Final = 100
MOST_LABELS: Final = 500
_CHEAP_LABELS: Final = 20
"""Labels and tolerations that a node can be compared with in the time of one step of the allocator."""


def has_too_many_rules(pod: Pod) -> bool:
    """Whether the pod has more rules between pods than are looked at."""
    rules = labels = 0
    for compared in _between_pods(pod):
        rules, labels = rules + 1, labels + compared
    return rules > MOST_RULES or labels > MOST_LABELS


def steps_per_node(pod: Pod) -> int:
    """What it costs to compare the pod with one node, in steps of the allocator."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    compared = len(pod.spec.tolerations or ())
    if affinity is not None:
        compared += requirements(affinity.required_during_scheduling_ignored_during_execution)
        compared += sum(
            _of_nodes_term(it.preference) for it in affinity.preferred_during_scheduling_ignored_during_execution or ()
        )
    return 1 + compared // _CHEAP_LABELS


def requirements(selector: NodeSelector | None) -> int:
    """What a node is compared with: the terms of the selector, and what each asks for."""
    return sum(map(_of_nodes_term, (selector.node_selector_terms or ()) if selector is not None else ()))


def _between_pods(pod: Pod) -> Iterator[int]:
    """For each rule, the labels that it asks for."""
    for constraint in pod.spec.topology_spread_constraints or ():
        yield _labels(constraint.label_selector) + len(constraint.match_label_keys or ()) + _of_nodes(pod, constraint)
    affinity = pod.spec.affinity
    for kind in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else ():
        if kind is None:
            continue
        for term in kind.required_during_scheduling_ignored_during_execution or ():
            yield _of_term(term)
        for weighted in kind.preferred_during_scheduling_ignored_during_execution or ():
            yield _of_term(weighted.pod_affinity_term)


def _of_nodes(pod: Pod, constraint: TopologySpreadConstraint) -> int:
    tolerations = len(pod.spec.tolerations or ()) if constraint.node_taints_policy == "Honor" else 0
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    if required is None or constraint.node_affinity_policy == "Ignore":
        return tolerations
    return tolerations + requirements(required)


def _of_nodes_term(term: NodeSelectorTerm) -> int:
    return 1 + len(term.match_expressions or ()) + len(term.match_fields or ())


def _of_term(term: PodAffinityTerm) -> int:
    keys = len(term.match_label_keys or ()) + len(term.mismatch_label_keys or ())
    return _labels(term.label_selector) + _labels(term.namespace_selector) + keys


def _labels(selector: LabelSelector | None) -> int:
    return 0 if selector is None else len(selector.match_labels or {}) + len(selector.match_expressions or ())
