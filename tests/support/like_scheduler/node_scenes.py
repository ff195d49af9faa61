"""Random scenes about nodes and about pods near each other: rules that exclude nodes, and preferences."""

from __future__ import annotations

from random import Random

from .rules import HOST, LABELS, NODE_LABELS, Rules
from .scene import NAMESPACES, Json, Probe, Scene

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_KINDS = ("near", "spread", "resources", "ports", "nodes")
_PROBES = 5
_WIDGET = "example.com/widget"


def node_scene(seed: int) -> Scene:
    """Rules of one kind in most pods, and of every kind now and then."""
    random = Random(seed)
    names = [f"n{number}" for number in range(random.randint(2, 5))]
    kind = random.choice(_KINDS)
    pods_by_node = [
        _ended(random, _bound(random, _pod(random, f"r{number}", kind, probe=False), names))
        for number in range(random.randint(0, 8))
    ]
    probes = [Probe(_pod(random, f"p{number}", kind, probe=True)) for number in range(_PROBES)]
    return Scene(_teams(random), [_node(random, name) for name in names], pods_by_node, probes)


def preference_scene(seed: int) -> Scene:
    """Nodes with so much room that it hardly counts, and pods that prefer some of them."""
    random = Random(seed)
    names = [f"n{number}" for number in range(random.randint(2, 5))]
    nodes = [_node(random, name) for name in names]
    for node in nodes:
        node["spec"] = {"taints": _rules(random).taints("PreferNoSchedule")} if random.random() < 0.4 else {}
        node["metadata"]["labels"][HOST] = node["metadata"]["name"]
        node["status"] = {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "1000"}}
    pods_by_node = [
        _bound(random, _wishing(random, f"r{number}", probe=False), names) for number in range(random.randint(0, 7))
    ]
    probes = [Probe(_wishing(random, f"p{number}", probe=True)) for number in range(_PROBES)]
    return Scene(_teams(random), nodes, pods_by_node, probes)


def _rules(random: Random, *, probe: bool = False) -> Rules:
    return Rules(random, selects_no_labels=not probe)


def _teams(random: Random) -> dict[str, str | None]:
    return {name: random.choice((None, "t1", "t2")) for name in NAMESPACES}


def _node(random: Random, name: str) -> Json:
    rules = _rules(random)
    labels = rules.labels(NODE_LABELS, 0.75) | ({HOST: name} if rules.chance(0.95) else {})
    spec: Json = {"taints": rules.taints("NoSchedule", "NoExecute")} if rules.chance(0.2) else {}
    if rules.chance(0.07):
        spec["unschedulable"] = True
    room = {"cpu": random.choice(("1", "2", "1500m")), "memory": random.choice(("1Gi", "2G"))}
    room["pods"] = random.choice(("2", "4", "110", "110", "110"))
    if rules.chance(0.4):
        room[_WIDGET] = random.choice(("0", "1", "3"))
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"allocatable": room}}


def _named(random: Random, name: str, spec: Json) -> Json:
    labels = _rules(random).labels(LABELS, 0.7)
    whole = {"terminationGracePeriodSeconds": 0, **spec}
    return {"metadata": {"name": name, "namespace": random.choice(NAMESPACES), "labels": labels}, "spec": whole}


def _bound(random: Random, pod: Json, names: list[str]) -> Json:
    pod["spec"]["nodeName"] = random.choice(names)
    return pod


def _ended(random: Random, pod: Json) -> Json:
    """Some are over, and some on their way out."""
    fate = random.randrange(12)
    if fate == 0:
        pod["status"] = {"phase": random.choice(("Succeeded", "Failed"))}
    elif fate == 1:
        pod["metadata"]["finalizers"] = ["example.com/stays"]
    return pod


def _pod(random: Random, name: str, kind: str, *, probe: bool) -> Json:
    rules = _rules(random, probe=probe)

    def has(which: str) -> bool:
        return rules.chance(0.7 if which == kind else 0.07)

    spec: Json = {"containers": [_container(rules, "c0", has("resources"), has("ports"))], "affinity": {}}
    if has("resources"):
        sidecar = {"restartPolicy": "Always"} if rules.chance(0.5) else {}
        spec["initContainers"] = [_container(rules, "i0", True, False) | sidecar, _container(rules, "i1", True, False)]
    if has("near"):
        spec["affinity"]["podAntiAffinity"] = {_REQUIRED: rules.terms()}
    if has("near"):
        spec["affinity"]["podAffinity"] = {_REQUIRED: rules.terms()}
    if probe and has("nodes"):
        terms = [rules.node_term() for _ in range(random.randint(1, 2))]
        spec["affinity"]["nodeAffinity"] = {_REQUIRED: {"nodeSelectorTerms": terms}}
    if probe and has("nodes"):
        spec["nodeSelector"] = rules.labels({"zone": NODE_LABELS["zone"], "disk": NODE_LABELS["disk"]}, 0.4)
    if probe and has("spread"):
        spec["topologySpreadConstraints"] = rules.spread("DoNotSchedule")
    if probe:
        spec["tolerations"] = rules.tolerations()
    return _named(random, name, spec)


def _container(rules: Rules, name: str, heavy: bool, open_port: bool) -> Json:
    made: Json = {"name": name, "image": "none", "resources": {}}
    if heavy:
        amounts = {"cpu": ["0", "100m", "1", "1500m"], "memory": ["0", "512Mi", "1Gi"]}
        made["resources"]["requests"] = rules.labels(amounts, 0.7)
    if heavy and rules.chance(0.3):
        made["resources"]["limits"] = {_WIDGET: rules.random.choice(("0", "1", "2"))}
    if open_port:
        port = {"containerPort": 80, "hostPort": rules.random.choice((8080, 8081))}
        options = {"protocol": ["TCP", "UDP"], "hostIP": ["10.0.0.1", "10.0.0.2", "0.0.0.0"]}
        made["ports"] = [port | rules.labels(options, 0.5)]
    return made


def _wishing(random: Random, name: str, *, probe: bool) -> Json:
    rules = _rules(random, probe=probe)

    def weighed(what: str, wishes: list[Json]) -> Json:
        return {_PREFERRED: [{"weight": random.choice((1, 10, 50, 100)), what: wish} for wish in wishes]}

    affinity: Json = {}
    if rules.chance(0.5):
        affinity["nodeAffinity"] = weighed("preference", [rules.node_term() for _ in range(random.randint(1, 3))])
    for field in ("podAffinity", "podAntiAffinity"):
        if rules.chance(0.4):
            affinity[field] = weighed("podAffinityTerm", rules.terms())
    spec: Json = {"containers": [{"name": "c0", "image": "none"}], "affinity": affinity}
    if probe and rules.chance(0.5):
        spec["topologySpreadConstraints"] = rules.spread("ScheduleAnyway")
    if probe:
        spec["tolerations"] = rules.tolerations()
    return _named(random, name, spec)
