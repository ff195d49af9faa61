"""A pod without a node, or an immediate claim without devices: the causes, and changes that were proven to help."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Final

from dra_api.core import Pod
from dra_api.references import pod_is_done
from dra_api.resource import ResourceClaim, ResourceClaimSpec, ResourceClaimTemplate, ResourceSlice
from dra_api.storage import PersistentVolumeClaim
from msgspec.structs import replace

from dra_operator.allocator import DeviceId
from dra_operator.cache import Cluster
from dra_operator.kubectl.facts import other_finalizers
from dra_operator.kubectl.pipeline import Pipeline, TookTooLong
from dra_operator.scheduling import (
    ConflictCheckDue,
    CycleState,
    Deferring,
    Fits,
    GettingReady,
    NoPlace,
    NotTried,
    Plan,
    PreFilterResult,
    pre_filter,
    total,
)
from dra_operator.scheduling.claims import CLAIM_DELETED, CLAIM_MISSING, CLAIM_UNMADE, CLASS_MISSING
from dra_operator.scheduling.rules import VOLUME_CLAIM_MISSING
from dra_operator.scheduling.state import GANG_INCOMPLETE, Gang, title
from dra_operator.wording import counted, listed

from .causes import volume_causes
from .changes import Fix, Report, Trial
from .decision import PodDecision, Together, ahead_in_line, decide, missing_members, together, who_ends
from .nodes import node_report, nowhere_together, promising, requests_served, unpublished, with_devices
from .published import Pools, Published
from .search import FixSearch, outdated
from .supposed import Supposed, lost_claims, names_in, refused_devices, similar_name, unmade, without, without_claims

OUT_OF_TIME: Final = "the time limit was reached; kubectl dra why --time-limit gives more"
_SAID_OF_GATES: Final = "Scheduling is blocked due to non-empty scheduling gates"
"""What the API server writes into the condition of a pod with gates; the operator says more, with the same reason."""


def why_waiting(
    made: Pipeline, pod: Pod, *, places: bool, supposed: Supposed | None = None, is_ours: bool = False
) -> Report:
    """``places``: the operator gives it a node, or devices. ``supposed``: what was thought out of its way before.
    ``is_ours``: the operator would do so if it worked, so that the pod's gang is judged as one."""
    report, cluster = Report(), made.cluster
    found = pre_filter(pod, cluster.snapshot(made.allocator, made.now, defers=partial(_defers, cluster, places)))
    if isinstance(found, Deferring):
        report.say(f"{title(pod)} {found.text}")
        found = found.cycle_state
    if not isinstance(found, CycleState):
        report.object_to(f"{title(pod)} {_without_name(pod, found.text)}{_similar(made, pod, found)}", indent=0)
        _add_remedies(report, made, pod, found)
        report.take_in(why_besides(made, found, pod, places=places, before=supposed))
        return report
    known = supposed.templates if supposed is not None else {}  # of these it was said before that they are refused
    if refused := refused_devices(made, [it for it in found.resource_claims if it.key not in known]):
        report.object_to(f"{title(pod)} {refused}", indent=0)
        return report
    if lost := lost_claims(found):
        _tell_of_lost_nodes(report, pod, lost)
        report.take_in(why_besides(made, found, pod, places=places, before=supposed))
        return report
    for binding in found.failed.values():
        report.say(f"{title(pod)} releases its devices and is rescheduled: {binding.text}")
    try:
        gang = together(made, found, preempts=True) if places or is_ours else None
    except TookTooLong:
        report.object_to(f"{title(pod)} was not decided about: {OUT_OF_TIME}", indent=0)
        return report
    if gang is not None:
        return _of_gang(report, made, found, gang, places=places)
    decision = decide(made, found, places=places)
    answer = decision.answer
    report.is_clear = isinstance(answer, Plan)
    if decision.is_cut:
        _tell_how_far(report, made, found, decision)
        return report
    if decision.error:
        report.say(f"{title(pod)} is held back on all nodes by an error: {decision.error}")
    _tell_of_nodes(report, made, found, decision, places=places, supposed=supposed)
    if isinstance(answer, NoPlace) and (ends := answer.nominated) is not None:
        report.add(who_ends(made, "it fits", ends.victims, ends.awaited, f" on node {ends.nominated_node}"))
    if isinstance(answer, Plan):
        _tell_why_best(report, answer)
    return report


