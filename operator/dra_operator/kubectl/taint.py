"""Taints of devices: ``kubectl dra taint``, and ``kubectl dra territory`` for the devices of one scheduler.

``taint`` prints a DeviceTaintRule for some devices or, with ``--dry-run``, the pods that it would evict. The rules of
the eviction itself choose the pods. The allocator finds places for their successors.

``territory`` lists to which scheduler devices belong, and prints the objects that give them to one. A node is given by
a taint of the node: every scheduler honours it on every release. A driver, pool or device is given by a
DeviceTaintRule; a class, or nodes with ``--rules``, by as few rules as select its devices and no others."""

from __future__ import annotations

import argparse
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from itertools import chain
from typing import Final

import yaml
from dra_api.codec import to_dict
from dra_api.command_line import kubectl
from dra_api.core import Pod
from dra_api.meta import Object, ObjectMeta
from dra_api.references import is_reserved_for, pod_is_done
from dra_api.releases import Release
from dra_api.resource import (
    SCHEDULER_KEY,
    Device,
    DeviceClass,
    DeviceTaint,
    DeviceTaintRule,
    DeviceTaintRuleSpec,
    DeviceTaintSelector,
    ResourceClaim,
    ResourceSlice,
)
from dra_api.validation import summary, validate_device_taint_rule
from dra_api.values import format_time
from dra_ledger.entries import taint_text
from dra_ledger.taints import rule_selects as selects
from msgspec import structs

from dra_operator.allocator import DeviceId, territory_taint
from dra_operator.commands.placing import NotPlaced, Placed
from dra_operator.eviction import DeviceTaints, EvictingRules, claim_eviction
from dra_operator.kubectl.answer import Answer, Column, ExitCode, Fact, Problem, Table
from dra_operator.kubectl.facts import DeviceFact, devices_of, every_device_of, id_of, pods_of
from dra_operator.kubectl.free import members
from dra_operator.kubectl.observed import Observed, nodes_with, notes_on, require
from dra_operator.kubectl.pipeline import Pipeline, TookTooLong, pipeline
from dra_operator.kubectl.settings import Settings
from dra_operator.kubectl.whatif.overlay import Overlay, successors
from dra_operator.kubectl.why.selector_changes import expressions_of
from dra_operator.scheduling import ANY_DRIVER
from dra_operator.wording import counted, listed


def selector_of(text: str, known: Sequence[DeviceId]) -> DeviceTaintSelector:
    """Names of pools may have slashes: what is known decides. Raises Problem if it means no device."""
    driver, _, rest = text.partition("/")
    readings = [DeviceTaintSelector(driver=driver)] if not rest else [DeviceTaintSelector(driver=driver, pool=rest)]
    pool, slash, device = rest.rpartition("/")
    if slash:
        readings.append(DeviceTaintSelector(driver=driver, pool=pool, device=device))
    for reading in readings:
        if any(is_meant(reading, device_id) for device_id in known):
            return reading
    words = {word for one in known for word in (one.driver, f"{one.driver}/{one.pool}", str(one))}
    similar = get_close_matches(text, sorted(words), 3)
    raise Problem(
        f"no device {text} is published or in use; write DRIVER, DRIVER/POOL or DRIVER/POOL/DEVICE"
        + (f"; similar: {', '.join(similar)}" if similar else "")
    )


def is_meant(selector: DeviceTaintSelector, device: DeviceId) -> bool:
    wanted = (selector.driver, selector.pool, selector.device)
    return all(one in (None, its) for one, its in zip(wanted, device, strict=True))


NAME_CHARACTERS = 253


def rule_of(taint: DeviceTaint, selector: DeviceTaintSelector, purpose: str) -> DeviceTaintRule:
    """With a name that follows from what it selects and its purpose. Raises Problem for what the API server refuses."""
    words = filter(None, (selector.driver, selector.pool, selector.device, purpose))
    name = re.sub(r"[^a-z0-9.-]+", "-", "-".join(words).lower())[:NAME_CHARACTERS].strip("-.")
    spec = DeviceTaintRuleSpec(device_selector=selector, taint=taint)
    rule = DeviceTaintRule(metadata=ObjectMeta(name=name), spec=spec)
    if errors := validate_device_taint_rule(rule):
        raise Problem(summary(errors), ExitCode.USAGE)
    return rule


