"""A made-up cluster as a snapshot for ``kubectl dra ui``: ``tests/support/demo_cluster.py NODES > cluster.json``.

Eight GPUs for each node, three in four taken, some shared or tainted; some nodes are cordoned, and pods wait for
different reasons. Equal for equal numbers of nodes.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from typing import Any, Final

JSON = dict[str, Any]
DRIVER: Final = "gpu.example.com"
DRA: Final = "resource.k8s.io/v1"
TOPOLOGY: Final = "topology.kubernetes.io"
TEAMS: Final = ("inference", "research", "training", "web")


def cluster(nodes: int) -> JSON:
    """A List with the header of a snapshot."""
    chance = random.Random(nodes)
    items = list(classes())
    for number in range(nodes):
        items += node(f"gpu-{number:03}", number, chance)
    items += waiting()
    items.append(lease())
    header = {"taken": "2030-01-02T00:00:00Z", "kubernetes": "1.36", "namespace": "research"}
    return {"apiVersion": "v1", "kind": "List", "snapshot": header, "items": items}


def classes() -> Iterator[JSON]:
    """One class, and the namespaces."""
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    yield {"apiVersion": DRA, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}}
    for team in TEAMS:
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}}


def node(name: str, number: int, chance: random.Random) -> Iterator[JSON]:
    """The node, its slice, and claims with pods on three in four devices."""
    meta: JSON = {
        "name": name,
        "uid": f"uid-{name}",
        "labels": {f"{TOPOLOGY}/zone": "abc"[number % 3], f"{TOPOLOGY}/rack": f"r{number // 32:02}"},
    }
    spec: JSON = {"unschedulable": True} if number % 17 == 5 else {}
    room = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    yield {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec, "status": {"allocatable": room}}
    model = ("a100", "h100")[number % 2]
    devices: list[JSON] = []
    for place in range(8):
        attributes = {
            "model": {"string": model},
            "resource.kubernetes.io/numaNode": {"int": place // 4},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{place // 2 * 32:02x}"},
        }
        device: JSON = {"name": f"gpu-{place}", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}
        if place == 7:
            device["allowMultipleAllocations"] = True
        if chance.random() < 0.03:
            device["taints"] = [{"key": "example.com/ecc-errors", "effect": "NoSchedule"}]
        devices.append(device)
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    yield {"apiVersion": DRA, "kind": "ResourceSlice", "metadata": {"name": f"{name}-gpu"}, "spec": spec}
    for place, device in enumerate(devices):
        if "taints" not in device and chance.random() < (0.55 + 0.4 * (number % 5 > 1)):
            yield from holder(name, place, chance)


def holder(node_name: str, place: int, chance: random.Random) -> Iterator[JSON]:
    """A claim with its pod; the last device of a node is shared."""
    team = chance.choice(TEAMS)
    name = f"{team}-{node_name.removeprefix('gpu-')}-{place}"
    result: JSON = {"request": "gpu", "driver": DRIVER, "pool": node_name, "device": f"gpu-{place}"}
    if place == 7:
        share = f"00000000-0000-4000-8000-{int(node_name.removeprefix('gpu-')):012}"
        result |= {"shareID": share, "consumedCapacity": {"memory": "20Gi"}}
    since = f"2030-01-01T{chance.randrange(24):02}:{chance.randrange(60):02}:00Z"
    yield claim(team, name, 1) | {
        "status": {
            "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{name}"}],
            "allocation": {"allocationTimestamp": since, "devices": {"results": [result]}},
        }
    }
    yield pod(team, name, {"nodeName": node_name}, "Running")


def waiting() -> Iterator[JSON]:
    """Pods that have no node: too many devices at once, a typo, and a tainted node set."""
    typo = {"selectors": [{"cel": {"expression": f'device.attributes["{DRIVER}"].model == "h200"'}}]}
    for name, count, more in (("llama-0", 8, {}), ("llama-1", 8, {}), ("typo", 1, typo)):
        yield claim("research", name, count, **more)
        yield pod("research", name, {}, "Pending")


def lease() -> JSON:
    """That of the operator, which works."""
    meta = {"name": "dra-operator-dra-scheduler", "namespace": "kube-system"}
    spec = {"holderIdentity": "gpu-000_a", "leaseDurationSeconds": 15, "renewTime": "2030-01-01T23:59:58.000000Z"}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}


def claim(namespace: str, name: str, count: int, **more: Any) -> JSON:
    """Asks for devices of the class."""
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count, **more}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    meta = {"name": name, "namespace": namespace, "uid": f"uid-claim-{name}"}
    return {"apiVersion": DRA, "kind": "ResourceClaim", "metadata": meta, "spec": spec}


def pod(namespace: str, name: str, spec: JSON, phase: str) -> JSON:
    """Uses the claim of its name."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": f"uid-job-{name}", "controller": True}
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "ownerReferences": [owner]}
    used = {"containers": [{"name": "main"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
    spec = {"schedulerName": "dra-scheduler", **used, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": phase}}


if __name__ == "__main__":
    print(json.dumps(cluster(int(sys.argv[1]))))
