"""Which pods a rule is about: those that a label selector picks in some namespaces."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from dra_api.core import Pod
from dra_api.relations.label_selectors import Labels, Selector

from .anchors import Anchor

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
