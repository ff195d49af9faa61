"""Random small clusters in which a pod waits: all features of the allocator, node taints, cordons, selectors, room."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any

from allocator_problems import Maker, make_case
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_operator.kubectl.observed import Observed

Json = dict[str, Any]
POD = "ns/web"
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def waiting_pod(random: Random, maker: type[Maker] = Maker) -> Observed:
    """A cluster with the pod ``ns/web``, which may or may not fit."""
    case = make_case(random, maker)
    objects: list[Object] = [convert(DeviceClass, each) for each in case["classes"]]
    objects += [convert(ResourceSlice, each) for each in case["slices"]]
    objects += [convert(DeviceTaintRule, each) for each in case["rules"]]
    objects += [convert(ResourceClaim, each) for each in case["claims"]]
    objects += [convert(Node, _node(random, each)) for each in case["nodes"]]
    objects += list(_holders(random, case))
    return Observed([*objects, convert(Pod, _pod(random, case["claims"]))], NOW, namespace="ns")


def _node(random: Random, node: Json) -> Json:
    taints = [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}] if random.random() < 0.3 else []
    if random.random() < 0.1:
        taints.append({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"})
    spec = {"taints": taints, "unschedulable": random.random() < 0.15}
    return {**node, "spec": spec, "status": {"allocatable": {"cpu": random.choice("248"), "pods": "10"}}}


def _pod(random: Random, claims: list[Json]) -> Json:
    entries = [{"name": c["metadata"]["name"], "resourceClaimName": c["metadata"]["name"]} for c in claims]
    containers = [{"name": "main", "resources": {"requests": {"cpu": random.choice("1112345")}}}]
    spec: Json = {"schedulerName": "dra-scheduler", "containers": containers, "resourceClaims": entries}
    if random.random() < 0.3:
        spec["nodeSelector"] = {"zone": random.choice("abc")}
    return {"metadata": {"name": "web", "namespace": "ns", "uid": "uid-web"}, "spec": spec}


def _holders(random: Random, case: Json) -> Iterator[Object]:
    """Claims that hold devices, most of them with the pod that they are reserved for."""
    state = case["allocatedState"]
    amounts = {(one["driver"], one["pool"], one["device"]): one["capacity"] for one in state["aggregatedCapacity"]}
    for number, entry in enumerate([*state["allocatedDevices"], *state["allocatedSharedDeviceIDs"]]):
        name = f"held-{number}"
        result = {"request": "r", **entry}
        if "shareID" in entry and (taken := amounts.get((entry["driver"], entry["pool"], entry["device"]))):
            result["consumedCapacity"] = taken
        user = {"resource": "pods", "name": name, "uid": f"uid-pod-{name}"}
        status: Json = {"allocation": {"devices": {"results": [result]}}}
        meta = {"namespace": "other", "name": name}
        if random.random() < 0.8:
            status["reservedFor"] = [user]
            spec = {"nodeName": random.choice(case["nodes"])["metadata"]["name"], "containers": []}
            pod = {"metadata": {**meta, "uid": user["uid"]}, "spec": spec, "status": {"phase": "Running"}}
            yield convert(Pod, pod)
        yield convert(ResourceClaim, {"metadata": {**meta, "uid": f"uid-{name}"}, "status": status})
