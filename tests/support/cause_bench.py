"""The bench of causes: clusters in which a pod waits for one or two causes, made from parts by a number.

Each part breaks a cluster in which the pod would run, names what the answer has to say, and knows what a person does
whom the answer tells to create, start or wait for something. Proven fixes are followed by ``literal_advice``.

``PYTHONPATH=tests/support python -m cause_bench --cases 0:140`` prints the cases that fail, and counts.
"""

from __future__ import annotations

import argparse
import copy
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

from literal_advice import World, follow, node_of_pod
from scheduling_causes import DRIVER, asks, cel, claim, device_class, node, pod, slice_
from told import Json, after_edits, told

CASES: Final = 140
MODEL: Final = f'device.attributes["{DRIVER}"].model'
NUMA: Final = f'device.attributes["{DRIVER}"].numa'
VERSION: Final = f'device.attributes["{DRIVER}"].driverVersion'
MEMORY: Final = f'device.capacity["{DRIVER}"].memory'
GPUS: Final = ("gpu-1", "gpu-2")


@dataclass
class Scene:
    """A world that is being broken; ``random`` decides how."""

    world: World
    random: Random
    mends: list[Callable[[World], None]] = field(default_factory=list)
    """What a person does whom the answer tells to, apart from proven fixes."""

    @property
    def claims(self) -> list[Json]:
        """The claim of the pod, or the template that it is made from."""
        return [it for key in (("ResourceClaim", "c"), ("ResourceClaimTemplate", "t")) if (it := self.world.find(*key))]

    def requests(self) -> Iterator[Json]:
        """What the pod asks for."""
        for it in self.claims:
            spec = it["spec"]["spec"] if it["kind"] == "ResourceClaimTemplate" else it["spec"]
            for request in spec["devices"]["requests"]:
                yield request["exactly"]

    def select(self, expression: str) -> None:
        """One more selector of the request."""
        for request in self.requests():
            request.setdefault("selectors", []).append(cel(expression))

    @property
    def pod(self) -> Json:
        """The pod that waits."""
        return self.world["Pod", "waits"]

    def devices(self) -> Iterator[Json]:
        """All devices of the driver that is asked for."""
        for name in GPUS:
            yield from self.world["ResourceSlice", f"{name}-gpu"]["spec"]["devices"]

    def nodes(self) -> list[Json]:
        """All nodes."""
        return self.world.of_kind("Node")


Break = Callable[[Scene], str]
"""Breaks the scene, and returns the pattern of what the answer has to name."""


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


# --- selectors ---


def _value(wrong: str) -> Break:
    def apply(scene: Scene) -> str:
        scene.select(f'{MODEL} == "{wrong}"')
        return re.escape(f'"{wrong}"')

    return apply


def _selector(expression: str, named: str = "") -> Break:
    def apply(scene: Scene) -> str:
        scene.select(expression)
        return named or re.escape(expression[:40])

    return apply


def _two_terms(scene: Scene) -> str:
    for number, it in enumerate(scene.devices()):
        it["attributes"]["model"]["string"] = "h100" if number < 2 else "a100"
        it["capacity"]["memory"]["value"] = "40Gi" if number < 2 else "80Gi"
    scene.select(f'{MODEL} == "h100" && {MEMORY}.compareTo(quantity("80Gi")) >= 0')
    return "h100"


def _class_driver(scene: Scene) -> str:
    scene.world["DeviceClass", "gpu"]["spec"]["selectors"] = [cel('device.driver == "gpu.exmaple.com"')]
    return "driver gpu.exmaple.com publishes nothing"


def _no_driver(scene: Scene) -> str:
    gone = [scene.world.take("ResourceSlice", f"{name}-gpu") for name in GPUS]
    scene.mends.append(lambda world: world.add(*gone))
    return f"driver {DRIVER} publishes nothing: start it"


def _half_a_pool(scene: Scene) -> str:
    for name in GPUS:
        scene.world["ResourceSlice", f"{name}-gpu"]["spec"]["pool"]["resourceSliceCount"] = 2

    def publish(world: World) -> None:
        for name in GPUS:
            world["ResourceSlice", f"{name}-gpu"]["spec"]["pool"]["resourceSliceCount"] = 1

    scene.mends.append(publish)
    return "wait for driver gpu.example.com to publish the others"


# --- devices ---


def _too_many(scene: Scene) -> str:
    for request in scene.requests():
        request["count"] = scene.random.randint(3, 6)
    return "needs [3-6] devices|instead of [3-6]"