def _add_remedies(report: Report, made: Pipeline, pod: Pod, found: PreFilterResult) -> None:
    """What helps a pod that is not tried, beyond the words of its obstacle."""
    if isinstance(found, GettingReady):
        report.add(_said_of_devices(found.claims))
    elif isinstance(found, NotTried) and found.obstacle.reason is CLAIM_UNMADE:
        report.add(unmade(made, pod))
    elif isinstance(found, NotTried) and found.obstacle.reason is CLAIM_DELETED:
        report.add(_kept(made, f"{pod.metadata.namespace}/{found.obstacle.subject}"))
    elif isinstance(found, NotTried) and found.obstacle.reason.is_about_volumes:
        report.add(volume_causes(made.seen, pod, found.obstacle.subject))
    elif isinstance(found, NotTried) and found.obstacle.reason is GANG_INCOMPLETE:
        report.add(_members(made, pod))


def _tell_of_lost_nodes(report: Report, pod: Pod, lost: Iterable[tuple[ResourceClaim, str]]) -> None:
    for claim, node in lost:
        text = f"claim {claim.metadata.name} is allocated ({_devices(claim)}) for node {node}, which does not exist"
        report.object_to(f"{title(pod)} cannot run: {text}", indent=0)


def _tell_how_far(report: Report, made: Pipeline, found: CycleState, decision: PodDecision) -> None:
    asked, nodes = len(decision.said), counted(len(found.nodes), "node")
    report.object_to(f"{title(found.pod)} was not decided about, {asked} of {nodes} asked: {OUT_OF_TIME}", indent=0)
    if decision.said:
        _tell_what_nodes_said(report, made, found, decision)


def _tell_why_best(report: Report, plan: Plan) -> None:
    if plan.strategy:
        report.say(f"best is {plan.node} by the placement strategy {plan.strategy}", indent=2)
    if plan.scores:
        scores = ", ".join(f"{name} {each}" for name, each in plan.scores)
        report.say(f"best is {plan.node} with a score of {total(plan.scores)}: {scores}", indent=2)


def why_besides(
    made: Pipeline, found: PreFilterResult | None, pod: Pod, *, places: bool, before: Supposed | None = None
) -> Report:
    """What else keeps the pod waiting behind what ``found`` says, or behind its scheduling gates if that is None."""
    report = Report()
    with without(made, found, pod, before) as then:
        if then is None:
            return report
        rest = why_waiting(made, then.pod, places=places, supposed=then)
        if not rest.is_clear:
            report.object_to("beside that:")
            report.take_in(rest, indent=4)
        elif then.changes and (node := Trial(made, then.pod, then.templates).node()):
            fix = Fix(node, then.changes, Trial(made, then.pod, then.templates).edits(then.changes))
            report.fixes = [fix]
            report.add(_fixes(report.fixes, made, then.pod))
    return report


def _devices(claim: ResourceClaim) -> str:
    return ", ".join(str(DeviceId.of(result)) for result in claim.results) or "no devices"


def _members(made: Pipeline, pod: Pod) -> Iterator[str]:
    """How many pods the gang lacks, and which pods mean it but name another size, topology or attribute."""
    gang = made.cluster.gang_of(pod)
    if not isinstance(gang, Gang):
        return
    running, waiting = made.cluster.members_of(gang)
    yield missing_members(gang, len(running) + len(waiting))
    apart: dict[str, list[str]] = {}
    for other in made.cluster.pods:
        if other.metadata.namespace != pod.metadata.namespace or pod_is_done(other):
            continue
        its = made.cluster.gang_of(other)
        if isinstance(its, Gang) and its.title == gang.title and (differs := _difference(its, gang)):
            apart.setdefault(differs, []).append(other.metadata.name)
    for differs, names in apart.items():
        yield f"not counted: pod{'s' * (len(names) > 1)} {listed(sorted(names))} of a gang {gang.title} with {differs}"


def _difference(its: Gang, gang: Gang) -> str:
    """Return how the request of one gang differs from that of the other of the same name."""
    asked: list[tuple[str, int | str, int | str]] = [("size", its.size, gang.size)]
    asked += [("topology", its.topology, gang.topology), ("attribute", its.attribute, gang.attribute)]
    return " and ".join(
        f"{what} {one or 'none'} instead of {other or 'none'}" for what, one, other in asked if one != other
    )


