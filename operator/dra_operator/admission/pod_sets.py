"""The pods of a Workload, as they are planned: their number, their template, and which of them are not made yet.

A Workload has pod sets, each with a template and a count. Kueue puts node labels and tolerations of the assigned
flavors into the template, and may divide a set by topology. ``dra_api.kueue`` computes that. Here are the limits, and
the comparison with the pods that exist.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final

from dra_api import kueue
from dra_api.codec import encode
from dra_api.core import Pod, Toleration
from dra_api.kueue import POD_SET, PodSet, ResourceFlavor, Workload
from dra_api.references import pod_is_done
from msgspec.structs import replace

from dra_operator.cache import Cluster
from dra_operator.scheduling.state import (
    LARGEST_OBJECT_BYTES,
    SMALL_BYTES,
    is_workload_set_aside,
    is_workload_too_large,
    workload_without_bulk,
)

from .workloads import replaced_slice

MOST_PODS: Final = 2000
"""Pods of one Workload that are planned."""


TOO_MANY_TEMPLATES: Final = (
    "its namespace has more large templates than dra-operator keeps in memory: shorten them, or have fewer of these "
    "jobs at the same time"
)
TOO_MANY_CLAIMS: Final = (
    "its namespace has more large claims than dra-operator keeps in memory: shorten them, or have fewer of these jobs "
    "at the same time"
)


class TooMuch(kueue.WorkloadError):
    """No place is looked for: the pods, or their templates, would take the memory of the process."""


class SetAside(kueue.WorkloadError):
    """There was no room for its templates or claims. When it has quota the next time, there may be."""


def planned_sets(workload: Workload, flavors: Mapping[str, ResourceFlavor]) -> list[tuple[Pod, int]]:
    """Return ``kueue.pods_of``, of a Workload that may be planned. Raises WorkloadError."""
    number = kueue.pod_count(workload)
    if number > MOST_PODS:
        raise TooMuch(f"it has {number} pods, and at most {MOST_PODS} are planned together: split the job")
    if is_workload_set_aside(workload):
        raise SetAside(
            f"its pod templates have more than {SMALL_BYTES >> 10} KiB in the fields that decide where its pods run, "
            "and its namespace has more of such objects than dra-operator keeps in memory: shorten affinity, "
            "tolerations, nodeSelector or labels of the templates, or have fewer such jobs at the same time"
        )
    # The cache keeps little of a large Workload, and not every caller has it from there.
    workload = workload_without_bulk(workload)
    if is_workload_too_large(workload):
        raise TooMuch(
            f"its pod templates have more than {LARGEST_OBJECT_BYTES >> 10} KiB in the fields that decide where its "
            "pods run, and no place is looked for: shorten the longest of resourceClaims, affinity, tolerations, "
            "nodeSelector, volumes, containers, labels"
        )
    sets = kueue.pods_of(workload, flavors.get)
    for pod, _ in sets:
        if pod.spec.node_name and pod.spec.resource_claims:
            raise kueue.WorkloadError(
                f"pod set {set_of(pod)}: spec.nodeName names a node, so that no scheduler looks at its pods and they "
                "get no devices; write nodeSelector kubernetes.io/hostname instead"
            )
    return sets


def as_first_asked(workload: Workload) -> Workload:
    """Return the Workload without what Kueue and other checks have added, and with the fewest pods that it takes.

    The next time Kueue may assign another flavor, other topology domains, or another number of pods.
    """
    sets = [it if it.min_count is None else replace(it, count=min(it.count, it.min_count)) for it in _sets_of(workload)]
    status = replace(workload.status, admission=None, admission_checks=None)
    return replace(workload, spec=replace(workload.spec, pod_sets=tuple(sets)), status=status)


def least_asked(workload: Workload, flavors: Mapping[str, ResourceFlavor]) -> Workload:
    """Return the same, which also tolerates what it may with any of the flavors and after any other check.

    If that does not fit, nothing fits that Kueue may assign the next time.
    """
    tolerated = [one for flavor in flavors.values() for one in flavor.spec.tolerations or ()]
    for check in workload.status.admission_checks or ():
        tolerated += [one for it in check.pod_set_updates or () for one in it.tolerations or ()]
    asked = as_first_asked(workload)
    return replace(asked, spec=replace(asked.spec, pod_sets=tuple(_tolerant(it, tolerated) for it in _sets_of(asked))))


def _tolerant(pod_set: PodSet, more: Sequence[Toleration]) -> PodSet:
    template, spec = pod_set.template, pod_set.template.spec
    spec = replace(spec, tolerations=(*(spec.tolerations or ()), *more))
    return replace(pod_set, template=replace(template, spec=spec)) if more else pod_set


def is_wrong(workload: Workload) -> bool:
    """Return whether the Workload itself is wrong, so that no assignment of Kueue could help."""
    try:
        planned_sets(as_first_asked(workload), {})
    except SetAside:
        return False
    except kueue.WorkloadError:
        return True
    return False


def _sets_of(workload: Workload) -> Sequence[PodSet]:
    return workload.spec.pod_sets or ()


def unmade(workload: Workload, sets: Sequence[tuple[Pod, int]], there: Sequence[Pod]) -> Iterator[tuple[Pod, int]]:
    """Yield the pods that are not made yet, with their number."""
    made = _counted(workload, there)
    for pod, number in sets:
        for name in (set_of(pod), ""):  # a pod that names no set may be of any
            known = min(made[name], number)
            made[name] -= known
            number -= known
        if number:
            yield pod, number


def with_places(
    workload: Workload, sets: Sequence[tuple[Pod, int]], there: Sequence[Pod], placeless: Sequence[Pod]
) -> list[Pod]:
    """Return the pods without a node that have a place in the sets, beside the others that are there.

    The others were made since a pod failed on its node. Nothing was promised to them.
    """
    named = {pod.key for pod in placeless}
    used = _counted(workload, (pod for pod in there if pod.key not in named))
    left = Counter[str]()
    for pod, number in sets:
        left[set_of(pod)] += number
    found, total = list[Pod](), left.total() - used.total()
    for pod in placeless:
        name = set_of(pod)
        if len(found) < total and (name not in left or used[name] < left[name]):
            used[name] += 1
            found.append(pod)
    return found


def _counted(workload: Workload, there: Iterable[Pod]) -> Counter[str]:
    """Return how many pods of each set are made: pods that go on, and pods that failed on a node.

    A pod that finished without a node has used up no place: another one is made for it. The number of a set does not
    count pods that succeeded.
    """
    lasting, ended = Counter[str](), Counter[str]()
    for pod in there:
        if not pod_is_done(pod):
            lasting[set_of(pod)] += 1
        elif pod.spec.node_name:
            ended[set_of(pod)] += 1
    for each in workload.status.reclaimable_pods or ():
        number = each.count
        for name in (each.name, ""):
            known = min(ended[name], number)
            ended[name] -= known
            number -= known
    return lasting + ended


def set_of(pod: Pod) -> str:
    """Return the name of its pod set, or nothing if it names none."""
    return (pod.metadata.labels or {}).get(POD_SET, "")


def opened(pod: Pod) -> Pod:
    """Return the pod without Kueue's gates, which it is about to lose."""
    gates = pod.spec.scheduling_gates or ()
    rest = tuple(gate for gate in gates if not gate.name.startswith(kueue.GATES))
    return pod if len(rest) == len(gates) else replace(pod, spec=replace(pod.spec, scheduling_gates=rest or None))