def _held(state: str) -> Break:
    def apply(scene: Scene) -> str:
        for name in GPUS:
            for number in range(2):
                user = f"train-{name}-{number}"
                users = [] if state == "unreserved" else [user]
                held = claim(asks(), name=f"{user}-c", held=[f"{name}/gpu-{number}"], node_name=name, users=users)
                scene.world.add(held)
                if state == "unreserved":
                    continue
                it = pod(user, nodeName=name)
                it["metadata"]["uid"] = f"uid-{user}"
                it["status"] = {"phase": "Succeeded" if state == "finished" else "Running"}
                if state == "lost":
                    it["metadata"] |= {"deletionTimestamp": "2030-01-01T11:30:00Z", "finalizers": ["example.com/x"]}
                if state == "service":
                    it["spec"]["priority"] = 100
                    owner = {
                        "apiVersion": "apps/v1",
                        "kind": "ReplicaSet",
                        "name": "web",
                        "uid": "rs",
                        "controller": True,
                    }
                    it["metadata"]["ownerReferences"] = [owner]
                scene.world.add(it)
        return "ns/train-gpu-[12]-[01]"

    return apply


def _some_held(scene: Scene) -> str:
    for request in scene.requests():
        request.pop("count", None)
        request["allocationMode"] = "All"
    for name in GPUS:
        scene.world.add(claim(asks(), name=f"other-{name}", held=[f"{name}/gpu-0"], node_name=name))
    return "1 in use|instead of all"


def _device_taint(key: str, effect: str) -> Break:
    def apply(scene: Scene) -> str:
        for it in scene.devices():
            it["taints"] = [{"key": key, "value": "x", "effect": effect}]
        return re.escape(key)

    return apply


def _rule(scene: Scene) -> str:
    spec = {"deviceSelector": {"driver": DRIVER}, "taint": {"key": "maintenance", "effect": "NoSchedule"}}
    meta = {"name": "maintenance"}
    scene.world.add(
        {"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule", "metadata": meta, "spec": spec}
    )
    return "comes from DeviceTaintRule maintenance|key: maintenance"


def _wrong_toleration(scene: Scene) -> str:
    for request in scene.requests():
        request["tolerations"] = [{"key": "flakey", "operator": "Exists"}]
    return _device_taint("flaky", "NoSchedule")(scene)


def _constraint(kind: str, attribute: str) -> Break:
    def apply(scene: Scene) -> str:
        for it in scene.claims:
            spec = it["spec"]["spec"] if it["kind"] == "ResourceClaimTemplate" else it["spec"]
            spec["devices"]["requests"].append(asks("second"))
            spec["devices"]["constraints"] = [{kind: f"{DRIVER}/{attribute}", "requests": ["gpu", "second"]}]
        return re.escape(f"{DRIVER}/{attribute}")

    return apply


def _too_much_memory(scene: Scene) -> str:
    for it in scene.devices():
        it["allowMultipleAllocations"] = True
    for request in scene.requests():
        request["capacity"] = {"requests": {"memory": "60Gi"}}
    return "60Gi"


# --- nodes ---


def _cordon(scene: Scene) -> str:
    for it in scene.nodes():
        it["spec"]["unschedulable"] = True
    return "were unschedulable"


def _node_taint(key: str, effect: str = "NoSchedule") -> Break:
    def apply(scene: Scene) -> str:
        for it in scene.nodes():
            it["spec"]["taints"] = [*it["spec"].get("taints", ()), {"key": key, "value": "x", "effect": effect}]
        return re.escape(key)

    return apply


def _coming(scene: Scene) -> str:
    key = "node.cloudprovider.kubernetes.io/uninitialized"
    _node_taint(key)(scene)

    def come(world: World) -> None:
        for it in world.of_kind("Node"):
            it["spec"]["taints"] = [taint for taint in it["spec"].get("taints", ()) if taint["key"] != key]

    scene.mends.append(come)
    return f"wait \\(taint {re.escape(key)}\\)"


def _node_selector(label: str) -> Break:
    def apply(scene: Scene) -> str:
        scene.pod["spec"]["nodeSelector"] = {label: "x"}
        return re.escape(f"{label}=x")

    return apply


