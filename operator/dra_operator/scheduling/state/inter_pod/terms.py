"""Terms of affinity and anti-affinity between pods: which pods they are about, and in which topology.

A term of a waiting pod becomes a ``PodSet``, by the namespaces as they are at that moment. A term that a pod on a node
carries is asked the other way round: whether it is about a waiting pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from dra_api.core import Pod, PodAffinityTerm
from dra_api.relations.label_selectors import NOTHING, Labels, Requirement, Selector

from .selection import PodSet

Namespaces = Mapping[str, Labels]
"""The labels of each namespace."""


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """An affinity term: pods of these namespaces, and of those that ``others`` selects, in one domain of ``key``."""

    selector: Selector
    namespaces: frozenset[str]
    others: Selector
    key: str

    @classmethod
    def of(cls, pod: Pod, term: PodAffinityTerm) -> AffinityTerm:
        """A term of the pod. Without namespaces and their selector it is about the pod's own namespace."""
        named = frozenset(term.namespaces or ())
        if not named and term.namespace_selector is None:
            named = frozenset((pod.metadata.namespace,))
        return cls(_with_label_keys(pod, term), named, Selector.of(term.namespace_selector), term.topology_key)

    @property
    def minds_namespaces(self) -> bool:
        """Whether it depends on labels of namespaces."""
        return bool(self.others.requirements)

    def pods(self, known: Namespaces) -> PodSet:
        """The pods that it is about, by the namespaces as they are now."""
        if self.others.is_empty:
            return PodSet(self.selector, None)
        found = (name for name, labels in known.items() if self.others.matches(labels))
        return PodSet(self.selector, self.namespaces if self.others == NOTHING else self.namespaces.union(found))

    def is_about(self, pod: Pod, known: Namespaces) -> bool:
        """Whether it is about the pod; a namespace that is not known has no labels."""
        meta = pod.metadata
        return self.concerns(meta.namespace, known.get(meta.namespace, {}), meta.labels or {})

    def concerns(self, namespace: str, there: Labels, labels: Labels) -> bool:
        """Whether it is about pods with these labels; ``there`` are the labels of their namespace."""
        return (namespace in self.namespaces or self.others.matches(there)) and self.selector.matches(labels)


def affinity(pod: Pod) -> tuple[AffinityTerm, ...]:
    """The pods that the pod must be near."""
    found = pod.spec.affinity.pod_affinity if pod.spec.affinity is not None else None
    return _terms(pod, found.required_during_scheduling_ignored_during_execution if found is not None else None)


def anti_affinity(pod: Pod) -> tuple[AffinityTerm, ...]:
    """The pods that the pod must not be near."""
    found = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity is not None else None
    return _terms(pod, found.required_during_scheduling_ignored_during_execution if found is not None else None)


def preferred(pod: Pod) -> Iterator[tuple[AffinityTerm, int]]:
    """The pods that the pod would rather be near, with weights; negative ones for those that it would rather avoid."""
    affinity = pod.spec.affinity
    if affinity is None:
        return
    for kind, sign in ((affinity.pod_affinity, 1), (affinity.pod_anti_affinity, -1)):
        for it in (kind.preferred_during_scheduling_ignored_during_execution if kind is not None else None) or ():
            yield AffinityTerm.of(pod, it.pod_affinity_term), sign * it.weight


def equal_labels(pod: Pod, keys: Iterable[str] | None, operator: str = "In") -> list[Requirement]:
    """That others have the pod's value of each of these labels, or with NotIn another one or none."""
    own = pod.metadata.labels or {}
    return [Requirement(key, operator, frozenset((own[key],))) for key in keys or () if key in own]


def _with_label_keys(pod: Pod, term: PodAffinityTerm) -> Selector:
    """The selector with ``matchLabelKeys`` and ``mismatchLabelKeys``, which the API server merges into it at creation.

    A key that the selector names already has been merged, with the value that the label had then.
    """
    selector = Selector.of(term.label_selector)
    merged = {it.key for it in selector.requirements or ()}
    more = equal_labels(pod, term.match_label_keys) + equal_labels(pod, term.mismatch_label_keys, "NotIn")
    return selector.also(it for it in more if it.key not in merged)


def _terms(pod: Pod, listed: Iterable[PodAffinityTerm] | None) -> tuple[AffinityTerm, ...]:
    return tuple(AffinityTerm.of(pod, term) for term in listed) if listed else ()