def _said_of_devices(claims: Iterable[ResourceClaim]) -> Iterator[str]:
    """What their drivers say of devices that are not ready."""
    for claim in claims:
        for device in claim.status.devices or ():
            for one in device.conditions or ():
                if one.status != "True" and one.message:
                    id_ = f"{device.driver}/{device.pool}/{device.device}"
                    yield f"device {id_}, condition {one.type} is {one.status}, {one.reason}: {one.message}"


def _similar(made: Pipeline, pod: Pod, found: PreFilterResult) -> str:
    """The name of a class or claim that may have been meant."""
    if not isinstance(found, NotTried):
        return ""
    obstacle, cluster = found.obstacle, made.cluster
    if obstacle.reason is CLASS_MISSING:
        return similar_name(obstacle.detail, (it.metadata.name for it in cluster.classes))
    if obstacle.reason is CLAIM_MISSING:
        return _similar_claim(cluster, pod.metadata.namespace, obstacle.subject)
    if obstacle.reason is VOLUME_CLAIM_MISSING:
        return similar_name(obstacle.subject, names_in(made.seen.every(PersistentVolumeClaim), pod.metadata.namespace))
    return ""


def _similar_claim(cluster: Cluster, namespace: str, name: str) -> str:
    """A claim with a similar name, a template of the same name, or such a claim in another namespace."""
    if similar := similar_name(name, names_in(cluster.claims, namespace)):
        return similar
    if f"{namespace}/{name}" in cluster.templates:
        return "; there is a ResourceClaimTemplate of that name: write resourceClaimTemplateName"
    others = sorted(it.metadata.namespace for it in cluster.claims if it.metadata.name == name)
    return f"; there is one in namespace {listed(others)}, but a pod uses only claims of its own" if others else ""


def _without_name(pod: Pod, text: str) -> str:
    """Without the pod's name, with which the line begins already: texts for conditions name the pod themselves."""
    return re.sub(f'pod "{re.escape(pod.key)}"[:,] ', "", text, count=1)


def _of_gang(report: Report, made: Pipeline, cycle_state: CycleState, gang: Together, *, places: bool) -> Report:
    """All of it is judged together: where one pod alone would fit says nothing."""
    report.is_clear = gang.is_clear
    report.say(f"{title(cycle_state.pod)}: {gang.text}")
    report.add(_meant_by(made, gang.gang))
    report.add(_outdated(made, cycle_state))
    report.add(gang.victims(made))
    report.add(ahead_in_line(made, cycle_state.pod))
    if gang.is_clear and places:
        report.add(_free_to_go(cycle_state.pod))
    return report


def _meant_by(made: Pipeline, gang: Gang) -> Iterator[str]:
    """The label or attribute that was probably meant, where no node or device has the one that the gang names."""
    labels = {key for node in made.cluster.nodes for key in node.metadata.labels or ()}
    attributes = {
        name if "/" in name else f"{one.spec.driver}/{name}"
        for one in (made.cluster.slices if gang.attribute else ())
        for device in one.spec.devices or ()
        for name in device.attributes or ()
    }
    for asked, known in ((gang.topology, labels), (gang.attribute, attributes)):
        if asked and asked not in known and (similar := similar_name(asked, known)):
            yield similar.removeprefix("; ")


def _defers(cluster: Cluster, places: bool, _pod: Pod, drivers: frozenset[str]) -> float:
    """By what can be seen here: a scheduler decides as long as it has not said whether it can place its pod."""
    return float(places and bool(drivers) and cluster.others_decide(drivers).queued)


