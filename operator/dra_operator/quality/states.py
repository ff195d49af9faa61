"""The states of nodes, many at once, and what their idle GPUs are worth to the pods to come.

A state has the rest of CPU and of each GPU, as columns of numbers. Memory is left out unless a policy looks at it. A
state that recurs, on this node or a like one, has the same number, so a policy judges it once (``run``). The worth has
three figures: the study's measure F, our measure V, and prices of nodes.

**F** (``Fragmentation``). For one kind of pods, all that is idle is lost where the node cannot take such a pod, or if
the pod needs no GPU. Where it can take one, the loss is the idle part of GPUs that have less left than the pod takes of
one. F is the mean over the typical kinds.

The sums of F are taken in the order of the study's program: each of six reasons on its own, kind by kind, then one
after the other. Its scores are cut to whole numbers, and whether two states are exactly equal depends on that order.
Numpy keeps the order if the states lie beside each other in memory, as ``take`` puts them; an index would put the kinds
beside each other, and add them pairwise.

**V** (``Room``). V1 is the mean over all kinds with GPUs of two losses: the loss that F counts, and the idle GPUs
beyond the GPUs that pods of the kind alone could still take, CPU included. The more GPUs are asked for by pods of
several, the more the first counts: such pods need devices that are whole, on any node. V is the mean of V1 now and of
V1 one arrival later, for the commonest kinds. Where all pods take shares it is V1, since one more share tells little
of the future.

**Prices.** A kind of nodes costs a kind of pods, so that scarce models are kept for the pods that name them. A linear
program fills the cluster with the known mix, at somewhat more demand than there is room, so that as many GPUs as
possible are in use. The duals of its limits say what CPU, memory and GPUs of each kind of nodes are worth. A pod's
price on a kind is what it would use there, less what it would use where it is cheapest, in GPUs. Where no kind is
scarce, all prices are zero. A share of 600 thousandths keeps every other share above 400 off its GPU, which the sum of
thousandths does not say. The limits on GPUs are therefore repeated for rounded shares (dual feasible functions), and
whole nodes have their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dra_operator.quality.trace import WHOLE_MILLI, Shape, TracePod, TypicalPod

from .trace import TraceNode

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
NO_DEVICE_MILLI = -1
"""Stands for what is left of a GPU that a node does not have."""


class State(NamedTuple):
    """One node."""

    kind: int
    """Of the node."""
    cpu: int
    gpus: tuple[int, ...]
    """What is left of each GPU, in thousandths."""
    hosts: int = 0
    """Which kinds of pods are there, a bit each (``pod_kind``)."""
    memory: int = 0
    """What is left of it; 0 for policies that do not look at it, so that fewer states differ."""

    def after(self, shape: Shape, devices: Sequence[int], memory: int = 0) -> State:
        """With one more pod, on these GPUs."""
        left = list(self.gpus)
        for device in devices:
            left[device] -= shape.milli
        hosts = self.hosts | pod_kind(shape)
        return State(self.kind, self.cpu - shape.cpu, tuple(left), hosts, self.memory - memory)


def pod_kind(shape: Shape) -> int:
    """The bit of a pod's kind: it takes a share, or so many whole GPUs; nothing for pods without GPU."""
    return (1 << (0 if shape.is_share else shape.gpus)) if shape.gpus else 0


