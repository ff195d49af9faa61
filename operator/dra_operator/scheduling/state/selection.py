"""Which pods a rule between pods is about: selectors in namespaces, and the terms of (anti-)affinity.

A term of a waiting pod becomes a ``PodSet``, by the namespaces as they are at that moment. A term that a pod on a node
carries is asked the other way round: whether it is about a waiting pod. To find the terms that may be about a pod
without a look at all of them, ``Anchors`` files each under one label. Most selectors name one value of one label,
such as ``app: web``. That is then the anchor. All other selectors concern every pod.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from dra_api.core import Pod, PodAffinityTerm
from dra_api.selectors import (
    NOTHING,
    Labels,
    Requirement,
    Selector,
)

K = TypeVar("K", bound=Hashable)
Anchor = tuple[str, str] | None


class Anchors(Generic[K]):
    """Keys under their anchors, in the order in which they came."""

    def __init__(self) -> None:
        self._keys: dict[Anchor, dict[K, None]] = {}

    def add(self, anchor: Anchor, key: K) -> None:
        """File a key."""
        self._keys.setdefault(anchor, {})[key] = None

    def discard(self, anchor: Anchor, key: K) -> None:
        """Remove a key; an unknown one is ignored."""
        keys = self._keys.get(anchor, {})
        keys.pop(key, None)
        if not keys:
            self._keys.pop(anchor, None)

    def number(self, anchor: Anchor) -> int:
        """How many keys are filed under the anchor."""
        return len(self._keys.get(anchor, ()))

    def all_near(self, labels: Mapping[str, str] | None) -> dict[K, None]:
        """As ``near``, at one moment: without a look at any of the keys, so fast also if they are many."""
        found = dict(self._keys.get(None, ()))
        for label in (labels or {}).items():
            found.update(self._keys.get(label, ()))
        return found

    def near(self, labels: Mapping[str, str] | None) -> Iterator[K]:
        """The keys that may concern a pod with these labels. No key must be added or removed during the iteration."""
        if not self._keys:
            return
        yield from self._keys.get(None, ())
        for label in (labels or {}).items():
            yield from self._keys.get(label, ())


Place = tuple[Pod, str]
"""A pod, and the node where it is."""
Labelled = tuple[Labels, Place]
"""With the labels of the pod, by which most questions are answered."""


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods with certain labels in these namespaces; None stands for all."""

    selector: Selector
    namespaces: frozenset[str] | None

    def matches(self, pod: Pod) -> bool:
        """Whether the pod is one of them."""
        meta = pod.metadata
        is_there = self.namespaces is None or meta.namespace in self.namespaces
        return is_there and self.selector.matches(meta.labels or {})


@dataclass(frozen=True, slots=True)
class Selection:
    """Pods that are in all of these sets. ``leaving``: those being deleted count as well."""

    sets: tuple[PodSet, ...]
    leaving: bool = True

    @property
    def anchor(self) -> Anchor:
        """A label that all of these pods have, if the selectors name one."""
        return next((anchor for pods in self.sets if (anchor := pods.selector.anchor) is not None), None)

    @property
    def namespaces(self) -> frozenset[str] | None:
        """All of these pods are in one of them; None stands for all."""
        return min((it.namespaces for it in self.sets if it.namespaces is not None), key=len, default=None)

    def matches(self, pod: Pod) -> bool:
        """Whether the pod is one of them."""
        if not self.leaving and pod.metadata.deletion_timestamp is not None:
            return False
        return all(pods.matches(pod) for pods in self.sets)

    def among(self, places: list[Labelled]) -> Generator[int, None, list[Labelled]]:
        """Those of the pods in ``namespaces`` that are some of them: as ``matches``, but fast for many.

        Says after each piece of work how many pods it has looked at.
        """
        for pods in self.sets:
            names = pods.namespaces
            if names is not None and names != self.namespaces:
                yield len(places)
                places = [it for it in places if it[1][0].metadata.namespace in names]
            if pods.selector.requirements is None:
                return []
            for requirement in pods.selector.requirements:
                yield len(places)
                places = requirement.among(places)
        return places if self.leaving else [it for it in places if it[1][0].metadata.deletion_timestamp is None]


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
