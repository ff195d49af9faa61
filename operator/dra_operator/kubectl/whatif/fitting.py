"""Places wanted pods one after the other: in the cluster as it is, or without a node, or with further ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import ResourceClaim
from dra_api.storage import PersistentVolumeClaim

from dra_operator.kubectl.answer import Fact, Problem
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Settings, pipeline

from .drain import Draining, drained, pods_on
from .outcome import LeftFact, Placed, PodFact, left_in
from .overlay import Overlay
from .wanted import Copies, Wanted

MOST_PLACED_PODS: Final = 10_000
"""Pods that one answer places."""


class Fitting(Fact, frozen=True):
    """``fits``: all that was asked for, and what was drained for it. ``copies`` fit whole, and ``pods`` are those that
    were tried or, if as many as fit were asked for, those of whole copies. ``left`` is what could be had afterwards."""

    fits: bool
    copies: int
    pods: Sequence[PodFact]
    left: Sequence[LeftFact]
    drained: Draining | None = None
    next: PodFact | None = None
    """The pod that blocks the next copy, if as many as fit were asked for; None if the limit of pods was reached."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """``drained`` is the node whose pods are placed elsewhere first; ``without``: nodes that are not there, nor what
    they have."""

    drained: str | None = None
    without: Sequence[str] = ()


def overlay_of(seen: Observed, settings: Settings, wanted: Wanted, pause: Callable[[], None] = lambda: None) -> Overlay:
    """Over the cluster with the nodes and the objects that were given beside the pods; ``pause`` as there. Raises
    Problem."""
    given: dict[tuple[type[Object], str], Object] = {(type(obj), obj.key): obj for obj in wanted.objects}
    for obj in wanted.added:
        if seen.one(type(obj), obj.key) is not None:
            raise Problem(f"{type(obj).__name__} {obj.key} is in the cluster already: give it another name")
        given[type(obj), obj.key] = obj
    for obj in seen.objects:
        if isinstance(obj, ResourceClaim | PersistentVolumeClaim):  # what they have is known to the cluster alone
            given.pop((type(obj), obj.key), None)
    others = [obj for obj in seen.objects if (type(obj), obj.key) not in given]
    return Overlay(pipeline(replace(seen, objects=[*others, *given.values()]), settings, pause), pause)


def fitted(
    overlay: Overlay, wanted: Wanted, assumption: Assumption, copies: int | None, *, tells_left: bool = True
) -> Fitting:
    """``copies``: how many are wanted; None: as many as fit. ``tells_left``: also what could be had afterwards, which
    looks at all devices. Raises Problem."""
    for name in assumption.without:
        node = _node(overlay, name)
        for pod in pods_on(overlay.cluster, name):
            overlay.evict(pod)
        overlay.cluster.delete(Node, node.key)
    draining = drained(overlay, _node(overlay, assumption.drained)) if assumption.drained is not None else None
    source = Copies(wanted, overlay.cluster)
    if copies is None:
        return _most(overlay, source, draining, tells_left=tells_left)
    pods = [PodFact.of(overlay.place(pod)) for _ in range(copies) for pod in source.copy()]
    size = wanted.size
    whole = sum(all(fact.node for fact in pods[start : start + size]) for start in range(0, len(pods), size))
    return Fitting(
        fits=whole == copies and (draining is None or draining.is_placed),
        copies=whole,
        pods=pods,
        left=left_in(overlay.made) if tells_left else (),
        drained=draining,
    )


def _most(overlay: Overlay, source: Copies, draining: Draining | None, *, tells_left: bool) -> Fitting:
    """Copy after copy, until one does not fit as a whole; that one takes nothing."""
    pods: list[PodFact] = []
    copies, blocked = 0, None
    while blocked is None and len(pods) + source.wanted.size <= MOST_PLACED_PODS:
        mark = overlay.mark
        facts = list(_until_blocked(overlay, source.copy()))
        if not facts[-1].node:
            blocked = facts[-1]
            overlay.undo(mark)
        else:
            pods += facts
            copies += 1
    fits = copies > 0 and (draining is None or draining.is_placed)
    left = left_in(overlay.made) if tells_left else ()
    return Fitting(fits=fits, copies=copies, pods=pods, left=left, drained=draining, next=blocked)


def _until_blocked(overlay: Overlay, pods: Iterator[Pod]) -> Iterator[PodFact]:
    for pod in pods:
        outcome = overlay.place(pod)
        yield PodFact.of(outcome)
        if not isinstance(outcome, Placed):
            return


def _node(overlay: Overlay, name: str) -> Node:
    node = overlay.cluster.nodes.get(name)
    if node is None:
        known = ", ".join(sorted(overlay.cluster.nodes.keys())[:8]) or "none"
        raise Problem(f"there is no node {name}; there are: {known}")
    return node