@dataclass(frozen=True)
class States:
    """A row for each state."""

    cpu: Ints
    gpus: Ints
    """A column for each device."""
    kind: Ints
    hosts: Ints
    memory: Ints

    @property
    def idle(self) -> Ints:
        """The thousandths of GPUs that are left."""
        idle: Ints = np.maximum(self.gpus, 0).sum(axis=1)
        return idle

    def __len__(self) -> int:
        return len(self.cpu)

    def with_others(self, others: States) -> States:
        pairs = zip(self._columns(), others._columns(), strict=True)
        return States(*(np.concatenate(pair) for pair in pairs))

    def _columns(self) -> tuple[Ints, ...]:
        return self.cpu, self.gpus, self.kind, self.hosts, self.memory

    def taken(self, rows: Ints | Sequence[int]) -> States:
        return States(*(column[rows] for column in self._columns()))

    def feasible(self, shape: Shape, kinds: NodeKinds) -> Bools:
        """Where a pod fits, memory apart."""
        fits = self.cpu >= shape.cpu
        if shape.gpus:
            devices = (self.gpus >= shape.milli).sum(axis=1)
            fits = fits & (devices >= shape.gpus) & kinds.accepting(shape)[self.kind]
        return fits

    def after_whole(self, shape: Shape) -> States:
        """With a pod of whole GPUs, or of none, in each: it takes the first ones that are free."""
        if not shape.gpus:
            return replace(self, cpu=self.cpu - shape.cpu)
        free = self.gpus >= shape.milli
        taken = free & (free.cumsum(axis=1) <= shape.gpus)
        return replace(self, cpu=self.cpu - shape.cpu, gpus=self.gpus - shape.milli * taken)

    def after_share(self, shape: Shape) -> tuple[States, Ints, Ints]:
        """With a share on each device that has room: the states, and of which row and on which device each is.

        Of devices with as much left only the first is tried.
        """
        same = (self.gpus[:, :, None] == self.gpus[:, None, :]) & np.tri(self.gpus.shape[1], k=-1, dtype=bool)
        rows, devices = np.nonzero((self.gpus >= shape.milli) & ~same.any(axis=2))
        found = self.taken(rows)
        gpus = found.gpus.copy()
        gpus[np.arange(len(rows)), devices] -= shape.milli
        return replace(found, cpu=found.cpu - shape.cpu, gpus=gpus), rows, devices


class NodeKind(NamedTuple):
    """Nodes that are alike when they are empty."""

    model: str
    cpu: int
    memory: int
    gpus: int


class NodeKinds:
    """The kinds of nodes in a cluster, numbered, with how many there are of each."""

    def __init__(self, nodes: Sequence[TraceNode]) -> None:
        counts = Counter(NodeKind(it.model, it.cpu, it.memory, it.gpus) for it in nodes)
        self.listed = sorted(counts)
        self.counts = [counts[kind] for kind in self.listed]
        self.width = max(1, *(kind.gpus for kind in self.listed))
        """The most devices of a node."""
        self._numbers = {kind: number for number, kind in enumerate(self.listed)}
        self._accepting: dict[str, Bools] = {}

    def empty(self, node: TraceNode, memory: int) -> State:
        """The node's state with nothing on it; ``memory``: what policies see of it."""
        kind = self._numbers[NodeKind(node.model, node.cpu, node.memory, node.gpus)]
        return State(kind, node.cpu, (WHOLE_MILLI,) * node.gpus, memory=memory)

    def accepting(self, shape: Shape) -> Bools:
        """For each kind whether the pod may use its model."""
        found = self._accepting.get(shape.spec)
        if found is None:
            found = self._accepting[shape.spec] = np.array([shape.accepts(kind.model) for kind in self.listed])
        return found


class StateTable:
    """All states that occurred, each with a number."""

    def __init__(self, kinds: NodeKinds) -> None:
        self.kinds = kinds
        self._numbers: dict[State, int] = {}
        self._listed: list[State] = []

    def number(self, state: State) -> int:
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self._listed)
            self._listed.append(state)
        return number

    def state(self, number: int) -> State:
        return self._listed[number]

    def states(self, numbers: Sequence[int]) -> States:
        found = [self._listed[number] for number in numbers]
        width = self.kinds.width
        gpus = [it.gpus + (NO_DEVICE_MILLI,) * (width - len(it.gpus)) for it in found]
        return States(
            np.array([it.cpu for it in found], np.int64),
            np.array(gpus, np.int64).reshape(len(found), width),
            np.array([it.kind for it in found], np.int64),
            np.array([it.hosts for it in found], np.int64),
            np.array([it.memory for it in found], np.int64),
        )

    def __len__(self) -> int:
        return len(self._listed)


def whole_devices(state: State, shape: Shape) -> list[int]:
    """The first GPUs that are free, for a pod of whole ones."""
    return [device for device, left in enumerate(state.gpus) if left >= WHOLE_MILLI][: shape.gpus]


