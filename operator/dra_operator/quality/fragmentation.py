"""How much of a node's idle GPUs is lost to the pods that usually come: the study's measure F, and what scores need.

For one kind of pods, all that is idle is lost where the node cannot take such a pod, or if the pod needs no GPU. Where
it can take one, lost is what is idle on GPUs that have less left than the pod takes of one. F is the mean over the
typical kinds.

The sums of F are taken in the order of the study's program: each of six reasons on its own, kind by kind, then one
after the other. Its scores are cut to whole numbers, and whether two states are exactly equal depends on that order.
Numpy keeps the order if the states lie beside each other in memory, as ``take`` puts them; an index would put the kinds
beside each other, and add them pairwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .states import Bools, Floats, Ints, NodeKinds, States
from .workload import TypicalPod


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
