"""What a node's idle GPUs are worth to the pods to come, by how many of each kind the node could still take.

V1 is the mean over all kinds with GPUs of two losses: what F counts as lost (``fragmentation``), and what is idle less
what pods of the kind alone could still take, CPU included. The more GPUs are asked for by pods of several, the more the
first counts: such pods need devices that are whole, wherever they are. V is the mean of V1 now and of V1 one arrival
later, for the commonest kinds; where all pods take shares it is V1, since one more share tells little of what is to
come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from .states import Floats, NodeKinds, States
from .trace import Shape, TracePod

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