def _affinity(scene: Scene) -> str:
    terms = [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r9"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    scene.pod["spec"]["affinity"] = {"nodeAffinity": required}
    return "rack In r9"


def _room(resource: str, amount: str, *, init: bool = False) -> Break:
    def apply(scene: Scene) -> str:
        spec = scene.pod["spec"]
        if init:
            spec["initContainers"] = [{"name": "setup", "image": "busybox"}]
        its = spec["initContainers" if init else "containers"][0]
        its.setdefault("resources", {}).setdefault("requests", {})[resource] = amount
        return f"{'init container setup' if init else 'the pod'} asks for {amount}|instead of {amount}"

    return apply


def _neighbours(scene: Scene) -> str:
    term = {"labelSelector": {"matchLabels": {"app": "neighbour"}}, "topologyKey": "kubernetes.io/hostname"}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    scene.pod["spec"]["affinity"] = scene.pod["spec"].get("affinity", {}) | rule
    for it in scene.nodes():
        name = it["metadata"]["name"]
        scene.world.add(pod(f"neighbour-{name}", nodeName=name, labels={"app": "neighbour"}))
    return "anti-affinity"


def _full(what: str) -> Break:
    def apply(scene: Scene) -> str:
        ports: Json = {"container": {"ports": [{"containerPort": 80, "hostPort": 80}]}}
        cpu: Json = {"container": {"resources": {"requests": {"cpu": "6"}}}}
        more: Json = {"ports": ports, "cpu": cpu}.get(what, {})
        for it in scene.nodes():
            name = it["metadata"]["name"]
            if what == "slots":
                on_node = [it for it in scene.world.of_kind("Pod") if it["spec"].get("nodeName") == name]
                running = [it for it in on_node if it.get("status", {}).get("phase") != "Succeeded"]
                it["status"]["allocatable"]["pods"] = str(len(running) + 1)
            other = pod(f"busy-{name}", nodeName=name, **copy.deepcopy(more))
            other["status"] = {"phase": "Running"}
            scene.world.add(other)
        container = scene.pod["spec"]["containers"][0]
        if what == "ports":
            container["ports"] = [{"containerPort": 80, "hostPort": 80}]
        if what == "cpu":
            container.setdefault("resources", {}).setdefault("requests", {})["cpu"] = "4"
        return {"slots": "too many pods", "ports": "host port 80", "cpu": "Insufficient cpu"}[what]

    return apply


# --- pods and claims ---


def _gate(scene: Scene) -> str:
    scene.pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    scene.mends.append(lambda world: world["Pod", "waits"]["spec"].update(schedulingGates=[]))
    return "scheduling gates to be removed: kueue.x-k8s.io/admission"


def _volume(scene: Scene) -> str:
    source = {"persistentVolumeClaim": {"claimName": "data"}}
    scene.pod["spec"]["volumes"] = [{"name": "data", **source}]

    def create(world: World) -> None:
        spec: Json = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeName": "pv",
        }
        meta = {"name": "data", "namespace": "ns", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
        world.add(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": meta,
                "spec": spec,
                "status": {"phase": "Bound"},
            }
        )
        of: Json = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "claimRef": {"namespace": "ns", "name": "data", "uid": "uid-data"},
        }
        world.add({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"}, "spec": of})

    scene.mends.append(create)
    return 'persistentvolumeclaim "data" not found'


def _class(name: str) -> Break:
    def apply(scene: Scene) -> str:
        for request in scene.requests():
            request["deviceClassName"] = name
        if name == "absent":
            scene.mends.append(lambda world: world.add(device_class("absent")))
        return f"device class {name} does not exist"

    return apply


def _entry(wrong: str, *, is_there: bool) -> Break:
    def apply(scene: Scene) -> str:
        entry = scene.pod["spec"]["resourceClaims"][0]
        field_ = "resourceClaimName" if "resourceClaimName" in entry else "resourceClaimTemplateName"
        mine = scene.claims[0]
        if is_there:
            scene.world.take(mine["kind"], mine["metadata"]["name"])
            mine["metadata"]["name"] = f"{wrong}s"
            scene.world.add(mine)
        else:
            copy = {**mine, "metadata": {**mine["metadata"], "name": wrong}}
            scene.mends.append(lambda world: world.add(copy))
        entry[field_] = wrong
        return "not found: create it" if field_ == "resourceClaimName" else f"{wrong} does not exist: create it"

    return apply


def _quota(scene: Scene) -> str:
    entry = scene.pod["spec"]["resourceClaims"][0]
    if "resourceClaimName" in entry:
        return _gate(scene)
    hard = {"count/resourceclaims.resource.k8s.io": "0"}
    scene.world.add(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "q", "namespace": "ns"},
            "spec": {"hard": hard},
        }
    )
    scene.mends.append(lambda world: world.drop("ResourceQuota", "q"))
    return "exceeded quota: q"


