"""A post filter as small as can be: ends one pod of lower priority where the waiting one then fits."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

from dra_api.core import Pod
from dra_api.references import claims_of_pod
from dra_operator.scheduling import Elapsed, Fits, Pause, PodFilter, PostFilterResult, Unschedulable
from dra_operator.scheduling.state import LoadedNode, pod_requests, subtract


def first_victim(failed: Unschedulable) -> Generator[Pause, Elapsed, PostFilterResult | None]:
    """The first node, and the first pod on it, whose end lets the pod in."""
    for state in failed.resolvable():
        for victim in _on(state, failed):
            usage = failed.cycle_state.usage.snapshot()
            for use in claims_of_pod(victim):
                claim = failed.cycle_state.find_claim(f"{victim.metadata.namespace}/{use.name}")
                if claim is not None and claim.status.allocation is not None:
                    usage.remove(claim.status.allocation)
            without = state.with_load(subtract(state.used, pod_requests(victim)))
            status = yield from PodFilter(replace(failed.cycle_state, usage=usage)).filter(without)
            if isinstance(status, Fits):
                return PostFilterResult(status.plan, (victim,))
    return None


def _on(state: LoadedNode, failed: Unschedulable) -> Iterator[Pod]:
    pods = failed.cycle_state.nodes.pods_by_node
    for uid, node in pods:
        place = pods.at(uid)
        if node == state.name and place and (place[0].spec.priority or 0) < (failed.cycle_state.pod.spec.priority or 0):
            yield place[0]
