"""Time and memory of the ledger on 40,000 devices and 20,000 claims, beside the usual ways in Python.

    python benchmarks/ledger.py                     # a table: dra_ledger, dictionaries, the kubernetes package
    python benchmarks/ledger.py --only dra_ledger   # one of them
    python benchmarks/ledger.py --nodes 500         # a tenth of it

Each way runs in a process of its own. It reads the two lists as the API server answers them, and finds the holder of
each device and the free devices. Then it takes in 2,000 changed claims one by one, each with the question who holds its
device. Times are of the processor, imports included. Memory is the memory of the whole process after the first answer,
and its maximum. The other ways do less: they know nothing of generations, counters, shares, taints or admin access.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

DRIVER: Final = "gpu.example.com"
PER_NODE: Final = 8
CHANGES: Final = 2_000
Json = dict[str, Any]


def slice_of(node: int) -> Json:
    """A node with eight devices."""
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {
                "uuid": {"string": f"GPU-{node:08x}-{number:04x}-4b1e-9d1a-0123456789ab"},
                "model": {"string": "A100-SXM4-80GB"},
                "architecture": {"string": "Ampere"},
                "driverVersion": {"version": "550.54.15"},
                "index": {"int": number},
                "resource.kubernetes.io/pciBusID": {"string": f"0000:{number:02x}:00.0"},
            },
            "capacity": {"memory": {"value": "80Gi"}, "multiprocessors": {"value": "108"}},
        }
        for number in range(PER_NODE)
    ]
    pool = {"name": f"node-{node}", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": f"node-{node}", "pool": pool, "devices": devices}
    return _object("ResourceSlice", f"node-{node}-gpu", node, "Node", f"node-{node}") | {"spec": spec}


def claim_of(number: int) -> Json:
    """A claim that holds every second device."""
    node, device = divmod(2 * number, PER_NODE)
    result = {"request": "gpu", "driver": DRIVER, "pool": f"node-{node}", "device": f"gpu-{device}"}
    fields = [{"key": "metadata.name", "operator": "In", "values": [f"node-{node}"]}]
    made = _object("ResourceClaim", f"job-{number}-gpu-x7k2p", number, "Pod", f"job-{number}")
    made["metadata"]["namespace"] = f"team-{number % 50}"
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    status = {
        "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
            "allocationTimestamp": "2026-11-01T00:00:01Z",
        },
        "reservedFor": [{"resource": "pods", "name": f"job-{number}", "uid": _uid(3, number)}],
    }
    return made | {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}, "status": status}


def _object(kind: str, name: str, number: int, owner: str, owner_name: str) -> Json:
    reference = {"apiVersion": "v1", "kind": owner, "name": owner_name, "uid": _uid(3, number), "controller": True}
    meta = {
        "name": name,
        "uid": _uid(1 if owner == "Node" else 2, number),
        "resourceVersion": str(1000 + number),
        "creationTimestamp": "2026-11-01T00:00:00Z",
        "ownerReferences": [reference],
    }
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": meta}


def _uid(series: int, number: int) -> str:
    return f"{series}c1e0000-0000-4000-8000-{number:012x}"


# --- the three ways: each returns what a changed claim is fed to ---

Answer = tuple[int, int, Callable[[bytes], str]]


def with_ledger(slices: Path, claims: Path) -> Answer:
    """``dra_ledger``."""
    from dra_ledger import Ledger

    ledger = Ledger()
    ledger.feed(slices.read_bytes())
    ledger.feed(claims.read_bytes())
    devices = ledger.devices()

    def change(claim: bytes) -> str:
        ledger.feed(claim)
        entry = ledger.device(DRIVER, "node-0", "gpu-0")
        return entry.state if entry is not None else ""

    return len(devices), sum(device.state == "free" for device in devices), change


def with_dictionaries(slices: Path, claims: Path) -> Answer:
    """``json``, and dictionaries by hand."""
    items = json.loads(slices.read_bytes())["items"]
    known = {item["metadata"]["uid"]: item for item in json.loads(claims.read_bytes())["items"]}

    def holders() -> dict[tuple[str, str, str], list[str]]:
        found: dict[tuple[str, str, str], list[str]] = {}
        for claim in known.values():
            allocation = claim.get("status", {}).get("allocation") or {}
            for result in allocation.get("devices", {}).get("results", []):
                key = (result["driver"], result["pool"], result["device"])
                found.setdefault(key, []).append(claim["metadata"]["name"])
        return found

    held = holders()
    devices = [
        (item["spec"]["driver"], item["spec"]["pool"]["name"], device["name"])
        for item in items
        for device in item["spec"]["devices"]
    ]

    def change(claim: bytes) -> str:
        item = json.loads(claim)
        known[item["metadata"]["uid"]] = item
        return "taken" if (DRIVER, "node-0", "gpu-0") in holders() else "free"

    return len(devices), sum(device not in held for device in devices), change


def with_kubernetes(slices: Path, claims: Path) -> Answer:
    """The ``kubernetes`` package, as its list calls read an answer."""
    import kubernetes.client

    client = kubernetes.client.ApiClient()
    items = client.deserialize(slices.read_text(), "V1ResourceSliceList", "application/json").items
    read = client.deserialize(claims.read_text(), "V1ResourceClaimList", "application/json").items
    known = {item.metadata.uid: item for item in read}

    def holders() -> dict[tuple[str, str, str], list[str]]:
        found: dict[tuple[str, str, str], list[str]] = {}
        for claim in known.values():
            if claim.status is None or claim.status.allocation is None:
                continue
            for result in claim.status.allocation.devices.results or ():
                found.setdefault((result.driver, result.pool, result.device), []).append(claim.metadata.name)
        return found

    held = holders()
    devices = [(item.spec.driver, item.spec.pool.name, device.name) for item in items for device in item.spec.devices]

    def change(claim: bytes) -> str:
        item = client.deserialize(claim.decode(), "ResourceV1ResourceClaim", "application/json")
        known[item.metadata.uid] = item
        return "taken" if (DRIVER, "node-0", "gpu-0") in holders() else "free"

    return len(devices), sum(device not in held for device in devices), change


WAYS: Final[dict[str, Callable[[Path, Path], Answer]]] = {
    "dra_ledger": with_ledger,
    "dictionaries": with_dictionaries,
    "kubernetes": with_kubernetes,
}


def measured(way: str, folder: Path, changes: int) -> Json:
    """What one way takes, in this process."""
    before = time.process_time()
    number, free, change = WAYS[way](folder / "slices.json", folder / "claims.json")
    first, resident = time.process_time() - before, _megabytes("VmRSS")
    lines = (folder / "changes.jsonl").read_bytes().splitlines()[:changes]
    before = time.process_time()
    for line in lines:
        change(line)
    spent = time.process_time() - before
    return {
        "way": way,
        "devices": number,
        "free": free,
        "first answer, s": round(first, 2),
        "changed claim, us": round(spent / len(lines) * 1e6, 1),
        "memory, MB": resident,
        "most, MB": _megabytes("VmHWM"),
    }


def _megabytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) // 1000


def main() -> None:
    """Make the lists and try each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5_000, help="nodes with eight devices each (default: 5000)")
    parser.add_argument("--only", choices=WAYS, help="one way alone")
    parser.add_argument("--in-folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_folder:
        changes = CHANGES if options.only == "dra_ledger" else CHANGES // 100  # the others look at all claims each time
        print(json.dumps(measured(options.only, Path(options.in_folder), changes)))
        return
    with TemporaryDirectory() as name:
        folder = Path(name)
        for kind, items in (
            ("ResourceSlice", [slice_of(node) for node in range(options.nodes)]),
            ("ResourceClaim", [claim_of(number) for number in range(options.nodes * PER_NODE // 2)]),
        ):
            text = {"apiVersion": "resource.k8s.io/v1", "kind": f"{kind}List", "metadata": {}, "items": items}
            (folder / f"{kind[8:].lower()}s.json").write_text(json.dumps(text))
        changed = [claim_of(number % (options.nodes * PER_NODE // 2)) for number in range(CHANGES)]
        for number, claim in enumerate(changed):
            claim["status"] = {} if number % 2 else claim["status"]
        (folder / "changes.jsonl").write_text("\n".join(map(json.dumps, changed)))
        rows = []
        for way in [options.only] if options.only else WAYS:
            command = [sys.executable, __file__, "--only", way, "--in-folder", name]
            rows.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    for column in rows[0]:
        print(f"{column:18}", *(f"{row[column]!s:>14}" for row in rows))


if __name__ == "__main__":
    main()
