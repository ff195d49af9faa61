"""Seeded random histories of a cluster whose requests, watches and operator fail, in one process and without waiting.

A history is a seed (``python -m campaign histories``). The operator's controllers and its view are the real ones; the
API server is ``fake_api``, which keeps its objects in a dict. ``script`` has the steps that people, nodes and machines
take, and what pods ask of nodes. ``server`` has the weather that befalls requests and events, and lets requests suffer
it. ``replica`` is a process of the operator, of which there may be several; it has the watches that bring events.
``neighbours`` stands for kubelets, garbage collector, provisioner, a driver that attaches devices, and another
scheduler that gives away the same devices; ``stage`` has them all. ``judge`` looks at every state of the server, and at
the order in which pods got devices; ``rest`` looks at the last state.

Here a history is played: its script first, then the weather clears, and everything comes to rest.

What each step of a script does. A step that cannot happen any more does nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import Final, TypeVar

from dra_api.values import format_time
from dra_kube import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    NotFound,
    Resource,
)
from dra_operator.controllers import workers
from dra_operator.controllers.scheduling import cycle, planning, preemption
from histories.judge import URGENT, faults_of_preemption, passed_over, who_finishes, who_waits
from histories.neighbours import is_passing, is_rival
from histories.replica import KINDS
from histories.rest import faults_of, is_of_gang
from histories.script import (
    GANG,
    GANG_SIZE,
    GATE,
    GROUPED,
    KINDS_OF_PODS,
    NAMED_RIVAL,
    RULES,
    STEADFAST,
    TAINT,
    TOLERANT,
    VOLUME,
    ZONE,
    Script,
    faults,
    gangs,
    is_held,
    rules_of,
    script_of,
)
from histories.server import START, Weather
from histories.stage import Stage
from history_kit import clock
from history_kit.game import Game, Outcome, Step
from objects import Make, Obj
from volume_lab import volume_claim

Action = Callable[[Stage, Step], None]
GROUP = frozenset(resource.plural for resource in KINDS if resource.group)


def _add_pod(stage: Stage, step: Step) -> None:
    if step.subject.startswith(VOLUME) and not stage.has(PERSISTENT_VOLUME_CLAIMS, f"ns/{step.subject}"):
        stage.server.add(PERSISTENT_VOLUME_CLAIMS, volume_claim(step.subject))
    if step.subject.startswith(NAMED_RIVAL) and not stage.has(RESOURCE_CLAIMS, f"ns/{step.subject}"):
        stage.server.add(RESOURCE_CLAIMS, Make.claim(step.subject))
    if not stage.has(PODS, f"ns/{step.subject}"):
        pod = KINDS_OF_PODS[step.subject.partition("-")[0]](step.subject)
        pod["metadata"]["creationTimestamp"] = _time()
        if GROUPED in stage.traits and is_of_gang(pod):
            del pod["metadata"]["annotations"]
            pod["spec"]["schedulingGroup"] = {"podGroupName": GANG}
        for rule in sorted(rules_of(pod)):
            RULES[rule](pod)
        if stage.preempts and (grace := stage.grace_of(step.subject)):
            pod["spec"].setdefault("terminationGracePeriodSeconds", grace)
        stage.server.add(PODS, pod)


def _delete_pod(stage: Stage, step: Step) -> None:
    if stage.has(PODS, f"ns/{step.subject}"):
        stage.server.deleted(PODS, step.subject, "ns")


def _lift_gate(stage: Stage, step: Step) -> None:
    key = f"ns/{step.subject}"
    if stage.has(PODS, key) and is_held(stage.server[PODS, key]):
        stage.server.change(PODS, key, lambda pod: pod["spec"]["schedulingGates"].remove({"name": GATE}))


def _finish_pod(stage: Stage, step: Step) -> None:
    key = f"ns/{step.subject}"
    if stage.has(PODS, key) and stage.server[PODS, key]["spec"].get("nodeName"):
        stage.server.change(PODS, key, lambda pod: pod["status"].update(phase="Succeeded"))


def _add_claim(stage: Stage, step: Step) -> None:
    annotations = {"dra.kopf.dev/allocate": "immediate"} if step.subject == "immediate" else {}
    claim = Make.claim(step.subject, annotations=annotations)
    stage.let_share(step.subject, claim["spec"])
    stage.server.add(RESOURCE_CLAIMS, claim)


def _delete_claim(stage: Stage, step: Step) -> None:
    with suppress(NotFound):
        stage.server.deleted(RESOURCE_CLAIMS, step.subject, "ns")


def _add(resource: Resource, key: Callable[[Step], str], add: Action) -> Action:
    def action(stage: Stage, step: Step) -> None:
        if not stage.has(resource, key(step)):
            add(stage, step)

    return action


def _remove(resource: Resource, key: Callable[[Step], str]) -> Action:
    def action(stage: Stage, step: Step) -> None:
        if stage.has(resource, key(step)):
            stage.server.drop(resource, key(step))

    return action


def _add_group(stage: Stage, step: Step) -> None:
    if not stage.has(POD_GROUPS, f"ns/{step.subject}"):
        policy = {"gang": {"minCount": GANG_SIZE}}
        spec = {"schedulingPolicy": policy, "priority": int(step.number), "disruptionMode": {"all": {}}}
        stage.server.add(POD_GROUPS, {"metadata": {"name": step.subject, "namespace": "ns"}, "spec": spec})


def _set_taints(stage: Stage, step: Step, taints: list[Obj]) -> None:
    if stage.has(RESOURCE_SLICES, _slice(step)):
        stage.server.change(
            RESOURCE_SLICES,
            _slice(step),
            lambda part: [device.update(taints=taints) for device in part["spec"]["devices"]],
        )


def _add_taint(stage: Stage, step: Step) -> None:
    _set_taints(stage, step, [{"key": "bad", "effect": "NoExecute", "timeAdded": _time()}])


def _set_rule(stage: Stage, step: Step) -> None:
    name, effect, *devices = step.subject.split("/")
    selector = {"driver": "gpu.example.com", **dict(zip(("pool", "device"), filter(None, devices), strict=False))}
    spec = {"deviceSelector": selector, "taint": {"key": "bad", "effect": effect, "timeAdded": _time()}}
    if stage.has(DEVICE_TAINT_RULES, name):
        stage.server.change(DEVICE_TAINT_RULES, name, lambda rule: rule.update(spec=spec))
    else:
        stage.server.add(DEVICE_TAINT_RULES, {"metadata": {"name": name}, "spec": spec})


def _change_node(edit: Callable[[Obj], object]) -> Action:
    def action(stage: Stage, step: Step) -> None:
        if stage.has(NODES, step.subject):
            stage.server.change(NODES, step.subject, edit)

    return action


def _move(node: Obj) -> None:
    labels = node["metadata"]["labels"]
    labels[ZONE] = "b" if labels[ZONE] == "a" else "a"


def _time() -> str:
    return format_time(START + timedelta(seconds=asyncio.get_running_loop().time()))


def _stop_server(stage: Stage, step: Step) -> None:
    def back() -> None:
        stage.server.is_away = False

    stage.server.is_away = True
    asyncio.get_running_loop().call_later(step.number, back)
    stage.break_watches(step.number)


def _serve_no_group(stage: Stage, step: Step) -> None:
    def back() -> None:
        stage.server.unserved = frozenset()

    stage.server.unserved = GROUP
    asyncio.get_running_loop().call_later(step.number, back)
    stage.break_watches(step.number, [resource for resource in KINDS if resource.group])


def _slice(step: Step) -> str:
    return f"{step.subject}-gpu.example.com"


ACTIONS: dict[str, Action] = {
    "add pod": _add_pod,
    "delete pod": _delete_pod,
    "finish pod": _finish_pod,
    "lift gate": _lift_gate,
    "add claim": _add_claim,
    "delete claim": _delete_claim,
    "add node": _add(NODES, lambda step: step.subject, lambda stage, step: stage.add_node(step.subject)),
    "remove node": _remove(NODES, lambda step: step.subject),
    "repel pods": _change_node(lambda node: node["spec"].update(taints=[TAINT])),
    "welcome pods": _change_node(lambda node: node["spec"].update(taints=[])),
    "cordon node": _change_node(lambda node: node["spec"].update(unschedulable=True)),
    "uncordon node": _change_node(lambda node: node["spec"].update(unschedulable=False)),
    "move node": _change_node(_move),
    "add slice": _add(RESOURCE_SLICES, _slice, lambda stage, step: stage.add_slice(step.subject)),
    "remove slice": _remove(RESOURCE_SLICES, _slice),
    "add taint": _add_taint,
    "remove taint": lambda stage, step: _set_taints(stage, step, []),
    "set rule": _set_rule,
    "remove rule": _remove(DEVICE_TAINT_RULES, lambda step: step.subject),
    "add group": _add_group,
    "remove group": _remove(POD_GROUPS, lambda step: f"ns/{step.subject}"),
    "add template": _add(RESOURCE_CLAIM_TEMPLATES, lambda _: "ns/tmpl", lambda stage, _: stage.add_template()),
    "remove template": _remove(RESOURCE_CLAIM_TEMPLATES, lambda _: "ns/tmpl"),
    "add class": _add(DEVICE_CLASSES, lambda _: "gpu", lambda stage, _: stage.add_class()),
    "remove class": _remove(DEVICE_CLASSES, lambda _: "gpu"),
    "kill the operator": lambda stage, step: stage.kill(),
    "stop the operator": lambda stage, step: stage.stop_operator(),
    "pause the operator": lambda stage, step: stage.pause_operator(step.number),
    "roll out the operator": lambda stage, step: stage.roll_out(),
    "lose events": lambda stage, step: stage.break_watches(
        step.number, [kind for kind in KINDS if kind.plural == step.subject]
    ),
    "stop the server": _stop_server,
    "serve no resource.k8s.io": _serve_no_group,
    "set the clock": lambda stage, step: stage.set_clock(step.number),
    "back up": lambda stage, step: stage.back_up(),
    "calm": lambda stage, step: stage.calm(),
    "restore": lambda stage, step: stage.restore(),
}


T = TypeVar("T")
MEASURING: tuple[ModuleType, ...] = (planning, preemption, cycle, workers)
"""What measures by the machine's clock how long a piece of work takes."""
PATIENCE = 900.0  # seconds within which everything comes to rest
LONG = 150.0  # seconds, more than the longest pause between two attempts to place a pod


