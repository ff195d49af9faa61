"""Whom a waiting pod would end, or ends, so that it fits: the same search as in the operator."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from datetime import timedelta
from functools import partial

from dra_api.core import Pod
from dra_api.values.times import parse_time

from dra_operator.kubectl.observed.pipeline import Pipeline
from dra_operator.scheduling import Elapsed, Pause, PostFilterResult, Unschedulable
from dra_operator.scheduling.preemption import PreemptionTerms, preempt, priority
from dra_operator.wording import counted, listed

SOON = timedelta(minutes=1)
"""A pod that is being deleted and ends by then is waited for."""


def preemption(made: Pipeline, failed: Unschedulable) -> Generator[Pause, Elapsed, PostFilterResult | None]:
    """A post filter."""
    cluster = made.cluster
    terms = PreemptionTerms(
        find_pod=cluster.pods.get,
        may_end=partial(_may_end, made),
        is_leaving=partial(_is_leaving, made),
        holders=cluster.holders,
        gang=cluster.gang_of_pod,
        members=cluster.placed_of_gang,
        budgets=cluster.budgets,
    )
    return preempt(failed, terms)


def victims(made: Pipeline, pod: Pod, nominated: PostFilterResult) -> Iterator[str]:
    """Who ends for the pod, and where."""
    node, ends = nominated.nominated_node, nominated.victims
    if nominated.awaited:
        names, one = listed(it.key for it in nominated.awaited), len(nominated.awaited) == 1
        yield f"it fits on node {node} once {names} {'has' if one else 'have'} ended, being deleted already"
    if not ends:
        return
    names = listed(f"{it.key} (priority {priority(it)})" for it in ends)
    what = f"{counted(len(ends), 'pod')} of lower priority on node {node}, after which it fits: {names}"
    yield f"it ends {what}" if made.settings.preemption else f"with --preemption the operator would end {what}"


def _may_end(made: Pipeline, pod: Pod) -> bool:
    return made.settings.preempt_other_schedulers or pod.spec.scheduler_name == made.settings.scheduler_name


def _is_leaving(made: Pipeline, pod: Pod) -> bool:
    ends = parse_time(pod.metadata.deletion_timestamp)
    return ends is not None and abs(ends - made.now) < SOON
