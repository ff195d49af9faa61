"""Why a pod can wait: a small cluster for each cause, and what an answer has to name.

The pod that waits is ``pod/waits`` in namespace ``ns``. Unless a cause says otherwise, there is one node, ``gpu-1``,
with two devices of model a100 and 40Gi each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from objects import on_node, user

Json = dict[str, Any]
DRIVER: Final = "gpu.example.com"
NAMESPACE: Final = "ns"
POD: Final = "waits"
MOST_CONSUMERS: Final = 256


@dataclass(frozen=True)
class Cause:
    """``objects`` are created in their order, the pod last. ``names``: what the answer has to have, as a pattern.

    The pod has a claim for one device, unless there are others or none; ``devices`` are those of gpu-1.
    ``by_scheduler``: what kube-scheduler itself has to say; None if it says nothing of such a pod.
    """

    title: str
    names: str
    pod: Json = field(default_factory=dict)
    claims: Sequence[Json] | None = None
    objects: Sequence[Json] = ()
    nodes: Sequence[Json] | None = None
    slices: Sequence[Json] | None = None
    devices: Sequence[Json] | None = None
    by_scheduler: str | None = ""

    @property
    def slug(self) -> str:
        return re.sub(r"\W+", "-", self.title).strip("-")

    @property
    def everything(self) -> list[Json]:
        """All objects, the pod last."""
        nodes = [node("gpu-1")] if self.nodes is None else self.nodes
        slices = [slice_("gpu-1", self.devices)] if self.slices is None else self.slices
        claims = [claim()] if self.claims is None else self.claims
        entries = [{"name": it["metadata"]["name"], "resourceClaimName": it["metadata"]["name"]} for it in claims]
        spec: Json = {"terminationGracePeriodSeconds": 0, "resourceClaims": entries} | self.pod
        return [device_class(), *nodes, *slices, *self.objects, *claims, pod(POD, **spec)]


# --- objects ---


def node(name: str, *, taints: Sequence[Json] = (), cordoned: bool = False, **labels: str) -> Json:
    """A node with room for a few pods."""
    spec: Json = {"taints": list(taints)} | ({"unschedulable": True} if cordoned else {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | labels},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": "8", "memory": "16Gi", "ephemeral-storage": "10Gi", "pods": "3"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def device(name: str, *, model: str = "a100", memory: str = "40Gi", **more: Any) -> Json:
    return {"name": name, "attributes": {"model": {"string": model}}, "capacity": {"memory": {"value": memory}}} | more


def slice_(
    node_name: str, devices: Iterable[Json] | None = None, *, of: int = 1, driver: str = DRIVER, **spec: Any
) -> Json:
    """The devices of a node, by default two."""
    found = [device("gpu-0"), device("gpu-1")] if devices is None else list(devices)
    pool = {"name": node_name, "generation": 1, "resourceSliceCount": of}
    where: Json = {} if "nodeSelector" in spec or "allNodes" in spec else {"nodeName": node_name}
    return _dra("ResourceSlice", f"{node_name}-{driver.partition('.')[0]}") | {
        "spec": {"driver": driver, "pool": pool, "devices": found} | where | spec
    }


def device_class(name: str = "gpu", driver: str = DRIVER, **spec: Any) -> Json:
    return _dra("DeviceClass", name) | {"spec": {"selectors": [cel(f'device.driver == "{driver}"')]} | spec}


def cel(expression: str) -> Json:
    return {"cel": {"expression": expression}}


def model(name: str) -> Json:
    return cel(f'device.attributes["{DRIVER}"].model == "{name}"')


def asks(name: str = "gpu", count: int = 1, class_name: str = "gpu", **more: Any) -> Json:
    return {"name": name, "exactly": {"deviceClassName": class_name, "count": count} | more}


def all_of(name: str = "gpu") -> Json:
    return {"name": name, "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}


def claim(
    *requests: Json,
    name: str = "c",
    constraints: Sequence[Json] = (),
    held: Iterable[str] = (),
    node_name: str = "gpu-1",
    users: Iterable[str] = (),
    **meta: Any,
) -> Json:
    """A claim; allocated if it has devices, for ``node_name``."""
    devices: Json = {"requests": list(requests) or [asks()]}
    if constraints:
        devices["constraints"] = list(constraints)
    made = _dra("ResourceClaim", name) | {"spec": {"devices": devices}}
    made["metadata"] |= {"namespace": NAMESPACE} | meta
    if taken := list(held):
        made["status"] = {
            "allocation": {
                "devices": {"results": [_result(it) for it in taken]},
                "nodeSelector": on_node(node_name),
            },
            "reservedFor": list(map(user, users)),
        }
    return made


def _result(path: str) -> Json:
    pool, name = path.split("/")
    return {"request": "gpu", "driver": DRIVER, "pool": pool, "device": name}


def pod(name: str, **spec: Any) -> Json:
    """A pod of the default scheduler; ``labels`` and ``uses`` (a volume claim) are taken out of the spec."""
    labels = spec.pop("labels", {"app": name})
    container = {"name": "main", "image": "busybox"} | spec.pop("container", {})
    if volume := spec.pop("uses", None):
        spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": volume}}]
    meta = {"name": name, "namespace": NAMESPACE, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]} | spec}


def _dra(kind: str, name: str) -> Json:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}}


def _requests(**amounts: str) -> Json:
    wanted = {name.replace("_", "-"): it for name, it in amounts.items()}
    return {"container": {"resources": {"requests": wanted, "limits": wanted}}}


def _taint(key: str, effect: str = "NoSchedule") -> Json:
    return {"key": key, "value": "x", "effect": effect}


def _affinity(kind: str, operator: str) -> Json:
    term = {"labelSelector": {"matchLabels": {"app": "neighbour"}}, "topologyKey": "kubernetes.io/hostname"}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}, "labels": {"app": operator}}


def _neighbour(**more: Any) -> Json:
    return pod("neighbour", nodeName="gpu-1", **more)


def _volume_claim(class_name: str, **spec: Any) -> Json:
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": NAMESPACE},
        "spec": asked | {"storageClassName": class_name} | spec,
    }


def _storage_class(mode: str) -> Json:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "disk"},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": mode,
    }


def _volume(*nodes: str) -> Json:
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}]}]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "disk-1"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "disk",
            "local": {"path": "/x"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
            "claimRef": {"namespace": NAMESPACE, "name": "data"},
        },
    }


def _serial(name: str, serial: str, **more: Any) -> Json:
    return device(name, attributes={"model": {"string": "a100"}, "root": {"string": serial}}, **more)


def _superseding() -> Json:
    """A newer generation of the pool of gpu-1, with another device."""
    made = slice_("gpu-1", [device("gpu-9", model="h100")])
    made["metadata"]["name"] += "-newer"
    made["spec"]["pool"]["generation"] = 2
    return made


def _partition(name: str, memory: str) -> Json:
    consumes = [{"counterSet": "card", "counters": {"memory": {"value": memory}}}]
    return device(name, consumesCounters=consumes)


def _partitions() -> list[Json]:
    """Two slices, since devices and counters do not share one."""
    sets = [{"name": "card", "counters": {"memory": {"value": "40Gi"}}}]
    counters = slice_("gpu-1", of=2, sharedCounters=sets, driver=DRIVER)
    counters["spec"].pop("devices")
    counters["metadata"]["name"] = "gpu-1-counters"
    return [counters, slice_("gpu-1", [_partition("half-0", "20Gi"), _partition("whole", "40Gi")], of=2)]


def _shared(name: str) -> Json:
    return device(name, allowMultipleAllocations=True)


def _wants(memory: str, **more: Any) -> Json:
    return asks(capacity={"requests": {"memory": memory}}, **more)


def _consumed(memory: str) -> Json:
    made = claim(name="other", held=["gpu-1/gpu-0"], users=["train"])
    share = {"shareID": "5d8c3f0e-0000-4000-8000-000000000001", "consumedCapacity": {"memory": memory}}
    made["status"]["allocation"]["devices"]["results"][0] |= share
    return made


def template(name: str, *requests: Json, namespace: str = NAMESPACE) -> Json:
    """A template for one claim."""
    made = claim(*requests, name=name, namespace=namespace)
    return {**made, "kind": "ResourceClaimTemplate", "spec": {"spec": made["spec"]}}


def owned(obj: Json, kind: str, name: str, uid: str = "") -> Json:
    """The object with a controller."""
    group = {"Pod": "v1", "Job": "batch/v1"}.get(kind, "apps/v1")
    owner = {"apiVersion": group, "kind": kind, "name": name, "uid": uid or name, "controller": True}
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [owner]}}


def lease(name: str = "dra-operator-dra-scheduler") -> Json:
    """A Lease that its scheduler has just renewed."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "renewTime": "2030-01-01T11:59:58.000000Z"},
    }