def play(
    seed: int,
    script: Script | None = None,
    only: Collection[str] | None = None,
    *,
    traced: bool = False,
    made: Callable[[int], Script] = script_of,
) -> Outcome:
    """The history of a seed, or that of another script and of fewer strikes in the same weather."""
    weather = Weather(seed, only=only)

    async def main() -> tuple[Outcome, bool]:
        nodes, replicas, preempts, steps, traits = script or made(seed)
        random.seed(seed)  # by which candidates vary the time between two attempts
        stage = Stage(nodes, weather, replicas=replicas, preempts=preempts, traits=traits, traced=traced)
        found = [finding async for finding in _pass(stage, steps)]
        return Outcome(tuple(found), tuple(weather.strikes), tuple(stage.server.trace or ())), stage.judge.pardons

    (outcome, pardons), complaints = in_no_time(main)
    # What is pardoned after a restore, the operator itself finds as well, once its view is new.
    heard = (line for line in complaints if not (pardons and line.startswith("invariant violated")))
    return outcome._replace(findings=(*outcome.findings, *heard))


def in_no_time(main: Callable[[], Coroutine[None, None, T]]) -> tuple[T, tuple[str, ...]]:
    """What the coroutine returns on a clock of its own, and what the operator complained of."""
    return clock.in_no_time(main, "dra_operator", MEASURING, is_passing)


