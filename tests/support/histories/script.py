"""What people, nodes and machines do in one history: steps, each at its time. The seed decides which.

What pods ask of nodes is read literally, by nothing of the operator. A rule is a word in a pod's name:
``template-3-cpu-low`` is a pod of the kind ``template`` with two rules.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from dra_kube import NODES, PODS
from fake_api import FakeStore, key_of
from history_kit.game import Step, some_times
from objects import Make, Obj
from volume_lab import uses

ZONE: Final = "zone"
"""The label that says which of the zones ``a`` and ``b`` a node is in."""
GATE: Final = "example.com/quota"
TAINT: Final[Obj] = {"key": "maintenance", "effect": "NoSchedule"}
CPU: Final = 4
"""What each node has; a pod with the rule takes three of them."""
PORT: Final = 80
APART: Final[Obj] = {"team": "apart"}


def _in_zone(pod: Obj) -> None:
    pod["spec"]["nodeSelector"] = {ZONE: "a"}


def _out_of_zone(pod: Obj) -> None:
    terms = [{"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": ["a"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod["spec"].setdefault("affinity", {})["nodeAffinity"] = required


def _apart(pod: Obj) -> None:
    pod["metadata"]["labels"] = APART
    term = {"labelSelector": {"matchLabels": APART}, "topologyKey": "kubernetes.io/hostname"}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    pod["spec"].setdefault("affinity", {})["podAntiAffinity"] = required


def _with_port(pod: Obj) -> None:
    port = {"containerPort": PORT, "hostPort": PORT}
    pod["spec"]["containers"].append({**Make.asking("web"), "ports": [port]})


def _with_cpu(pod: Obj) -> None:
    pod["spec"]["containers"].append(Make.asking("busy", cpu=str(CPU - 1)))


def _set(field: str, value: object) -> Callable[[Obj], None]:
    return lambda pod: pod["spec"].update({field: value})


def _held(pod: Obj) -> None:
    pod["spec"].setdefault("schedulingGates", []).append({"name": GATE})


RULES: Final[Mapping[str, Callable[[Obj], None]]] = {
    "high": _set("priority", 10),
    "low": _set("priority", -10),
    "zone": _in_zone,
    "nozone": _out_of_zone,
    "tolerates": _set("tolerations", [{"operator": "Exists"}]),
    "cpu": _with_cpu,
    "port": _with_port,
    "apart": _apart,
    "held": _held,
    "slow": _set("terminationGracePeriodSeconds", 3600),
    "quick": _set("terminationGracePeriodSeconds", 1),
}
"""What a word does to a pod."""
ROOM: Final = frozenset({"cpu", "port", "apart"})
"""Those that other pods on a node can be in the way of."""


def rules_of(pod: Obj) -> frozenset[str]:
    return frozenset(pod["metadata"]["name"].split("-")[2:])


def is_held(pod: Obj) -> bool:
    """Whether a gate that is not the operator's holds the pod back."""
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or ())


def is_allowed(store: FakeStore, pod: Obj, name: str) -> bool:
    """Whether the pod's rules let it run on this node, beside the pods that are there."""
    node, rules = store[NODES, name], rules_of(pod)
    zone = node["metadata"]["labels"].get(ZONE)
    if ("zone" in rules and zone != "a") or ("nozone" in rules and zone == "a"):
        return False
    is_closed = bool(node["spec"].get("taints")) or is_cordoned(node)
    if is_closed and "tolerates" not in rules:
        return False
    return not any(is_in_the_way(rules, rules_of(other)) for other in running_on(store, name))


def is_cordoned(node: Obj) -> bool:
    return bool(node["spec"].get("unschedulable"))


def is_in_the_way(rules: frozenset[str], others: frozenset[str]) -> bool:
    """Whether pods with these rules cannot be on one node: three of four CPUs, one port, one of those kept apart."""
    return bool(rules & others & ROOM)


def running_on(store: FakeStore, node: str) -> Iterator[Obj]:
    for pod in store.of(PODS):
        if pod["spec"].get("nodeName") == node and is_running(pod):
            yield pod


def is_running(pod: Obj) -> bool:
    return bool(pod["spec"].get("nodeName")) and pod["status"].get("phase") not in ("Succeeded", "Failed")


