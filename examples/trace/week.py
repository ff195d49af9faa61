"""Write week.yaml: a snapshot of a small cluster and its pods, made up, for `dra-operator simulate --trace`.

    python examples/trace/week.py /tmp

Eight nodes of eight GPUs; pods ask for 1, 2, 4 or 8. Each went to the node with most GPUs free as soon as one had
enough, the oldest first, so small pods were spread and large ones waited.
"""

from __future__ import annotations

import argparse
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import yaml

SEED: Final = 11
START: Final = datetime(2026, 11, 16, tzinfo=UTC)
HOURS: Final = 7 * 24
NODES: Final = 8
GPUS: Final = 8
PODS: Final = 180
SIZES: Final = {1: 60, 2: 14, 4: 12, 8: 14}
"""GPUs of a pod, with weights."""
MEAN_HOURS: Final = 18.0
"""For which pods run."""
KINDS: Final = {"Node": "v1", "Pod": "v1"}
Json = dict[str, Any]


def main(folder: Path) -> None:
    """Write the snapshot."""
    items = [made("DeviceClass", "gpu", spec={}), *(it for number in range(NODES) for it in node(f"node-{number}"))]
    items += [template(size) for size in SIZES]
    drawn = random.Random(SEED)
    free = {f"node-{number}": GPUS for number in range(NODES)}
    ends: list[tuple[float, str, int]] = []
    arrivals = sorted(drawn.uniform(0, HOURS) for _ in range(PODS))
    pods = [
        (arrival, drawn.choices(list(SIZES), list(SIZES.values()))[0], drawn.expovariate(1 / MEAN_HOURS))
        for arrival in arrivals
    ]
    times: dict[int, tuple[str, float, float]] = {}
    events = list(arrivals)
    while events:
        now = events.pop(0)
        for end, name, size in [it for it in ends if it[0] <= now]:
            free[name] += size
            ends.remove((end, name, size))
        waiting = [it for it in range(PODS) if pods[it][0] <= now and it not in times]
        for number in waiting:
            _, size, hours = pods[number]
            best = max(free, key=lambda name: free[name])
            if free[best] < size:
                continue
            free[best] -= size
            times[number] = best, now, now + hours
            ends.append((now + hours, best, size))
            events = sorted([*events, now + hours]) if now + hours < HOURS else events
    items += [pod(number, *pods[number][:2], times.get(number)) for number in range(PODS)]
    snapshot = {"apiVersion": "v1", "kind": "List", "items": items}
    (folder / "week.yaml").write_text(yaml.safe_dump(snapshot, sort_keys=False, width=120))


def made(kind: str, name: str, **fields: Any) -> Json:
    """An object."""
    return {"apiVersion": KINDS.get(kind, "resource.k8s.io/v1"), "kind": kind, "metadata": {"name": name}, **fields}


def node(name: str) -> tuple[Json, Json]:
    """A node and its devices."""
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{number}"} for number in range(GPUS)]
    spec = {"driver": "gpu.example.com", "nodeName": name, "pool": pool, "devices": devices}
    return made("Node", name, status={"allocatable": {"cpu": "96", "pods": "110"}}), made(
        "ResourceSlice", name, spec=spec
    )


def template(size: int) -> Json:
    """What a pod of this size asks for."""
    requests = [{"name": "gpus", "exactly": {"deviceClassName": "gpu", "count": size}}]
    found = made("ResourceClaimTemplate", f"gpus-{size}", spec={"spec": {"devices": {"requests": requests}}})
    found["metadata"]["namespace"] = "research"
    return found


def pod(number: int, arrival: float, size: int, placed: tuple[str, float, float] | None) -> Json:
    """A pod with the times that its status would have."""
    spec: Json = {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": f"gpus-{size}"}], "containers": []}
    status: Json = {"phase": "Pending"}
    if placed is not None:
        spec["nodeName"], since, end = placed
        is_over = end < HOURS
        ready = {
            "type": "Ready",
            "status": "False" if is_over else "True",
            "lastTransitionTime": moment(end if is_over else since),
        }
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": moment(since)}
        status = {"phase": "Succeeded" if is_over else "Running", "conditions": [scheduled, ready]}
    found = made("Pod", f"job-{number:03}", spec=spec, status=status)
    found["metadata"] |= {"namespace": "research", "uid": f"job-{number:03}", "creationTimestamp": moment(arrival)}
    return found


def moment(hours: float) -> str:
    """As the API writes it."""
    return (START + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parent, help="where to (this file's)")
    main(parser.parse_args().folder)
