"""``kubectl dra defrag``: the fewest moves, of pods that allow it, and moves that stop at the first surprise."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from defrag_campaign import fewest, fleet_of, found, gang_fleet_of, replayed
from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.leases import MIX, Lease
from dra_api.meta import Object
from dra_api.resource import DeviceClass, ResourceClaim, ResourceSlice
from dra_api.scheduling import PodDisruptionBudget
from dra_devcluster.apiserver import DevApiServer
from dra_kube import CONFIG_MAPS, DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Api, connection
from dra_operator.kubectl.cli import main
from dra_operator.kubectl.defrag import Surprise, moved
from dra_operator.kubectl.observed import Observed, selecting
from dra_operator.kubectl.pipeline import pipeline
from dra_operator.kubectl.snapshot import load
from dra_operator.kubectl.whatif.movable_pods import (
    Defragmentation,
    MixOfPods,
    Move,
    defragmented_for_gang,
    defragmented_for_mix,
    movable_pods,
)
from dra_operator.kubectl.whatif.overlay import Overlay
from msgspec.structs import replace
from objects import Make, user
from waiting import until

HERE = Path(__file__).parent
FLEET = load(str(HERE / "fleet.yaml"))


@pytest.mark.parametrize(("seed", "moves"), [(0, 0), (4, None), (5, 1), (21, 2), (38, 2), (42, 3), (72, 2), (196, 2)])
def test_a_plan_is_as_short_as_one_of_an_exhaustive_search_and_can_be_made(seed: int, moves: int | None) -> None:
    seen = fleet_of(seed)
    plan = found(seen)
    assert (len(plan.moves) if plan.node else None) == moves == fewest(seen)
    assert not plan.node or replayed(seen, plan)


@pytest.mark.parametrize(("seed", "moves"), [(0, None), (3, 0), (47, 2), (53, 1), (83, 2), (115, 2), (156, 2)])
def test_a_plan_for_a_gang_among_gangs_is_as_short_as_one_of_an_exhaustive_search(seed: int, moves: int | None) -> None:
    seen = gang_fleet_of(seed)
    plan = found(seen)
    assert (len(plan.moves) if plan.node else None) == moves == fewest(seen)
    assert not plan.node or replayed(seen, plan)


def names(seen: Observed, selector: str | None = None) -> list[str]:
    return [pod.metadata.name for pod in movable_pods(seen, selecting(selector) if selector is not None else None)]


def changed(name: str, **meta: Any) -> Observed:
    pod = next(pod for pod in FLEET.every(Pod) if pod.metadata.name == name)
    other = replace(pod, metadata=replace(pod.metadata, **meta))
    return Observed([other if obj is pod else obj for obj in FLEET.objects], FLEET.taken)


def test_only_pods_that_allow_it_and_come_again_are_moved() -> None:
    assert names(FLEET) == ["web-a", "web-b", "web-c", "web-d"]
    assert names(FLEET, "app in (batch,notebook,agent)") == ["batch-1"]
    assert "web-a" not in names(changed("web-a", annotations={"dra.kopf.dev/movable": "false"}))
    assert "web-a" not in names(changed("web-a", owner_references=None))
    assert "web-a" not in names(changed("web-a", deletion_timestamp="2030-01-01T00:00:00Z"))


def test_a_budget_that_allows_no_disruption_keeps_its_pods() -> None:
    spent = {"metadata": {"name": "no", "namespace": "ml"}, "spec": {"selector": {"matchLabels": {"app": "batch"}}}}
    seen = Observed([*FLEET.objects, convert(PodDisruptionBudget, spent)], FLEET.taken)
    assert names(seen, "app in (batch,web)") == ["web-a", "web-b", "web-c", "web-d"]


def gangs_of(*, willing: int = 2, topology: str = "kubernetes.io/hostname") -> Observed:
    """Two nodes with two devices, of which pods of a running gang have one each, and a gang of two that waits."""
    owner = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}]
    objects: list[Object] = [convert(DeviceClass, Make.device_class())]
    for number in range(2):
        node, held, wanted = f"node-{number}", f"web-{number}", f"g-{number}"
        running = gang_pod(held, "web", node=node, ownerReferences=owner)
        if number >= willing:
            del running["metadata"]["annotations"]["dra.kopf.dev/movable"]
        waiting = gang_pod(wanted, "g")
        if topology:
            waiting["metadata"]["annotations"]["dra.kopf.dev/gang-topology"] = topology
        result = {"request": "req", "driver": "gpu.example.com", "pool": node, "device": "dev-0"}
        fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
        selector = {"nodeSelectorTerms": [{"matchFields": fields}]}
        allocation = {"devices": {"results": [result]}, "nodeSelector": selector}
        status = {"allocation": allocation, "reservedFor": [user(held)]}
        objects += [
            convert(Node, {**Make.node(node), "metadata": {"name": node, "labels": {"kubernetes.io/hostname": node}}}),
            convert(ResourceSlice, Make.slice(node, 2)),
            convert(ResourceClaim, {**Make.claim(held, uid=f"uid-claim-{held}"), "status": status}),
            convert(ResourceClaim, Make.claim(wanted, uid=f"uid-claim-{wanted}")),
            convert(Pod, running),
            convert(Pod, waiting),
        ]
    return Observed(objects, FLEET.taken, namespace="ns")


def gang_pod(name: str, gang: str, node: str = "", **meta: Any) -> dict[str, Any]:
    body = Make.pod(name, claims=[Make.use(name)], node=node)
    wish = {"dra.kopf.dev/gang": gang, "dra.kopf.dev/gang-size": "2", "dra.kopf.dev/movable": "true"}
    return {**body, "metadata": {**body["metadata"], "uid": f"uid-{name}", "annotations": wish, **meta}}


def for_gang(seen: Observed) -> Defragmentation:
    overlay = Overlay(pipeline(seen))
    waiting = [pod for pod in seen.every(Pod) if not pod.spec.node_name]
    return defragmented_for_gang(overlay, waiting, movable_pods(seen, None), 4, 10_000)


def test_the_fewest_moves_are_found_after_which_a_gang_fits_together() -> None:
    found = for_gang(gangs_of())
    assert (found.pod, found.node) == ("gang g", "node-0")
    assert [(move.pod, move.source, move.target) for move in found.moves] == [("ns/web-0", "node-0", "node-1")]
    assert found.waits_for.startswith("only 1 of 2 pods fit together on nodes with the same value of")
    free = for_gang(gangs_of(topology=""))
    assert free.node
    assert not free.moves


def test_pods_of_a_gang_stay_unless_all_of_it_may_move() -> None:
    assert names(gangs_of()) == ["web-0", "web-1"]
    assert names(gangs_of(willing=1)) == []
    found = for_gang(gangs_of(willing=1))
    assert not found.node
    assert found.reason == "not found: no plan of up to 4 moves"


async def owner_of_pods(api: Api) -> dict[str, Any]:
    """An object that exists, in the place of a controller: without one the garbage collector deletes the pods."""
    meta = (await api.get(CONFIG_MAPS, "web", "default"))["metadata"]
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": "web", "uid": meta["uid"], "controller": True}


def pod_of(name: str, node: str, owner: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default", "ownerReferences": [owner], "labels": {"app": "web"}},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "image"}]},
    }


async def made(api: Api, name: str, node: str, phase: str = "Running") -> dict[str, Any]:
    await api.create(PODS, pod_of(name, node, await owner_of_pods(api)))
    conditions = [{"type": "Ready", "status": "True"}] if phase == "Running" else []
    status = {"status": {"phase": phase, "conditions": conditions}}
    return await api.patch(PODS, name, status, "default", subresource="status")


@asynccontextmanager
async def cluster(kubeconfig: Path) -> AsyncIterator[Api]:
    async with DevApiServer() as server:
        server.write_kubeconfig(kubeconfig)
        async with Api(connection(str(kubeconfig))) as api:
            await api.create(CONFIG_MAPS, {"metadata": {"name": "web", "namespace": "default"}})
            for name in ("node-1", "node-2", "node-3"):
                await api.create(NODES, {"metadata": {"name": name}})
            yield api


def move_of(name: str, uid: str) -> Move:
    return Move(pod=f"default/{name}", uid=uid, source="node-1", target="node-2", devices=(), chosen="node-2")


async def move_and_answer(api: Api, name: str, node: str, phase: str) -> tuple[str, bool]:
    """What became of a move to node-2 if the controller answers with a pod on ``node``; was the source cordoned?"""
    old = await made(api, name, "node-1")
    move = move_of(name, old["metadata"]["uid"])
    moving = asyncio.create_task(moved(api, move, 30, pause_seconds=0.01))

    async def evicted() -> bool:
        listed = {pod["metadata"]["uid"]: pod for pod in (await api.list(PODS, "default"))[0]}
        return move.uid not in listed or "deletionTimestamp" in listed[move.uid]["metadata"]

    await until("the pod is evicted", evicted)
    is_cordoned = bool((await api.get(NODES, "node-1"))["spec"].get("unschedulable"))
    await made(api, f"{name}-again", node, phase)
    try:
        return await moving, is_cordoned
    except Surprise as surprise:
        return str(surprise), is_cordoned


AGAIN = "-again, the successor of default/"
ANSWERS = [
    ("good", "node-2", "Running", "good-again"),
    ("astray", "node-3", "Running", f"astray{AGAIN}astray, is on node-3, not on node-2"),
    ("broken", "node-2", "Failed", f"broken{AGAIN}broken, has failed"),
]


async def test_a_move_waits_for_the_successor_and_keeps_its_node_closed_meanwhile(tmp_path: Path) -> None:
    async with cluster(tmp_path / "kubeconfig") as api:
        for name, node, phase, answer in ANSWERS:
            said, is_cordoned = await move_and_answer(api, name, node, phase)
            assert said == answer
            assert is_cordoned
            assert not (await api.get(NODES, "node-1"))["spec"].get("unschedulable")
        alone = await made(api, "alone", "node-1")
        with pytest.raises(Surprise, match="default/alone was evicted, and after 0 s there is no successor"):
            await moved(api, move_of("alone", alone["metadata"]["uid"]), 0)
        await made(api, "other", "node-1")
        with pytest.raises(Surprise, match="another pod"):
            await moved(api, move_of("other", "uid-before"), 1)
        assert "deletionTimestamp" not in (await api.get(PODS, "other", "default"))["metadata"]


# --- the picture, the mix, and gangs from files ---


def cells(picture: str) -> tuple[dict[str, str], dict[str, str]]:
    """By device, who has it: before, and after."""
    root = ElementTree.fromstring(picture)
    name = "{http://www.w3.org/2000/svg}"
    titles = [str(group.findtext(f"{name}title")) for group in root.iter(f"{name}g")]
    pairs = [(title.partition(": ")[0], title.partition(": ")[2]) for title in titles]
    half = len(pairs) // 2
    return dict(pairs[:half]), dict(pairs[half:])


def test_a_picture_shows_the_devices_of_nodes_before_and_after(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["defrag", "-f", str(HERE / "large.yaml"), "--from", str(HERE / "fleet.yaml"), "-o", "svg"]) == 0
    before, after = cells(capsys.readouterr().out)
    changed = {device: (before[device], after[device]) for device in before if before[device] != after[device]}
    assert changed == {
        "gpu.example.com/gpu-2/gpu-0": ("free", "ml/large"),
        "gpu.example.com/gpu-2/gpu-1": ("ml/web-c", "ml/large"),
        "gpu.example.com/gpu-2/gpu-3": ("free", "ml/large"),
        "gpu.example.com/gpu-3/gpu-1": ("free", "ml/web-c"),
    }
    assert {device.split("/")[1] for device in before} == {"gpu-2", "gpu-3"}
    stuck = ["defrag", "-f", str(HERE / "large.yaml"), "--from", str(HERE / "fleet.yaml"), "--movable-selector", "a=b"]
    assert main([*stuck, "-o", "svg"]) == 3
    assert "there is nothing to draw: not found: no plan of up to 4 moves" in capsys.readouterr().err


def with_mix(*asked: tuple[int, int]) -> Observed:
    """The fleet, whose Lease says how often how many devices were asked for."""
    mix = json.dumps([{"weight": weight, "exactly": {"deviceClassName": "gpu", "count": it}} for weight, it in asked])
    meta = {"name": "dra-operator-dra-scheduler", "annotations": {"dra.kopf.dev/settings": "{}", MIX: mix}}
    held = {"holderIdentity": "op", "leaseDurationSeconds": 10, "renewTime": "2030-01-01T00:00:00Z"}
    lease = convert(Lease, {"metadata": {**meta, "namespace": "ml"}, "spec": held})
    return Observed([*FLEET.objects, lease], FLEET.taken, namespace="ml")


def for_mix(seen: Observed) -> Defragmentation:
    overlay = Overlay(pipeline(seen))
    mix = MixOfPods(overlay, overlay.made.learner.known(), "ml")
    return defragmented_for_mix(overlay, mix, movable_pods(seen, None), 4, 10_000)


def test_moves_give_room_to_as_many_of_the_usual_requests_as_can_be() -> None:
    found = for_mix(with_mix((5, 1), (2, 3), (1, 4), (2, 8)))
    assert found.waits_for == "50% of the requests have no room: 3 gpu (20%), 8 gpu (20%), 4 gpu (10%)"
    assert (found.share, [move.pod for move in found.moves]) == (0.7, ["ml/web-c"])
    assert not found.reason
    enough = for_mix(with_mix((5, 1)))
    assert (enough.share, enough.moves) == (1.0, ())
    assert enough.node
    none = for_mix(with_mix((1, 8)))
    assert (none.node, none.reason) == ("", "not found: no plan of up to 4 moves")


def test_without_a_lease_the_mix_is_what_pods_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["defrag", "--for", "mix", "--from", str(HERE / "fleet.yaml")]) == 0
    assert capsys.readouterr().out.startswith("the recent mix fits on gpu-")
    assert main(["defrag", "--for", "mix", "--from", str(HERE / "pod.yaml")]) == 1
    assert "what pods usually ask for is not known" in capsys.readouterr().err


GANG_OF_FILES = """\
apiVersion: v1
kind: List
items:
- apiVersion: batch/v1
  kind: Job
  metadata: {name: train, namespace: ml}
  spec:
    parallelism: 3
    template:
      metadata:
        annotations: {dra.kopf.dev/gang: "3", dra.kopf.dev/gang-topology: kubernetes.io/hostname}
      spec:
        schedulerName: dra-scheduler
        containers: [{name: main}]
        resourceClaims: [{name: gpu, resourceClaimTemplateName: one-gpu}]
