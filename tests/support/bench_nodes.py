"""Causes of the bench that lie in nodes, in the pod, and in what it refers to."""

from __future__ import annotations

import copy
import re
from typing import Final

from bench_devices import device_taint
from bench_scene import Break, Scene, World, breaks
from scheduling_causes import asks, claim, device_class, pod
from told import Json
from volume_lab import storage_class, uses, volume, volume_claim

# --- nodes ---


def _cordon(scene: Scene) -> str:
    for it in scene.nodes():
        it["spec"]["unschedulable"] = True
    return "were unschedulable"


@breaks
def _node_taint(scene: Scene, /, key: str, effect: str = "NoSchedule") -> str:
    for it in scene.nodes():
        it["spec"]["taints"] = [*it["spec"].get("taints", ()), {"key": key, "value": "x", "effect": effect}]
    return re.escape(key)


def _coming(scene: Scene) -> str:
    key = "node.cloudprovider.kubernetes.io/uninitialized"
    _node_taint(key)(scene)

    def come(world: World) -> None:
        for it in world.of_kind("Node"):
            it["spec"]["taints"] = [taint for taint in it["spec"].get("taints", ()) if taint["key"] != key]

    scene.mends.append(come)
    return f"wait \\(taint {re.escape(key)}\\)"


@breaks
def _node_selector(scene: Scene, /, label: str) -> str:
    scene.pod["spec"]["nodeSelector"] = {label: "x"}
    return re.escape(f"{label}=x")


@breaks
def _label_slip(scene: Scene, /, key: str, value: str) -> str:
    for it in scene.nodes():
        it["metadata"]["labels"]["disktype"] = "nvme"
    scene.pod["spec"]["nodeSelector"] = {key: value}
    return f"write disktype=nvme instead of {key}={value}"


def _elsewhere(scene: Scene) -> str:
    """A shared claim has its device on a node that the pod leaves out."""
    if scene.claims[0]["kind"] != "ResourceClaim":
        return _gate(scene)
    held = claim(asks(), held=["gpu-1/gpu-0"], node_name="gpu-1", users=["other"])
    scene.claims[0]["status"] = held["status"]
    other = pod("other", nodeName="gpu-1", resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}])
    other["metadata"]["uid"] = "uid-other"
    other["status"] = {"phase": "Running"}
    scene.world.add(other)
    scene.pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "gpu-2"}
    return "remove kubernetes.io/hostname=gpu-2 from spec.nodeSelector"


def _spread(scene: Scene) -> str:
    for it in scene.nodes():
        it["metadata"]["labels"]["zone"] = "b" if it["metadata"]["name"] == "cpu-1" else "a"
    scene.pod["metadata"]["labels"] = {"app": "web"}
    rule = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    scene.pod["spec"]["topologySpreadConstraints"] = [rule | {"labelSelector": {"matchLabels": {"app": "web"}}}]
    scene.world.add(*(pod(f"web-{number}", nodeName="gpu-1", labels={"app": "web"}) for number in range(2)))
    return "pods that count: 2 in a"