def _gone_node(scene: Scene) -> str:
    if scene.claims[0]["kind"] != "ResourceClaim":
        return _gate(scene)
    held = claim(asks(), held=["gpu-9/gpu-0"], node_name="gpu-9")
    scene.claims[0]["status"] = held["status"]
    return "for node gpu-9, which does not exist"


def _extended(scene: Scene) -> str:
    scene.world.add(device_class("ext", extendedResourceName="example.com/gpu"))
    wants = scene.pod["spec"]["containers"][0].setdefault("resources", {})
    for kind in ("requests", "limits"):
        wants.setdefault(kind, {})["example.com/gpus"] = "1"
    return "example.com/gpus"


SELECTORS: Final[dict[str, Break]] = {
    "a value in capitals": _value("A100"),
    "a value with two letters swapped": _value("a010"),
    "a value with a letter missing": _value("a10"),
    "a value with a letter doubled": _value("aa100"),
    "a value that is cut short": _value("a1"),
    "a domain of another vendor": _selector('device.attributes["nvidia.com"].?model.orValue("") == "a100"'),
    "a mistyped domain": _selector('device.attributes["gpu.example.co"].?model.orValue("") == "a100"'),
    "a mistyped name": _selector(f'device.attributes["{DRIVER}"].modle == "a100"', "modle"),
    "a number that no device has": _selector(f"{NUMA} == 5"),
    "a number at the limit": _selector(f"{NUMA} > 1"),
    "a number as a text": _selector(f'{NUMA} == "1"'),
    "a quantity at the limit": _selector(f'{MEMORY}.isGreaterThan(quantity("40Gi"))'),
    "a quantity beyond the devices": _selector(f'{MEMORY}.compareTo(quantity("80Gi")) >= 0'),
    "a version beyond the devices": _selector(f'{VERSION}.isGreaterThan(semver("550.0.0"))'),
    "a version as a text": _selector(f'{VERSION} == "535.104.5"', "no such overload|no device|matches 0|0 match"),
    "a model that there is not": _selector(f'{MODEL} == "b200"'),
    "one wrong condition of two": _selector(f'{MODEL} == "a100" && {NUMA} == 7'),
    "two conditions on two nodes": _two_terms,
    "a mistyped driver in the class": _class_driver,
    "a driver that is not there": _no_driver,
    "a pool that is published in part": _half_a_pool,
}
DEVICES: Final[dict[str, Break]] = {
    "too many devices": _too_many,
    "devices in use": _held("running"),
    "devices in use by a service of higher priority": _held("service"),
    "devices held for finished pods": _held("finished"),
    "devices held for no pod": _held("unreserved"),
    "all devices, some in use": _some_held,
    "a device taint": _device_taint("flaky", "NoSchedule"),
    "a device taint that evicts": _device_taint("drain", "NoExecute"),
    "broken devices": _device_taint("gpu.example.com/xid-errors", "NoExecute"),
    "a device taint rule": _rule,
    "a toleration of another taint": _wrong_toleration,
    "devices on two roots": _constraint("matchAttribute", "root"),
    "a constraint on an attribute that there is not": _constraint("matchAttribute", "switch"),
    "devices of one model": _constraint("distinctAttribute", "model"),
    "more memory than a device has": _too_much_memory,
}
NODES: Final[dict[str, Break]] = {
    "a cordon": _cordon,
    "a node taint": _node_taint("dedicated"),
    "a node taint that evicts": _node_taint("dedicated", "NoExecute"),
    "a node that is not ready": _node_taint("node.kubernetes.io/not-ready"),
    "a node out of service": _node_taint("node.kubernetes.io/out-of-service", "NoExecute"),
    "a node with failed hardware": _node_taint("example.com/gpu-failed"),
    "a node that has yet to come": _coming,
    "a label that no node has": _node_selector("team"),
    "a host name that no node has": _node_selector("kubernetes.io/hostname"),
    "an affinity that no node has": _affinity,
    "too much cpu": _room("cpu", "20"),
    "too much memory": _room("memory", "64Gi"),
    "too much cpu in an init container": _room("cpu", "12", init=True),
    "a neighbour that is not wanted": _neighbours,
    "pods on every slot": _full("slots"),
    "a port that is taken": _full("ports"),
    "cpu that others use": _full("cpu"),
}
PODS: Final[dict[str, Break]] = {
    "a scheduling gate": _gate,
    "a volume claim that is missing": _volume,
    "a mistyped class": _class("gpus"),
    "a class that is missing": _class("absent"),
    "a mistyped claim or template": _entry("train", is_there=True),
    "a claim or template that is missing": _entry("nowhere", is_there=False),
    "a quota": _quota,
    "an allocation for a node that is gone": _gone_node,
    "a mistyped extended resource": _extended,
}
KINDS: Final = (SELECTORS, DEVICES, NODES, PODS)
ALONE: Final = [(title, broken) for kind in KINDS for title, broken in kind.items()]
HIDING: Final[dict[str, tuple[Collection[str], ...]]] = {
    "a claim or template that is missing": (SELECTORS, DEVICES),
    "a class that is missing": (SELECTORS, DEVICES),
    "a driver that is not there": (DEVICES,),
    "a pool that is published in part": (DEVICES,),
    "a mistyped extended resource": (DEVICES, {"a driver that is not there", "a pool that is published in part"}),
    "all devices, some in use": (SELECTORS,),
    "two conditions on two nodes": ({"more memory than a device has"},),
}
"""Causes that hide others, with these: what a claim asks for that is not there, or what a device would publish.
What serves an extended resource takes one more device, which no toleration of the pod reaches; a selector may leave
out the devices in use. Of two conditions one needs a node whose devices have enough memory."""