def manifest(rule: DeviceTaintRule, release: Release) -> Iterator[str]:
    """Its lines for kubectl apply; the API server sets the time."""
    version = "v1" if release >= Release.V1_37 else "v1beta2" if release >= Release.V1_36 else "v1alpha3"
    spec = to_dict(rule.spec)
    spec["taint"].pop("timeAdded", None)
    head = {"apiVersion": f"resource.k8s.io/{version}", "kind": "DeviceTaintRule"}
    body = {**head, "metadata": {"name": rule.metadata.name}, "spec": spec}
    yield from yaml.safe_dump(body, sort_keys=False).splitlines()


class Loss(Fact, frozen=True):
    """A pod with devices that get the taint. ``seconds`` until it is deleted; None: it tolerates the taint and stays.

    ``node`` is where it runs, ``target`` where it could go; empty if nowhere, and then ``why`` says what is in the way.
    ``is_tried``: a place was looked for before the time limit.
    ``again``: the seconds after which its successor is deleted as well, since it gets tainted devices again; None if
    it gets others.
    """

    pod: str
    owner: str
    node: str
    claims: tuple[str, ...]
    devices: tuple[str, ...]
    seconds: int | None = None
    target: str = ""
    why: str = ""
    again: int | None = None
    is_tried: bool = True

    @property
    def is_harmless(self) -> bool:
        """Whether it keeps its devices, or is made again and runs on with others."""
        return self.seconds is None or bool(self.target and self.owner and self.again is None)


def losses(made: Pipeline, rule: DeviceTaintRule) -> Iterator[tuple[Pod, Loss]]:
    """In the order of the pods' names; pods without a node, and pods that end anyway, lose nothing."""
    holders: dict[str, dict[str, ResourceClaim]] = {}
    for claim in made.seen.every(ResourceClaim):
        if any(selects(rule, DeviceId.of(result)) for result in claim.results):
            for user in pods_of(made.seen, claim):
                holders.setdefault(f"{claim.metadata.namespace}/{user.name}", {})[claim.key] = claim
    for key, held in sorted(holders.items()):
        pod = made.cluster.pods.get(key)  # which has no group if the gates are off
        if pod is None or pod_is_done(pod):
            continue
        claims = [claim for claim in held.values() if is_reserved_for(pod, claim)]
        if claims and pod.spec.node_name and pod.metadata.deletion_timestamp is None:
            yield pod, _loss(pod, claims, rule, made.now)


def _loss(pod: Pod, claims: Sequence[ResourceClaim], rule: DeviceTaintRule, now: datetime) -> Loss:
    devices = (DeviceId.of(result) for claim in claims for result in claim.results)
    owner = pod.metadata.controller
    return Loss(
        pod=pod.key,
        owner=f"{owner.kind}/{owner.name}" if owner is not None else "",
        node=pod.spec.node_name,
        claims=tuple(claim.key for claim in claims),
        devices=tuple(dict.fromkeys(str(device) for device in devices if selects(rule, device))),
        seconds=_seconds_left(claims, rule, now),
    )


def _seconds_left(claims: Iterable[ResourceClaim], rule: DeviceTaintRule, now: datetime) -> int | None:
    """Until a pod with these claims is deleted; None if they tolerate the taint, or have other devices."""
    found = [
        claim_eviction(claim.status.allocation, DeviceTaints(), EvictingRules((rule,)), now)
        for claim in claims
        if claim.status.allocation is not None
    ]
    due = min((eviction.due for eviction in found if eviction is not None), default=None)
    return max(0, int((due - now).total_seconds())) if due is not None else None