class Fragmentation:
    """F in one mix of pods."""

    def __init__(self, typical: Sequence[TypicalPod], kinds: NodeKinds) -> None:
        self._idle_only = _parts([it for it in typical if not it.shape.gpus])
        mixed = [it for it in typical if it.shape.gpus]
        self._parts = np.array([[it.part] for it in mixed]).reshape(-1, 1)
        self._cpu = np.array([[it.shape.cpu] for it in mixed], np.int64).reshape(-1, 1)
        self._gpus = np.array([[it.shape.gpus] for it in mixed], np.int64).reshape(-1, 1)
        self._millis, self._milli_of = np.unique([it.shape.milli for it in mixed], return_inverse=True)
        self._accepting = np.array([kinds.accepting(it.shape) for it in mixed]).reshape(len(mixed), -1)
        self._is_choosy = bool((~self._accepting).any())

    def of(self, states: States) -> Floats:
        """F of each state, in thousandths of GPUs."""
        if len(states) == 1:  # numpy would add a single column pairwise
            return self.of(states.taken([0, 0]))[:1]
        idle = states.idle
        without_gpu = self._without_gpu(states, idle)
        has_cpu = states.cpu >= self._cpu
        has_gpus, on_small = self._devices(states)
        amount = np.where(has_gpus & has_cpu, on_small, idle) * self._parts
        no_access = np.zeros(len(states))
        if self._is_choosy:
            accepted = self._accepting.take(states.kind, axis=1)
            no_access = (np.where(accepted, 0, idle) * self._parts).sum(axis=0)
            amount = np.where(accepted, amount, 0.0)
        lacks_both = _where(~has_gpus & ~has_cpu, amount)
        lacks_gpu = _where(has_cpu, amount)
        lacks_cpu = _where(has_gpus & ~has_cpu, amount)
        sums: Floats = lacks_both + lacks_gpu + lacks_cpu + without_gpu[0] + without_gpu[1] + no_access
        return sums

    def _without_gpu(self, states: States, idle: Ints) -> tuple[Floats, Floats]:
        """For pods without GPU: where the CPU suffices, and where not."""
        cpu, parts = self._idle_only
        if not len(cpu):
            return np.zeros(len(states)), np.zeros(len(states))
        has_cpu = states.cpu >= cpu
        amount = parts * idle
        return _where(has_cpu, amount), _where(~has_cpu, amount)

    def _devices(self, states: States) -> tuple[Bools, Ints]:
        """For each kind and state whether enough devices have room, and what is idle on the others."""
        has_room = states.gpus >= self._millis[:, None, None]
        counts = has_room.sum(axis=2)
        on_small = np.where(has_room, 0, np.maximum(states.gpus, 0)).sum(axis=2)
        return counts[self._milli_of] >= self._gpus, on_small[self._milli_of]


def _parts(typical: Sequence[TypicalPod]) -> tuple[Ints, Floats]:
    cpu = np.array([[it.shape.cpu] for it in typical], np.int64).reshape(-1, 1)
    return cpu, np.array([[it.part] for it in typical]).reshape(-1, 1)


def _where(chosen: Bools, amount: Floats) -> Floats:
    found: Floats = np.where(chosen, amount, 0.0).sum(axis=0)
    return found


LEAST_WEIGHT_OF_LOST: Final = 0.4
MOST_WEIGHT_OF_LOST: Final = 0.9
WEIGHT_PER_PART_IN_SEVERAL: Final = 2.0
"""The weight of what is lost, for each part of the GPUs that is asked for by pods of several."""
LOOKED_AHEAD_KINDS: Final = 5
"""The commonest kinds, which are thought to arrive next."""
WEIGHT_OF_NEXT: Final = 0.5
NO_CPU_MILLI: Final = 1
"""Stands for the CPU of a pod that asks for none."""


