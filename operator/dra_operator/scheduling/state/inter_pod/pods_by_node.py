"""The pods on nodes, those whose binding is under way included, as rules between pods ask about them.

Three questions are answered by counts that are kept up to date pod by pod: how many pods of a selection are where, how
many pods are where that keep a given pod away, and where pods are that prefer to have it near or not. A selection is
counted from its first use on; the one that was asked for least recently is forgotten first. Without selections in use,
a pod that comes or goes costs one look-up or two.

The rules of a pod that has too many of them do not count (``rule_count``).

A pod is known by its UID, so that one and its successor of the same name do not get mixed up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

from dra_api.core import Pod

from .anchors import Anchors
from .carriers import Carried, Carriers
from .population import Population
from .rule_count import has_too_many_rules
from .selection import Labelled, Place, Selection
from .terms import affinity, anti_affinity, preferred
from .topology import Topology

KEPT_SELECTIONS = 512  # selections that are counted
KEPT_SELECTIONS_WITHOUT_ANCHOR = 128  # of them, those that each change of any pod is compared with
REQUIRED_WEIGHT = 1  # of a placed pod's required affinity, where preferences are compared

T = TypeVar("T")


class PodsByNode:
    """``namespaces`` has the labels of each namespace; the cache fills it."""

    def __init__(self) -> None:
        self._pods: dict[str, Labelled] = {}
        self._by_namespace: dict[str, dict[str, Labelled]] = {}
        self._changes = 0
        self._counted: OrderedDict[Selection, Population] = OrderedDict()
        self._selections: Anchors[Selection] = Anchors()
        self._anti_affinity = Carriers()
        self._preferences = Carriers()
        self.namespaces: dict[str, dict[str, str]] = {}

    def put(self, pod: Pod, node: str) -> None:
        """The pod is on the node or on its way to it, or has changed there."""
        uid = pod.metadata.uid
        self._changes += 1
        old = self.at(uid)
        if old is None or old[1] != node or not counts_alike(old[0], pod):
            self.remove(uid)
            self._count(pod, node, 1)
        there = self._by_namespace.setdefault(pod.metadata.namespace, {})
        self._pods[uid] = there[uid] = (pod.metadata.labels or {}, (pod, node))

    def remove(self, uid: str) -> None:
        """The pod is gone; an unknown one is ignored."""
        old = self._pods.pop(uid, None)
        if old is not None:
            self._changes += 1
            pod, node = old[1]
            namespace = self._by_namespace[pod.metadata.namespace]
            del namespace[uid]
            if not namespace:
                del self._by_namespace[pod.metadata.namespace]
            self._count(pod, node, -1)

    @contextmanager
    def without(self, pods: Collection[Pod]) -> Iterator[None]:
        """Inside the block these pods are on no node: what would be, once they have ended."""
        places = [place for pod in pods if (place := self.at(pod.metadata.uid)) is not None]
        for pod, _ in places:
            self.remove(pod.metadata.uid)
        try:
            yield
        finally:
            for place in places:
                self.put(*place)

    def at(self, uid: str) -> Place | None:
        """The pod as it counts, and where; None if it is on no node."""
        found = self._pods.get(uid)
        return found[1] if found is not None else None

    def count(self, selection: Selection) -> Population:
        """The pods of a selection."""
        return _result(self.counting(selection))

    def counting(self, selection: Selection) -> Generator[int, None, Population]:
        """As ``count``, in pieces: says after each how many pods it has looked at. They may come and go meanwhile."""
        if selection not in self._counted:
            changes, seen = self._changes, self._near(selection)
            yield len(seen)
            selected = yield from selection.among(seen)
            if self._changes != changes:
                selected = self._brought_up_to_date(selection, seen, selected)
            if selection not in self._counted:
                self._counted[selection] = Population([node for _, (_, node) in selected])
                self._selections.add(selection.anchor, selection)
                self._forget_the_oldest(selection)
        self._counted.move_to_end(selection)
        return self._counted[selection]

    def _brought_up_to_date(
        self, selection: Selection, seen: list[Labelled], selected: list[Labelled]
    ) -> list[Labelled]:
        now = self._near(selection)
        old, there = {id(it) for it in seen}, {id(it) for it in now}
        more = _result(selection.among([it for it in now if id(it) not in old]))
        return [it for it in selected if id(it) in there] + more

    def _forget_the_oldest(self, new: Selection) -> None:
        if new.anchor is None and self._selections.number(None) > KEPT_SELECTIONS_WITHOUT_ANCHOR:
            oldest = next(it for it in self._counted if it.anchor is None)
        elif len(self._counted) > KEPT_SELECTIONS:
            oldest = next(iter(self._counted))
        else:
            return
        self._selections.discard(oldest.anchor, oldest)
        self._counted.pop(oldest).close()

    def _near(self, selection: Selection) -> list[Labelled]:
        """All pods that can be in the selection: what a tenant asks about its own namespace costs by its own pods."""
        names = selection.namespaces
        if names is None:
            return list(self._pods.values())
        return [place for name in names for place in self._by_namespace.get(name, {}).values()]

    @property
    def has_terms(self) -> bool:
        """Whether any pod carries a term about pods that come."""
        return bool(self._anti_affinity or self._preferences)

    def existing_anti_affinity(self, pod: Pod, keys: Collection[str]) -> Carried:
        """What keeps the pod away: the pods that have required anti-affinity to it. ``keys``: labels of nodes."""
        return _result(self._anti_affinity.finding(pod, self.namespaces, keys))

    def existing_preferences(self, pod: Pod, keys: Collection[str]) -> Carried:
        """What prefers to have the pod near, or not: the pods that have such terms, with their weights."""
        return _result(self._preferences.finding(pod, self.namespaces, keys))

    def finding(self, pod: Pod, keys: Collection[str]) -> Generator[int, None, tuple[Carried, Carried]]:
        """What the two above say, in pieces: after each, how many labels were compared."""
        anti_affinity_to_it = yield from self._anti_affinity.finding(pod, self.namespaces, keys)
        preferences = yield from self._preferences.finding(pod, self.namespaces, keys)
        return anti_affinity_to_it, preferences

    def forget(self, topology: Topology) -> None:
        """The topology is not kept up to date any more."""
        for population in (
            *self._counted.values(),
            *self._anti_affinity.populations(),
            *self._preferences.populations(),
        ):
            population.forget(topology)

    def miscounted(self) -> Iterator[str]:
        """What is kept step by step and differs from a count made afresh; nothing, unless there is a bug."""
        fresh = PodsByNode()
        for _, (pod, node) in self._pods.values():
            fresh.put(pod, node)
        for selection, population in self._counted.items():
            if population.by_node != fresh.count(selection).by_node:
                yield f"the pods of {selection} are miscounted"
        if (self._anti_affinity, self._preferences) != (fresh._anti_affinity, fresh._preferences) or any(
            carriers.miscounted() for carriers in (self._anti_affinity, self._preferences)
        ):
            yield "the pods with affinity or anti-affinity to others are miscounted"

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """The UID of each pod, and its node."""
        return ((uid, node) for uid, (_, (_, node)) in self._pods.items())

    def _count(self, pod: Pod, node: str, number: int) -> None:
        for selection in self._selections.near(pod.metadata.labels):
            if selection.matches(pod):
                self._counted[selection].add(node, number)
        if pod.spec.affinity is None or has_too_many_rules(pod):
            return
        for term in anti_affinity(pod):
            self._anti_affinity.add(term, node, number)
        for term in affinity(pod):
            self._preferences.add(term, node, number * REQUIRED_WEIGHT)
        for term, weight in preferred(pod):
            self._preferences.add(term, node, number * weight)


def _result(work: Generator[int, None, T]) -> T:
    """The result of work in pieces, in one go."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


def counts_alike(one: Pod, other: Pod) -> bool:
    """Whether rules between pods see no difference between two versions of a pod on the same node."""
    return (
        one.metadata.labels == other.metadata.labels
        and (one.metadata.deletion_timestamp is None) == (other.metadata.deletion_timestamp is None)
        and one.spec.affinity == other.spec.affinity
    )
