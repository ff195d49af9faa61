"""Partitions of one GPU: how far an order of devices is from the best choice of placements there is.

One GPU has few states: which placements are taken. So the best choice in each state, for random arrivals and departures
without end, is found by trying all of them (value iteration over a Markov decision process), and what an order reaches
is computed rather than simulated: the allocator is asked once in each state. Every request that fits is served by all.

    .venv/bin/python benchmarks/partitions_exhaustive.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from dra_operator.allocator import Allocated, Allocator, DeviceId, Usage
from partitions import LOAD, MIXES, PLACEMENTS, SLICES, claim_for, node_with, partition_of

COMPUTE_SLICES: Final = 7
EXACT: Final = 1e-9
LEARNED_REQUESTS: Final = 300

Placement = tuple[str, int]
"""A profile, and its first memory slice."""
State = frozenset[Placement]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Choice = Mapping[str, Sequence[int | None]]
"""For each profile and state the state that follows; None where nothing is free."""


class Gpu:
    """All states, and what leads from one to another."""

    def __init__(self) -> None:
        self.states: list[State] = [frozenset()]
        self.numbers = {self.states[0]: 0}
        for state in self.states:
            for placement in placements(state):
                if (after := state | {placement}) not in self.numbers:
                    self.numbers[after] = len(self.states)
                    self.states.append(after)

    def options(self, state: State, profile: str) -> list[int]:
        """The states that can follow a request, the lowest placement first."""
        return [self.numbers[state | {it}] for it in placements(state) if it[0] == profile]


def placements(state: State) -> Iterator[Placement]:
    """Those that are free."""
    taken = {at for profile, start in state for at in range(start, start + dict(PLACEMENTS[profile])[start])}
    left = free_slices(state)
    for profile, its in PLACEMENTS.items():
        for start, size in its:
            if SLICES[profile] <= left and taken.isdisjoint(range(start, start + size)):
                yield profile, start


def free_slices(state: State) -> int:
    """Slices of compute that are free."""
    return COMPUTE_SLICES - sum(SLICES[profile] for profile, _ in state)


class Chain:
    """Random arrivals of a mix, and departures, in steps of equal length."""

    def __init__(self, gpu: Gpu, mix: Mapping[str, float]) -> None:
        self.gpu, self.mix = gpu, mix
        weights = sum(mix.values())
        mean = sum(SLICES[it] * weight for it, weight in mix.items()) / weights
        rate = LOAD * COMPUTE_SLICES / mean
        steps = rate + COMPUTE_SLICES
        """Nothing departs in some of them: there are at most as many partitions as slices."""
        self.arrivals = {it: rate * weight / weights / steps for it, weight in mix.items()}
        count = len(gpu.states)
        self.departures = np.zeros((count, count))
        for number, state in enumerate(gpu.states):
            for it in state:
                self.departures[number, gpu.numbers[state - {it}]] += 1 / steps
            self.departures[number, number] += (COMPUTE_SLICES - len(state)) / steps

    def best(self) -> Choice:
        """What serves most slices."""
        gpu, value = self.gpu, np.zeros(len(self.gpu.states))
        options = {it: [gpu.options(state, it) for state in gpu.states] for it in self.mix}
        change = np.inf
        while change > EXACT:
            new = self.departures @ value
            for profile, share in self.arrivals.items():
                new += share * np.array(
                    [
                        SLICES[profile] + value[found].max() if found else value[number]
                        for number, found in enumerate(options[profile])
                    ]
                )
            new -= new[0]
            change, value = float(np.abs(new - value).max()), new
        return {
            profile: [max(found, key=lambda it: value[it]) if found else None for found in its]
            for profile, its in options.items()
        }

    def outcome(self, choice: Choice) -> tuple[float, float]:
        """Percent of the slices that are served, and of the requests that are refused in vain."""
        count = len(self.gpu.states)
        moves = self.departures.copy()
        for profile, share in self.arrivals.items():
            for number, after in enumerate(choice[profile]):
                moves[number, number if after is None else after] += share
        system = np.vstack([moves.T - np.eye(count), np.ones(count)])
        often: Floats = np.linalg.lstsq(system, np.append(np.zeros(count), 1.0), rcond=None)[0]
        asked = served = vain = 0.0
        for profile, share in self.arrivals.items():
            refused = [number for number, after in enumerate(choice[profile]) if after is None]
            asked += share * SLICES[profile]
            served += share * SLICES[profile] * (1 - often[refused].sum())
            wasted = [it for it in refused if free_slices(self.gpu.states[it]) >= SLICES[profile]]
            vain += share * often[wasted].sum()
        return 100 * served / asked, 100 * vain / sum(self.arrivals.values())


def chosen_by(order: str, gpu: Gpu, mix: Mapping[str, float]) -> Choice:
    """What the allocator chooses in each state."""
    inventory, node = node_with(1)
    allocator = Allocator(inventory, new_share_id=str, order=order)
    for profile, weight in mix.items():
        for _ in range(round(LEARNED_REQUESTS * weight / sum(mix.values()))):
            allocator.learned.learn(allocator.compile([claim_for(profile)]))

    def after(state: State, profile: str) -> int | None:
        usage = Usage()
        for its, start in state:
            usage.take_device(DeviceId("gpu.example.com", "gpu-0", f"mig-{its}-{start}"))
        found = allocator.allocate(node, [claim_for(profile)], usage)
        if not isinstance(found, Allocated):
            return None
        device = partition_of(found.results[0]).device
        return gpu.numbers[state | {(profile, int(device.rsplit("-", 1)[1]))}]

    return {profile: [after(state, profile) for state in gpu.states] for profile in mix}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", default="reference,least-loss", help="orders to compare (%(default)s)")
    orders = parser.parse_args().orders.split(",")
    gpu = Gpu()
    print(f"{len(gpu.states)} states; slices served, and requests refused in vain, in percent")
    print(f"{'mix':<10}", *(f"{it:>20}" for it in [*orders, "best"]))
    for name, mix in MIXES.items():
        chain = Chain(gpu, mix)
        choices = [*(chosen_by(it, gpu, mix) for it in orders), chain.best()]
        cells = [f"{served:>13.2f} {vain:>6.2f}" for served, vain in map(chain.outcome, choices)]
        print(f"{name:<10}", *cells, flush=True)


if __name__ == "__main__":
    main()
