"""``kubectl dra taint``: the rule to apply or, with ``--dry-run``, what it would do."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dra_api.codec import to_dict
from dra_api.releases.release import Release
from dra_api.resource import SCHEDULER_KEY, DeviceTaint, DeviceTaintRule
from dra_api.values.times import format_time
from msgspec import structs

from dra_operator.allocator import DeviceId
from dra_operator.kubectl.answer import Answer, ExitCode, Problem
from dra_operator.kubectl.facts.devices import DeviceFact, devices_of, holders_of, taint_text
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import Pipeline, Settings, pipeline
from dra_operator.kubectl.tables.notes import notes_on, require
from dra_operator.kubectl.whatif.outcome import NotPlaced, Placed
from dra_operator.kubectl.whatif.overlay import Overlay
from dra_operator.kubectl.whatif.successors import successors
from dra_operator.wording import counted, listed

from .losses import Loss, losses, tainted
from .meant import is_meant, selector_of
from .rule import manifest, rule_of

NO_EXECUTE = "NoExecute"


def answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """What the options describe. Raises Problem."""
    require(seen, "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io", "pods")
    settings = Settings.of(options)
    made = pipeline(seen, settings)
    facts = devices_of(made)
    published = [DeviceId(one.driver, one.pool, one.name) for one in facts]
    selector = selector_of(options.device, [*published, *holders_of(seen)])
    if options.key == SCHEDULER_KEY:
        raise Problem(f"{SCHEDULER_KEY} gives devices to a scheduler: kubectl dra territory does that", ExitCode.USAGE)
    now = format_time(seen.taken)
    taint = DeviceTaint(key=options.key, value=options.value, effect=options.effect, time_added=now)
    rule = rule_of(taint, selector, options.effect)
    notes = [*rule_notes(made), *notes_on(seen)]
    if not options.dry_run:
        lines = list(manifest(rule, made.settings.release or seen.release))
        return Answer(lines=lines, value=to_dict(rule), names=[f"devicetaintrule/{rule.metadata.name}"], notes=notes)
    selected = [one for one, id_ in zip(facts, published, strict=True) if is_meant(selector, id_)]
    found = _with_targets(made, rule, settings)
    is_harmless = all(loss.seconds is None or (loss.target and loss.owner) for loss in found)
    lines = [*_head(rule, selected), *map(_line, found)]
    value = {"rule": rule, "devices": [one.id for one in selected], "pods": found}
    names = [f"pod/{loss.pod}" for loss in found if loss.seconds is not None]
    code = ExitCode.CLEAR if is_harmless else ExitCode.IN_THE_WAY
    return Answer(lines=lines, value=value, names=names, notes=notes, code=code)


def rule_notes(made: Pipeline) -> Iterator[str]:
    """Why a DeviceTaintRule may have no effect. Raises Problem if it certainly has none."""
    features = made.allocator.inventory.features
    if not features.device_taints:
        raise Problem("the feature gate DRADeviceTaints is off: taints of devices have no effect in this cluster")
    if not features.taint_rules:
        yield "the feature gate DRADeviceTaintRules is off: a rule has no effect until it is turned on"
    if features.release == Release.V1_36:
        yield (
            "up to Kubernetes 1.36.2 a DeviceTaintRule makes kube-scheduler panic, or is ignored by it "
            "(https://github.com/kubernetes/kubernetes/pull/139651): upgrade first, or taint nodes"
        )


def _with_targets(made: Pipeline, rule: DeviceTaintRule, settings: Settings) -> list[Loss]:
    if rule.spec.taint.effect != NO_EXECUTE:
        return []
    found = list(losses(made, rule))
    leaving = [pod for pod, loss in found if loss.seconds is not None]
    seen = made.seen
    overlay = Overlay(pipeline(replace(seen, objects=tainted(seen.objects, rule)), settings))
    for pod in leaving:
        overlay.evict(pod)
    targets = successors(overlay, leaving)
    return [_with_target(loss, targets.get(pod.key)) for pod, loss in found]


def _with_target(loss: Loss, outcome: Placed | NotPlaced | None) -> Loss:
    match outcome:
        case Placed(node=node):
            return structs.replace(loss, target=node)
        case NotPlaced(reason=why):
            return structs.replace(loss, why=why)
    return loss


def _head(rule: DeviceTaintRule, selected: Sequence[DeviceFact]) -> Iterator[str]:
    used = [one for one in selected if one.holders]
    yield f"taint {taint_text(rule.spec.taint)} on {counted(len(selected), 'published device')}, {len(used)} in use"
    free = len(selected) - len(used)
    if free:
        yield f"  {counted(free, 'free device')} would be given only to claims that tolerate the taint"
    if rule.spec.taint.effect != NO_EXECUTE:
        yield "  no pod loses anything: only NoExecute ends pods"


def _line(loss: Loss) -> str:
    owner = f" ({loss.owner})" if loss.owner else ""
    devices = listed(loss.devices)
    if loss.seconds is None:
        return f"  {loss.pod}{owner} tolerates the taint, and keeps {devices}"
    when = "at once" if not loss.seconds else f"after {loss.seconds}s, which its claim tolerates"
    text = f"  {loss.pod}{owner} would be deleted from {loss.node} {when}, and lose {devices}"
    if not loss.owner:
        return f"{text}: nothing creates it again" + (f"; it would fit on {loss.target}" if loss.target else "")
    return f"{text}: it could go to {loss.target}" if loss.target else f"{text}: no node would take it: {loss.why}"