def collisions(store: FakeStore, pod: Obj) -> Iterator[str]:
    """Pods beside this one for which the node has no room. Those of another scheduler are its own affair."""
    rules, node = rules_of(pod) & ROOM, pod["spec"].get("nodeName")
    if not rules or not is_running(pod) or pod["spec"]["schedulerName"] == OTHER:
        return
    for other in running_on(store, node):
        is_another = other["metadata"]["uid"] != pod["metadata"]["uid"] and other["spec"]["schedulerName"] != OTHER
        if is_another and (both := sorted(rules & rules_of(other))):
            yield f"{node} has no room for both {key_of(pod)} and {key_of(other)} ({', '.join(both)})"


EXTENDED = "example.com/gpu"
TOLERANT = "tolerant"  # the template of claims whose devices may be tainted for some seconds
STEADFAST = "steadfast"  # the template of claims whose devices may be tainted
OTHER = "another-scheduler"
VOLUME = "volume"  # pods with a PersistentVolumeClaim of their name, which outlives them
RIVAL = "rival"  # pods to which the other scheduler gives devices
GANGS = 3  # one history of so many has a gang
ELECTIONS = 8  # one history of so many has two replicas of the operator
ATTACHMENTS = 7  # in one history of so many devices have to be attached before a pod is bound
TAINT_RULES = 11  # in one history of so many people taint devices by DeviceTaintRules
CONSUMABLE = 13  # in one history of so many several claims share a device
PARTITIONS = 17  # in one history of so many devices are cards that come whole or as two halves
GROUPS = 19  # in one history of so many the gang is a PodGroup
BULK = 3  # in one history of so many the operator has no room for objects, and reads each when its turn comes
PREEMPTIONS = 5  # in one history of so many pods end so that those of higher priority have room
GANG = "gang"  # pods that get devices together
GANG_SIZE = 2
GANG_RANKS = ("", "-high", "-low")  # what the names of its pods end with where pods end for others
NAMED_RIVAL = "rivalnamed"  # the same with a claim that people make with the pod
ATTACHED = "attached"  # devices have the binding condition of this name, and the failure condition BROKEN
BROKEN = "broken"
CONSUMED = "consumed"  # devices have CAPACITY units of memory, of which each claim consumes some
CAPACITY = 4
USUAL = 2  # units of a claim that does not say how many
UNITS = {"tolerant": 1, "shared": 3, "immediate": 3}  # of claims that say so, by the name of claim or template
PARTITIONED = "partitioned"  # each card has CAPACITY units, of which a half consumes USUAL
HALF = "half"  # what the names of halves begin with; the whole card is the device ``dev``
GROUPED = "grouped"  # the pods of the gang name a PodGroup, which has the same name
BULKY = "bulky"  # no object is held whole
TAINTED = "tainted"  # DeviceTaintRules come and go
EFFECTS = ("NoExecute", "NoExecute", "NoSchedule", "None")
DURATION = 20.0  # seconds in which everything happens


class Script(NamedTuple):
    """``nodes`` are the devices of each node at the beginning; several ``replicas`` of the operator elect a leader.

    ``preempts``: pods end so that those of higher priority have room. ``traits`` has what else is special.
    """

    nodes: tuple[int, ...]
    replicas: int
    preempts: bool
    steps: tuple[Step, ...]
    traits: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"devices of the nodes {self.nodes}"


