"""Partitions of one or two GPUs: how little can be in vain at best, if no profile may pay for the others.

No profile is to be refused more than 1.1 times as often as with the lowest free placement first, and no fewer slices
are to be served. Each refusal gets a price for that, the best choice in each state at these prices is found by trying
all (value iteration), and prices of what is refused too often rise. Whatever the prices, the cost that is found, less
the price of what is allowed, is a bound: no rule that keeps to the limits leaves less in vain. Neither arrivals nor
departures are simulated.

Slots of memory that only change places make no difference, and neither does which GPU is which: two GPUs have 5,995
states.

    .venv/bin/python benchmarks/partitions_bound.py --gpus 2
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from partitions import LOAD, MIXES, SLICES
from partitions_exhaustive import COMPUTE_SLICES, Floats, Gpu, State, free_slices

LIMIT_RATIO: Final = 1.1
FIRST_PRICE: Final = 0.3
"""Of a refusal, where one in vain costs 1."""
PRICE_POWER: Final = 3
"""How fast prices follow the refusals."""
VALUE_STEPS, BALANCE_STEPS, PRICE_STEPS = 1000, 2000, 30
EXACT: Final = 1e-6

FULL: Final = frozenset({("7g", 0)})
"""The state in which nothing is free."""

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Reference(NamedTuple):
    """What the lowest free placement on the first GPU that has one leads to."""

    refused: Mapping[str, float]
    """The part of each profile's requests."""
    in_vain: float
    served: float
    """The part of the slices."""


