"""A cluster in which a pod would run, to be broken, and to be mended by the printed advice of ``kubectl dra why``.

``follow`` does what the advice says to the letter, as a person would: on the objects, by its words.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Concatenate, Final, ParamSpec

from dra_api.core import Pod
from dra_operator.commands.placing import Placed
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.whatif.overlay import Overlay
from scheduling_causes import asks, cel, claim, device_class, node, pod, slice_
from told import seen_of

Json = dict[str, Any]


class World:
    """Objects as JSON, by kind and name. A lookup of what is not there is a LookupError."""

    def __init__(self, objects: list[Json]) -> None:
        self._objects = {(it["kind"], it["metadata"]["name"]): it for it in objects}

    def __getitem__(self, key: tuple[str, str]) -> Json:
        return self._objects[key]

    def find(self, kind: str, name: str) -> Json | None:
        return self._objects.get((kind, name))

    def add(self, *objects: Json) -> None:
        """Create or replace."""
        for obj in objects:
            self._objects[obj["kind"], obj["metadata"]["name"]] = obj

    def take(self, kind: str, name: str) -> Json:
        """Delete, and return what it was."""
        return self._objects.pop((kind, name))

    def of_kind(self, kind: str) -> list[Json]:
        return [it for (its, _), it in self._objects.items() if its == kind]

    def objects(self) -> list[Json]:
        return sorted(self._objects.values(), key=lambda it: it["kind"] == "Pod")

    def copy(self) -> World:
        return World(copy.deepcopy(self.objects()))

    def end(self, name: str) -> None:
        """A pod ends, and its claims are released."""
        self.take("Pod", name)
        for it in self.of_kind("ResourceClaim"):
            users = [user["name"] for user in it.get("status", {}).get("reservedFor", ())]
            if name in users:
                it["status"] = {}

    def node_of_pod(self) -> str:
        """Where the operator places the pod; empty if nowhere."""
        return node_of_pod(seen_of(copy.deepcopy(self.objects())))


def node_of_pod(seen: Observed) -> str:
    """Where the operator places the pod that waits, whose claims it makes; empty if nowhere."""
    pod = seen.one(Pod, "ns/waits")
    assert pod is not None
    outcome = Overlay(pipeline(seen)).place(pod)
    return outcome.node if isinstance(outcome, Placed) else ""


# --- A cluster in which the pod would run ---

GPUS: Final = ("gpu-1", "gpu-2")


@dataclass
class Scene:
    """A world that is being broken; ``random`` decides how."""

    world: World
    random: Random
    mends: list[Callable[[World], object]] = field(default_factory=list)
    """What a person does whom the answer tells to, apart from proven fixes."""

    @property
    def claims(self) -> list[Json]:
        """The claim of the pod, or the template that it is made from."""
        return [it for key in (("ResourceClaim", "c"), ("ResourceClaimTemplate", "t")) if (it := self.world.find(*key))]

    @property
    def specs(self) -> list[Json]:
        """What the claim of the pod asks for."""
        return [it["spec"].get("spec", it["spec"])["devices"] for it in self.claims]

    def requests(self) -> Iterator[Json]:
        for spec in self.specs:
            for request in spec["requests"]:
                yield from request.get("firstAvailable") or [request["exactly"]]

    def select(self, expression: str) -> None:
        """One more selector of the request."""
        for request in self.requests():
            request.setdefault("selectors", []).append(cel(expression))

    @property
    def pod(self) -> Json:
        return self.world["Pod", "waits"]

    def devices(self) -> Iterator[Json]:
        """All devices of the driver that is asked for."""
        for name in GPUS:
            yield from self.world["ResourceSlice", f"{name}-gpu"]["spec"]["devices"]

    def nodes(self) -> list[Json]:
        return self.world.of_kind("Node")


Break = Callable[[Scene], str]
"""Breaks the scene, and returns the pattern of what the answer has to name."""
P = ParamSpec("P")


def breaks(how: Callable[Concatenate[Scene, P], str]) -> Callable[P, Break]:
    """Make a function that breaks the scene in the way that its other arguments say."""
    return lambda *args, **named: lambda scene: how(scene, *args, **named)


def working(random: Random) -> Scene:
    """A cluster in which the pod would run."""
    slices = []
    for name in GPUS:
        devices = []
        for number in range(2):
            attributes: Json = {
                "model": {"string": "a100"},
                "numa": {"int": number},
                "driverVersion": {"version": "535.104.5"},
                "root": {"string": f"root-{number}"},
            }
            devices.append(
                {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": {"value": "40Gi"}}}
            )
        slices.append(slice_(name, devices))
    nics = [
        slice_(name, [{"name": "nic-0", "attributes": {"model": {"string": "cx7"}}}], driver="nic.example.com")
        for name in GPUS
    ]
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "dra-operator-dra-scheduler", "namespace": "kube-system"},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2030-01-01T11:59:58.000000Z"},
    }
    template = random.random() < 0.4
    mine = claim(asks())
    entry: Json = {"name": "gpu", "resourceClaimName": "c"}
    if template:
        mine = {
            **mine,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "t", "namespace": "ns"},
            "spec": {"spec": mine["spec"]},
        }
        entry = {"name": "gpu", "resourceClaimTemplateName": "t"}
    nodes = [node(name) for name in (*GPUS, "cpu-1")]
    for it in nodes:
        it["status"]["allocatable"]["pods"] = "20"
    waits = pod("waits", schedulerName="dra-scheduler", resourceClaims=[entry])
    every = [device_class(), device_class("nic", "nic.example.com"), *nodes, *slices, *nics, lease, mine, waits]
    return Scene(World(every), random)


# --- What a person does who reads the advice ---


def follow(world: World, advice: str) -> None:
    """Do all that a fix says. Raises LookupError for words that say nothing to do."""
    verbs = "write|remove|allow|ask|add|uncordon|wait|label|delete|create|see|bring"
    for sentence in re.split(rf", and (?=(?:{verbs}) )", advice):
        _do(world, sentence)


def _do(world: World, sentence: str) -> None:
    for pattern, act in ACTS:
        if (found := re.fullmatch(pattern, sentence, re.DOTALL)) is not None:
            act(world, *found.groups())
            return
    raise LookupError(sentence)


def _specs(world: World, claim: str) -> Iterator[Json]:
    """What the claim asks for; of one that is made from the template, what that says."""
    name = claim.rpartition("/")[2]
    found = world.find("ResourceClaim", name)
    if found is not None:
        yield found["spec"]
        return
    entry = world["Pod", "waits"]["spec"]["resourceClaims"][0]
    yield world["ResourceClaimTemplate", entry["resourceClaimTemplateName"]]["spec"]["spec"]


def _request(world: World, request: str, claim: str) -> Json:
    name, _, alternative = request.partition("/")
    for spec in _specs(world, claim):
        for it in spec["devices"]["requests"]:
            for one in it.get("firstAvailable", ()) if it["name"] == name else ():
                if one["name"] == alternative:
                    found: Json = one
                    return found
            if it["name"] == request:
                exactly: Json = it["exactly"]
                return exactly
    raise LookupError(f"request {request} of claim {claim}")


def _selectors(world: World, where: str) -> list[Json]:
    if (found := re.fullmatch(r'request "(.+)" of claim (\S+)', where)) is not None:
        its: list[Json] = _request(world, *found.groups())["selectors"]
        return its
    of_class: list[Json] = world["DeviceClass", where.removeprefix("class ")]["spec"]["selectors"]
    return of_class


def _write(world: World, new: str, old: str, number: str, where: str) -> None:
    selector = _selectors(world, where)[int(number)]["cel"]
    before = selector["expression"]
    if old.startswith('"'):
        after = before.replace(old, new)
    else:
        after = re.sub(rf"(?<![\w\"]){re.escape(old)}(?![\w\"])", lambda _: new, before)
    if after == before:
        raise LookupError(f"{old} is not in {before}")
    selector["expression"] = after


def _remove_selector(world: World, number: str, where: str, expression: str) -> None:
    its = _selectors(world, where)
    if " ".join(its[int(number)]["cel"]["expression"].split())[:70] != expression[:70]:
        raise LookupError(expression)
    del its[int(number)]


def _remove_term(world: World, term: str, number: str, where: str) -> None:
    selector = _selectors(world, where)[int(number)]["cel"]
    terms = selector["expression"].split(" && ")
    terms.remove(term)
    selector["expression"] = " && ".join(terms)


def _guard(world: World, number: str, where: str, expression: str) -> None:
    _selectors(world, where)[int(number)]["cel"]["expression"] = expression


def _rewrite(world: World, expression: str, number: str, where: str) -> None:
    _guard(world, number, where, expression)


def _count(world: World, count: str, request: str, claim: str) -> None:
    it = _request(world, request, claim)
    it["allocationMode"], it["count"] = "ExactCount", int(count)


def _capacity(world: World, amount: str, what: str, request: str, claim: str) -> None:
    _request(world, request, claim)["capacity"]["requests"][what] = amount


def _no_capacity(world: World, what: str, request: str, claim: str) -> None:
    del _request(world, request, claim)["capacity"]["requests"][what]


def _constraint(world: World, kind: str, attribute: str, claim: str) -> None:
    for spec in _specs(world, claim):
        left = [it for it in spec["devices"]["constraints"] if it.get(kind) != attribute]
        spec["devices"]["constraints"] = left


def _rename(world: World, kind: str, new: str, old: str, claim: str) -> None:
    for spec in _specs(world, claim):
        for it in spec["devices"]["constraints"]:
            if it.get(kind) == old:
                it[kind] = new


def _toleration(text: str) -> list[Json]:
    found = []
    for one in re.findall(r"\{(.*?)\}", text):
        found.append({key: value.strip('"') for key, _, value in (part.partition(": ") for part in one.split(", "))})
    return found


def _tolerate_device(world: World, text: str, request: str, claim: str) -> None:
    it = _request(world, request, claim)
    it["tolerations"] = [*it.get("tolerations", ()), *_toleration(text)]


def _tolerate_node(world: World, text: str) -> None:
    spec = world["Pod", "waits"]["spec"]
    spec["tolerations"] = [*spec.get("tolerations", ()), *_toleration(text)]


def _uncordon(world: World, node: str) -> None:
    world["Node", node]["spec"]["unschedulable"] = False


def _untaint(world: World, key: str, node: str) -> None:
    spec = world["Node", node]["spec"]
    spec["taints"] = [it for it in spec["taints"] if it["key"] != key]


def _untaint_of(world: World, node: str, key: str) -> None:
    _untaint(world, key, node)


def _unselect(world: World, pairs: str) -> None:
    spec = world["Pod", "waits"]["spec"]
    for pair in pairs.split(", "):
        del spec["nodeSelector"][pair.partition("=")[0]]


def _select(world: World, pairs: str) -> None:
    selector = world["Pod", "waits"]["spec"]["nodeSelector"]
    for new, old in re.findall(r"(\S+) instead of ([^,\s]+)", pairs):
        (key, _, value), before = new.partition("="), old.partition("=")[0]
        del selector[before]
        selector[key] = value


def _affine(world: World, pairs: str) -> None:
    required = world["Pod", "waits"]["spec"]["affinity"]["nodeAffinity"]
    for term in required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]:
        for one in term["matchExpressions"]:
            asked = f"{one['key']} {one['operator']} {', '.join(one['values'])}"
            if found := re.search(rf"(\S+) In ([^,]+(?:, [^,]+)*?) instead of {re.escape(asked)}", pairs):
                one["key"], one["values"] = found[1], found[2].split(", ")


def _label(world: World, node: str, pairs: str) -> None:
    for pair in pairs.split(" "):
        key, _, value = pair.partition("=")
        world["Node", node]["metadata"]["labels"][key] = value


def _unaffine(world: World, path: str) -> None:
    here = world["Pod", "waits"]["spec"]
    *way, last = path.split(".")
    for step in way:
        here = here[step]
    del here[last]


def _less(world: World, amount: str, resource: str, init: str | None, container: str) -> None:
    containers = world["Pod", "waits"]["spec"]["initContainers" if init else "containers"]
    its = next(it for it in containers if it["name"] == container)["resources"]
    its.setdefault("requests", {})[resource] = amount
    its.get("limits", {}).pop(resource, None)


def _less_in_pod(world: World, amount: str, resource: str) -> None:
    its = world["Pod", "waits"]["spec"]["resources"]
    its["requests"][resource] = amount
    its.get("limits", {}).pop(resource, None)


def _other_resource(world: World, new: str, old: str) -> None:
    for container in world["Pod", "waits"]["spec"]["containers"]:
        for amounts in container.get("resources", {}).values():
            if old in amounts:
                amounts[new] = amounts.pop(old)


def _end(world: World, text: str) -> None:
    """Each part of the way to free devices."""
    for part in re.split(r" and (?=wait|delete|see|bring|remove)", text):
        if found := re.fullmatch(r"wait until pods? (.+?) ends?(?:, or .+)?", part):
            for name in re.findall(r"ns/([\w.-]+)", found[1]):
                world.end(name)
        elif found := re.fullmatch(r"wait until the other consumers of claim (\S+) end, or delete them: (.+)", part):
            for name in re.findall(r"ns/([\w.-]+)", found[2]):
                world.end(name)
            _again(world, found[1])
        elif found := re.fullmatch(r"delete claims? (.+), reserved for no pod", part):
            for name in re.findall(r"ns/([\w.-]+)", found[1]):
                world.take("ResourceClaim", name)
        elif found := re.fullmatch(r"see that .+ runs: pods? (.+) ha(?:s|ve) finished, and .+", part):
            for name in re.findall(r"ns/([\w.-]+)", found[1]):
                world.end(name)
        else:
            raise LookupError(part)


def _again(world: World, claims: str) -> None:
    for name in re.findall(r"ns/([\w.-]+)", claims):
        world["ResourceClaim", name]["status"] = {}


def _class(world: World, new: str, request: str, claim: str) -> None:
    _request(world, request, claim)["deviceClassName"] = new


def _entry(world: World, field: str, new: str, old: str) -> None:
    for entry in world["Pod", "waits"]["spec"]["resourceClaims"]:
        if entry.get(field) == old:
            entry[field] = new


def _repair(world: World, driver: str, pool: str, device: str, then: str) -> None:
    if rule := re.fullmatch(r"delete DeviceTaintRule (\S+) then", then):
        world.take("DeviceTaintRule", rule[1])
    for it in world.of_kind("ResourceSlice"):
        if (it["spec"]["driver"], it["spec"]["pool"]["name"]) == (driver, pool):
            for one in it["spec"]["devices"]:
                if one["name"] == device:
                    one.pop("taints", None)


REQUEST: Final = r'request "(.+?)" of claim (\S+)'
SELECTOR: Final = r"selector #(\d+) of (.+?)"
ACTS: Final[list[tuple[str, Callable[..., None]]]] = [
    (rf"write deviceClassName (\S+) instead of \S+ in {REQUEST}", _class),
    (r"write (resourceClaimName|resourceClaimTemplateName) (\S+) instead of (\S+) in the pod", _entry),
    (rf"write (.+?) instead of (.+?) in {SELECTOR}", _write),
    (rf"write (.+) as {SELECTOR}", _rewrite),
    (r"write (matchAttribute|distinctAttribute): (\S+) instead of (\S+) in claim (\S+)", _rename),
    (r"write (.+) in spec.affinity.nodeAffinity of the pod", _affine),
    (r"write (.+) in spec.nodeSelector of the pod", _select),
    (r"ask for at most (\S+) (\S+) instead of \S+ in spec.resources of the pod", _less_in_pod),
    (rf"remove {SELECTOR} \((.+)\)", _remove_selector),
    (rf"allow for devices without the name in {SELECTOR}: (.+)", _guard),
    (rf"ask for at most (\d+) instead of \d+ in {REQUEST}", _count),
    (rf"ask for (\d+) of the devices instead of all \(allocationMode: ExactCount\) in {REQUEST}", _count),
    (rf"ask for at most (\S+) (\S+) instead of \S+ in {REQUEST}", _capacity),
    (rf"remove the capacity (\S+) from {REQUEST}", _no_capacity),
    (r"remove the constraint (\w+): (\S+) from claim (\S+)", _constraint),
    (rf"add the tolerations? (.+) to {REQUEST}(?:, although .+)?", _tolerate_device),
    (r"add the toleration (.+) to the pod(?:, although .+)?", _tolerate_node),
    (r"uncordon the node \(kubectl uncordon -- (\S+)\)", _uncordon),
    (r"wait until the taint (\S+) goes: node (\S+) .+", _untaint),
    (r"remove the taint (\S+) from node (\S+) .+", _untaint),
    (r"wait until node (\S+) is repaired and loses the taint (\S+)", _untaint_of),
    (r"remove (.+=.+) from spec.nodeSelector of the pod", _unselect),
    (r"label the node \(kubectl label node --overwrite -- (\S+) (.+)\)", _label),
    (r"remove spec\.(\S+) from the pod", _unaffine),
    (r"remove (.+) from " + SELECTOR, _remove_term),
    (r"ask for at most (\S+) (\S+) instead of \S+ in (init )?container (\S+)", _less),
    (r"ask for (\S+) instead of (\S+) in the pod", _other_resource),
    (r"delete claim (.+) and create it again, so that it gets other devices", _again),
    (r"delete claim (.+): made again from its template, it gets other devices", _again),
    (r"wait until device ([^/]+)/([^/]+)/(\S+) is (?:repaired|available) \((.+)\)", _repair),
    (r"(.+) \((?:frees|makes room on) .+\)", _end),
    (r"(wait until the other consumers .+)", _end),
]