def _wrong_kind_of_toleration(scene: Scene) -> str:
    if scene.random.random() < 0.5:
        scene.pod["spec"]["tolerations"] = [{"key": "flaky", "operator": "Exists"}]
        return device_taint("flaky", "NoSchedule")(scene)
    for request in scene.requests():
        request["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    return _node_taint("dedicated")(scene)


def _in_pod(scene: Scene) -> str:
    scene.pod["spec"]["resources"] = {"requests": {"cpu": "20"}}
    return "instead of 20 in spec.resources of the pod|asks for 20"


def _sidecar(scene: Scene) -> str:
    asked = {"requests": {"cpu": "5"}}
    side = {"name": "side", "image": "busybox", "restartPolicy": "Always", "resources": asked}
    scene.pod["spec"].setdefault("initContainers", []).append(side)
    scene.pod["spec"]["containers"][0].setdefault("resources", {}).setdefault("requests", {})["cpu"] = "5"
    return "Insufficient cpu"


@breaks
def _affinity(scene: Scene, /, key: str, value: str) -> str:
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    scene.pod["spec"]["affinity"] = {"nodeAffinity": required}
    return f"{key} In {value}"


@breaks
def _room(scene: Scene, /, resource: str, amount: str, *, init: bool = False) -> str:
    spec = scene.pod["spec"]
    if init:
        spec["initContainers"] = [{"name": "setup", "image": "busybox"}]
    its = spec["initContainers" if init else "containers"][0]
    its.setdefault("resources", {}).setdefault("requests", {})[resource] = amount
    return f"{'init container setup' if init else 'the pod'} asks for {amount}|instead of {amount}"


def _neighbours(scene: Scene) -> str:
    term = {"labelSelector": {"matchLabels": {"app": "neighbour"}}, "topologyKey": "kubernetes.io/hostname"}
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    scene.pod["spec"]["affinity"] = scene.pod["spec"].get("affinity", {}) | rule
    for it in scene.nodes():
        name = it["metadata"]["name"]
        scene.world.add(pod(f"neighbour-{name}", nodeName=name, labels={"app": "neighbour"}))
    return "anti-affinity"


@breaks
def _full(scene: Scene, /, what: str) -> str:
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


# --- pods and claims ---


def _gate(scene: Scene) -> str:
    scene.pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    scene.mends.append(lambda world: world["Pod", "waits"]["spec"].update(schedulingGates=[]))
    return "scheduling gates to be removed: kueue.x-k8s.io/admission"


def _volume(scene: Scene) -> str:
    scene.pod["spec"]["volumes"] = uses("data")

    def create(world: World) -> None:
        reference = {"namespace": "ns", "name": "data", "uid": "uid-data"}
        bound = volume_claim(volume="pv", class_name=None), volume(class_name="", spec={"claimRef": reference})
        world.add(*({"apiVersion": "v1", **it} for it in bound))

    scene.mends.append(create)
    return 'persistentvolumeclaim "data" not found'


def _no_storage_class(scene: Scene) -> str:
    scene.pod["spec"]["volumes"] = uses("data")
    scene.world.add({"apiVersion": "v1", **volume_claim(class_name="fast")})
    missing = {"apiVersion": "storage.k8s.io/v1", **storage_class("fast", "disk.example.com")}
    scene.mends.append(lambda world: world.add(missing))
    return "PersistentVolumeClaim ns/data names StorageClass fast, which does not exist"


def _used_volume(scene: Scene) -> str:
    """Of all pods one alone may use it."""
    _volume(scene)
    scene.mends.pop()(scene.world)
    scene.world["PersistentVolumeClaim", "data"]["spec"]["accessModes"] = ["ReadWriteOncePod"]
    scene.world.add(pod("writes", nodeName="cpu-1", volumes=scene.pod["spec"]["volumes"]))
    scene.mends.append(lambda world: world.end("writes"))
    return "PersistentVolumeClaim ns/data is used by pod ns/writes"


def _scheduler(scene: Scene) -> str:
    scene.pod["spec"]["schedulerName"] = "dra-shceduler"

    def correct(world: World) -> None:
        world["Pod", "waits"]["spec"]["schedulerName"] = "dra-scheduler"

    scene.mends.append(correct)
    return "apparently no scheduler serves the scheduler name(?s:.*)did you mean dra-scheduler"


@breaks
def _class(scene: Scene, /, name: str) -> str:
    for request in scene.requests():
        request["deviceClassName"] = name
    if name == "absent":
        scene.mends.append(lambda world: world.add(device_class("absent")))
    return f"device class {name} does not exist"


@breaks
def _entry(scene: Scene, /, wrong: str, *, is_there: bool) -> str:
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
    scene.mends.append(lambda world: world.take("ResourceQuota", "q"))
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


NODES: Final[dict[str, Break]] = {
    "a cordon": _cordon,
    "a node taint": _node_taint("dedicated"),
    "a node taint that evicts": _node_taint("dedicated", "NoExecute"),
    "a node that is not ready": _node_taint("node.kubernetes.io/not-ready"),
    "a node out of service": _node_taint("node.kubernetes.io/out-of-service", "NoExecute"),
    "a node with failed hardware": _node_taint("example.com/gpu-failed"),
    "a node that has yet to come": _coming,
    "a label that no node has": _node_selector("team"),
    "a mistyped label": _label_slip("disktpye", "nvme"),
    "a mistyped value of a label": _label_slip("disktype", "nmve"),
    "a claim on a node that the pod leaves out": _elsewhere,
    "too many pods of a kind in a zone": _spread,
    "a toleration in the wrong place": _wrong_kind_of_toleration,
    "too much cpu for the pod as a whole": _in_pod,
    "too much cpu with a sidecar": _sidecar,
    "a host name that no node has": _node_selector("kubernetes.io/hostname"),
    "an affinity that no node has": _affinity("rack", "r9"),
    "a mistyped host in an affinity": _affinity("kubernetes.io/hostname", "GPU-1"),
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
    "a storage class that is missing": _no_storage_class,
    "a volume of one pod": _used_volume,
    "a mistyped scheduler": _scheduler,
    "a mistyped class": _class("gpus"),
    "a class that is missing": _class("absent"),
    "a mistyped claim or template": _entry("train", is_there=True),
    "a claim or template that is missing": _entry("nowhere", is_there=False),
    "a quota": _quota,
    "an allocation for a node that is gone": _gone_node,
    "a mistyped extended resource": _extended,
}
