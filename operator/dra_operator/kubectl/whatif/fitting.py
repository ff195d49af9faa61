"""Places wanted pods, batch after batch: in the cluster as it is, or without a node, or with further ones.

Pods are wanted one by one or as workloads, in any number of copies.

Pods that start together or not at all are placed in one batch: the pods of a Workload of Kueue, or of a gang that
the operator places. Each other pod is a batch of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from itertools import chain, count, groupby
from typing import Final, NamedTuple

from dra_api.core import Node, Pod
from dra_api.kueue import POD_SET
from dra_api.meta import Object
from dra_api.references import pod_is_done
from dra_api.resource import ResourceClaim
from dra_api.storage import PersistentVolumeClaim
from msgspec.structs import replace

from dra_operator.cache import Cluster
from dra_operator.commands.placing import NotPlaced, Placed
from dra_operator.kubectl.answer import ExitCode, Fact, Problem
from dra_operator.kubectl.observed import Observed, no_node
from dra_operator.kubectl.pipeline import TookTooLong, pipeline
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.whatif.drain import Draining, drained, pods_on
from dra_operator.kubectl.whatif.overlay import LeftFact, Overlay, PodFact, left_in
from dra_operator.scheduling.state import Gang


@dataclass(frozen=True, slots=True)
class WantedPods:
    """``replicas`` pods like ``pod``; ``is_single``: a Pod of its own name instead of the pods of a workload.

    Pods with the same value of ``together`` start together, or none does. It is empty for pods that start one by one.
    """

    pod: Pod
    replicas: int
    is_single: bool
    together: str = ""


@dataclass(frozen=True, slots=True)
class Promised:
    """The pods of a Workload that Kueue has admitted; some of them may be in the cluster, ``owns`` says which."""

    pods: Sequence[WantedPods]
    owns: Callable[[Pod], bool]


@dataclass(frozen=True, slots=True)
class Wanted:
    """``objects`` are what the pods refer to, such as their templates, and ``added`` nodes with their devices.
    ``promised`` comes before all that is asked for."""

    pods: Sequence[WantedPods]
    objects: Sequence[Object] = ()
    added: Sequence[Object] = ()
    notes: Sequence[str] = ()
    promised: Sequence[Promised] = ()

    @property
    def size(self) -> int:
        """The number of pods of one copy."""
        return sum(each.replicas for each in self.pods)


def unstarted(promised: Promised, cluster: Cluster) -> tuple[Sequence[Pod], Wanted]:
    """Return its pending pods in the cluster, and its pods that are not made yet."""
    there = [pod for pod in cluster.pods if promised.owns(pod)]
    made = Counter((pod.metadata.labels or {}).get(POD_SET, "") for pod in there)
    left: list[WantedPods] = []
    for each in promised.pods:
        number = each.replicas
        for name in ((each.pod.metadata.labels or {}).get(POD_SET, ""), ""):  # a pod that names no set may be of any
            known = min(made[name], number)
            made[name] -= known
            number -= known
        left.append(replaced(each, replicas=number))
    waiting = [pod for pod in there if not cluster.is_bound(pod) and not pod_is_done(pod)]
    return waiting, Wanted(left)


class Batch(NamedTuple):
    """Pods that are placed together. ``gang``: theirs, of which more or fewer pods may be here than it needs."""

    pods: list[Pod]
    gang: Gang | None = None


@dataclass
class Copies:
    """One copy of all wanted pods after the other, each pod with a name that nothing in the cluster has."""

    wanted: Wanted
    cluster: Cluster
    _numbers: dict[int, Iterator[int]] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)
    _copies: int = 0

    def copy(self) -> Iterator[Pod]:
        """The pods of the next copy."""
        return chain.from_iterable(batch.pods for batch in self.batches())

    def batches(self) -> Sequence[Batch]:
        """The same in batches. A gang stands where its first pod does."""
        self._copies += 1
        made: list[Batch] = []
        gangs: dict[str, Batch] = {}
        for together, sets in groupby(enumerate(self.wanted.pods), lambda numbered: numbered[1].together):
            pods = [self._named(place, each) for place, each in sets for _ in range(each.replicas)]
            if together and pods:
                made.append(Batch(pods))
            for pod in () if together else pods:
                gang = self.cluster.gang_of(pod) if self.cluster.is_ours_to_place(pod) else None
                if not isinstance(gang, Gang):
                    made.append(Batch([pod]))
                elif gang.key in gangs:
                    gangs[gang.key].pods.append(pod)
                else:
                    gangs[gang.key] = Batch([pod], gang)
                    made.append(gangs[gang.key])
        return made

    def _named(self, place: int, each: WantedPods) -> Pod:
        """``NAME``, ``NAME-2``, ... of a single pod; ``NAME-0``, ``NAME-1``, ... of a workload."""
        meta = each.pod.metadata
        numbers = self._numbers.setdefault(place, count(1 if each.is_single else 0))
        while True:
            number = next(numbers)
            name = meta.name if each.is_single and number == 1 else f"{meta.name}-{number}"
            key = f"{meta.namespace}/{name}"
            if key not in self.cluster.pods and key not in self._used:
                break
        self._used.add(key)
        meta = replace(meta, name=name, uid=f"wanted {key}")
        if not each.is_single:  # a gang of pods that only share their controller is one of this copy
            owners = (replace(it, uid=f"{it.uid} copy {self._copies}") for it in meta.owner_references or ())
            meta = replace(meta, owner_references=tuple(owners))
        return replace(each.pod, metadata=meta)


MOST_PLACED_PODS: Final = 10_000
"""Pods that one answer places."""


class Fitting(Fact, frozen=True):
    """``fits``: all that was asked for, and what was drained for it. ``copies`` fit whole, and ``pods`` are those that
    were tried or, if as many as fit were asked for, those of whole copies. ``left`` is what could be had afterwards, or
    None if the time was over before."""

    fits: bool
    copies: int
    pods: Sequence[PodFact]
    left: Sequence[LeftFact] | None
    drained: Draining | None = None
    next: PodFact | None = None
    """The pod that blocks the next copy, if as many as fit were asked for; None if a limit was reached."""
    promised: Sequence[PodFact] = ()
    """Pods of admitted Workloads that have not started, and have what they need before all others."""
    is_cut: bool = False
    """Whether the time was over before all was tried: more may fit."""


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
    return Overlay(pipeline(replaced(seen, objects=[*others, *given.values()]), settings, pause), pause)


def fitted(
    overlay: Overlay,
    wanted: Wanted,
    copies: int | None,
    *,
    drain: str | None = None,
    without: Sequence[str] = (),
    tells_left: bool = True,
    seconds: float = 0,
) -> Fitting:
    """Place ``copies`` of them, or as many as fit if it is None.

    The nodes ``without`` are not there, nor what they have; the pods of the node ``drain`` go elsewhere first.
    ``tells_left`` adds the devices that would be left, at the cost of a look at all. After ``seconds`` (0: never) the
    answer is incomplete. Raises Problem.
    """
    left: Sequence[LeftFact] | None = ()
    with overlay.made.pausing.within(seconds):
        first = f"of node {drain}"
        try:
            for name in without:
                _remove(overlay, _node(overlay, name))
            draining = drained(overlay, _node(overlay, drain)) if drain is not None else None
            first = "that Kueue has admitted"
            promised = [PodFact.of(it) for it in _promised(overlay, wanted)]
        except TookTooLong as error:
            text = f"the time limit was reached before the pods {first} were placed; --time-limit gives more"
            raise Problem(text, ExitCode.IN_THE_WAY) from error
        source = Copies(wanted, overlay.cluster)
        found = _most(overlay, source) if copies is None else _number(overlay, source, copies)
        if tells_left and not found.is_cut:
            left = None
            with suppress(TookTooLong):
                left = left_in(overlay.made)
    is_placed = draining is None or draining.is_placed
    return replace(found, fits=found.fits and is_placed, left=left, drained=draining, promised=promised)


def _remove(overlay: Overlay, node: Node) -> None:
    """Have neither the node nor what it has."""
    for pod in pods_on(overlay.cluster, node.metadata.name):
        overlay.evict(pod)
    overlay.cluster.delete(Node, node.key)


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


def _number(overlay: Overlay, source: Copies, copies: int) -> Fitting:
    """Place all pods of this many copies, also behind one that does not fit."""
    pods: list[PodFact] = []
    is_cut = False
    try:
        for _ in range(copies):
            pods.extend(map(PodFact.of, chain.from_iterable(_placed(overlay, source))))  # keeps those before an error
    except TookTooLong:
        is_cut = True
    size = source.wanted.size
    whole = sum(all(fact.node for fact in pods[start : start + size]) for start in range(0, len(pods) - size + 1, size))
    return Fitting(fits=whole == copies, copies=whole, pods=pods, left=(), is_cut=is_cut)


def _most(overlay: Overlay, source: Copies) -> Fitting:
    """Copy after copy, until one does not fit as a whole, or the time is over; that one takes nothing."""
    pods: list[PodFact] = []
    copies, blocked, is_cut = 0, None, False
    while blocked is None and len(pods) + source.wanted.size <= MOST_PLACED_PODS:
        mark = overlay.mark
        try:
            facts = list(_until_blocked(_placed(overlay, source)))
        except TookTooLong:
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
