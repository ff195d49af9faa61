"""How long `kubectl dra why` takes after its reads, on clusters of several sizes.

    python benchmarks/explaining.py [--nodes 1000 5000] [--devices 8] [--runs N] [--reads] [--profile]

Every node has one slice of devices of model a100, each with a UUID, its place and its memory, and half of the devices
are held by pods. The pod that is explained asks for two devices of a model that no driver publishes ("model"), for more
free devices than a node has left ("taken"), or for two that fit and for cpu that no node has ("cpu"). Figures are the
processor time of one answer, from objects in memory to lines of text: what a person waits for once the reads are over.
With ``--reads`` they are that of the whole command, from its start, which lists the objects from a server here.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any

from dra_api.codec import convert, encode
from dra_api.core import Namespace, Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_operator.kubectl.answer import ExitCode
from dra_operator.kubectl.commands import COMMANDS
from dra_operator.kubectl.live import KINDS
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.why.answer import answer

DRIVER = "gpu.example.com"
CAUSES = ("model", "taken", "cpu")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 5000], help="sizes (%(default)s)")
    parser.add_argument("--devices", type=int, default=8, help="devices per node (%(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="answers per figure (%(default)s)")
    parser.add_argument("--reads", action="store_true", help="the whole command, and what it reads")
    parser.add_argument("--profile", action="store_true", help="where the time goes, in place of the table")
    options = parser.parse_args()
    print("| Nodes | Devices | Cause | p50, ms | p95, ms |\n|---|---|---|---|---|")
    for nodes in options.nodes:
        seen = Observed(list(cluster(nodes, options.devices)), datetime.now(UTC), namespace="team")
        with served(seen) if options.reads else nullcontext("") as kubeconfig:
            for cause in CAUSES:
                if options.profile:
                    cProfile.runctx("_timed(seen, cause)", globals(), locals(), sort="tottime")
                    continue
                runs = range(options.runs)
                took = sorted(_commanded(kubeconfig, cause) if kubeconfig else _timed(seen, cause) for _ in runs)
                p95 = took[math.ceil(0.95 * len(took)) - 1]
                print(
                    f"| {nodes} | {nodes * options.devices} | {cause} | {median(took) * 1e3:.0f} | {p95 * 1e3:.0f} |",
                    flush=True,
                )


def _timed(seen: Observed, cause: str) -> float:
    parser = argparse.ArgumentParser()
    COMMANDS["why"].add_arguments(parser)
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


def _commanded(kubeconfig: str, cause: str) -> float:
    words = ["why", f"pod/{cause}", "--kubeconfig", kubeconfig]
    before = os.times()
    done = subprocess.run([sys.executable, "-m", "dra_operator.kubectl.cli", *words], capture_output=True, check=False)
    after = os.times()
    assert done.returncode == ExitCode.IN_THE_WAY, done.stderr
    return after.children_user + after.children_system - before.children_user - before.children_system


@contextmanager
def served(seen: Observed) -> Iterator[str]:
    """A kubeconfig for a server on loopback that lists the objects by pages."""
    with tempfile.TemporaryDirectory() as folder, ThreadingHTTPServer(("127.0.0.1", 0), _handler(seen)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": seen.namespace}}],
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "users": [{"name": "u", "user": {}}],
        }
        path = Path(folder, "config.json")
        path.write_bytes(encode(config))
        yield str(path)
        server.shutdown()


def _handler(seen: Observed) -> type[BaseHTTPRequestHandler]:
    listed = {resource.plural: [encode(obj) for obj in seen.every(kind)] for resource, kind in KINDS.items()}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            said = dict(part.split("=", 1) for part in query.split("&") if part)
            body = _answered(
                listed, path.strip("/").split("/"), int(said.get("limit", 0)), int(said.get("continue", 0))
            )
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """The table is all that is printed."""

    return Handler


def _answered(listed: Mapping[str, Sequence[bytes]], path: Sequence[str], limit: int, start: int) -> bytes:
    """A list from its place on, what a version serves, or the version of the server."""
    if path == ["version"]:
        return encode({"major": "1", "minor": "37", "gitVersion": "v1.37.0"})
    if path[0] == "apis" and len(path) == 3:
        served_there = [{"name": name, "kind": name, "namespaced": True} for name in listed]
        return encode({"kind": "APIResourceList", "groupVersion": "/".join(path[1:]), "resources": served_there})
    found = listed.get(path[-1], ())
    rest = encode({"resourceVersion": "1"} | ({"continue": str(start + limit)} if start + limit < len(found) else {}))
    return b'{"kind":"List","metadata":%s,"items":[%s]}' % (rest, b",".join(found[start : start + limit]))


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
    listed = [_device(f"gpu-{it}", f"{node}-{it}", it) for it in range(devices)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {"metadata": {"name": node}, "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": listed}}


def _device(name: str, uuid: str, place: int) -> dict[str, Any]:
    attributes = {"model": {"string": "a100"}, "uuid": {"string": uuid}, "numa": {"int": place // 4}}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}


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
