"""Nodes and pods of a trace as objects of the API, so that the operator's own pipeline places them.

A node has one ResourceSlice, whose devices are GPUs that may be allocated several times and have ``milli: 1000``. A pod
has one claim: a share takes its thousandths, n GPUs are a count, and models are asked for in CEL.

``made_traces`` are those of examples/trace, made once for a test run: the repository has nothing that a script writes.
"""

from __future__ import annotations

import atexit
import json
import runpy
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

from allocator_lab import device, device_class, pool
from dra_operator.quality.trace import WHOLE_MILLI, Shape, TraceNode, TracePod

Json = dict[str, Any]
DRIVER: Final = "gpu.example.com"
NAMESPACE: Final = "default"
DEVICE_CLASS: Final[Json] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "gpu"},
    "spec": {},
}


def nodes_with_devices(*names: str, devices: int, cpu: str = "8", **fields: Any) -> list[Json]:
    """Nodes with as many devices each, and the class ``any`` that means them all."""
    found: list[Json] = [{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", **device_class("any")}]
    for name in names:
        slices = pool(*(device(f"d{it}", **fields) for it in range(devices)), name=name, nodeName=name)
        found += [{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **it} for it in slices]
        status = {"allocatable": {"pods": "10", "cpu": cpu}}
        found.append({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status})
    return found


def template_for_any(name: str, **exactly: Any) -> Json:
    """A template of namespace ``ns`` that asks for devices of the class ``any``."""
    spec = {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any", **exactly}}]}}}
    meta = {"name": name, "namespace": "ns", "uid": name}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": meta, "spec": spec}


def node_of(name: str, node: TraceNode, pods: int = 0) -> Json:
    """The Node. Of what is 0 it has no limit: ``pods`` is how many may be on it, which no trace tells."""
    amounts = {"cpu": f"{node.cpu}m", "memory": f"{node.memory}Mi"} if node.cpu else {}
    allocatable = {**amounts, **({"pods": str(pods)} if pods else {})}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": allocatable}}


def slice_of(name: str, node: TraceNode) -> Json:
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {"model": {"string": node.model}},
            "allowMultipleAllocations": True,
            "capacity": {"milli": {"value": str(WHOLE_MILLI)}},
        }
        for number in range(node.gpus)
    ]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": spec,
    }


def claim_of(name: str, shape: Shape) -> Json:
    """What a pod of that shape asks for. It must ask for GPUs."""
    exactly: Json = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": shape.gpus}
    exactly["capacity"] = {"requests": {"milli": str(shape.milli)}}
    if shape.spec:
        expression = f"device.attributes['{DRIVER}'].model in {json.dumps(shape.spec.split('|'))}"
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def pod_of(name: str, pod: TracePod, claim: str = "") -> Json:
    amounts = {"cpu": f"{pod.shape.cpu}m", "memory": f"{pod.memory}Mi"} if pod.shape.cpu else {}
    uses = [{"name": "gpu", "resourceClaimName": claim}] if claim else []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": name},
        "spec": {
            "schedulerName": "dra-scheduler",
            "containers": [{"name": "main", "image": "none", "resources": {"requests": amounts}}],
            "resourceClaims": uses,
        },
    }


SCRIPTS = Path(__file__).parents[2] / "examples/trace"


@cache
def made_traces() -> Path:
    """Return a folder with nodes.csv, pods.csv and week.yaml."""
    folder = Path(tempfile.mkdtemp(prefix="traces-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("full.py", "week.py"):
        runpy.run_path(str(SCRIPTS / name))["main"](folder)
    return folder
