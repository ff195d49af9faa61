"""Compares the moves that ``kubectl dra defrag`` finds with those of an exhaustive search, in small random fleets.

The exhaustive search moves any pod to any node, also several times, and has none of the rules by which the other saves
work. In a second kind of fleets a gang waits, and pods that run are in gangs as well, of which some must not be moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any, Final

from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from dra_api.scheduling import PodGroup
from dra_operator.commands.placing import Placed
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.sanitized import MOVABLE
from dra_operator.kubectl.whatif.movable_pods import Defragmentation, defragmented, defragmented_for_gang, movable_pods
from dra_operator.kubectl.whatif.overlay import Overlay
from history_kit.game import Game, Outcome

Json = dict[str, Any]
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
MOST_MOVES: Final = 3
GANG: Final = "dra.kopf.dev/gang"
TOPOLOGY: Final = "dra.kopf.dev/gang-topology"
ATTRIBUTE: Final = "dra.kopf.dev/gang-match-attribute"
HOST: Final = "kubernetes.io/hostname"
WAITING: Final = "wanted"
"""The names of pods that wait begin so."""
STEPS: Final = 1_000_000


def fleet_of(seed: int) -> Observed:
    """Two or three nodes with devices at two roots, pods with one or two of them, and a pod that wants some more."""
    random = Random(seed)
    objects = _classes()
    free = _nodes(random, objects)
    for number in range(random.randint(2, 6)):
        if not any(free.values()):
            break
        node, taken = _taken(random, free)
        objects += _pod(f"p{number}", node, taken, is_movable=random.random() < 0.85)
    kind = random.choice(("2", "2m", "3", "3m", "4"))
    objects += _pod(WAITING, "", [], is_movable=False, template=f"t{kind}")
    return Observed(objects, NOW, namespace="ns")


def gang_fleet_of(seed: int) -> Observed:
    """The same, where a gang of two or three pods waits, and most pods that run are in gangs: some may move, some ask
    for one node, and some are PodGroups that end as one."""
    random = Random(seed)
    objects = _classes()
    free = _nodes(random, objects, (2, 3, 3))
    gangs = {name: random.choice(({}, {}, {}, {}, {TOPOLOGY: HOST}, {"group": "all"})) for name in "xy"}
    for name, wish in gangs.items():
        if "group" in wish:
            policy = {"schedulingPolicy": {"gang": {"minCount": 2}}, "disruptionMode": {"all": {}}}
            objects.append(convert(PodGroup, {"metadata": {"name": name, "namespace": "ns"}, "spec": policy}))
    for number in range(random.randint(3, 5)):
        if not any(free.values()):
            break
        node, taken = _taken(random, free, spread=random.random() < 0.8)
        name = random.choice("xxyy-")
        wish = _wish(name, 2, gangs.get(name, {}))
        objects += _pod(f"p{number}", node, taken, is_movable=random.random() < 0.95, gang=wish)
    size, extra = random.choice((2, 2, 3)), random.choice(({}, *[{TOPOLOGY: HOST}] * 3, {ATTRIBUTE: "drv/root"}))
    for number in range(size):
        template = random.choice(("t1", "t1", "t1", "t2"))
        wish = _wish("wanted", size, extra)
        objects += _pod(f"{WAITING}{number}", "", [], is_movable=False, template=template, gang=wish)
    return Observed(objects, NOW, namespace="ns")


def _wish(name: str, size: int, more: dict[str, str]) -> Json:
    """What the pods of a gang say: annotations, or the name of their PodGroup."""
    if "group" in more:
        return {"group": name}
    return {"dra.kopf.dev/gang": name, "dra.kopf.dev/gang-size": str(size), **more} if name != "-" else {}


def _classes() -> list[Object]:
    objects: list[Object] = [convert(DeviceClass, {"metadata": {"name": "gpu"}, "spec": {}})]
    for count, is_matched in ((1, False), (2, False), (2, True), (3, False), (4, False), (3, True)):
        objects.append(_template(count, is_matched=is_matched))
    return objects


def _nodes(random: Random, objects: list[Object], sizes: Sequence[int] = (2, 3, 4)) -> dict[str, list[str]]:
    """Nodes and their devices, which are free."""
    free: dict[str, list[str]] = {}
    for number in range(random.choice((2, 3, 3))):
        name, devices = f"n{number}", [f"d{place}" for place in range(random.choice(sizes))]
        free[name] = devices
        objects += [_node(name, random.choice("345")), _slice(name, devices, random)]
    return free


def _taken(random: Random, free: dict[str, list[str]], *, spread: bool = False) -> tuple[str, list[str]]:
    """A node with free devices, and some of these; ``spread``: few from nodes where many are free."""
    most = max(map(len, free.values())) if spread else 1
    node = random.choice([name for name, devices in free.items() if len(devices) >= most])
    count = random.choice((1, 1, 2)) if not spread and len(free[node]) > 1 else 1
    return node, [free[node].pop(random.randrange(len(free[node]))) for _ in range(count)]


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
    meta = {"name": name, "labels": {HOST: name}}
    return convert(Node, {"metadata": meta, "status": {"allocatable": {"cpu": cpu, "pods": "10"}}})


def _slice(node: str, names: list[str], random: Random) -> Object:
    devices = [{"name": name, "attributes": {"root": {"int": random.randrange(2)}}} for name in names]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "drv", "nodeName": node, "pool": pool, "devices": devices}
    return convert(ResourceSlice, {"metadata": {"name": f"slice-{node}"}, "spec": spec})


def _pod(
    name: str, node: str, devices: list[str], *, is_movable: bool, template: str = "", gang: Json | None = None
) -> list[Object]:
    uid, claim = f"uid-{name}", f"{name}-gpu"
    meta: Json = {"name": name, "namespace": "ns", "uid": uid}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "uid-web", "controller": True}
    pod_meta = {**meta, "ownerReferences": [owner]}
    wish = {key: value for key, value in (gang or {}).items() if key != "group"}
    pod_meta["annotations"] = {**wish, MOVABLE: "true"} if is_movable else wish
    template = template or f"t{len(devices)}"
    spec: Json = {
        "schedulerName": "dra-scheduler",
        "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
    }
    if gang and "group" in gang:
        spec["schedulingGroup"] = {"podGroupName": gang["group"]}
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


def waiting(seen: Observed) -> list[Pod]:
    return [pod for pod in seen.every(Pod) if pod.metadata.name.startswith(WAITING)]


def found(seen: Observed) -> Defragmentation:
    overlay, wanted, limits = Overlay(pipeline(seen)), waiting(seen), (MOST_MOVES, STEPS)
    if _is_gang(wanted):
        return defragmented_for_gang(overlay, wanted, movable_pods(seen, None), *limits)
    return defragmented(overlay, wanted[0], movable_pods(seen, None), *limits)


def _is_gang(pods: Sequence[Pod]) -> bool:
    return GANG in (pods[0].metadata.annotations or {})


def goal(overlay: Overlay, seen: Observed) -> Callable[[], bool]:
    """Whether what waits fits on some node, or together."""
    pods = [overlay.with_claims(pod)[0] for pod in waiting(seen)]
    if not _is_gang(pods):
        nodes = sorted(node.key for node in seen.every(Node))
        return lambda: any(overlay.fits_on(pods[0], node) for node in nodes)

    def fits() -> bool:
        there = overlay.together(pods[0])
        return there is not None and there.is_clear

    return fits


def may_move(seen: Observed) -> list[Pod]:
    """By what the page promises, said anew: a pod of a gang only if all of it may move, and if it asks for nothing in
    common; a PodGroup that ends as one never."""
    running = [pod for pod in seen.every(Pod) if pod.spec.node_name]
    wishes = {pod.metadata.name: pod.metadata.annotations or {} for pod in running}
    still = {it.get(GANG) for it in wishes.values() if MOVABLE not in it or TOPOLOGY in it or ATTRIBUTE in it} - {None}
    return [
        pod
        for pod in running
        if MOVABLE in (it := wishes[pod.metadata.name])
        and it.get(GANG) not in still
        and pod.spec.scheduling_group is None
    ]


def fewest(seen: Observed) -> int | None:
    """By trying everything, breadth first; None if no plan of ``MOST_MOVES`` exists."""
    overlay = Overlay(pipeline(seen))
    fits = goal(overlay, seen)
    nodes = sorted(node.key for node in seen.every(Node))
    start = {pod.key: (pod, pod.spec.node_name, ("start",)) for pod in may_move(seen)}
    visited: dict[frozenset[tuple[str, str, tuple[str, ...]]], int] = {}

    def search(where: Mapping[str, tuple[Pod, str, tuple[str, ...]]], left: int) -> bool:
        if fits():
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
    """Whether each move is of a pod that may move, and possible when it is made, and what waits fits in the end."""
    overlay, allowed = Overlay(pipeline(seen)), {pod.key for pod in may_move(seen)}
    for move in plan.moves:
        pod = seen.one(Pod, move.pod)
        assert pod is not None
        assert pod.spec.node_name == move.source
        overlay.evict(pod)
        with overlay.attempt(), overlay.cordoned(move.source):
            chosen = overlay.place(overlay.successor(pod), with_gang=True)
        if (chosen.node if isinstance(chosen, Placed) else "") != move.chosen:
            return False
        placed = overlay.place_on(overlay.with_claims(overlay.successor(pod))[0], move.target)
        if move.pod not in allowed or placed is None or placed.devices != move.devices:
            return False
    return goal(overlay, seen)()


def played(seed: int, made: Callable[[int], Observed] = fleet_of) -> Outcome:
    """Compare the two in the fleet of a seed. A plan that is longer than need be is counted, and not wrong."""
    seen = made(seed)
    plan, best = found(seen), fewest(seen)
    length = len(plan.moves) if plan.node else None
    kinds = [f"need {best} moves" if best is not None else "have no plan"]
    if length != best:
        kinds.append(f"found {length} moves instead of {best} (seed {seed})")
    if plan.moves and plan.is_by_scheduler:
        kinds.append("by the scheduler")
    wrong = bool(plan.node) and not replayed(seen, plan)
    return Outcome(("the moves cannot be made, or make no room",) if wrong else (), kinds=tuple(kinds))


CAMPAIGN: Final = Game(played)
OF_GANGS: Final = Game(partial(played, made=gang_fleet_of))
