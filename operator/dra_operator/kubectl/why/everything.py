"""All pods that wait, grouped by what a scheduler would say of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from dra_api.core import Event, Pod
from dra_api.references import pod_is_done

from dra_operator.commands.simulated.cluster import gated_by_others
from dra_operator.kubectl.answer import Fact
from dra_operator.kubectl.facts import makes_pods
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import Pipeline, TookTooLong
from dra_operator.scheduling import CycleState, Plan, PreFilterResult, pre_filter
from dra_operator.scheduling.state import Gang, is_at_gate
from dra_operator.wording import counted, listed

from .claim_making import refused_devices
from .gang import together
from .schedulers import idle_scheduler, not_ours, refusal_of, was_looked_at
from .supposed import Supposed, without

NOT_LOOKED_AT: Final = "not looked at: the time limit was reached; kubectl dra why -A --time-limit gives more"
END_OF_NAME: Final = r"(?![-\w]|\.\w)"
"""No longer name has it as its beginning; the full stop of a sentence may follow."""


class WaitingGroup(Fact, frozen=True):
    """``reason`` in the words of the condition, or that nothing is in the way."""

    reason: str
    is_clear: bool
    pods: tuple[str, ...]

    @property
    def text(self) -> str:
        """One line."""
        return f"{counted(len(self.pods), 'pod')} ({listed(self.pods)}): {self.reason}"


def waiting_groups(made: Pipeline, pods: Iterable[Pod]) -> list[WaitingGroup]:
    """Of those pods that have no node and ask for devices; the largest group first."""
    found: dict[tuple[str, bool], list[str]] = {}
    gangs: dict[str, tuple[str, bool]] = {}
    idle: dict[tuple[str, bool, bool], str] = {}
    is_cut = False
    for pod in pods:
        if is_waiting(pod) and (pod.spec.resource_claims or made.cluster.classes_serving(pod)):
            text, clear = NOT_LOOKED_AT, False
            if not is_cut:
                try:
                    made.pausing()
                    text, clear = _verdict(made, pod, gangs)
                except TookTooLong:
                    is_cut = True
            if clear and (trouble := _idle(made, pod, idle)):
                text, clear = trouble, False
            if clear and not_ours(made, pod) and (said := refusal_of(pod)):
                text, clear = said, False
            found.setdefault((_without_names(made, pod, text), clear), []).append(pod.key)
    groups = [WaitingGroup(reason=reason, is_clear=clear, pods=tuple(keys)) for (reason, clear), keys in found.items()]
    return sorted(groups, key=lambda group: (group.is_clear, -len(group.pods), group.reason))


def idle_schedulers(made: Pipeline, pods: Iterable[Pod]) -> list[str]:
    """What is wrong with the schedulers of waiting pods, whatever else holds these back."""
    known: dict[tuple[str, bool, bool], str] = {}
    said = (_idle(made, pod, known) for pod in pods if is_waiting(pod) and pod.spec.resource_claims)
    return list(dict.fromkeys(filter(None, said)))


def _idle(made: Pipeline, pod: Pod, known: dict[tuple[str, bool, bool], str]) -> str:
    """What is wrong with the scheduler of a pod that nothing else holds back; ``known`` has what was said of others."""
    alike = pod.spec.scheduler_name, is_at_gate(pod), was_looked_at(pod)
    if alike not in known:
        known[alike] = "; ".join(idle_scheduler(made, pod))
    return known[alike]


def _without_names(made: Pipeline, pod: Pod, text: str) -> str:
    """Pods that wait for the same differ in the names of their claims."""
    for use, _ in made.cluster.claims_of(pod):
        name = re.escape(f"claim {pod.metadata.namespace}/{use.name}")
        text = re.sub(f"{name}{END_OF_NAME}", "its claim", text)
    return text.replace(f'pod "{pod.key}": ', "")


def is_waiting(pod: Pod) -> bool:
    """Whether it has no node yet."""
    return not pod.spec.node_name and not pod_is_done(pod)


def _verdict(
    made: Pipeline, pod: Pod, gangs: dict[str, tuple[str, bool]], before: Supposed | None = None
) -> tuple[str, bool]:
    """``gangs`` has what was said of a gang, for its other pods; ``before``: what was thought out of its way."""
    if pod.spec.scheduling_gates and not is_at_gate(pod):
        return _with_the_rest(made, gated_by_others(pod), pod, None, gangs, before), False
    found = pre_filter(pod, made.cluster.snapshot(made.allocator, made.now))
    if not isinstance(found, CycleState):
        return _with_the_rest(made, found.text, pod, found, gangs, before), False
    known = before.templates if before is not None else {}
    if refused := refused_devices(made, [it for it in found.resource_claims if it.key not in known]):
        return refused, False
    wish = made.cluster.gang_of(pod)
    if isinstance(wish, Gang) and wish.key in gangs:
        return gangs[wish.key]
    if (gang := together(made, found, preempts=False)) is not None:
        said = gangs[gang.gang.key] = "nothing holds it back" if gang.is_clear else gang.text, gang.is_clear
        return said
    answer = made.planned(found)
    return ("nothing holds it back", True) if isinstance(answer, Plan) else (answer.message, False)


def _with_the_rest(
    made: Pipeline,
    text: str,
    pod: Pod,
    found: PreFilterResult | None,
    gangs: dict[str, tuple[str, bool]],
    before: Supposed | None,
) -> str:
    with without(made, found, pod, before) as then:
        if then is None:
            return text
        more, clear = _verdict(made, then.pod, gangs, then)
        return text if clear else f"{text}; beside that: {_without_names(made, then.pod, more)}"


def refused_pods(seen: Observed, kind: str, name: str) -> list[str]:
    """Why a controller cannot make pods of a workload, by the last events about it or about what makes its pods."""
    found: dict[str, Event] = {}
    for event in seen.every(Event):
        about = event.involved_object
        is_itself = (about.kind.lower(), about.name) == (kind, name)
        if about.namespace == seen.namespace and (is_itself or makes_pods(kind, name, about.kind, about.name)):
            before = found.get(about.name, event)
            found[about.name] = max(before, event, key=lambda it: it.when)
    return [f"{it.involved_object.kind} {it.involved_object.name}: {it.reason}: {it.message}" for it in found.values()]
