"""The pods that are to be placed: single ones, and those of workloads, in as many copies as are asked for.

Pods that start together or not at all are placed in one batch: the pods of a Workload of Kueue, or of a gang that
the operator places. Each other pod is a batch of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from itertools import chain, count, groupby
from typing import NamedTuple

from dra_api.core import Pod
from dra_api.kueue import POD_SET
from dra_api.meta import Object
from dra_api.references import pod_is_done
from msgspec.structs import replace

from dra_operator.cache import Cluster
from dra_operator.scheduling.state import Gang


@dataclass(frozen=True, slots=True)
class WantedPods:
    """``replicas`` pods like ``pod``; ``is_single``: a Pod of its own name instead of the pods of a workload.

    Pods with the same value of ``together`` start together, or none does. It is empty for pods that start one by one.
    """

    pod: Pod
    replicas: int
    is_single: bool
    together: str = ""


@dataclass(frozen=True, slots=True)
class Promised:
    """The pods of a Workload that Kueue has admitted; some of them may be in the cluster, ``owns`` says which."""

    pods: Sequence[WantedPods]
    owns: Callable[[Pod], bool]


@dataclass(frozen=True, slots=True)
class Wanted:
    """``objects`` are what the pods refer to, such as their templates, and ``added`` nodes with their devices.
    ``promised`` comes before all that is asked for."""

    pods: Sequence[WantedPods]
    objects: Sequence[Object] = ()
    added: Sequence[Object] = ()
    notes: Sequence[str] = ()
    promised: Sequence[Promised] = ()

    @property
    def size(self) -> int:
        """The number of pods of one copy."""
        return sum(each.replicas for each in self.pods)


def unstarted(promised: Promised, cluster: Cluster) -> tuple[Sequence[Pod], Wanted]:
    """Return its pending pods in the cluster, and its pods that are not made yet."""
    there = [pod for pod in cluster.pods if promised.owns(pod)]
    made = Counter((pod.metadata.labels or {}).get(POD_SET, "") for pod in there)
    left: list[WantedPods] = []
    for each in promised.pods:
        number = each.replicas
        for name in ((each.pod.metadata.labels or {}).get(POD_SET, ""), ""):  # a pod that names no set may be of any
            known = min(made[name], number)
            made[name] -= known
            number -= known
        left.append(replaced(each, replicas=number))
    waiting = [pod for pod in there if not cluster.is_bound(pod) and not pod_is_done(pod)]
    return waiting, Wanted(left)


class Batch(NamedTuple):
    """Pods that are placed together. ``gang``: theirs, of which more or fewer pods may be here than it needs."""

    pods: list[Pod]
    gang: Gang | None = None


@dataclass
class Copies:
    """One copy of all wanted pods after the other, each pod with a name that nothing in the cluster has."""

    wanted: Wanted
    cluster: Cluster
    _numbers: dict[int, Iterator[int]] = field(default_factory=dict)
    _used: set[str] = field(default_factory=set)
    _copies: int = 0

    def copy(self) -> Iterator[Pod]:
        """The pods of the next copy."""
        return chain.from_iterable(batch.pods for batch in self.batches())

    def batches(self) -> Sequence[Batch]:
        """The same in batches. A gang stands where its first pod does."""
        self._copies += 1
        made: list[Batch] = []
        gangs: dict[str, Batch] = {}
        for together, sets in groupby(enumerate(self.wanted.pods), lambda numbered: numbered[1].together):
            pods = [self._named(place, each) for place, each in sets for _ in range(each.replicas)]
            if together and pods:
                made.append(Batch(pods))
            for pod in () if together else pods:
                gang = self.cluster.gang_of(pod) if self.cluster.is_ours_to_place(pod) else None
                if not isinstance(gang, Gang):
                    made.append(Batch([pod]))
                elif gang.key in gangs:
                    gangs[gang.key].pods.append(pod)
                else:
                    gangs[gang.key] = Batch([pod], gang)
                    made.append(gangs[gang.key])
        return made

    def _named(self, place: int, each: WantedPods) -> Pod:
        """``NAME``, ``NAME-2``, ... of a single pod; ``NAME-0``, ``NAME-1``, ... of a workload."""
        meta = each.pod.metadata
        numbers = self._numbers.setdefault(place, count(1 if each.is_single else 0))
        while True:
            number = next(numbers)
            name = meta.name if each.is_single and number == 1 else f"{meta.name}-{number}"
            key = f"{meta.namespace}/{name}"
            if key not in self.cluster.pods and key not in self._used:
                break
        self._used.add(key)
        meta = replace(meta, name=name, uid=f"wanted {key}")
        if not each.is_single:  # a gang of pods that only share their controller is one of this copy
            owners = (replace(it, uid=f"{it.uid} copy {self._copies}") for it in meta.owner_references or ())
            meta = replace(meta, owner_references=tuple(owners))
        return replace(each.pod, metadata=meta)