"""


def test_room_is_found_for_a_gang_that_does_not_exist_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = (HERE / "fleet.yaml").read_text()
    for number in (1, 2, 3):
        fleet = fleet.replace(
            f"metadata: {{name: gpu-{number}}}",
            f"metadata: {{name: gpu-{number}, labels: {{kubernetes.io/hostname: gpu-{number}}}}}",
        )
    (tmp_path / "fleet.yaml").write_text(fleet)
    (tmp_path / "job.yaml").write_text(GANG_OF_FILES)
    words = ["defrag", "--from", str(tmp_path / "fleet.yaml"), "-f", str(tmp_path / "job.yaml")]
    assert main([*words, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["node"], [move["pod"] for move in found["moves"]]) == ("gpu-2", ["ml/web-c"])
    assert len(found["devices"]) == 3
    assert found["waitsFor"].startswith("only 2 of 3 pods fit together on nodes with the same value of")
    alone = GANG_OF_FILES.replace("dra.kopf.dev/gang: ", "example.com/other: ")
    (tmp_path / "job.yaml").write_text(alone)
    assert main(words) == 2
    assert "3 pods that are not one gang: defrag makes room for one pod or one gang" in capsys.readouterr().err


# --- moving pods of a gang for another gang ---


class Controller:
    """Makes a successor for each pod of the gang ``web`` that is evicted, on the next of ``targets``, with a device."""

    def __init__(self, api: Api, targets: list[str]) -> None:
        self._api, self.targets, self.moved = api, targets, list[str]()

    async def works(self) -> None:
        while True:
            for pod in (await self._api.list(PODS, "default"))[0]:
                if "deletionTimestamp" in pod["metadata"] and self.targets:
                    await self._replace(pod["metadata"]["name"])
            await asyncio.sleep(0.02)

    async def _replace(self, name: str) -> None:
        await self._api.delete(PODS, name, "default", grace_seconds=0)
        await self._api.delete(RESOURCE_CLAIMS, name, "default")
        self.moved.append(name)
        await running(self._api, f"{name}-again", self.targets.pop(0), len(self.moved) + 1)


async def running(api: Api, name: str, node: str, device: int) -> None:
    """A pod of the gang ``web`` that may be moved, with a device of its node."""
    wish = {"dra.kopf.dev/gang": "web", "dra.kopf.dev/gang-size": "4", "dra.kopf.dev/movable": "true"}
    pod = pod_of(name, node, await owner_of_pods(api))
    pod["metadata"] |= {"annotations": wish}
    pod["spec"] |= {"schedulerName": "dra-scheduler", "resourceClaims": [{"name": "gpu", **Make.use(name)}]}
    made = await api.create(PODS, pod)
    await api.create(RESOURCE_CLAIMS, {"metadata": {"name": name, "namespace": "default"}, "spec": Make.claim_spec()})
    result = {"request": "req", "driver": "gpu.example.com", "pool": node, "device": f"dev-{device}"}
    consumer = {"resource": "pods", "name": name, "uid": made["metadata"]["uid"]}
    status: dict[str, Any] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [consumer]}
    await api.patch(RESOURCE_CLAIMS, name, {"status": status}, "default", subresource="status")
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await api.patch(PODS, name, {"status": ready}, "default", subresource="status")


async def gang_fleet(api: Api) -> None:
    """Two nodes with four devices, of which a gang that runs has two each, and a gang that needs all of one node."""
    await api.create(DEVICE_CLASSES, Make.device_class())
    for node in ("node-1", "node-2"):
        allocatable = {"cpu": "8", "pods": "20"}
        await api.patch(NODES, node, {"metadata": {"labels": {"kubernetes.io/hostname": node}}})
        await api.patch(NODES, node, {"status": {"allocatable": allocatable}}, subresource="status")
        await api.create(RESOURCE_SLICES, Make.slice(node, 4))
        for device in range(2):
            await running(api, f"web-{node}-{device}", node, device)
    for number in range(2):
        claim = {"metadata": {"name": f"g-{number}", "namespace": "default"}, "spec": Make.claim_spec(2)}
        await api.create(RESOURCE_CLAIMS, claim)
        wish = {"gang": "g", "gang-size": "2", "gang-topology": "kubernetes.io/hostname"}
        pod = Make.pod(f"g-{number}", [Make.use(f"g-{number}")])
        pod["spec"]["containers"] = [{"name": "main", "image": "image"}]
        pod["metadata"] = {
            "name": f"g-{number}",
            "namespace": "default",
            "annotations": {f"dra.kopf.dev/{key}": value for key, value in wish.items()},
        }
        await api.create(PODS, pod)


async def test_moves_of_a_gang_stop_at_the_first_surprise_and_go_on_when_asked_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    words = ["defrag", "--for", "gang/g", "-n", "default", "--kubeconfig", str(kubeconfig), "--apply", "--yes"]
    async with cluster(kubeconfig) as api:
        await gang_fleet(api)
        controller = Controller(api, ["node-2", "node-3"])
        working = asyncio.create_task(controller.works())
        assert await asyncio.to_thread(main, [*words, "--wait", "30s"]) == 3
        said = capsys.readouterr().err
        assert (
            "1 of 2 moves made; stopped: web-node-1-1-again, the successor of default/web-node-1-1, is on node-3"
            in said
        )
        assert controller.moved == ["web-node-1-0", "web-node-1-1"]
        assert not any(node["spec"].get("unschedulable") for node in (await api.list(NODES))[0])
        await api.delete(PODS, "web-node-1-1-again", "default", grace_seconds=0)
        await api.delete(RESOURCE_CLAIMS, "web-node-1-1-again", "default")
        await running(api, "web-node-1-2", "node-1", 0)
        controller.targets.append("node-2")
        assert await asyncio.to_thread(main, [*words, "--wait", "30s"]) == 0
        assert "1 of 1 move made: gang g fits on node-1" in capsys.readouterr().out
        assert controller.moved[2:] == ["web-node-1-2"]
        working.cancel()