def copies_of(cluster: Cluster, workload: Workload, sets: Iterable[tuple[Pod, int]]) -> list[Pod]:
    """Return the missing pods of these sets, each with a name that no pod has."""
    made: list[Pod] = []
    priority = workload.pod_priority
    numbers: defaultdict[str, Iterator[int]] = defaultdict(count)  # a set with a topology comes in several parts
    for pod, number in sets:
        meta, spec = pod.metadata, pod.spec
        names = (f"{meta.name}-{at}" for at in numbers[meta.name])
        free = (name for name in names if f"{meta.namespace}/{name}" not in cluster.pods)
        if spec.priority is None and priority is not None:
            spec = replace(spec, priority=priority)
        for _ in range(number):
            name = next(free)
            uid = f"promised {meta.namespace}/{name}"
            made.append(replace(pod, metadata=replace(meta, name=name, uid=uid), spec=spec))
    return made


def shape_of(workload: Workload) -> bytes:
    """Return a digest of what decides where the pods of a Workload fit."""
    status = workload.status
    sets = [(it.name, it.count, it.min_count, it.template.spec, it.template.metadata) for it in _sets_of(workload)]
    updates = [it.pod_set_updates for it in status.admission_checks or ()]
    kept = status.admission, status.reclaimable_pods
    slice_of = workload.metadata.uid if replaced_slice(workload) else ""  # its pods that run decide as well
    decisive = workload.metadata.namespace, workload.pod_priority, sets, updates, kept, slice_of
    return hashlib.blake2b(encode(decisive), digest_size=16).digest()
