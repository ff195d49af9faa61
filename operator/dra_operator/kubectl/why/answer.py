"""``kubectl dra why``."""

from __future__ import annotations

import argparse
from typing import Any, Final

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import ResourceClaim

from dra_operator.kubectl.answer import Answer, ExitCode, Problem, target_of
from dra_operator.kubectl.facts import pods_of_workload
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import Settings, pipeline
from dra_operator.wording import counted, listed

from .claims import why_claim
from .everything import idle_schedulers, is_waiting, refused_pods, waiting_groups
from .fixes.change import Fix
from .limited import hidden, why_within_limits
from .pods import why_pod
from .report import Report

OWNERS: Final = (
    *("deployment", "replicaset", "statefulset", "daemonset", "job", "cronjob", "podgroup"),
    "replicationcontroller",
)
KINDS: Final = {
    "pod": "pods",
    "claim": "resourceclaims.resource.k8s.io",
    **dict.fromkeys(OWNERS, "pods"),
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
        raise Problem(f"there is no pod of {kind} {name} in namespace {seen.namespace}: look at the {kind}'s events")
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
    notes = [f"left out, malformed: {what}: {why}" for what, why in seen.malformed.items()]
    if "pods" in seen.unseen and not hidden(seen):
        notes.append(f"pods were {seen.unseen['pods']}: nodes may have less room than the answer says")
    return notes


def _fix(fix: Fix) -> dict[str, Any]:
    """For programs: ``after`` is null for an object that is gone."""
    edits = [{"kind": _name(edit.kind), "key": edit.key, "after": edit.after} for edit in fix.edits]
    return {"node": fix.node, "text": fix.text, "edits": edits}


def _name(kind: type[Object]) -> str:
    return kind.__name__


def _absent(seen: Observed, kind: str, name: str) -> str:
    why = seen.unseen.get(KINDS[kind], "")
    if why and not why.startswith("read only in"):
        return f"{why}; {VIEWER}"
    return f"there is no {kind} {name} in namespace {seen.namespace}"
