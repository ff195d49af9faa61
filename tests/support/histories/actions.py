"""What each step of a script does. A step that cannot happen any more does nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

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
from history_kit.game import Step
from objects import Make, Obj
from volume_lab import volume_claim

from .node_rules import GATE, RULES, TAINT, ZONE, is_held, rules_of
from .replica import KINDS
from .rest import is_of_gang
from .script import GANG, GANG_SIZE, GROUPED, KINDS_OF_PODS, NAMED_RIVAL, VOLUME
from .server import START
from .stage import Stage

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


def _remove(resource: Resource, key: Callable[[Step], str]) -> Action:
    def action(stage: Stage, step: Step) -> None:
        if stage.has(resource, key(step)):
            stage.server.drop(resource, key(step))

    return action


def _add_node(stage: Stage, step: Step) -> None:
    if not stage.has(NODES, step.subject):
        stage.add_node(step.subject)


def _add_slice(stage: Stage, step: Step) -> None:
    if not stage.has(RESOURCE_SLICES, _slice(step)):
        stage.add_slice(step.subject)


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
    """The rule comes, or changes."""
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


def _add_template(stage: Stage, step: Step) -> None:
    if not stage.has(RESOURCE_CLAIM_TEMPLATES, "ns/tmpl"):
        stage.add_template()


def _add_class(stage: Stage, step: Step) -> None:
    if not stage.has(DEVICE_CLASSES, "gpu"):
        stage.add_class()


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
    "add node": _add_node,
    "remove node": _remove(NODES, lambda step: step.subject),
    "repel pods": _change_node(lambda node: node["spec"].update(taints=[TAINT])),
    "welcome pods": _change_node(lambda node: node["spec"].update(taints=[])),
    "cordon node": _change_node(lambda node: node["spec"].update(unschedulable=True)),
    "uncordon node": _change_node(lambda node: node["spec"].update(unschedulable=False)),
    "move node": _change_node(_move),
    "add slice": _add_slice,
    "remove slice": _remove(RESOURCE_SLICES, _slice),
    "add taint": _add_taint,
    "remove taint": lambda stage, step: _set_taints(stage, step, []),
    "set rule": _set_rule,
    "remove rule": _remove(DEVICE_TAINT_RULES, lambda step: step.subject),
    "add group": _add_group,
    "remove group": _remove(POD_GROUPS, lambda step: f"ns/{step.subject}"),
    "add template": _add_template,
    "remove template": _remove(RESOURCE_CLAIM_TEMPLATES, lambda _: "ns/tmpl"),
    "add class": _add_class,
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
