"""Compares the moves that ``kubectl dra defrag`` finds with those of an exhaustive search, in small random fleets.

``PYTHONPATH=tests/support python -m defrag_campaign --seeds 0:500`` prints how many plans are as short as they can be.
The exhaustive search moves any pod to any node, also several times, and has none of the rules by which the other saves
work.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from dra_operator.kubectl.observed.observed import Observed
from dra_operator.kubectl.observed.pipeline import pipeline
from dra_operator.kubectl.whatif.defragmentation import Defragmentation, defragmented
from dra_operator.kubectl.whatif.movable import movable_pods
from dra_operator.kubectl.whatif.outcome import Placed
from dra_operator.kubectl.whatif.overlay import Overlay

Json = dict[str, Any]
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
MOST_MOVES: Final = 3
WANTED: Final = "ns/wanted"


def fleet_of(seed: int) -> Observed:
    """Two or three nodes with devices at two roots, pods with one or two of them, and a pod that wants some more."""
    random = Random(seed)
    objects: list[Object] = [convert(DeviceClass, {"metadata": {"name": "gpu"}, "spec": {}})]
    for count, is_matched in ((1, False), (2, False), (2, True), (3, False), (4, False), (3, True)):
        objects.append(_template(count, is_matched=is_matched))
    free: dict[str, list[str]] = {}
    for number in range(random.choice((2, 3, 3))):
        name, devices = f"n{number}", [f"d{place}" for place in range(random.choice((2, 3, 4)))]
        free[name] = devices
        objects += [_node(name, random.choice("345")), _slice(name, devices, random)]
    for number in range(random.randint(2, 6)):
        places = [name for name, devices in free.items() if devices]
        if not places:
            break
        node = random.choice(places)
        count = random.choice((1, 1, 2)) if len(free[node]) > 1 else 1
        taken = [free[node].pop(random.randrange(len(free[node]))) for _ in range(count)]
        objects += _pod(f"p{number}", node, taken, is_movable=random.random() < 0.85)
    kind = random.choice(("2", "2m", "3", "3m", "4"))
    objects += _pod("wanted", "", [], is_movable=False, template=f"t{kind}")
    return Observed(objects, NOW, namespace="ns")


def _template(count: int, *, is_matched: bool) -> Object:
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
    devices: Json = {"requests": [{"name": "r", "exactly": exactly}]}
    if is_matched:
        devices["constraints"] = [{"matchAttribute": "drv/root"}]
    name = f"t{count}{'m' if is_matched else ''}"
    return convert(
        ResourceClaimTemplate,
        {"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {"spec": {"devices": devices}}},
    )


def _node(name: str, cpu: str) -> Object:
    return convert(Node, {"metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu, "pods": "10"}}})


def _slice(node: str, names: list[str], random: Random) -> Object:
    devices = [{"name": name, "attributes": {"root": {"int": random.randrange(2)}}} for name in names]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "drv", "nodeName": node, "pool": pool, "devices": devices}
    return convert(ResourceSlice, {"metadata": {"name": f"slice-{node}"}, "spec": spec})


def _pod(name: str, node: str, devices: list[str], *, is_movable: bool, template: str = "") -> list[Object]:
    uid, claim = f"uid-{name}", f"{name}-gpu"
    meta: Json = {"name": name, "namespace": "ns", "uid": uid}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "uid-web", "controller": True}
    pod_meta = {**meta, "ownerReferences": [owner]}
    if is_movable:
        pod_meta["annotations"] = {"dra.kopf.dev/movable": "true"}
    template = template or f"t{len(devices)}"
    spec: Json = {
        "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
    }
    if not node:
        return [convert(Pod, {"metadata": pod_meta, "spec": spec})]
    status = {"phase": "Running", "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": claim}]}
    results = [{"request": "r", "driver": "drv", "pool": node, "device": device} for device in devices]
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": len(devices)}
    of_pod = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": True}
    return [
        convert(Pod, {"metadata": pod_meta, "spec": {**spec, "nodeName": node}, "status": status}),
        convert(
            ResourceClaim,
            {
                "metadata": {"name": claim, "namespace": "ns", "uid": f"uid-{claim}", "ownerReferences": [of_pod]},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
                "status": {
                    "reservedFor": [{"resource": "pods", "name": name, "uid": uid}],
                    "allocation": {"devices": {"results": results}},
                },
            },
        ),
    ]


def found(seen: Observed) -> Defragmentation:
    """What ``defrag`` finds."""
    wanted = seen.one(Pod, WANTED)
    assert wanted is not None
    return defragmented(Overlay(pipeline(seen)), wanted, movable_pods(seen, None), MOST_MOVES, 1_000_000, lambda: False)


def fewest(seen: Observed) -> int | None:
    """By trying everything, breadth first; None if no plan of ``MOST_MOVES`` exists."""
    overlay = Overlay(pipeline(seen))
    wanted, _ = overlay.with_claims(next(pod for pod in seen.every(Pod) if pod.key == WANTED))
    nodes = sorted(node.key for node in seen.every(Node))
    start = {pod.key: (pod, pod.spec.node_name, ("start",)) for pod in movable_pods(seen, None)}
    visited: dict[frozenset[tuple[str, str, tuple[str, ...]]], int] = {}

    def search(where: Mapping[str, tuple[Pod, str, tuple[str, ...]]], left: int) -> bool:
        if any(overlay.fits_on(wanted, node) for node in nodes):
            return True
        state = frozenset((key, node, devices) for key, (_, node, devices) in where.items())
        if left == 0 or visited.get(state, -1) >= left:
            return False
        visited[state] = left
        for key, (pod, _, _) in where.items():
            for node in nodes:
                with overlay.attempt():
                    overlay.evict(pod)
                    successor, _ = overlay.with_claims(overlay.successor(pod))
                    placed = overlay.place_on(successor, node)
                    if placed and search({**where, key: (placed.pod, node, placed.devices)}, left - 1):
                        return True
        return False

    for moves in range(MOST_MOVES + 1):
        visited.clear()
        if search(start, moves):
            return moves
    return None


def replayed(seen: Observed, plan: Defragmentation) -> bool:
    """Whether each move is possible when it is made, and the pod fits on the node of the plan in the end."""
    overlay = Overlay(pipeline(seen))
    for move in plan.moves:
        pod = seen.one(Pod, move.pod)
        assert pod is not None
        assert pod.spec.node_name == move.source
        overlay.evict(pod)
        with overlay.attempt(), overlay.cordoned(move.source):
            chosen = overlay.place(overlay.successor(pod))
        if (chosen.node if isinstance(chosen, Placed) else "") != move.chosen:
            return False
        placed = overlay.place_on(overlay.with_claims(overlay.successor(pod))[0], move.target)
        if placed is None or placed.devices != move.devices:
            return False
    wanted, _ = overlay.with_claims(next(pod for pod in seen.every(Pod) if pod.key == WANTED))
    return overlay.fits_on(wanted, plan.node)


def main() -> int:
    """Many fleets."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0:100", metavar="FIRST:END")
    first, _, end = parser.parse_args().seeds.partition(":")
    counts: Counter[str] = Counter()
    for seed in range(int(first), int(end)):
        seen = fleet_of(seed)
        plan, best = found(seen), fewest(seen)
        length = len(plan.moves) if plan.node else None
        counts[f"fewest: {best}"] += 1
        counts["steps"] += plan.steps
        counts["as short as possible"] += length == best
        counts["by the scheduler"] += bool(plan.moves) and plan.is_by_scheduler
        counts["false"] += bool(plan.node) and not replayed(seen, plan)
        if length != best:
            print(f"seed {seed}: found {length}, possible {best}")
    print(dict(counts))
    return int(bool(counts["false"]))


if __name__ == "__main__":
    raise SystemExit(main())