def _tell_of_nodes(
    report: Report,
    made: Pipeline,
    cycle_state: CycleState,
    decision: PodDecision,
    *,
    places: bool,
    supposed: Supposed | None,
) -> None:
    published = _tell_what_nodes_said(report, made, cycle_state, decision)
    said = decision.said
    report.add(_outdated(made, cycle_state))
    report.add(ahead_in_line(made, cycle_state.pod))
    if report.is_clear:
        report.add(Pools(made.seen).vanished(cycle_state.resource_claims))
        under_way = list(_under_way(cycle_state))
        if due := ConflictCheckDue.of(cycle_state, made.cluster.has_shared_driver):
            under_way.append(due.text)
        report.add(under_way)
        if not cycle_state.failed and places and not under_way:
            report.add(_free_to_go(cycle_state.pod))
        return
    if cycle_state.failed:
        return  # the operator takes the devices back, and then it is another case
    trial = Trial(made, cycle_state.pod, supposed.templates if supposed is not None else None)
    first = supposed.changes if supposed is not None else ()
    lacks_claims = supposed is not None and supposed.lacks_claims
    asked = with_devices(said, made.allocator.inventory) if lacks_claims else said
    nodes = promising(asked, made.allocator.inventory)
    search = FixSearch(trial, nodes, published, first, is_bound=lacks_claims)
    report.fixes = search.fixes()
    if not report.fixes and not search.is_cut and (apart := _apart(report, made, cycle_state, decision, supposed)):
        report.add(apart)
    else:
        again = outdated(made, cycle_state)
        report.add(_fixes(report.fixes, made, cycle_state.pod, again) if report.fixes else [_no_fix(trial.tried)])
    report.add(search.not_tried)
    if search.is_cut:
        report.say(f"not all changes were tried: {OUT_OF_TIME}", indent=2)


def _apart(
    report: Report, made: Pipeline, cycle_state: CycleState, decision: PodDecision, supposed: Supposed | None
) -> list[str]:
    """Return what else helps where devices have yet to be published: no change of a person replaces those."""
    if any(nowhere_together(requests_served(cycle_state, decision.said))):
        return []
    unserved, where = unpublished(decision.said)
    with without_claims(made, unserved, cycle_state.pod, supposed) as then:
        if then is None:
            return []
        trial = Trial(made, then.pod, then.templates)
        rest = decide(made, state, places=False) if (state := trial.cycle_state()) is not None else None
        said = [one for one in rest.said if one.state.name in where] if rest is not None else []
        said = with_devices(said, made.allocator.inventory)
        good = [one.state.name for one in said if isinstance(one.said.answer, Fits)]
        if good and then.changes:
            report.fixes = [Fix(good[0], then.changes, trial.edits(then.changes))]
        elif said and not good:
            published = Published(made.seen.every(ResourceSlice) or tuple(made.cluster.slices))
            nodes = promising(said, made.allocator.inventory)
            report.fixes = FixSearch(trial, nodes, published, then.changes, is_bound=True).fixes()
        lines = [f"  on {fix.node}: {fix.text}" for fix in report.fixes]
    return [f"once the devices of claim {listed(unserved)} are published, it would fit with:", *lines] if lines else []


def _tell_what_nodes_said(report: Report, made: Pipeline, cycle_state: CycleState, decision: PodDecision) -> Published:
    published = Published(made.seen.every(ResourceSlice) or tuple(made.cluster.slices))
    pod_filter, said = decision.pod_filter, decision.said
    if pod_filter is not None and not decision.error:
        is_partial = len(said) < len(cycle_state.nodes)
        lines = node_report(cycle_state, pod_filter, said, made.cluster, published, made.now, is_partial=is_partial)
        report.add(lines, 0)
    return published


def _no_fix(tried: int) -> str:
    number = counted(tried, "change was", "changes were")
    return f"no fix found: {number} tried, alone or together" if tried else "no fix found"


def _fixes(
    fixes: list[Fix], made: Pipeline, pod: Pod, again: Mapping[str, ResourceClaimSpec] | None = None
) -> Iterator[str]:
    """The most promising first, and how to change what cannot be changed in place."""
    several = "one of these changes, each of which was tried:" if len(fixes) > 1 else "this change, which was tried:"
    yield f"it would fit with {several}"
    yield from (f"  on {fix.node}: {fix.text}" for fix in fixes)
    ways: dict[str, None] = {}
    for edit in (edit for fix in fixes for edit in fix.edits):
        now = made.observed(edit.kind, edit.key) or made.cluster.store_of(edit.kind).get(edit.key)
        if isinstance(edit.after, ResourceClaimTemplate):
            ways[f"a template cannot be changed: {_again(edit.key)}"] = None
        if not isinstance(edit.after, ResourceClaim) or not isinstance(now, ResourceClaim):
            continue
        if edit.after.spec not in (now.spec, (again or {}).get(edit.key)):
            ways[_immutable(now, pod)] = None
    yield from (f"  {way}" for way in ways)
    if _changes_pod(fixes, made, pod):
        yield f"  {_immutable_pod(pod)}"