def alike(state: State) -> State:
    """The same for all states between which slots only change places."""
    found = []
    for swaps in itertools.product((0, 1), repeat=4):
        low, *pairs = swaps
        moved = set()
        for profile, start in state:
            at = start
            if profile == "1g" and at < 6:
                at ^= pairs[at // 2]
            if profile in ("1g", "2g") and at < 4:
                at ^= 2 * low
            moved.add((profile, at))
        found.append(frozenset(moved))
    return min(found, key=sorted)


class Gpus:
    """All states of several GPUs that differ in more than names, and what leads from one to another."""

    def __init__(self, gpu: Gpu, gpus: int) -> None:
        kinds = {state: number for number, state in enumerate(dict.fromkeys(map(alike, gpu.states)))}
        self.count, of = gpus, [kinds[alike(state)] for state in gpu.states]
        after = {it: [sorted({of[to] for to in gpu.options(state, it)}) for state in kinds] for it in SLICES}
        gone = [[kinds[alike(state - {it})] for it in state] for state in kinds]
        free = [free_slices(state) for state in kinds]
        self.states = list(itertools.combinations_with_replacement(range(len(kinds)), gpus))
        self.numbers = {state: number for number, state in enumerate(self.states)}
        self.most_free = np.array([max(free[it] for it in state) for state in self.states])
        self.options = {
            it: self._table([self._changed(state, its) for state in self.states]) for it, its in after.items()
        }
        self.departed = self._table([self._changed(state, gone) for state in self.states], COMPUTE_SLICES * gpus)

    def _changed(self, state: tuple[int, ...], to: Sequence[Sequence[int]]) -> list[int]:
        """The states that can follow where one GPU changes."""
        found = []
        for place, kind in enumerate(state):
            others = state[:place] + state[place + 1 :]
            found += [self.numbers[tuple(sorted((*others, new)))] for new in to[kind]]
        return found

    def _table(self, changed: Iterable[list[int]], width: int = 0) -> Numbers:
        """A row for each state, filled up to the width with the state itself; without a width, with -1."""
        rows = list(changed)
        filler = range(len(rows)) if width else itertools.repeat(-1)
        width = width or max(map(len, rows))
        return np.array([row + [other] * (width - len(row)) for row, other in zip(rows, filler, strict=False)])


class Decisions:
    """Random arrivals of a mix at several GPUs, and departures, in steps of equal length."""

    def __init__(self, gpus: Gpus, mix: Mapping[str, float]) -> None:
        weights = sum(mix.values())
        self.gpus, self.mix = gpus, {it: weight / weights for it, weight in mix.items()}
        self.mean = sum(SLICES[it] * part for it, part in self.mix.items())
        rate = LOAD * COMPUTE_SLICES * gpus.count / self.mean
        self.arriving, self.leaving = rate, 1 / (rate + COMPUTE_SLICES * gpus.count)
        self.refused = {it: gpus.options[it][:, 0] < 0 for it in self.mix}
        self.in_vain = {it: self.refused[it] & (gpus.most_free >= SLICES[it]) for it in self.mix}
        self.value: Floats = np.zeros(len(gpus.states) + 1)
        self.value[-1] = -np.inf
        self.often: Floats = np.full(len(gpus.states), 1 / len(gpus.states))

    def best(self, price: Mapping[str, float]) -> tuple[float, Mapping[str, Numbers]]:
        """The cost of a request in the long run, and the choices that lead to it."""
        arriving, value = self.arriving * self.leaving, self.value
        cost = sum(part * (self.in_vain[it] + price[it] * self.refused[it]) for it, part in self.mix.items())
        for _ in range(VALUE_STEPS):
            new = value[self.gpus.departed].sum(1) * self.leaving - arriving * cost
            for it, part in self.mix.items():
                best = value[self.gpus.options[it]].max(1)
                new += arriving * part * np.where(self.refused[it], value[:-1], best)
            change = new - value[:-1]
            value[:-1] = new - new[0]
            if np.ptp(change) < EXACT:
                break
        choices = {}
        for it in self.mix:
            options = self.gpus.options[it]
            places = np.arange(len(options))
            chosen = options[places, value[options].argmax(1)]
            choices[it] = np.where(self.refused[it], places, chosen)
        return -float(change.max()) / arriving, choices

    def refusals(self, choices: Mapping[str, Numbers]) -> Mapping[str, float]:
        """The part of each profile's requests that is refused in the long run."""
        often, departed = self.often, self.gpus.departed
        for _ in range(BALANCE_STEPS):
            weights = np.repeat(often * self.leaving, departed.shape[1])
            new: Floats = np.bincount(departed.ravel(), weights, minlength=len(often)).astype(float)
            for it, part in self.mix.items():
                share = often * (self.arriving * self.leaving * part)
                new += np.bincount(choices[it], share, minlength=len(often))
            change, often = np.abs(new - often).sum(), new
            if change < EXACT:
                break
        self.often = often
        return {it: float(often[self.refused[it]].sum()) for it in self.mix}

    def bounds(self, reference: Reference) -> Iterator[float]:
        """What is in vain at least, as a part of the reference's; one for each price, none of them too high."""
        price = dict.fromkeys(self.mix, FIRST_PRICE)
        slices = FIRST_PRICE
        for _ in range(PRICE_STEPS):
            both = {it: price[it] + slices * SLICES[it] / self.mean for it in self.mix}
            cost, choices = self.best(both)
            allowed = sum(part * price[it] * LIMIT_RATIO * reference.refused[it] for it, part in self.mix.items())
            yield (cost - allowed - slices * (1 - reference.served)) / reference.in_vain
            refused = self.refusals(choices)
            for it in self.mix:
                price[it] *= (refused[it] / reference.refused[it] / LIMIT_RATIO) ** PRICE_POWER
            lost = sum(SLICES[it] * part * refused[it] for it, part in self.mix.items()) / self.mean
            slices *= (lost / (1 - reference.served)) ** PRICE_POWER


class Apart:
    """One GPU that is told apart from others: what leads from state to state, as rates."""

    def __init__(self, gpu: Gpu, *, is_there: bool = True) -> None:
        """One that is not there has one state, and takes nothing."""
        states = gpu.states if is_there else [FULL]
        count = len(states)
        self.free = np.array([free_slices(state) for state in states])
        self.leaving = np.zeros((count, count))
        self.taking = {profile: np.zeros((count, count)) for profile in SLICES}
        for number, state in enumerate(states if is_there else ()):
            self.leaving[number, number] = -len(state)
            for placement in state:
                self.leaving[number, gpu.numbers[state - {placement}]] += 1
            for profile in SLICES:
                for after in gpu.options(state, profile)[:1]:
                    self.taking[profile][number, [number, after]] = -1, 1
        self.full = {profile: np.asarray(~taking.any(axis=1)) for profile, taking in self.taking.items()}


def reference_of(gpu: Gpu, parts: Decisions) -> Reference:
    """The lowest free placement, on the first of two GPUs if it has one."""
    one, other = Apart(gpu), Apart(gpu, is_there=parts.gpus.count > 1)
    often: Floats = np.ones((len(one.free), len(other.free))) / len(one.free) / len(other.free)
    for _ in range(BALANCE_STEPS):
        change = one.leaving.T @ often + often @ other.leaving
        for it, part in parts.mix.items():
            passed_on = often * one.full[it][:, None]
            change += parts.arriving * part * (one.taking[it].T @ often + passed_on @ other.taking[it])
        often = often + change * parts.leaving
        if np.abs(change).sum() * parts.leaving < EXACT:
            break
    most_free = np.maximum.outer(one.free, other.free)
    refused = {it: np.asarray(np.outer(one.full[it], other.full[it]), bool) for it in parts.mix}
    in_vain = sum(part * often[refused[it] & (most_free >= SLICES[it])].sum() for it, part in parts.mix.items())
    lost = {it: float(often[its].sum()) for it, its in refused.items()}
    served = 1 - sum(SLICES[it] * part * lost[it] for it, part in parts.mix.items()) / parts.mean
    return Reference(lost, float(in_vain), served)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1, choices=(1, 2))
    options = parser.parse_args()
    gpu = Gpu()
    gpus = Gpus(gpu, options.gpus)
    print(f"{len(gpus.states)} states; refusals in vain, and the least part of them that is left")
    bounds = []
    for name, mix in MIXES.items():
        decisions = Decisions(gpus, mix)
        reference = reference_of(gpu, decisions)
        bounds.append(max(decisions.bounds(reference)))
        print(f"{name:<10} {100 * reference.in_vain:>6.2f} % {bounds[-1]:>6.2f}", flush=True)
    print(f"mean {sum(bounds) / len(bounds):.2f}")


if __name__ == "__main__":
    main()
