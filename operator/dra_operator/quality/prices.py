"""What a kind of nodes costs a kind of pods, so that scarce models are kept for the pods that name them.

A linear program fills the cluster with the known mix, at somewhat more demand than there is room, so that as many GPUs
as possible are in use. The duals of its limits say what CPU, memory and GPUs of each kind of nodes are worth. A pod's
price on a kind is what it would use there, less what it would use where it is cheapest, in GPUs. Where no kind is
scarce, all prices are zero.

A share of 600 thousandths keeps every other share above 400 off its GPU, which the sum of thousandths does not say. The
limits on GPUs are therefore repeated for rounded shares (dual feasible functions), and whole nodes have their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from .states import Floats, NodeKind, NodeKinds
from .trace import WHOLE_MILLI, Shape, TracePod

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
