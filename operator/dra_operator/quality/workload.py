"""What happens in a run: the pods in the order of their arrival, the nodes in the order that decides among equals.

Both follow from the seed alone. The pods of the trace are shuffled; then pods are removed, or drawn again from the
trace, until they ask for ``inflate`` times the GPUs of the cluster; 0 leaves them as they are. The rules, the odd ones
included, are those of the published runs, which have no gangs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from .go_random import GoRandom
from .trace import WHOLE_MILLI, Shape, TraceNode, TracePod

LOG_DRAWS: Final = 1
"""Numbers that the published runs draw for a log line before they shuffle."""
INFORMER_DRAWS: Final = 10
"""Numbers that their ten informers draw for watch time-outs, after the pods and before the order of the nodes."""
POPULAR_PERCENT: Final = 95
"""Typical are the commonest pods, until they are so many of all."""


class TypicalPod(NamedTuple):
    """A kind of pods of the trace, and its part of the typical ones."""

    shape: Shape
    part: float


class Workload(NamedTuple):
    """One run."""

    pods: Sequence[TracePod]
    """The trace, in the order of names: the mix that is known beforehand."""
    arrivals: Sequence[TracePod]
    nodes: Sequence[TraceNode]
    """In the order in which equals are taken."""
    typical: Sequence[TypicalPod]
    random: GoRandom
    """Where the stream is when the first pod arrives."""
    has_gangs: bool = False
    """Whether a pod of several GPUs is a gang: as many pods of one GPU, all at once or none."""


def workload(
    pods: Sequence[TracePod], nodes: Sequence[TraceNode], seed: int, inflate: float, *, has_gangs: bool = False
) -> Workload:
    """The run of a seed. ``pods`` and ``nodes`` are in the order of their names."""
    random = GoRandom(seed)
    for _ in range(LOG_DRAWS):
        random.int63()
    arrivals = list(pods)
    random.shuffle(arrivals)
    if inflate:
        _inflate(arrivals, pods, inflate * WHOLE_MILLI * sum(node.gpus for node in nodes), random)
    for _ in range(INFORMER_DRAWS):
        random.int63()
    places = random.permutation(len(nodes))
    ordered = [node for _, node in sorted(zip(places, nodes, strict=True))]
    known = [member for pod in pods for member in members(pod)] if has_gangs else pods
    return Workload(known, arrivals, ordered, typical_pods(known), random, has_gangs)


def members(pod: TracePod) -> list[TracePod]:
    """The pods of one GPU that do the work of a pod of several; another pod alone."""
    gpus = pod.shape.gpus
    if gpus < 2:
        return [pod]
    shape = pod.shape._replace(cpu=pod.shape.cpu // gpus, gpus=1)
    return [TracePod(f"{pod.name}-{number}", pod.memory // gpus, shape) for number in range(gpus)]


def _inflate(arrivals: list[TracePod], pods: Sequence[TracePod], goal: float, random: GoRandom) -> None:
    """Pods are either drawn at random and removed, or drawn from the trace and added."""
    requested = sum(pod.shape.total for pod in arrivals)
    if requested > goal:
        while requested > goal:
            requested -= arrivals.pop(random.intn(len(arrivals))).shape.total
    elif requested:
        while requested + (drawn := pods[random.intn(len(pods))]).shape.milli <= goal:
            arrivals.append(drawn)
            requested += drawn.shape.total


def typical_pods(pods: Sequence[TracePod]) -> list[TypicalPod]:
    """The commonest kinds, the commonest first."""
    counts = Counter(pod.shape for pod in pods)
    ranked = sorted(counts.items(), key=lambda it: (it[1], it[0]), reverse=True)
    total = float(len(pods))
    taken: list[tuple[Shape, int]] = []
    covered = 0.0
    for shape, count in ranked:
        if covered >= POPULAR_PERCENT * total / 100.0:
            break
        taken.append((shape, count))
        covered += count
    everything = len(taken) == len(ranked)
    return [
        TypicalPod(shape, count / total if everything else count / total / (covered / total)) for shape, count in taken
    ]