def tainted(objects: Sequence[Object], rule: DeviceTaintRule) -> list[Object]:
    """The objects with the taint on the devices themselves, so that it counts whatever the gate of rules says."""
    return [_tainted_slice(obj, rule) if isinstance(obj, ResourceSlice) else obj for obj in objects]


def _tainted_slice(slice_: ResourceSlice, rule: DeviceTaintRule) -> ResourceSlice:
    def one(device: Device) -> Device:
        if not selects(rule, DeviceId(slice_.spec.driver, slice_.spec.pool.name, device.name)):
            return device
        return structs.replace(device, taints=(*(device.taints or ()), rule.spec.taint))

    devices = tuple(map(one, slice_.spec.devices or ()))
    return structs.replace(slice_, spec=structs.replace(slice_.spec, devices=devices))


NO_EXECUTE = "NoExecute"


def taint_answer(seen: Observed, options: argparse.Namespace) -> Answer:
    require(seen, "resourceslices.resource.k8s.io", "resourceclaims.resource.k8s.io", "pods")
    settings = Settings.of(options)
    made = pipeline(seen, settings)
    facts = every_device_of(seen, made.ledger())
    selector = selector_of(options.device, list(map(id_of, facts)))
    if options.key == SCHEDULER_KEY:
        raise Problem(f"{SCHEDULER_KEY} gives devices to a scheduler: kubectl dra territory does that", ExitCode.USAGE)
    now = format_time(seen.taken)
    effect = options.effect or NO_EXECUTE
    taint = DeviceTaint(key=options.key, value=options.value, effect=effect, time_added=now)
    rule = rule_of(taint, selector, effect)
    notes = [*rule_notes(made), *notes_on(seen)]
    if options.effect is None and options.dry_run:
        notes.append(f"no effect was named, so that it is {effect}: with --effect NoSchedule no pod is deleted")
    if not options.dry_run:
        lines = list(manifest(rule, made.settings.release or seen.release))
        return Answer(lines=lines, value=to_dict(rule), names=[f"devicetaintrule/{rule.metadata.name}"], notes=notes)
    selected = [one for one in facts if one.state != "gone" and is_meant(selector, id_of(one))]
    found = _with_targets(made, rule, settings, options.time_limit)
    lines = [*_head(rule, selected), *map(_line, found)]
    value = {"rule": rule, "devices": [one.id for one in selected], "pods": found}
    names = [f"pod/{loss.pod}" for loss in found if loss.seconds is not None]
    code = ExitCode.CLEAR if all(loss.is_harmless for loss in found) else ExitCode.IN_THE_WAY
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


def _with_targets(made: Pipeline, rule: DeviceTaintRule, settings: Settings, seconds: float) -> list[Loss]:
    if rule.spec.taint.effect != NO_EXECUTE:
        return []
    found = list(losses(made, rule))
    leaving = [pod for pod, loss in found if loss.seconds is not None]
    seen = made.seen
    overlay = Overlay(pipeline(replace(seen, objects=tainted(seen.objects, rule)), settings))
    for pod in leaving:
        overlay.evict(pod)
    targets: dict[str, Placed | NotPlaced] = {}
    with suppress(TookTooLong), overlay.made.pausing.within(seconds):
        targets.update(successors(overlay, leaving))  # what was found before the limit stays
    untried = {pod.key for pod in leaving} - targets.keys()
    return [
        structs.replace(loss, is_tried=False)
        if pod.key in untried
        else _with_target(overlay, rule, loss, targets.get(pod.key))
        for pod, loss in found
    ]


def _with_target(overlay: Overlay, rule: DeviceTaintRule, loss: Loss, outcome: Placed | NotPlaced | None) -> Loss:
    match outcome:
        case Placed(pod=pod, node=node):
            claims = [claim for _, claim in overlay.cluster.claims_of(pod) if claim is not None]
            return structs.replace(loss, target=node, again=_seconds_left(claims, rule, overlay.made.now))
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
        yield "  no pod is evicted: only NoExecute evicts pods"


