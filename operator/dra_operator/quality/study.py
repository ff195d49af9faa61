"""Many runs: policies times seeds on one trace, and what they say together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

from .curve import Curve, measured
from .moves import Moves, moved
from .policies.choices import POLICIES
from .run import Run
from .trace import TraceNode, TracePod
from .workload import workload

T_95: Final = (
    *(12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23),
    *(2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09),
)
"""Student's t for intervals of 95 %, from one degree of freedom."""
T_VALUE_OF_MANY: Final = 1.96


class Cluster(NamedTuple):
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


def result(cluster: Cluster, policy: str, seed: int) -> RunResult:
    """Play one run."""
    its = workload(cluster.pods, cluster.nodes, seed, cluster.inflate, has_gangs=cluster.has_gangs)
    curve = measured(Run(its, POLICIES[policy]))
    if not cluster.move_percent:
        return RunResult(policy, seed, curve)
    again = workload(cluster.pods, cluster.nodes, seed, cluster.inflate)
    return RunResult(policy, seed, curve, moved(Run(again, POLICIES[policy]), cluster.move_percent))
