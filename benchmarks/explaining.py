"""How long `kubectl dra why` takes after its reads, on clusters of several sizes.

    python benchmarks/explaining.py [--nodes 1000 5000] [--devices 8] [--runs N] [--profile]

Every node has one slice of devices of model a100, and half of the devices are held by pods. The pod that is explained
asks for two devices of a model that no driver publishes ("model"), for more free devices than a node has left
("taken"), or for two that fit and for cpu that no node has ("cpu"). Each figure is the median of the processor time of
one answer, from objects in memory to lines of text: what a person waits for once the reads are over.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from dra_api.codec import convert
from dra_api.core import Namespace, Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.registry import COMMANDS
from dra_operator.kubectl.why.answer import answer

DRIVER = "gpu.example.com"
CAUSES = ("model", "taken", "cpu")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Processor time of kubectl dra why after its reads.")
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 5000], help="sizes (%(default)s)")
    parser.add_argument("--devices", type=int, default=8, help="devices per node (%(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="answers per figure (%(default)s)")
    parser.add_argument("--profile", action="store_true", help="where the time goes, in place of the table")
    options = parser.parse_args()
    print("| Nodes | Devices | Cause | ms |\n|---|---|---|---|")
    for nodes in options.nodes:
        seen = Observed(list(cluster(nodes, options.devices)), datetime.now(UTC), namespace="team")
        for cause in CAUSES:
            if options.profile:
                cProfile.runctx("_timed(seen, cause)", globals(), locals(), sort="tottime")
                continue
            seconds = median(_timed(seen, cause) for _ in range(options.runs))
            print(f"| {nodes} | {nodes * options.devices} | {cause} | {seconds * 1e3:.0f} |", flush=True)


def _timed(seen: Observed, cause: str) -> float:
    parser = argparse.ArgumentParser()
    COMMANDS["why"].load().add_arguments(parser)
    options = parser.parse_args([f"pod/{cause}"])
    gc.collect()
    gc.disable()  # as the command does
    try:
        begun = time.process_time()
        found = answer(seen, options)
        spent = time.process_time() - begun
    finally:
        gc.enable()
    assert found.lines, cause
    return spent


def cluster(nodes: int, devices: int) -> Iterator[Object]:
    """Nodes with a slice and pods each, and the pods that wait."""
    yield convert(Namespace, {"metadata": {"name": "team"}})
    yield convert(DeviceClass, {"metadata": {"name": "gpu"}, "spec": {"selectors": [_driver()]}})
    for number in range(nodes):
        name = f"node-{number}"
        yield convert(Node, {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "8", "pods": "110"}}})
        yield convert(ResourceSlice, _slice(name, devices))
        for held in range(devices // 2):
            yield from _user(f"user-{number}-{held}", [f"gpu-{held}"], node=name)
    yield from _user("model", [], selectors=[_model("h100")])
    yield from _user("taken", [], count=devices)
    yield from _user("cpu", [], cpu="20")


def _driver() -> dict[str, Any]:
    return {"cel": {"expression": f'device.driver == "{DRIVER}"'}}


def _model(name: str) -> dict[str, Any]:
    return {"cel": {"expression": f'device.attributes["{DRIVER}"].model == "{name}"'}}


def _slice(node: str, devices: int) -> dict[str, Any]:
    listed = [{"name": f"gpu-{it}", "attributes": {"model": {"string": "a100"}}} for it in range(devices)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": node}, "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": listed}}


def _user(
    name: str, held: Sequence[str], *, node: str = "", selectors: Sequence[Any] = (), count: int = 2, cpu: str = "1"
) -> Iterator[Object]:
    """A claim and the pod that uses it; both are placed if the claim holds devices."""
    meta = {"name": name, "namespace": "team", "uid": name}
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count, "selectors": list(selectors)}
    status: dict[str, Any] = {}
    if held:
        results = [{"request": "gpu", "driver": DRIVER, "pool": node, "device": device} for device in held]
        status = {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": f"pod-{name}"}],
        }
        exactly["count"] = len(held)
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    yield convert(ResourceClaim, {"metadata": meta, "spec": spec, "status": status})
    pod: dict[str, Any] = {
        "schedulerName": "dra-scheduler",
        "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
    }
    if node:
        pod["nodeName"] = node
    yield convert(Pod, {"metadata": meta | {"uid": f"pod-{name}"}, "spec": pod, "status": {"phase": "Pending"}})


if __name__ == "__main__":
    main()