KINDS_OF_PODS: dict[str, Callable[[str], Obj]] = {
    "template": lambda name: Make.pod(name, claims=[Make.FROM_TEMPLATE]),
    "two": lambda name: Make.pod(name, claims=[Make.FROM_TEMPLATE, Make.FROM_TEMPLATE]),
    "shared": lambda name: Make.pod(name, claims=[Make.use("shared")]),
    "both": lambda name: Make.pod(name, claims=[Make.FROM_TEMPLATE, Make.use("shared")]),
    "immediate": lambda name: Make.pod(name, claims=[Make.use("immediate")]),
    "extended": lambda name: Make.pod(name, containers=[Make.asking("main", **{EXTENDED: "1"})]),
    "plain": Make.pod,
    "tolerant": lambda name: Make.pod(name, claims=[{"resourceClaimTemplateName": TOLERANT}]),
    "gated": lambda name: Make.pod(
        name, claims=[Make.FROM_TEMPLATE], schedulerName=OTHER, schedulingGates=[{"name": "dra.kopf.dev/allocate"}]
    ),
    VOLUME: lambda name: Make.pod(name, claims=[Make.FROM_TEMPLATE], volumes=uses(name)),
    RIVAL: lambda name: Make.pod(name, claims=[Make.FROM_TEMPLATE], schedulerName=OTHER),
    NAMED_RIVAL: lambda name: Make.pod(name, claims=[Make.use(name)], schedulerName=OTHER),
    GANG: lambda name: _of_gang(Make.pod(name, claims=[Make.FROM_TEMPLATE])),
    STEADFAST: lambda name: Make.pod(name, claims=[{"resourceClaimTemplateName": STEADFAST}]),
}
HELD = "held"  # what a pod is called that another gate holds back
WORDS = ("high", "low", "zone", "nozone", "tolerates", "cpu", "port", "apart", HELD)
"""What pods may ask of nodes: most keys of ``node_rules.RULES``."""
COMINGS_AND_GOINGS = (
    ("remove node", "add node", 0.1),
    ("remove slice", "add slice", 0.15),
    ("remove template", "add template", 0.1),
    ("remove class", "add class", 0.1),
    ("add taint", "remove taint", 0.2),
    ("repel pods", "welcome pods", 0.15),
    ("cordon node", "uncordon node", 0.15),
    ("move node", "move node", 0.15),
)
"""What happens, what undoes it, and how likely it is."""


def _of_gang(pod: Obj) -> Obj:
    wish = {"dra.kopf.dev/gang": GANG, "dra.kopf.dev/gang-size": str(GANG_SIZE)}
    return {**pod, "metadata": {**pod["metadata"], "annotations": wish}}


def script_of(seed: int) -> Script:
    dice = random.Random(seed)
    nodes = tuple(dice.choice((0, 1, 1, 2)) for _ in range(dice.choice((1, 2, 2, 3))))
    rules = dice.sample(WORDS, dice.choice((0, 2, 4)))
    replicas, preempts = 2 if seed % ELECTIONS == 0 else 1, seed % PREEMPTIONS == 0
    if preempts:
        rules += [rule for rule in ("high", "low") if rule not in rules]
    ends = _changes_of_leader(dice) if replicas > 1 else _kills(dice)
    shares = seed % CONSUMABLE == 0
    partitions = seed % PARTITIONS == 0 and not shares
    steps = [
        *_pods(dice, rules, rivals=not (shares or partitions)),
        *_claims(dice),
        *_cluster(dice, len(nodes)),
        *ends,
        *faults(dice),
    ]
    traits, rank = set(), ""
    if seed % GANGS == 0 or seed % GROUPS == 0:
        rank = dice.choice(GANG_RANKS) if preempts else ""
        steps += _gang(dice, rank)
    if seed % GROUPS == 0:
        traits.add(GROUPED)
        steps += _group(dice, {"": 0, "-high": 10, "-low": -10}[rank])
    if seed % ATTACHMENTS == 0:
        traits.add(ATTACHED)
        steps += [Step(at, "set the clock", "", 700) for at in _some(dice, 1, 0.3)]  # what takes longer has failed
    if shares:
        traits.add(CONSUMED)
    if partitions:
        traits.add(PARTITIONED)
    if shares or partitions:
        steps += _many(dice)
    if seed % TAINT_RULES == 0 and not partitions:  # one rule would taint the whole card, and not its halves
        traits.add(TAINTED)
        steps += _taint_rules(dice, len(nodes))
    if seed % BULK == 0:
        traits.add(BULKY)
    return Script(nodes, replicas, preempts, tuple(sorted(steps)), frozenset(traits))


_some = partial(some_times, DURATION)