class Room:
    """V in one mix of pods; less is better."""

    def __init__(self, pods: Sequence[TracePod], kinds: NodeKinds) -> None:
        counts = Counter(pod.shape for pod in pods)
        ranked = sorted((shape for shape in counts if shape.gpus), key=lambda it: (-counts[it], it))
        self._kinds = kinds
        self._next = ranked[:LOOKED_AHEAD_KINDS] if any(not shape.is_share for shape in ranked) else []
        self._weights = np.array([[counts[shape] / len(pods)] for shape in ranked]).reshape(-1, 1)
        self._cpu = _column(max(shape.cpu, NO_CPU_MILLI) for shape in ranked)
        self._gpus = _column(shape.gpus for shape in ranked)
        self._total = _column(shape.total for shape in ranked)
        self._millis, self._milli_of = np.unique([shape.milli for shape in ranked], return_inverse=True)
        self._accepting = np.array([kinds.accepting(shape) for shape in ranked]).reshape(len(ranked), -1)
        asked = sum(counts[shape] * shape.total for shape in ranked)
        several = sum(counts[shape] * shape.total for shape in ranked if shape.gpus > 1)
        part = several / asked if asked else 0.0
        self._of_lost = min(MOST_WEIGHT_OF_LOST, max(LEAST_WEIGHT_OF_LOST, WEIGHT_PER_PART_IN_SEVERAL * part))
        self._known: dict[tuple[int, ...], float] = {}

    def wasted(self, states: States) -> Floats:
        """V of each state, in thousandths of GPUs."""
        ordered = np.sort(states.gpus, axis=1)
        keys = list(zip(states.kind.tolist(), states.cpu.tolist(), *ordered.T.tolist(), strict=True))
        rows = {key: row for row, key in enumerate(keys) if key not in self._known}
        if rows:
            self._known.update(zip(rows, self._ahead(states.taken(list(rows.values()))).tolist(), strict=True))
        return np.array([self._known[key] for key in keys])

    def _ahead(self, states: States) -> Floats:
        """V, worked out."""
        count = len(states)
        every, places = states, []
        for shape in self._next:
            fits = np.nonzero(states.feasible(shape, self._kinds))[0]
            place = np.arange(count)
            place[fits] = len(every) + np.arange(len(fits))
            places.append(place)
            every = every.with_others(_best_fit(states.taken(fits), shape))
        now = self._now(every)
        if not places:
            return now
        later = sum(now[place] for place in places) / len(places)
        return (1 - WEIGHT_OF_NEXT) * now[:count] + WEIGHT_OF_NEXT * later

    def _now(self, states: States) -> Floats:
        """V1."""
        idle = states.idle
        left = np.maximum(states.gpus, 0)
        takes = left // self._millis[:, None, None]
        by_device = takes.sum(axis=2)[self._milli_of]
        devices = (takes > 0).sum(axis=2)[self._milli_of]
        on_small = np.where(takes > 0, 0, left).sum(axis=2)[self._milli_of]
        accepted = self._accepting[:, states.kind]
        pods = np.minimum(by_device // self._gpus, states.cpu // self._cpu)
        usable = np.where(accepted, pods * self._total, 0)
        takes_one = accepted & (devices >= self._gpus) & (states.cpu >= self._cpu)
        lost = np.where(takes_one, on_small, idle)
        each = self._of_lost * lost + (1 - self._of_lost) * (idle - usable)
        sums: Floats = (each * self._weights).sum(axis=0)
        return sums


def _best_fit(states: States, shape: Shape) -> States:
    """With one more pod, a share on the fullest device that has room."""
    if not shape.is_share or not len(states):
        return states.after_whole(shape)
    after = states.gpus.copy()
    fullest = np.where(after >= shape.milli, after, np.iinfo(np.int64).max).argmin(axis=1)
    after[np.arange(len(states)), fullest] -= shape.milli
    return replace(states, cpu=states.cpu - shape.cpu, gpus=after)


def _column(values: Iterable[int]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.array([[value] for value in values], np.int64).reshape(-1, 1)


DEMAND_SHARE: Final = 1.15
"""What pods ask for, in parts of the cluster's GPUs."""
PRICE_DIGITS: Final = 6
"""Prices are rounded: the solver's last digits are noise."""
LIMITED_GPUS: Final = (2, 4, 8)
"""GPUs of one node for which there are limits."""


class _Group(NamedTuple):
    shape: Shape
    memory: float
    demand: float


def prices(pods: Sequence[TracePod], kinds: NodeKinds) -> Mapping[Shape, Floats]:
    """For each shape what each kind of nodes costs, in GPUs; infinite where it may not run."""
    groups = _groups(pods, kinds)
    used = np.array([[_used(it, kind) for kind in kinds.listed] for it in groups])
    allowed = np.array([kinds.accepting(it.shape) & _fits(it.shape, kinds) for it in groups])
    limits = np.array([_limits(kind, count) for kind, count in zip(kinds.listed, kinds.counts, strict=True)])
    duals = _duals(groups, used, allowed, limits)
    costs = np.where(allowed, (used * duals).sum(axis=2), np.inf)
    cheapest = costs.min(axis=1, keepdims=True)
    above = costs - np.where(np.isfinite(cheapest), cheapest, 0)
    return {it.shape: np.round(row, PRICE_DIGITS) for it, row in zip(groups, above, strict=True)}


def _groups(pods: Sequence[TracePod], kinds: NodeKinds) -> list[_Group]:
    counts = Counter(pod.shape for pod in pods)
    memory: defaultdict[Shape, int] = defaultdict(int)
    for pod in pods:
        memory[pod.shape] += pod.memory
    asked = sum(pod.shape.total for pod in pods)
    capacity = WHOLE_MILLI * sum(kind.gpus * count for kind, count in zip(kinds.listed, kinds.counts, strict=True))
    scale = DEMAND_SHARE * capacity / asked if asked else 1.0
    return [_Group(shape, memory[shape] / count, count * scale) for shape, count in sorted(counts.items())]


def _fits(shape: Shape, kinds: NodeKinds) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array([kind.cpu >= shape.cpu and kind.gpus >= shape.gpus for kind in kinds.listed])


def _rounded(parts: int) -> Callable[[int], float]:
    """A share as 1 if no more than the smallest of ``parts`` fits beside it, as 0 if it is such a smallest one."""

    def function(milli: int) -> float:
        if milli * parts > WHOLE_MILLI * (parts - 1):
            return 1.0
        return 0.0 if milli * parts < WHOLE_MILLI else milli / WHOLE_MILLI

    return function


SHARES: Final[tuple[Callable[[int], float], ...]] = (lambda milli: milli / WHOLE_MILLI, *map(_rounded, (2, 3, 4)))


def _used(group: _Group, kind: NodeKind) -> list[float]:
    shape = group.shape
    gpus = [function(shape.milli) * shape.gpus for function in SHARES]
    return [shape.cpu / 1000, group.memory / 1024, *gpus, *(float(shape.gpus // part) for part in LIMITED_GPUS)]


def _limits(kind: NodeKind, count: int) -> list[float]:
    gpus = [float(kind.gpus * count)] * len(SHARES)
    parts = [float(kind.gpus // part * count) for part in LIMITED_GPUS]
    return [kind.cpu * count / 1000, kind.memory * count / 1024, *gpus, *parts]


def _duals(groups: Sequence[_Group], used: Floats, allowed: Floats, limits: Floats) -> Floats:
    """What a unit of each limit is worth, for each kind."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    where = np.argwhere(allowed)
    if not len(where):
        return np.zeros(limits.shape)
    resources = limits.shape[1]
    values = used[where[:, 0], where[:, 1]]
    columns = np.repeat(np.arange(len(where)), resources)
    rows = (where[:, 1, None] * resources + np.arange(resources)).ravel()
    demand_rows = limits.size + where[:, 0]
    matrix = coo_array(
        (
            np.concatenate([values.ravel(), np.ones(len(where))]),
            (np.concatenate([rows, demand_rows]), np.concatenate([columns, np.arange(len(where))])),
        ),
        shape=(limits.size + len(groups), len(where)),
    )
    bounds = np.concatenate([limits.ravel(), [it.demand for it in groups]])
    gained = np.array([groups[group].shape.total / WHOLE_MILLI for group, _ in where])
    solved = linprog(-gained, A_ub=matrix.tocsr(), b_ub=bounds, method="highs")
    return np.asarray(-solved.ineqlin.marginals[: limits.size]).reshape(limits.shape)
