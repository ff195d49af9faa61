"""``kubectl dra why``: one pod, claim or workload in full, or all pending pods, grouped by their answers.

A viewer who may not read all objects that decide gets the facts about the object itself: conditions, events,
and claims of the namespace.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from dra_api.command_line import shell
from dra_api.core import Event, Pod
from dra_api.references import claims_of_pod, pod_is_done
from dra_api.resource import ResourceClaim

from dra_operator.commands.simulated import gated_by_others
from dra_operator.kubectl.answer import Answer, ExitCode, Fact, Problem, target_of
from dra_operator.kubectl.arguments import OWNERS
from dra_operator.kubectl.facts import makes_pods, pods_of_workload
from dra_operator.kubectl.observed import Observed, forbidden_note, malformed_notes
from dra_operator.kubectl.pipeline import Pipeline, TookTooLong, pipeline
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.why.causes import holding
from dra_operator.kubectl.why.changes import Fix, Report
from dra_operator.kubectl.why.decision import together
from dra_operator.kubectl.why.pods import (
    Drivers,
    idle_scheduler,
    namespace_ends,
    not_ours,
    not_started,
    refusal_of,
    unknown_requests,
    was_looked_at,
    why_claim,
    why_pod,
)
from dra_operator.kubectl.why.supposed import Supposed, missing_claims, names_in, refused_devices, similar_name, without
from dra_operator.scheduling import CycleState, NotTried, Plan, PreFilterResult, pre_filter
from dra_operator.scheduling.claims import CLAIM_MISSING
from dra_operator.scheduling.state import Gang, is_at_gate
from dra_operator.wording import counted, listed

NOT_LOOKED_AT: Final = "not looked at: the time limit was reached; kubectl dra why -A --time-limit gives more"
NAME: Final = r"[-\w]+(?:\.\w[-\w]*)*"
"""A whole name; the full stop of a sentence may follow."""


_MISSING: Final = re.compile(r'resourceclaim "[^"]*"')
_MOST_GROUPS: Final = 30
"""Groups of one namespace that are told apart: a tenant decides how many reasons its pods have, and how long they are.
"""
_REASON_LETTERS: Final = 1000
"""Length to which the reason of a group is cut."""


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
    found: Found = {}
    gangs: dict[str, tuple[str, bool]] = {}
    idle: dict[tuple[str, bool, bool], str] = {}
    wanted = [it for it in pods if is_waiting(it) and (it.spec.resource_claims or made.cluster.classes_serving(it))]
    number = 0
    with suppress(TookTooLong):
        for pod in made.each_at_hand(wanted):
            made.pausing()
            text, clear = _with_all(made, pod, *_verdict(made, pod, gangs), idle)
            _note(found, made, pod, text, clear)
            number += 1
    if left := wanted[number:]:
        found[NOT_LOOKED_AT, False] = NOT_LOOKED_AT, [pod.key for pod in left]
    return _groups(found)


Found = dict[tuple[str, bool], tuple[str, list[str]]]
"""Pods with the reason of the first one, by their common reason: it leaves out the names of missing claims."""


def _note(found: Found, made: Pipeline, pod: Pod, text: str, clear: bool) -> None:
    own = _without_names(made, pod, text)
    common = _in_group(_MISSING.sub("its claim", own))
    found.setdefault((common, clear), (_in_group(own), []))[1].append(pod.key)


def _groups(found: Found) -> list[WaitingGroup]:
    groups = [
        WaitingGroup(reason=own if len(keys) == 1 else common, is_clear=clear, pods=tuple(keys))
        for (common, clear), (own, keys) in found.items()
    ]
    return list(_few(sorted(groups, key=lambda group: (group.is_clear, -len(group.pods), group.reason))))


def _few(groups: Iterable[WaitingGroup]) -> Iterator[WaitingGroup]:
    """Yield the first groups of each namespace; the pods of its other groups together."""
    numbers: Counter[str] = Counter()
    others: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for group in groups:
        spaces = {key.partition("/")[0] for key in group.pods}
        numbers.update(spaces)
        if any(numbers[space] <= _MOST_GROUPS for space in spaces):
            yield group
            continue
        for key in group.pods:
            others[key.partition("/")[0], group.is_clear].append(key)
    for (space, clear), keys in others.items():
        command = shell("kubectl", "dra", "why", "pod/NAME", "-n", space)
        reason = f"of namespace {space}, for other reasons, each of few pods: {command}"
        yield WaitingGroup(reason=reason, is_clear=clear, pods=tuple(keys))


def _with_all(
    made: Pipeline, pod: Pod, text: str, clear: bool, idle: dict[tuple[str, bool, bool], str]
) -> tuple[str, bool]:
    """The operator's verdict with what others have to say about the pod: its namespace, its scheduler, its kubelet."""
    more = [namespace_ends(made, pod.metadata.namespace), *unknown_requests(made, pod)]
    who_else = not_ours(made, pod)
    more.append(refusal_of(pod) if who_else else "")
    if clear and (trouble := _idle(made, pod, idle)):
        more.append(trouble)
    said = [it for it in more if it]
    if clear and not said:
        return (f"{who_else}: {text}" if who_else else text), True
    return "; ".join(said if clear else [text, *said]), False