def _line(loss: Loss) -> str:
    owner = f" ({loss.owner})" if loss.owner else ""
    devices = listed(loss.devices)
    if loss.seconds is None:
        return f"  {loss.pod}{owner} tolerates the taint, and keeps {devices}"
    when = "at once" if not loss.seconds else f"after {loss.seconds}s, which its claim tolerates"
    text = f"  {loss.pod}{owner} would be deleted from {loss.node} {when}, and lose {devices}"
    if loss.again is not None:
        who = "its successor" if loss.owner else "nothing creates it again, and a pod like it"
        ends = f"after {loss.again}s, which its claim tolerates" if loss.again else "at once"
        why = "" if loss.again else ": its toleration has not the effect NoExecute, which alone prevents eviction"
        return f"{text}: {who} would get a tainted device on {loss.target}, and be deleted again {ends}{why}"
    if not loss.owner:
        return f"{text}: nothing creates it again" + (f"; it would fit on {loss.target}" if loss.target else "")
    if not loss.is_tried:
        return f"{text}: where it could go was not found out within the time limit; --time-limit gives more"
    return f"{text}: it could go to {loss.target}" if loss.target else f"{text}: no node would take it: {loss.why}"


MOST_TAINT_RULES: Final = 200
"""More of them would slow every scheduler down: mark nodes, or publish pools that can be named."""


class Holding(Fact, frozen=True):
    """What a scheduler has of a driver."""

    scheduler: str
    """Empty: every scheduler may take them."""
    driver: str
    devices: int
    in_use: int
    nodes: int


def territory_answer(seen: Observed, options: argparse.Namespace) -> Answer:
    """The table of territories; or rules, or the command that taints nodes. Raises Problem."""
    require(seen, "resourceslices.resource.k8s.io")
    made = pipeline(seen, Settings.of(options))
    facts = devices_of(seen, made.ledger())
    asked = [it for it in (options.device, options.device_class, options.nodes) if it is not None]
    if len(asked) > 1:
        raise Problem("name devices, or --class, or --nodes: one of them", ExitCode.USAGE)
    if not asked:
        return _table(seen, facts)
    scheduler = made.settings.scheduler_name
    if options.nodes is not None and not options.rules:
        return _node_taint(seen, options.nodes, scheduler)
    selectors, selected = _selectors(made, facts, options)
    if len(selectors) > MOST_TAINT_RULES:
        raise Problem(
            f"that takes {len(selectors)} rules, more than {MOST_TAINT_RULES}: mark the nodes (--nodes), or pools"
        )
    rules = [rule_of(territory_taint(scheduler), selector, f"for-{scheduler}") for selector in selectors]
    notes = [*rule_notes(made), *_effects(seen, selected, scheduler), *notes_on(seen)]
    return Answer(
        lines=_manifests(made, rules),
        value=list(map(to_dict, rules)),
        names=[f"devicetaintrule/{rule.metadata.name}" for rule in rules],
        notes=notes,
    )


def _manifests(made: Pipeline, rules: Iterable[DeviceTaintRule]) -> list[str]:
    documents = [list(manifest(rule, made.settings.release or made.seen.release)) for rule in rules]
    return [*chain.from_iterable([*document, "---"] for document in documents)][:-1]


def _table(seen: Observed, facts: Sequence[DeviceFact]) -> Answer:
    found: dict[tuple[str, str], list[DeviceFact]] = defaultdict(list)
    for fact in facts:
        found[fact.scheduler, fact.driver].append(fact)
    rows = [
        Holding(
            scheduler=scheduler,
            driver=driver,
            devices=len(some),
            in_use=sum(bool(it.holders) for it in some),
            nodes=len({it.node for it in some if it.node}),
        )
        for (scheduler, driver), some in sorted(found.items())
    ]
    columns: list[Column[Holding]] = [
        Column("SCHEDULER", lambda it: it.scheduler or "<any>", colour=lambda it: "" if it.scheduler else "yellow"),
        Column("DRIVER", lambda it: it.driver),
        Column("DEVICES", lambda it: it.devices),
        Column("IN-USE", lambda it: it.in_use),
        Column("NODES", lambda it: it.nodes or "<several>"),
    ]
    none = "No device is published"
    return Answer(Table(columns, rows, lambda it: it.scheduler or "<any>", none, "Territory"), notes=notes_on(seen))