async def _pass(stage: Stage, steps: Collection[Step]) -> AsyncIterator[str]:
    """Everything happens; what was wrong at any moment, at the end, and after everything was deleted."""
    stage.furnish()
    stage.start_operator()
    for step in steps:
        await asyncio.sleep(max(0.0, step.at - asyncio.get_running_loop().time()))
        stage.tell(str(step))
        ACTIONS[step.what](stage, step)
    stage.clear_up()
    for finding in [
        *await rest(stage, "the end"),
        *await stage.too_long(),
        *faults_of(stage.server, swept=False, restored=stage.server.life > 0),
    ]:
        yield finding
    if stage.operator is not None and stage.server.life == 0:  # a restore tells no changes
        for finding in stage.judge.bookkeeper.faults(stage.operator.control.cluster):
            yield finding
    if stage.preempts and not stage.refuses_deletions():
        halves = stage.judge.halves() if GROUPED not in stage.traits else ()  # pods of a PodGroup end one by one
        for finding in [*faults_of_preemption(stage.server), *halves]:
            yield finding
    if stage.operator is not None and any(not pod["spec"].get("nodeName") for pod in stage.server.of(PODS)):
        stage.operator.control.look_again()
        for finding in [
            *await rest(stage, "a sweep"),
            *faults_of(stage.server, swept=True, restored=stage.server.life > 0),
        ]:
            yield finding
        for finding in await _give_devices_back(stage):
            yield finding
    delete_everything(stage)
    for finding in [*await rest(stage, "all pods were deleted"), *stage.judge.leaks(), *stage.judge.findings]:
        yield finding
    if stage.server.life == 0 and any(replica.started_over for replica in stage.replicas):
        yield "the operator starts over, though the server was never restored"
    if stage.operator is not None and (failure := stage.operator.failed()):
        yield failure