def unstarted_groups(made: Pipeline, pods: Iterable[Pod]) -> list[WaitingGroup]:
    """Group pods that have a node and devices and do not start there, by the first reason of each."""
    found: Found = {}
    drivers = Drivers(made)
    for pod in made.each_at_hand(filter(_is_starting, pods)):
        made.pausing()
        if why := not_started(made, pod, drivers):
            _note(found, made, pod, f"does not start: {why}", clear=False)
    return _groups(found)


def _is_starting(pod: Pod) -> bool:
    is_pending = pod.status.phase in ("", "Pending") and pod.metadata.deletion_timestamp is None
    return is_pending and bool(pod.spec.node_name and pod.spec.resource_claims)


def idle_schedulers(made: Pipeline, pods: Iterable[Pod]) -> list[str]:
    """Return the faults of the schedulers of pending pods. Other causes may hold these pods back as well."""
    known: dict[tuple[str, bool, bool], str] = {}
    said = (_idle(made, pod, known) for pod in pods if is_waiting(pod) and pod.spec.resource_claims)
    return list(dict.fromkeys(filter(None, said)))


def _idle(made: Pipeline, pod: Pod, known: dict[tuple[str, bool, bool], str]) -> str:
    """What is wrong with the scheduler of a pod that nothing else holds back; ``known`` has what was said of others."""
    alike = pod.spec.scheduler_name, is_at_gate(pod), was_looked_at(pod)
    if alike not in known:
        known[alike] = "; ".join(idle_scheduler(made, pod))
    return known[alike]


def _in_group(text: str) -> str:
    """Return the reason of a group. One for each of ten thousand pods that name hundreds of claims is no summary."""
    if len(text) <= _REASON_LETTERS:
        return text
    return f"{text[:_REASON_LETTERS]}…"


def _without_names(made: Pipeline, pod: Pod, text: str) -> str:
    """Pods that wait for the same differ in the names of their claims."""
    names = {use.name for use, _ in made.cluster.claims_of(pod)}
    # One pattern for all names: a pod may have hundreds of claims, and to compile a pattern takes a millisecond.
    found = re.compile(f"claim {re.escape(pod.metadata.namespace)}/({NAME})")
    text = found.sub(lambda it: "its claim" if it[1] in names else it[0], text)
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
    [pod] = made.at_hand([pod])
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
    with without(made, found, pod, before, is_summary=True) as then:
        if isinstance(found, NotTried) and found.obstacle.reason is CLAIM_MISSING:
            text += "; others of its claims are missing as well" if len(missing_claims(made.cluster, pod)) > 1 else ""
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


NEEDED: Final = (
    "nodes",
    "deviceclasses.resource.k8s.io",
    "resourceslices.resource.k8s.io",
    "resourceclaims.resource.k8s.io",
)
"""Without one of these kinds no node can be asked; a claim that is not seen may hold any device."""


def hidden(seen: Observed) -> list[str]:
    """Those of them that the viewer may not read in the whole cluster."""
    return [kind for kind in NEEDED if kind in seen.unseen]