def _node_taint(seen: Observed, text: str, scheduler: str) -> Answer:
    """The command, since a taint of a node is no object of its own."""
    nodes = sorted(nodes_with(seen, text))
    if not nodes:
        raise Problem(f"no node has the labels {text}")
    taint = f"{SCHEDULER_KEY}={scheduler}:NoSchedule"
    command = kubectl("taint", "nodes", f"--selector={text}", of_names=[scheduler], then=[taint])
    if not command:
        raise Problem(
            f"the nodes cannot be tainted by a command: {text!r} or {scheduler!r} has characters it cannot have"
        )
    which = f"{counted(len(nodes), 'node')}: {listed(nodes)}"
    notes = [
        f"{which}; pods of other schedulers stay away, unless they tolerate the taint",
        "nodes that come later need the taint as well: have their kubelets register with it (--register-with-taints)",
    ]
    value = {"nodes": nodes, "command": shlex.split(command)}
    return Answer(lines=[command], value=value, names=nodes, notes=notes)


def _selectors(
    made: Pipeline, facts: Sequence[DeviceFact], options: argparse.Namespace
) -> tuple[list[DeviceTaintSelector], list[DeviceFact]]:
    """What rules have to select, and the published devices that this means. Raises Problem."""
    ids = {DeviceId(one.driver, one.pool, one.name): one for one in facts}
    if options.device is not None:
        selector = selector_of(options.device, list(ids))
        return [selector], [fact for id_, fact in ids.items() if is_meant(selector, id_)]
    if options.device_class is not None:
        class_ = made.seen.one(DeviceClass, options.device_class)
        if class_ is None:
            raise Problem(f"there is no device class {options.device_class}")
        selected = members(made.ledger(), options.device_class, facts)
        texts = expressions_of(class_.spec.selectors)
        drivers = made.cluster.drivers_of((options.device_class,))
        if len(texts) == 1 and "&&" not in texts[0] and selected and ANY_DRIVER not in drivers:
            return [DeviceTaintSelector(driver=driver) for driver in sorted(drivers)], selected
    else:
        nodes = nodes_with(made.seen, options.nodes)
        selected = [fact for fact in facts if fact.node in nodes]
    if not selected:
        raise Problem("no published device is meant: there is nothing to give to a scheduler")
    return list(_covering(facts, selected)), selected


def _covering(facts: Sequence[DeviceFact], selected: Sequence[DeviceFact]) -> Iterator[DeviceTaintSelector]:
    """Pools that are meant as a whole, then single devices of the others."""
    sizes, meant = Counter((it.driver, it.pool) for it in facts), Counter((it.driver, it.pool) for it in selected)
    whole = sorted(pool for pool, number in meant.items() if number == sizes[pool])
    for driver, pool in whole:
        yield DeviceTaintSelector(driver=driver, pool=pool)
    for fact in selected:
        if (fact.driver, fact.pool) not in whole:
            yield DeviceTaintSelector(driver=fact.driver, pool=fact.pool, device=fact.name)


def _effects(seen: Observed, selected: Sequence[DeviceFact], scheduler: str) -> Iterator[str]:
    """What applying it does to others."""
    owners: Mapping[str, int] = Counter(it.scheduler for it in selected if it.scheduler not in ("", scheduler))
    for owner, number in owners.items():
        yield f"{counted(number, 'device')} would belong to {owner} as well, and then to none: take its mark off first"
    used = sum(bool(it.holders) for it in selected)
    yield (
        f"{counted(len(selected), 'published device')}, {used} in use: pods keep what they have; other schedulers give "
        "these devices only to claims that tolerate the taint"
    )
