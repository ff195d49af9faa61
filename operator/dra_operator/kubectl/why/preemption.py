"""Whom a waiting pod would end, or ends, so that it fits: the same search as in the operator."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial

from dra_api.core import Pod

from dra_operator.kubectl.pipeline import Pipeline
from dra_operator.scheduling import Elapsed, Pause, PostFilterResult, Unschedulable
from dra_operator.scheduling.preemption import PreemptionTerms, leaves_soon, preempt, seconds_left
from dra_operator.wording import counted, listed


def preemption(made: Pipeline, failed: Unschedulable) -> Generator[Pause, Elapsed, PostFilterResult | None]:
    """A post filter."""
    return preempt(failed, terms_of(made))


def terms_of(made: Pipeline) -> PreemptionTerms:
    """What preemption has to know of the cluster."""
    cluster = made.cluster
    return PreemptionTerms(
        find_pod=cluster.pods.get,
        may_end=partial(_may_end, made),
        is_leaving=partial(_is_leaving, made),
        holders=cluster.holders,
        gang=cluster.gang_of_pod,
        placed_with=cluster.gang_key_of,
        members=cluster.placed_of_gang,
        budgets=cluster.budgets,
        priority=cluster.priority_of,
        seconds_left=lambda pod: seconds_left(pod, cluster.nodes.get(pod.spec.node_name), made.now),
        patience=made.settings.preemption_patience,
    )


def victims(made: Pipeline, nominated: PostFilterResult) -> Iterator[str]:
    """Who ends for the pod, and where."""
    yield from who_ends(made, "it fits", nominated.victims, nominated.awaited, f" on node {nominated.nominated_node}")


def who_ends(made: Pipeline, fits: str, ends: Sequence[Pod], awaited: Sequence[Pod], where: str = "") -> Iterator[str]:
    """``fits`` says what is possible then."""
    if awaited:
        names, one = listed(it.key for it in awaited), len(awaited) == 1
        yield f"{fits}{where} once {names} {'has' if one else 'have'} ended, being deleted already"
    if not ends:
        return
    names = listed(f"{it.key} (priority {made.cluster.priority_of(it)})" for it in ends)
    what = f"{counted(len(ends), 'pod')} of lower priority{where}, after which {fits}: {names}"
    yield f"it ends {what}" if made.settings.preemption else f"with --preemption the operator would end {what}"


def _may_end(made: Pipeline, pod: Pod) -> bool:
    return made.settings.preempt_other_schedulers or pod.spec.scheduler_name == made.settings.scheduler_name


def _is_leaving(made: Pipeline, pod: Pod) -> bool:
    return leaves_soon(pod, made.now, made.settings.preemption_patience)