def why_within_limits(seen: Observed, found: Pod | ResourceClaim) -> Report:
    """What the API server has about the object itself."""
    report = Report()
    if isinstance(found, Pod):
        _pod(report, seen, found)
    else:
        report.say(f"claim {found.key}: {holding(found)}")
        report.is_clear = found.status.allocation is not None
        for pod in seen.every(Pod) if found.status.allocation is None else ():
            if any(f"{pod.metadata.namespace}/{use.name}" == found.key for use in claims_of_pod(pod)):
                _pod(report, seen, pod)
    absent = [seen.unseen[kind] for kind in hidden(seen)]
    if all(" holds no " in why for why in absent):
        report.say(f"{'; '.join(absent)}: with these objects the answer goes node by node, and has changes that help")
        return report
    kinds = ", ".join(kind.partition(".")[0] for kind in hidden(seen))
    role = "the ClusterRole dra-viewer (manifests/operator/viewer.yaml)"
    report.say(f"you may not list {kinds}: with {role} the answer goes node by node, and has changes that help")
    return report


def _pod(report: Report, seen: Observed, pod: Pod) -> None:
    where = f"is assigned to node {pod.spec.node_name}" if pod.spec.node_name else "has no node"
    report.say(f"pod {pod.key} {'is done' if pod_is_done(pod) else where}")
    if not pod.spec.node_name and not pod_is_done(pod):
        report.is_clear = False
    for condition in pod.status.conditions or ():
        if condition.status == "False" and condition.message:
            report.say(f"condition {condition.type} is False, {condition.reason}: {condition.message}", indent=2)
    are_known = KINDS["claim"] not in seen.unseen
    for use in claims_of_pod(pod):
        claim = seen.one(ResourceClaim, f"{pod.metadata.namespace}/{use.name}")
        report.say(f"claim {use.name}: {holding(claim) if claim or are_known else 'not known'}", indent=2)
    last = sorted(seen.events_about(pod.metadata.uid), key=lambda it: it.when)[-3:]
    report.add(f"event {event.reason}: {event.message}" for event in last)


KINDS: Final = {
    "pod": "pods",
    "claim": "resourceclaims.resource.k8s.io",
    **dict.fromkeys(OWNERS, "pods"),
    "workload": "workloads.kueue.x-k8s.io",
}
"""With the plural names of what is read for them."""
VIEWER: Final = "the ClusterRole dra-viewer in manifests/operator/viewer.yaml allows it: have it bound to you"


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """Why one object waits, or all pods that do. Raises Problem."""
    settings = Settings.of(options)
    if options.all_namespaces and not options.target:
        return _of_all(seen, settings, options.time_limit)
    if not options.target:
        raise Problem("name a pod, claim or workload as TYPE/NAME, or use -A for all that wait", ExitCode.USAGE)
    kind, name, _ = target_of(options.target, KINDS)
    if not kind:
        key = f"{seen.namespace}/{name}"
        is_claim = seen.one(Pod, key) is None and seen.one(ResourceClaim, key) is not None
        kind = "claim" if is_claim else "pod"
    if kind == "workload":
        from dra_operator.kubectl.why.workload import why_workload  # few ask, and the planner takes long to load

        report = why_workload(seen, settings, name, hidden(seen), options.time_limit)
    else:
        about = _of_owner if kind in OWNERS else _of_one
        report = about(seen, settings, kind, name, options.time_limit)
    code = ExitCode.CLEAR if report.is_clear else ExitCode.IN_THE_WAY
    value = {
        "kind": kind,
        "key": f"{seen.namespace}/{name}",
        "clear": report.is_clear,
        "lines": report.lines,
        "fixes": list(map(_fix, report.fixes)),
    }
    return Answer(lines=report.lines, value=value, names=[f"{kind}/{name}"], notes=_notes(seen), code=code)