def _changes_pod(fixes: list[Fix], made: Pipeline, pod: Pod) -> bool:
    """Whether some fix changes what cannot be changed of a pod; tolerations can be added."""
    spec = (made.observed(Pod, pod.key) or pod).spec
    after = [edit.after for fix in fixes for edit in fix.edits if edit.kind is Pod and edit.key == pod.key]
    return any(isinstance(it, Pod) and replace(it.spec, tolerations=spec.tolerations) != spec for it in after)


def _immutable_pod(pod: Pod) -> str:
    owner = pod.metadata.controller
    if owner is not None and owner.kind == "Job":
        job = f"delete Job {owner.name}, or what makes it, and create it again with the change"
        return f"neither a pod nor the template of a Job can be changed: {job}"
    if owner is not None:
        return f"a pod cannot be changed: change the template of {owner.kind} {owner.name} or of its owner"
    return f"a pod cannot be changed: delete pod {pod.key}, and create it again"


def _again(template: str) -> str:
    """The spec of a template is immutable as well."""
    return f"delete ResourceClaimTemplate {template}, and create it again with the change"


def _immutable(claim: ResourceClaim, pod: Pod) -> str:
    entries = {status.resource_claim_name: status.name for status in pod.status.resource_claim_statuses or ()}
    entry = entries.get(claim.metadata.name)
    for each in pod.spec.resource_claims or ():
        if each.name == entry and each.resource_claim_template_name:
            template = f"{pod.metadata.namespace}/{each.resource_claim_template_name}"
            owner = pod.metadata.controller
            then = (
                "create the pod again"
                if owner is None
                else f"delete the pod, which {owner.kind} {owner.name} makes again"
            )
            return f"neither a claim nor a template can be changed: {_again(template)}; then {then}"
    return f"a claim cannot be changed: delete claim {claim.key}, and create it again"


def _kept(made: Pipeline, key: str) -> Iterator[str]:
    """Who keeps a claim that is being deleted."""
    claim = made.cluster.claims.get(key)
    if claim is not None:
        users = ", ".join(consumer.name for consumer in claim.status.reserved_for or ())
        others = ", ".join(other_finalizers(claim))
        finalizers = ", ".join(claim.metadata.finalizers or ()) or "none"
        after = f"; after them by finalizers: {others}" if others else ""
        kept = f"is kept by its consumers: {users}{after}" if users else f"has finalizers: {finalizers}"
        yield f"claim {key} {kept}"


def _outdated(made: Pipeline, cycle_state: CycleState) -> Iterator[str]:
    """Claims that were made before their template was replaced."""
    entries = {each.name: each.resource_claim_template_name for each in cycle_state.pod.spec.resource_claims or ()}
    stale = outdated(made, cycle_state)
    for entry, claim in cycle_state.claims:
        if claim.key in stale:
            name = f"ResourceClaimTemplate {claim.metadata.namespace}/{entries.get(entry or '')}"
            yield f"claim {claim.key} is not what {name} says now: create the pod again to get a new one"


def _free_to_go(pod: Pod) -> Iterator[str]:
    """The operator may know better: a write was refused, or it has other settings than this command was given."""
    said = [each for each in pod.status.conditions or () if (each.type, each.status) == ("PodScheduled", "False")]
    if not said or said[0].message == _SAID_OF_GATES:
        yield "nothing holds it back any more; if it stays, look at the operator's log"
        return
    yield f"apparently nothing holds it back, but its condition says {said[0].reason}: {said[0].message}"
    yield "if that stays, look at the operator's log, and give this command the operator's settings (--feature-gates)"


def _under_way(cycle_state: CycleState) -> Iterator[str]:
    """Claims of volumes whose binding has begun."""
    for it in cycle_state.volumes.unbound:
        if it.selected_node is not None:
            yield f"waits for PersistentVolumeClaim {it.claim.key} to get a new volume on node {it.selected_node}"
        elif it.reserved is not None:
            yield f"waits for PersistentVolumeClaim {it.claim.key} to be bound to PersistentVolume {it.reserved.key}"
