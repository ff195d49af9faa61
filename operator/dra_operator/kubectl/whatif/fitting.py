"""Places wanted pods, batch after batch: in the cluster as it is, or without a node, or with further ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from dra_api.core import Node
from dra_api.meta import Object
from dra_api.resource import ResourceClaim
from dra_api.storage import PersistentVolumeClaim
from msgspec.structs import replace as changed

from dra_operator.commands.simulated.placing import NotPlaced, Placed
from dra_operator.kubectl.answer import ExitCode, Fact, Problem
from dra_operator.kubectl.observed import Observed, no_node
from dra_operator.kubectl.pipeline import TookTooLong, pipeline
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.whatif.overlay import LeftFact, PodFact, left_in

from .drain import Draining, drained, pods_on
from .overlay import Overlay
from .wanted import Copies, Wanted, unstarted

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
    """The pod that blocks the next copy, if as many as fit were asked for; None if a limit was reached."""
    promised: Sequence[PodFact] = ()
    """Pods of admitted Workloads that have not started, and have what they need before all others."""
    is_cut: bool = False
    """Whether the time was over before all was tried: more may fit."""


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
    overlay: Overlay,
    wanted: Wanted,
    assumption: Assumption,
    copies: int | None,
    *,
    tells_left: bool = True,
    seconds: float | None = None,
) -> Fitting:
    """Place ``copies`` of them, or as many as fit if it is None. ``tells_left`` adds the devices that would be left,
    at the cost of a look at all. After ``seconds`` (0: never) the answer is incomplete; None leaves
    the limit to the overlay, and TookTooLong to the caller. Raises Problem."""
    with overlay.made.pausing.within(seconds) if seconds is not None else nullcontext():
        first = f"of node {assumption.drained}"
        try:
            draining = _assumed(overlay, assumption)
            first = "that Kueue has admitted"
            promised = [PodFact.of(it) for it in _promised(overlay, wanted)]
        except TookTooLong as error:
            if seconds is None:
                raise
            text = f"the time limit was reached before the pods {first} were placed; --time-limit gives more"
            raise Problem(text, ExitCode.IN_THE_WAY) from error
        source = Copies(wanted, overlay.cluster)
        is_limited = seconds is not None
        if copies is None:
            found = _most(overlay, source, is_limited=is_limited)
        else:
            found = _number(overlay, source, copies, is_limited=is_limited)
    is_placed = draining is None or draining.is_placed
    left = left_in(overlay.made) if tells_left and not found.is_cut else ()
    return changed(found, fits=found.fits and is_placed, left=left, drained=draining, promised=promised)


def _assumed(overlay: Overlay, assumption: Assumption) -> Draining | None:
    """Remove the objects that the question assumes to be gone. Raises Problem."""
    for name in assumption.without:
        node = _node(overlay, name)
        for pod in pods_on(overlay.cluster, name):
            overlay.evict(pod)
        overlay.cluster.delete(Node, node.key)
    return drained(overlay, _node(overlay, assumption.drained)) if assumption.drained is not None else None


def _promised(overlay: Overlay, wanted: Wanted) -> Iterator[Placed | NotPlaced]:
    """Place pods of Workloads that were admitted before. Pending pods in the cluster keep their devices.

    Raises Problem if they are too many.
    """
    number = 0
    for promised in wanted.promised:
        overlay.made.pausing()  # each looks at all pods of the cluster
        waiting, unmade = unstarted(promised, overlay.cluster)
        number += len(waiting) + unmade.size
        if number > MOST_PLACED_PODS:
            text = f"more than {MOST_PLACED_PODS} pods of admitted Workloads have not started: give fewer Workloads"
            raise Problem(text, ExitCode.USAGE)
        yield from [overlay.place(pod, with_gang=True) for pod in waiting]
        yield from chain.from_iterable(_placed(overlay, Copies(unmade, overlay.cluster)))


def _number(overlay: Overlay, source: Copies, copies: int, *, is_limited: bool) -> Fitting:
    """Place all pods of this many copies, also behind one that does not fit."""
    pods: list[PodFact] = []
    is_cut = False
    try:
        for _ in range(copies):
            pods.extend(map(PodFact.of, chain.from_iterable(_placed(overlay, source))))  # keeps those before an error
    except TookTooLong:
        if not is_limited:
            raise
        is_cut = True
    size = source.wanted.size
    whole = sum(all(fact.node for fact in pods[start : start + size]) for start in range(0, len(pods) - size + 1, size))
    return Fitting(fits=whole == copies, copies=whole, pods=pods, left=(), is_cut=is_cut)


def _most(overlay: Overlay, source: Copies, *, is_limited: bool) -> Fitting:
    """Copy after copy, until one does not fit as a whole, or the time is over; that one takes nothing."""
    pods: list[PodFact] = []
    copies, blocked, is_cut = 0, None, False
    while blocked is None and len(pods) + source.wanted.size <= MOST_PLACED_PODS:
        mark = overlay.mark
        try:
            facts = list(_until_blocked(_placed(overlay, source)))
        except TookTooLong:
            if not is_limited:
                raise
            overlay.undo(mark)
            is_cut = True
            break
        if not facts[-1].node:
            blocked = facts[-1]
            overlay.undo(mark)
        else:
            pods += facts
            copies += 1
    return Fitting(fits=copies > 0, copies=copies, pods=pods, left=(), next=blocked, is_cut=is_cut)


def _placed(overlay: Overlay, source: Copies) -> Iterator[Sequence[Placed | NotPlaced]]:
    """Batch by batch of the next copy; of pods that start together all or none have a place."""
    for pods, gang in source.batches():
        if gang is not None:
            yield overlay.place_gang(gang, pods)
        elif len(pods) == 1:
            yield [overlay.place(pods[0])]
        else:
            yield overlay.place_together(pods)


def _until_blocked(batches: Iterator[Sequence[Placed | NotPlaced]]) -> Iterator[PodFact]:
    for outcome in chain.from_iterable(batches):
        yield PodFact.of(outcome)
        if not isinstance(outcome, Placed):
            return


def _node(overlay: Overlay, name: str) -> Node:
    node = overlay.cluster.nodes.get(name)
    if node is None:
        raise no_node(name, overlay.cluster.nodes.keys())
    return node