def _of_all(seen: Observed, settings: Settings, seconds: float) -> Answer:
    if missing := hidden(seen):
        absent = [why for kind in missing if " holds no " in (why := seen.unseen[kind])]
        raise Problem("; ".join(absent) or f"you may not list {', '.join(missing)}; {VIEWER}")
    made = pipeline(seen, settings)
    with made.pausing.within(seconds):
        groups = waiting_groups(made, seen.every(Pod))
        with suppress(TookTooLong):
            groups += unstarted_groups(made, seen.every(Pod))
    groups.sort(key=lambda group: group.is_clear)
    number = sum(len(group.pods) for group in groups)
    lines = [f"{counted(number, 'pod')} with claims or extended resources {'waits' if number == 1 else 'wait'}"]
    told = {group.reason for group in groups}
    lines += [f"  {line}" for line in idle_schedulers(made, seen.every(Pod)) if line not in told]
    lines += [f"  {group.text}" for group in groups]
    code = ExitCode.CLEAR if all(group.is_clear for group in groups) else ExitCode.IN_THE_WAY
    names = [f"pod/{key}" for group in groups for key in group.pods]
    return Answer(lines=lines, value={"groups": groups}, names=names, notes=_notes(seen), code=code)


def _of_one(seen: Observed, settings: Settings, kind: str, name: str, seconds: float) -> Report:
    key = f"{seen.namespace}/{name}"
    found: Pod | ResourceClaim | None = seen.one(Pod, key) if kind == "pod" else seen.one(ResourceClaim, key)
    if found is None:
        raise Problem(_absent(seen, kind, name))
    return _report_on(seen, settings, found, seconds)


def _of_owner(seen: Observed, settings: Settings, kind: str, name: str, seconds: float) -> Report:
    """The first of the pods that wait in full, the others by name."""
    pods = pods_of_workload(seen, kind, name)
    refused = refused_pods(seen, kind, name)
    if not pods and not refused:
        described = shell("kubectl", "describe", kind, "-n", seen.namespace, "--", name)
        raise Problem(
            f"there is no pod of {kind} {name} in namespace {seen.namespace}: there is none of that name, or it is "
            f"suspended, or wants no pods now; {described} tells"
        )
    waiting = [pod for pod in pods if is_waiting(pod)]
    report = Report([f"{kind} {seen.namespace}/{name} has {counted(len(pods), 'pod')}, {len(waiting)} without a node"])
    if refused:
        report.object_to(*refused)
    for pod in waiting[:1] or pods:
        report.take_in(_report_on(seen, settings, pod, seconds), indent=2)
    if others := waiting[1:]:
        report.say(f"{counted(len(others), 'other pod waits', 'other pods wait')}: {listed(pod.key for pod in others)}")
    return report


def _report_on(seen: Observed, settings: Settings, found: Pod | ResourceClaim, seconds: float) -> Report:
    if hidden(seen):
        return why_within_limits(seen, found)
    made = pipeline(seen, settings)
    with made.pausing.within(seconds):
        return why_pod(made, found) if isinstance(found, Pod) else why_claim(made, found)


def _notes(seen: Observed) -> list[str]:
    notes = malformed_notes(seen)
    if not hidden(seen):
        notes += forbidden_note(seen, ["pods"])
    if "pods" in seen.unseen and not hidden(seen):
        notes.append(f"pods were {seen.unseen['pods']}: nodes may have less room than the answer says")
    return notes


def _fix(fix: Fix) -> dict[str, Any]:
    """For programs: ``after`` is null for an object that is gone."""
    edits = [{"kind": edit.kind.__name__, "key": edit.key, "after": edit.after} for edit in fix.edits]
    return {"node": fix.node, "text": fix.text, "edits": edits}


def _absent(seen: Observed, kind: str, name: str) -> str:
    why = seen.unseen.get(KINDS[kind], "")
    if why and not why.startswith("read only in"):
        return f"{why}; {VIEWER}"
    every = seen.every(Pod) if kind == "pod" else seen.every(ResourceClaim)
    hint = similar_name(name, names_in(every, seen.namespace))
    if not hint and (others := sorted(it.metadata.namespace for it in every if it.metadata.name == name)):
        hint = f"; there is one in namespace {listed(others)}"
    return f"there is no {kind} {name} in namespace {seen.namespace}{hint}"
