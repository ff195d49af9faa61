"""Many runs: policies times seeds on one trace, and the figures that they give together.

A curve has allocated and lost GPUs over the demand that has arrived. Demand counts in whole percent of the
cluster's GPUs. The figures of a percent are means over the arrivals that round to it, of values rounded to two places,
as in the published tables.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from dra_operator.quality.moves import Moves, moved
from dra_operator.quality.policies import POLICIES
from dra_operator.quality.run import NO_NODE_NUMBER, Run
from dra_operator.quality.states import Floats, Ints
from dra_operator.quality.trace import WHOLE_MILLI, TraceNode, TracePod
from dra_operator.quality.workload import workload

MEASURED_STATES: Final = 4096
"""States that are measured at once."""
PERCENT_DIGITS: Final = 2


class Curve(NamedTuple):
    """A row for each percent of demand, from 0; NaN where no arrival rounds to it."""

    allocated: Floats
    """Percent of the cluster's GPUs that pods have."""
    lost: Floats
    """Percent of the idle GPUs that are lost to the typical pods (F)."""
    lost_at_first: float
    """That of the empty cluster."""

    def at(self, percent: int) -> tuple[float, float]:
        """Both figures at a percent of demand, or at the highest below."""
        known = np.nonzero(~np.isnan(self.allocated[: percent + 1]))[0]
        if not len(known):
            return 0.0, self.lost_at_first  # the first pod asks for more than that
        return float(self.allocated[known[-1]]), float(self.lost[known[-1]])


def measured(run: Run) -> Curve:
    """Play a run to its end."""
    capacity = sum(node.gpus for node in run.workload.nodes) * WHOLE_MILLI
    placements = list(run.placements())
    lost_in = _lost_in(run)
    placed = np.array([it.node != NO_NODE_NUMBER for it in placements])
    asked = np.array([it.pod.shape.total for it in placements], np.int64)
    growth = [lost_in[it.reached] - lost_in[it.left] if it.node != NO_NODE_NUMBER else 0.0 for it in placements]
    at_first = lost_in[run.empty].sum()
    lost = at_first + np.cumsum(growth)
    used = np.cumsum(np.where(placed, asked, 0))
    idle = capacity - used
    arrived = 100 * np.cumsum(asked) / capacity
    ratio = np.divide(100 * lost, idle, out=np.zeros(len(idle)), where=idle > 0)
    percents = np.rint(arrived).astype(np.int64)
    allocated, lost_percents = (_means(percents, np.round(it, PERCENT_DIGITS)) for it in (100 * used / capacity, ratio))
    return Curve(allocated, lost_percents, float(np.round(100 * at_first / capacity, PERCENT_DIGITS)))


def _lost_in(run: Run) -> Floats:
    numbers = range(len(run.table))
    parts = [run.table.states(numbers[at : at + MEASURED_STATES]) for at in range(0, len(numbers), MEASURED_STATES)]
    return np.concatenate([run.fragmentation.of(states) for states in parts])


def _means(percents: Ints, values: Floats) -> Floats:
    counts = np.bincount(percents)
    sums = np.bincount(percents, weights=values)
    means: Floats = np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0)
    return means


T_95: Final = (
    *(12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23),
    *(2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09),
)
"""Student's t for intervals of 95 %, from one degree of freedom."""
T_VALUE_OF_MANY: Final = 1.96


class StudiedCluster(NamedTuple):
    """What all runs have in common."""

    pods: Sequence[TracePod]
    nodes: Sequence[TraceNode]
    inflate: float
    has_gangs: bool = False
    move_percent: float = 0
    """Pods that are moved at full demand, in percent of those that have a node."""


class RunResult(NamedTuple):
    """One run."""

    policy: str
    seed: int
    curve: Curve
    moves: Moves | None = None
    """None if none were asked for."""


class Mean(NamedTuple):
    """A mean, and half the width of its confidence interval of 95 %; NaN for a single value."""

    value: float
    half_width: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Of some values."""
        free = len(values) - 1
        if not free:
            return cls(values[0], math.nan)
        t = T_95[free - 1] if free <= len(T_95) else T_VALUE_OF_MANY
        return cls(statistics.fmean(values), t * statistics.stdev(values) / math.sqrt(len(values)))


def result(cluster: StudiedCluster, policy: str, seed: int) -> RunResult:
    """Play one run."""
    its = workload(cluster.pods, cluster.nodes, seed, cluster.inflate, has_gangs=cluster.has_gangs)
    curve = measured(Run(its, POLICIES[policy]))
    if not cluster.move_percent:
        return RunResult(policy, seed, curve)
    again = workload(cluster.pods, cluster.nodes, seed, cluster.inflate)
    return RunResult(policy, seed, curve, moved(Run(again, POLICIES[policy]), cluster.move_percent))