def _pods(dice: random.Random, rules: Sequence[str], *, rivals: bool) -> Iterator[Step]:
    kinds = list(KINDS_OF_PODS)
    rival = dice.choice((0, 0, 0, 6)) if rivals else 0
    first, last = _rush(dice) if rival else (0, DURATION / 2)
    for number in range(dice.randint(1, 6)):
        kind = dice.choices(kinds, (8, 2, 3, 3, 1, 2, 1, 1, 1, 2, rival, rival / 2, 0, 0))[0]
        words = [rule for rule in rules if not kind.startswith(RIVAL) and dice.random() < 0.4]
        name, at = "-".join((kind, str(number), *words)), dice.uniform(first, last)
        yield Step(at, "add pod", name)
        if kind == NAMED_RIVAL and dice.random() < 0.5:
            yield from _unseen(dice, at)
        if HELD in words:
            yield Step(at + dice.expovariate(0.3), "lift gate", name)
        if dice.random() < 0.6:
            at += dice.expovariate(0.3)
            yield Step(at, dice.choice(("delete pod", "finish pod")), name)
            if dice.random() < 0.3:
                at += dice.choice((0.0, 0.1, 2.0))
                yield Step(at, "delete pod", name)
                yield Step(at + 2.5 * dice.random(), "add pod", name)


def gangs(seed: int) -> Script:
    """A gang with more pods than it needs, and devices for no more than it needs, which have to be attached. The others
    are given away by another scheduler as well."""
    dice = random.Random(seed)
    nodes = tuple(dice.choice((1, 2, 2)) for _ in range(dice.choice((2, 2, 3))))
    traits = {ATTACHED, GROUPED} if dice.random() < 0.5 else {ATTACHED}
    steps = [*_gang(dice, "", pods=(4, 4, 5)), *_kills(dice), *faults(dice)]
    if GROUPED in traits:
        steps += _group(dice, 0)
    for number in range(sum(nodes) - GANG_SIZE):
        kinds = (RIVAL, NAMED_RIVAL, "gated", "gated") if number == 0 else (RIVAL, "gated", "template", TOLERANT)
        name, at = f"{dice.choice(kinds)}-{number}", dice.uniform(0, DURATION / 2)
        steps.append(Step(at, "add pod", name))
        if dice.random() < 0.2:
            steps.append(Step(at + dice.expovariate(0.2), dice.choice(("delete pod", "finish pod")), name))
    return Script(nodes, 1, False, tuple(sorted(steps)), frozenset(traits))


def _gang(dice: random.Random, rank: str, pods: Sequence[int] = (1, 2, 2, 2, 3)) -> Iterator[Step]:
    """Two pods and more, which come one after the other, go, and come back; all of the same priority."""
    at = dice.uniform(0, DURATION / 2)
    for number in range(dice.choice(pods)):
        name = f"{GANG}-{number}{rank}"
        at += dice.choice((0.0, 0.0, 0.1, dice.expovariate(0.5)))
        yield Step(at, "add pod", name)
        if dice.random() < 0.5:
            then = at + dice.expovariate(0.3)
            yield Step(then, dice.choice(("delete pod", "delete pod", "finish pod")), name)
            if dice.random() < 0.6:
                yield Step(then + 0.1, "delete pod", name)
                yield Step(then + 0.2 + 2.5 * dice.random(), "add pod", name)


def _many(dice: random.Random) -> Iterator[Step]:
    """Pods beside the others, which share devices."""
    kinds = ("template", "template", TOLERANT, TOLERANT, "two", "both", "shared", "extended")
    for number in range(10, 10 + dice.randint(2, 6)):
        name, at = f"{dice.choice(kinds)}-{number}", dice.uniform(0, DURATION * 0.8)
        yield Step(at, "add pod", name)
        if dice.random() < 0.5:
            yield Step(at + dice.expovariate(0.2), dice.choice(("delete pod", "finish pod")), name)


def _taint_rules(dice: random.Random, nodes: int) -> Iterator[Step]:
    """Rules that come, change and go, and pods beside the others that tolerate their taints, or do not."""
    for number in range(dice.choice((1, 2, 2, 3))):
        name, at = f"rule-{number}", dice.uniform(0, DURATION)
        yield Step(at, "set rule", _chosen(dice, name, nodes))
        for _ in _some(dice, 2, 0.3):
            at += dice.expovariate(0.3)
            yield Step(at, "set rule", _chosen(dice, name, nodes))
        if dice.random() < 0.7:
            yield Step(at + dice.expovariate(0.2), "remove rule", name)
    for number in range(6, 6 + dice.choice((1, 2, 3))):
        name, at = f"{dice.choice((TOLERANT, STEADFAST, 'template'))}-{number}", dice.uniform(0, DURATION / 2)
        yield Step(at, "add pod", name)
        if dice.random() < 0.3:
            yield Step(at + dice.expovariate(0.3), "delete pod", name)