async def _give_devices_back(stage: Stage) -> list[str]:
    """A pod finishes while at least two wait for devices: whose turn was it? Beside a rival there are no turns."""
    server, waiting = stage.server, who_waits(stage.server)
    finished = who_finishes(server)
    if len(waiting) < 2 or finished is None or any(map(is_rival, server.of(PODS))):
        return []
    ended = stage.judge.preempted
    server.change(PODS, finished, lambda pod: pod["status"].update(phase="Succeeded"))
    found = await rest(stage, f"pod {finished} finished")
    has_one_turn = stage.judge.preempted == ended  # else more came free, and one pod may end others before another may
    return [
        *found,
        *faults_of(server, swept=False, restored=server.life > 0),
        *(passed_over(server, waiting) if has_one_turn else ()),
    ]


async def rest(stage: Stage, after: str) -> list[str]:
    """Wait until all is quiet, or until nothing but events was written for so long that nothing else will be."""
    loop, writes = asyncio.get_running_loop(), stage.server.writes
    pause, deadline = 0.05, loop.time() + PATIENCE
    since = loop.time()
    while not stage.is_quiet():
        if len(writes) != len(stage.server.writes):
            writes, since = stage.server.writes, loop.time()
        if loop.time() - since > LONG and not stage.is_busy():
            return []
        if loop.time() > deadline:
            return [f"no rest within {PATIENCE:g} s after {after}"]
        await asyncio.sleep(pause)
        pause = min(5.0, pause * 1.3)
    return []


def delete_everything(stage: Stage) -> None:
    """All pods, and all claims that people made; the rest has to go by itself."""
    for pod in stage.server.of(PODS):
        stage.server.deleted(PODS, pod["metadata"]["name"], "ns")
    for claim in stage.server.of(RESOURCE_CLAIMS):
        if not claim["metadata"].get("ownerReferences"):
            stage.server.deleted(RESOURCE_CLAIMS, claim["metadata"]["name"], "ns")


GAME = Game(play, script_of)

# --- One urgent pod beside tenants below it that do as they please (``urgency`` has the rule) ---
# Faults befall everything for some seconds, then it is *calm*, and pods of lower priority go on coming, finishing and
# being deleted for minutes, many of them with grace periods of an hour. The urgent pod comes meanwhile.

CALM_AT, STORM_SECONDS = 25.0, 200.0
BELOW: Final = ("template", "two", "shared", "both", "extended", "plain", TOLERANT, STEADFAST, VOLUME, GANG)
WEIGHTS: Final = (8, 2, 3, 2, 2, 2, 1, 1, 1, 2)
PRESSED_RULES: Final = ("zone", "nozone", "tolerates", "cpu", "port", "apart")


def pressed(seed: int) -> Script:
    dice = random.Random(seed)
    nodes = tuple(dice.choice((1, 1, 2)) for _ in range(dice.choice((1, 2, 2, 3))))
    rules = dice.sample(PRESSED_RULES, dice.choice((0, 1, 2, 4)))
    steps = [*faults(dice), Step(0.0, "add claim", "shared"), Step(CALM_AT, "calm"), *_storm(dice, rules)]
    kind = dice.choice(("template", "template", "two", "shared", "both", "extended", "plain", TOLERANT))
    words = [rule for rule in rules if dice.random() < 0.3]
    steps.append(Step(dice.uniform(CALM_AT, CALM_AT + 60), "add pod", "-".join((kind, URGENT, *words))))
    return Script(nodes, 1, True, tuple(sorted(steps)))


def _storm(dice: random.Random, rules: Collection[str]) -> Iterator[Step]:
    """Pods of tenants below; those of the gang have one priority. The lowest are the slowest: they are chosen first."""
    rank, lowest, ends = ["low"] * dice.choice((0, 1)), dice.choice((0.0, 0.3, 0.6)), dice.choice((20, 100, 1000))
    for number in range(dice.choice((10, 20, 40))):
        kind = dice.choices(BELOW, WEIGHTS)[0]
        words = [rule for rule in rules if dice.random() < 0.3] if kind != GANG else rank
        if kind != GANG and dice.random() < lowest:
            words = ["low", "slow", *words]
        name, at = "-".join((kind, str(number), *words)), dice.uniform(0, dice.choice((CALM_AT, STORM_SECONDS)))
        yield Step(at, "add pod", name)
        while dice.random() < 0.7:
            at += dice.expovariate(1 / ends)
            yield Step(at, dice.choice(("delete pod", "finish pod")), name)
            at += 2.5 * dice.random()
            yield Step(at, "delete pod", name)
            at += dice.choice((0.0, 0.1, dice.expovariate(0.1)))
            yield Step(at, "add pod", name)


PRESSED = Game(partial(play, made=pressed), pressed)
GANGS = Game(partial(play, made=gangs), gangs)