def _is_hidden(titles: list[str]) -> bool:
    """Whether one of the causes hides the other, or both change one field."""
    is_hidden = any(other in kind for title in titles for kind in HIDING.get(title, ()) for other in titles)
    return is_hidden or ("a mistyped driver in the class" in titles and any("class" in it for it in titles[1:]))


@dataclass(frozen=True)
class Case:
    """One cluster of the bench."""

    number: int
    titles: tuple[str, ...]
    scene: Scene
    named: tuple[str, ...]

    @property
    def title(self) -> str:
        """For names of tests."""
        return f"{self.number}: {' and '.join(self.titles)}"


def case(number: int) -> Case:
    """The case of a number: two causes for every third, else one."""
    random = Random(number)
    if number % 3 == 2:
        while True:
            kinds = random.sample(KINDS, 2)
            # what is said of a claim comes before what is said of its devices
            kinds.sort(key=KINDS.index)
            chosen = [random.choice(list(kind.items())) for kind in kinds]
            if not _is_hidden([title for title, _ in chosen]):
                break
    else:
        chosen = [ALONE[(number - number // 3) % len(ALONE)]]
    scene = working(random)
    named = tuple(broken(scene) for _, broken in chosen)
    return Case(number, tuple(title for title, _ in chosen), scene, named)


def faults(it: Case) -> list[str]:
    """What is wrong with the answer about a case; empty if nothing is."""
    world = it.scene.world
    found = told(world.objects())
    wrong = [f"not named: {pattern}" for pattern in it.named if not re.search(pattern, found.text)]
    if found.code != 3:
        wrong.append(f"exit code {found.code}")
    if not found.fixes and not it.scene.mends:
        wrong.append("no fix, and nothing to do")
    fixes: list[Json | None] = [*found.fixes] or [None]
    for fix in fixes:
        after = world.copy()
        for mend in it.scene.mends:
            mend(after)
        try:
            if fix is not None:
                follow(after, fix["text"])
        except LookupError as error:
            wrong.append(f"cannot be followed: {error}")
            continue
        got = after.node_of_pod()
        if not got or (fix is not None and not it.scene.mends and got != fix["node"]):
            what = fix["text"] if fix is not None else "what the answer says"
            wrong.append(f"the pod gets {got or 'no node'}, not {fix['node'] if fix else 'one'}, after: {what}")
        if fix is not None and not it.scene.mends and node_of_pod(after_edits(found.seen, fix)) != fix["node"]:
            wrong.append(f"the pod does not get {fix['node']} by the edits of: {fix['text']}")
    return [*wrong, found.text] if wrong else []


def main() -> int:
    """Many cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", default=f"0:{CASES}", metavar="FIRST:END")
    first, _, end = parser.parse_args().cases.partition(":")
    counts: Counter[str] = Counter()
    for number in range(int(first), int(end)):
        it = case(number)
        found = faults(it)
        counts["two causes" if len(it.titles) > 1 else "one cause"] += 1
        if found:
            counts["wrong"] += 1
            print(f"=== {it.title}", *found, sep="\n  ")
    print(dict(counts))
    return int(bool(counts["wrong"]))


if __name__ == "__main__":
    raise SystemExit(main())
