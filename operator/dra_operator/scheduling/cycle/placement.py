"""Which strategy places a pod, and the rankings of nodes that strategies need from one attempt to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from typing import Final

from dra_api.core import Pod
from dra_api.resource import DeviceClass

from dra_operator.allocator import DEVICE_ORDERS, ClaimProgram
from dra_operator.scheduling.claims.demand import Demand
from dra_operator.scheduling.scoring.strategies.every_strategy import ANNOTATION, BY_NAME, FIRST_FIT
from dra_operator.scheduling.scoring.strategies.strategy import Strategy
from dra_operator.scheduling.state.requests import milli_cpu_of

from .pause import Elapsed, Pause
from .pre_filter import CycleState
from .ranking import Ranking

REFERENCE: Final = DEVICE_ORDERS[0]
KEPT_RANKINGS: Final = 32
"""Kinds of pods whose rankings are kept."""
SIGNIFICANT_CPU_DIGITS: Final = 3
"""Binary digits of the cpu that a pod asks for: pods that differ in lower ones are of one kind."""


class Chosen:
    """How one pod is placed: by a strategy, in the order of a ranking, with devices in an order."""

    def __init__(self, strategy: Strategy, ranking: Ranking, device_order: str) -> None:
        self.strategy, self.ranking, self.device_order = strategy, ranking, device_order


class Placement:
    """``strategy`` names the one for classes that name none, ``device_order`` that of all nodes."""

    def __init__(self, strategy: str = FIRST_FIT, device_order: str = REFERENCE) -> None:
        self._strategy, self._device_order = strategy, device_order
        self._rankings: dict[tuple[object, ...], Ranking] = {}

    def looks_at_mix(self, classes: Iterable[DeviceClass]) -> bool:
        """Some pods may be placed by what pods usually ask for."""
        named = {self._strategy, *((it.metadata.annotations or {}).get(ANNOTATION, "") for it in classes)}
        return any(BY_NAME[it].uses_mix for it in named & BY_NAME.keys())

    def choose(self, state: CycleState, demand: Demand) -> Generator[Pause, Elapsed, Chosen | None]:
        """The strategy with its ranking, brought up to date; None: the first node that fits."""
        strategy = BY_NAME.get(self._name(demand.program))
        if strategy is None or demand.program.fault is not None or not (demand.claims or strategy.ranks_all_pods):
            return None
        state.allocator.looks_at_mix |= strategy.uses_mix
        order = self._order(strategy)
        ranking = self._ranking(strategy, demand.program, state.pod)
        yield from ranking.update(state, demand, order)
        return Chosen(strategy, ranking, order)

    def device_order(self, program: ClaimProgram) -> str:
        """The order of devices for claims on any node; empty if that of the allocator counts."""
        strategy = BY_NAME.get(self._name(program))
        return "" if strategy is None or program.fault is not None else self._order(strategy)

    def _order(self, strategy: Strategy) -> str:
        return strategy.device_order if self._device_order == REFERENCE else self._device_order

    def _name(self, program: ClaimProgram) -> str:
        """What the class of the first request says, else what is set. A name that is unknown says nothing."""
        if not program.stages:
            return self._strategy
        annotations = program.stages[0].alternatives[0].class_.metadata.annotations or {}
        named = annotations.get(ANNOTATION, "")
        return named if named in BY_NAME or named == FIRST_FIT else self._strategy

    def _ranking(self, strategy: Strategy, program: ClaimProgram, pod: Pod) -> Ranking:
        counts_cpu = strategy.uses_mix or not program.stages  # no index says which nodes a pod without claims may fit
        milli_cpu = _rounded(milli_cpu_of(pod)) if counts_cpu else 0
        key = (strategy.name, milli_cpu, *map(id, program.requests))
        ranking = self._rankings.pop(key, None)
        if ranking is None:
            ranking = Ranking(strategy, program.requests, milli_cpu, pod.metadata.namespace or "")
        self._rankings[key] = ranking
        while len(self._rankings) > KEPT_RANKINGS:
            self._forget()
        return ranking

    def _forget(self) -> None:
        """The namespace with most rankings loses the one that was not asked for longest."""
        greediest, _ = Counter(it.tenant for it in self._rankings.values()).most_common(1)[0]
        del self._rankings[next(key for key, it in self._rankings.items() if it.tenant == greediest)]


def _rounded(milli_cpu: int) -> int:
    """The same, or a little less."""
    lower = max(0, milli_cpu.bit_length() - SIGNIFICANT_CPU_DIGITS)
    return milli_cpu >> lower << lower