def _of_template(name: str) -> Json:
    return {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}]}


def _match(attribute: str = f"{DRIVER}/root") -> Sequence[Json]:
    return [{"matchAttribute": attribute, "requests": ["r0", "r1"]}]


def _pair(**more: Any) -> Sequence[Json]:
    return [asks("r0", **more), asks("r1", **more)]


TAKEN: Final = claim(asks(count=2), name="other", held=["gpu-1/gpu-0", "gpu-1/gpu-1"], users=["train"])
HALF_TAKEN: Final = claim(name="other", held=["gpu-1/gpu-0"], users=["train"])
WEB_TAINT: Final = [_taint("dedicated")]
DEVICE_TAINT: Final[Json] = {"taints": [{"key": "flaky", "effect": "NoSchedule"}]}
ENDING_TAINT: Final[Json] = {"taints": [{"key": "broken", "effect": "NoExecute"}]}
NAMED: Final = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}
SPREAD: Final = {
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"app": "neighbour"}},
        }
    ]
}
QUOTA: Final = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "devices", "namespace": NAMESPACE},
    "spec": {"hard": {"count/resourceclaims.resource.k8s.io": "0"}},
}

DEVICES: Final = (
    Cause("no class", "device class absent does not exist", claims=[claim(asks(class_name="absent"))]),
    Cause(
        "selector error",
        "no such key",
        claims=[claim(asks(selectors=[cel(f'device.attributes["{DRIVER}"].vendor == "x"')]))],
    ),
    Cause("matches none", "h100.*\n(.*\n)*.*a100", claims=[claim(asks(selectors=[model("h100")]))]),
    Cause(
        "wrong domain",
        "nvidia.com/model",
        claims=[claim(asks(selectors=[cel('device.attributes["nvidia.com"].?model.orValue("") == "a100"')]))],
    ),
    Cause(
        "too little capacity published",
        "memory",
        claims=[claim(asks(selectors=[cel(f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("60Gi"))')]))],
    ),
    Cause("taken", "held by claim ns/other, reserved for train", objects=[TAKEN]),
    Cause("device taint", "flaky", devices=[device("gpu-0", **DEVICE_TAINT)]),
    Cause("device taint NoExecute", "broken", devices=[device("gpu-0", **ENDING_TAINT)]),
    Cause(
        "wrong toleration",
        "flaky",
        claims=[claim(asks(tolerations=[{"key": "flakey", "operator": "Exists"}]))],
        devices=[device("gpu-0", **DEVICE_TAINT)],
    ),
    Cause(
        "constraint",
        "matchAttribute gpu.example.com/root|gpu.example.com/root",
        claims=[claim(*_pair(), constraints=_match())],
        devices=[_serial("gpu-0", "a"), _serial("gpu-1", "b")],
    ),
    Cause(
        "constraint on an attribute that no device has",
        "gpu.example.com/numa",
        claims=[claim(*_pair(), constraints=_match(f"{DRIVER}/numa"))],
    ),
    Cause(
        "distinct attribute",
        "gpu.example.com/model",
        claims=[claim(*_pair(), constraints=[{"distinctAttribute": f"{DRIVER}/model", "requests": ["r0", "r1"]}])],
    ),
    Cause(
        "partner tainted",
        "flaky|tainted",
        claims=[claim(*_pair(), constraints=_match())],
        devices=[_serial("gpu-0", "a"), _serial("gpu-1", "a", **DEVICE_TAINT)],
    ),
    Cause("All with some in use", "held by claim ns/other", claims=[claim(all_of())], objects=[HALF_TAKEN]),
    Cause("All where there is none", "gpu", claims=[claim(all_of())], slices=[]),
    Cause("All in an incomplete pool", "announces 2 slices", claims=[claim(all_of())], slices=[slice_("gpu-1", of=2)]),
    Cause("count", "needs 5 devices", claims=[claim(asks(count=5))]),
    Cause(
        "count, spread over two nodes",
        "needs 3 devices",
        claims=[claim(asks(count=3))],
        nodes=[node("gpu-1"), node("gpu-2")],
        slices=[slice_("gpu-1"), slice_("gpu-2")],
    ),
    Cause("two claims together", "claim ns/d", claims=[claim(asks(count=1)), claim(asks(count=2), name="d")]),
    Cause(
        "two requests together",
        "2 devices",
        claims=[claim(*_pair(selectors=[model("h100")]))],
        devices=[device("gpu-0"), device("gpu-1", model="h100")],
    ),
    Cause("capacity", "memory", claims=[claim(_wants("60Gi"))], devices=[_shared("gpu-0")]),
    Cause(
        "capacity consumed by others",
        "memory",
        claims=[claim(_wants("20Gi"))],
        devices=[_shared("gpu-0")],
        objects=[_consumed("30Gi")],
    ),
    Cause(
        "counters",
        "counter",
        claims=[claim(asks(selectors=[cel('device.attributes["gpu.example.com"].model == "a100"')], count=2))],
        slices=_partitions(),
    ),
    Cause(
        "counters consumed by others",
        "counter",
        claims=[claim(asks(count=1))],
        slices=[_partitions()[0], slice_("gpu-1", [_partition("half-0", "20Gi"), _partition("whole", "40Gi")], of=2)],
        objects=[claim(name="other", held=["gpu-1/half-0"], users=["train"])],
    ),
    Cause(
        "no alternative",
        "alternatives",
        claims=[
            claim(
                {
                    "name": "gpu",
                    "firstAvailable": [
                        {"name": "big", "deviceClassName": "gpu", "selectors": [model("h100")]},
                        {"name": "many", "deviceClassName": "gpu", "count": 3},
                    ],
                }
            )
        ],
    ),
    Cause("incomplete pool", "1 of 2 slices", slices=[slice_("gpu-1", of=2)]),
    Cause(
        "devices of an older generation",
        "h100",
        claims=[claim(asks(selectors=[model("a100")]))],
        slices=[slice_("gpu-1"), _superseding()],
    ),
    Cause(
        "no slices of the driver",
        "driver gpu.example.com publishes nothing: start it",
        slices=[slice_("gpu-1", driver="nic.example.com")],
    ),
    Cause("no slices at all", "driver gpu.example.com publishes nothing: start it", slices=[]),
    Cause(
        "plugin down, claim allocated elsewhere",
        "gpu-1",
        claims=[claim(held=["gpu-1/gpu-0"], users=["train"])],
        nodes=[node("gpu-1", cordoned=True), node("gpu-2")],
        slices=[],
    ),
    Cause(
        "slice for other nodes",
        "none of these nodes: for nodes with zone In b",
        slices=[slice_("net", nodeSelector=NAMED)],
    ),
    Cause(
        "all devices of the network taken",
        "held by claim ns/other",
        slices=[slice_("net", [device("gpu-0")], allNodes=True)],
        objects=[claim(name="other", held=["net/gpu-0"], users=["train"])],
    ),
    Cause(
        "extended resource of a class",
        "example.com/gpu",
        _requests(**{"example.com/gpu": "3"}),
        claims=(),
        objects=[device_class("ext", extendedResourceName="example.com/gpu")],
    ),
)
NODES: Final = (
    Cause("node selector", "zone=b", {"nodeSelector": {"zone": "b"}}, nodes=[node("gpu-1", zone="a")]),
    Cause(
        "node affinity",
        "zone In b",
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": NAMED}}},
    ),
    Cause("cordon", "unschedulable", nodes=[node("gpu-1", cordoned=True)]),
    Cause("node taint", "dedicated", nodes=[node("gpu-1", taints=WEB_TAINT)]),
    Cause("node taint NoExecute", "dedicated", nodes=[node("gpu-1", taints=[_taint("dedicated", "NoExecute")])]),
    Cause(
        "node not ready",
        "not-ready",
        nodes=[node("gpu-1", taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])],
    ),
    Cause(
        "taint here, no device there", "(?s)dedicated.*cpu-1", nodes=[node("gpu-1", taints=WEB_TAINT), node("cpu-1")]
    ),
    Cause("cpu", "the pod asks for 20; gpu-1 has", _requests(cpu="20")),
    Cause("memory", "the pod asks for 32Gi", _requests(memory="32Gi")),
    Cause("ephemeral storage", "ephemeral-storage", _requests(ephemeral_storage="20Gi")),
    Cause("pod slots", "3 pods are there", objects=[pod(f"p-{it}", nodeName="gpu-1") for it in range(3)]),
    Cause(
        "host port",
        "on gpu-1 by ns/neighbour",
        {"container": {"ports": [{"containerPort": 80, "hostPort": 80}]}},
        objects=[_neighbour(container={"ports": [{"containerPort": 80, "hostPort": 80}]})],
    ),
    Cause(
        "extended resource that nothing serves", "example.com/fpga", _requests(**{"example.com/fpga": "1"}), claims=()
    ),
    Cause("anti-affinity", "anti-affinity", _affinity("podAntiAffinity", "x"), objects=[_neighbour()]),
    Cause("affinity", "affinity", _affinity("podAffinity", "x")),
    Cause(
        "anti-affinity of another pod",
        "anti-affinity",
        {"labels": {"app": "neighbour"}},
        objects=[_neighbour(**_affinity("podAntiAffinity", "neighbour"))],
    ),
    Cause(
        "topology spread",
        "spread",
        SPREAD | {"labels": {"app": "neighbour"}},
        nodes=[node("gpu-1", zone="a"), node("gpu-2", zone="b", taints=WEB_TAINT)],
        objects=[_neighbour()],
    ),
    Cause("no nodes", "the cluster has none", nodes=[], slices=[]),
    Cause("volume claim missing", "data", {"uses": "data"}),
    Cause(
        "volume claim unbound", "data", {"uses": "data"}, objects=[_storage_class("Immediate"), _volume_claim("disk")]
    ),
    Cause(
        "no volume to bind",
        "data",
        {"uses": "data"},
        objects=[_storage_class("WaitForFirstConsumer"), _volume_claim("disk")],
    ),
    Cause(
        "volume on another node",
        "disk-1, for nodes with kubernetes.io/hostname In gpu-2",
        {"uses": "data"},
        objects=[_storage_class("WaitForFirstConsumer"), _volume("gpu-2"), _volume_claim("disk", volumeName="disk-1")],
    ),
)
CLAIMS: Final = (
    Cause(
        "claim missing",
        'resourceclaim "absent" not found',
        {"resourceClaims": [{"name": "gpu", "resourceClaimName": "absent"}]},
        claims=(),
        by_scheduler=None,
    ),
    Cause(
        "template missing",
        "ResourceClaimTemplate ns/absent does not exist",
        _of_template("absent"),
        claims=(),
        by_scheduler=None,
    ),
    Cause(
        "claim not made, quota",
        "quota",
        _of_template("t"),
        claims=(),
        objects=[QUOTA, template("t", asks())],
        by_scheduler=None,
    ),
    Cause(
        "claim not made, admin namespace",
        "admin",
        _of_template("t"),
        claims=(),
        objects=[template("t", asks(adminAccess=True))],
        by_scheduler=None,
    ),
    Cause(
        "claim being deleted",
        "deleted",
        claims=[claim(finalizers=["example.com/keep"], deleted=True)],
        by_scheduler=None,
    ),
    Cause(
        "allocated elsewhere",
        "gpu-1/gpu-0.*reserved for train",
        {"nodeSelector": {"zone": "b"}},
        claims=[claim(held=["gpu-1/gpu-0"], users=["train"])],
        nodes=[node("gpu-1", zone="a"), node("gpu-2", zone="b")],
    ),
    Cause(
        "allocated where there is no room",
        "cpu",
        _requests(cpu="9"),
        claims=[claim(held=["gpu-1/gpu-0"], users=["train"])],
        nodes=[node("gpu-1"), node("gpu-2")],
    ),
    Cause(
        "257th consumer",
        "256 pods",
        claims=[claim(held=["gpu-1/gpu-0"], users=[f"user-{it}" for it in range(MOST_CONSUMERS)])],
    ),
    Cause("gated", "gate example.com/wait|example.com/wait", {"schedulingGates": [{"name": "example.com/wait"}]}),
    Cause(
        "scheduler name that no scheduler serves",
        "scheduler name absent",
        {"schedulerName": "absent"},
        by_scheduler=None,
    ),
    Cause(
        "each node for a reason of its own",
        "(?s)dedicated.*held by claim ns/other",
        nodes=[node("gpu-1"), node("gpu-2", taints=WEB_TAINT)],
        slices=[slice_("gpu-1"), slice_("gpu-2")],
        objects=[TAKEN],
    ),
)
ALL: Final[Mapping[str, Sequence[Cause]]] = {
    "Devices": DEVICES,
    "Nodes and volumes": NODES,
    "Claims and schedulers": CLAIMS,
}