def _chosen(dice: random.Random, rule: str, nodes: int) -> str:
    """The rule with its effect, and the devices that it taints: those of a node, one of them, or all."""
    node, device = f"node-{dice.randrange(nodes)}", dice.choice(("", "dev-0"))
    return "/".join((rule, dice.choice(EFFECTS), *dice.choice(((), (node,), (node, device)))))


def _group(dice: random.Random, priority: int) -> Iterator[Step]:
    """The PodGroup of the gang, which has the priority of its pods."""
    at = dice.choice((0.0, dice.uniform(0, DURATION / 2)))
    yield Step(at, "add group", GANG, priority)
    for _ in _some(dice, 2, 0.2):
        at += dice.expovariate(0.2)
        yield Step(at, "remove group", GANG)
        at += dice.expovariate(0.5)
        if dice.random() < 0.8:
            yield Step(at, "add group", GANG, priority)


def _unseen(dice: random.Random, at: float) -> Iterator[Step]:
    """A rival comes while pods come unseen, and those that are known already get a chance at a device."""
    yield Step(at - dice.uniform(0, 0.5), "lose events", "pods", dice.uniform(1, 3))
    yield Step(at - 1, "remove slice", "node-0")
    yield Step(at + dice.uniform(0, 0.3), "add slice", "node-0")


def _rush(dice: random.Random) -> tuple[float, float]:
    """When all pods come if there is a rival: at the same time, or it takes no device that the operator also takes."""
    first = dice.uniform(0, DURATION / 2)
    return first, first + 3


def _claims(dice: random.Random) -> Iterator[Step]:
    for name, always in (("shared", 0.8), ("immediate", 0.2)):
        if dice.random() < always:
            yield Step(dice.choice((0.0, 0.0, dice.uniform(0, DURATION / 2))), "add claim", name)
            for at in _some(dice, 1, 0.2):
                yield Step(at, "delete claim", name)


def _cluster(dice: random.Random, nodes: int) -> Iterator[Step]:
    """Things that go, and perhaps come back."""
    for gone, back, chance in COMINGS_AND_GOINGS:
        for at in _some(dice, 1, chance):
            subject = "" if gone in ("remove template", "remove class") else f"node-{dice.randrange(nodes)}"
            yield Step(at, gone, subject)
            if dice.random() < 0.8:
                yield Step(at + dice.expovariate(0.3), back, subject)


def _kills(dice: random.Random) -> Iterator[Step]:
    for at in _some(dice, 2, 0.35):
        yield Step(at, "kill the operator")


def _changes_of_leader(dice: random.Random) -> Iterator[Step]:
    for at in _some(dice, 3, 0.5):
        how = dice.choice(("kill", "stop", "pause", "pause", "roll out"))
        yield Step(at, f"{how} the operator", "", dice.uniform(1, 25) if how == "pause" else 0)


def faults(dice: random.Random) -> Iterator[Step]:
    """What befalls requests, events, the server and the clock."""
    for at in _some(dice, 3, 0.3):
        yield Step(
            at, "lose events", dice.choice(("pods", "resourceclaims", "resourceslices", "nodes")), dice.uniform(0, 3)
        )
    for at in _some(dice, 1, 0.15):
        yield Step(at, "stop the server", "", dice.expovariate(0.5))
    for at in _some(dice, 1, 0.1):
        yield Step(at, "serve no resource.k8s.io", "", dice.expovariate(0.3))
    for at in _some(dice, 1, 0.2):
        yield Step(at, "set the clock", "", dice.choice((-100, -30, 30, 3600)))
    for at in _some(dice, 1, 0.07):
        yield Step(at, "back up")
        at += dice.expovariate(0.2)
        if dice.random() < 0.5:
            yield Step(at, "kill the operator")
        yield Step(at, "restore")
