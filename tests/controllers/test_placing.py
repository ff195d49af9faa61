"""Waiting pods get nodes and devices (scheduling.md section 4)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from controllers_world import World
from dra_kube import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from objects import Make

FINALIZER = "resource.kubernetes.io/delete-protection"


def devices_of(claim: dict[str, Any]) -> list[str]:
    results = claim["status"]["allocation"]["devices"]["results"]
    return [f"{result['pool']}/{result['device']}" for result in results]


async def test_a_pod_with_a_template_gets_claim_devices_reservation_and_node(world: World, make: type[Make]) -> None:
    world.furnish(devices=2)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    await world.settle()
    pod = world.api[PODS, "ns/pod"]
    (claim,) = world.api.of(RESOURCE_CLAIMS)
    assert pod["spec"]["nodeName"] == "node-0"
    assert pod["status"]["resourceClaimStatuses"] == [
        {"name": "entry-0", "resourceClaimName": claim["metadata"]["name"]}
    ]
    assert devices_of(claim) == ["node-0/dev-0"]
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    assert [(entry["name"], entry["uid"]) for entry in claim["status"]["reservedFor"]] == [
        ("pod", pod["metadata"]["uid"])
    ]
    assert world.messages("Scheduled") == ["Successfully assigned ns/pod to node-0"]


async def test_prj_009_a_pod_naming_one_claim_twice_gets_one_allocation(world: World, make: type[Make]) -> None:
    """Both entries mean one claim."""
    world.furnish(devices=2)
    world.api.add(RESOURCE_CLAIMS, make.claim("shared"))
    world.api.add(PODS, make.pod(claims=[make.use("shared"), make.use("shared")]))
    await world.settle()
    assert world.api[PODS, "ns/pod"]["spec"]["nodeName"] == "node-0"
    assert devices_of(world.api[RESOURCE_CLAIMS, "ns/shared"]) == ["node-0/dev-0"]


async def test_two_pods_share_a_claim_and_its_node(world: World, make: type[Make]) -> None:
    world.furnish(nodes=2, devices=1)
    world.api.add(RESOURCE_CLAIMS, make.claim("shared"))
    for name in ("one", "two"):
        world.api.add(PODS, make.pod(name, claims=[make.use("shared")]))
    await world.settle()
    nodes = {world.api[PODS, f"ns/{name}"]["spec"]["nodeName"] for name in ("one", "two")}
    reserved = world.api[RESOURCE_CLAIMS, "ns/shared"]["status"]["reservedFor"]
    assert len(nodes) == 1
    assert [entry["name"] for entry in reserved] == ["one", "two"]


async def test_many_pods_never_get_the_same_device_and_the_rest_waits(world: World, make: type[Make]) -> None:
    world.furnish(nodes=2, devices=4)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    for number in range(12):
        world.api.add(PODS, make.pod(f"pod-{number}", claims=[make.FROM_TEMPLATE]))
    await world.settle()
    given = [device for claim in world.api.of(RESOURCE_CLAIMS) if claim.get("status") for device in devices_of(claim)]
    bound = [pod for pod in world.api.of(PODS) if pod["spec"].get("nodeName")]
    assert len(given) == len(set(given)) == len(bound) == 8
    waiting = [pod for pod in world.api.of(PODS) if not pod["spec"].get("nodeName")]
    assert {pod["metadata"]["name"] for pod in waiting} == {"pod-8", "pod-9", "pod-10", "pod-11"}
    for pod in waiting:
        assert pod["status"]["conditions"][0]["message"].startswith("0/2 nodes are available: 2 ")


async def test_a_waiting_pod_gets_the_devices_that_a_finished_one_leaves(world: World, make: type[Make]) -> None:
    world.furnish(devices=1)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    for name in ("first", "second"):
        world.api.add(PODS, make.pod(name, claims=[make.FROM_TEMPLATE]))
    await world.settle()
    assert "nodeName" not in world.api[PODS, "ns/second"]["spec"]
    world.api.change(PODS, "ns/first", lambda pod: pod["status"].update(phase="Succeeded"))
    await world.settle()
    assert world.api[PODS, "ns/second"]["spec"]["nodeName"] == "node-0"


@pytest.mark.rule("CC-01")
async def test_what_is_loaded_waits_for_the_operator_to_run(world: World, make: type[Make]) -> None:
    world.furnish(devices=1)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    world.start()
    for _ in range(10):
        await world.tick()
    assert world.api.calls == []
    async with world.running():
        await world.quiet()
    assert world.api[PODS, "ns/pod"]["spec"]["nodeName"] == "node-0"


WAKING: dict[str, Callable[[World, type[Make]], object]] = {
    "a node": lambda world, make: world.api.add(NODES, make.node("late")),
    "a slice": lambda world, make: world.api.add(RESOURCE_SLICES, make.slice("node-0", 1)),
    "a class": lambda world, make: world.api.add(DEVICE_CLASSES, make.device_class()),
    "a claim": lambda world, make: world.api.add(RESOURCE_CLAIMS, make.claim("claim")),
}


@pytest.mark.rule("SC-02")
@pytest.mark.parametrize("missing", WAKING)
async def test_a_pod_waits_for_what_is_missing_and_goes_on_when_it_appears(
    missing: str, world: World, make: type[Make]
) -> None:
    """In the running operator nothing but the one event wakes the pod (SC-02)."""
    target = "late" if missing == "a node" else "node-0"
    if missing == "a node":
        world.api.add(RESOURCE_SLICES, make.slice("late", 1))
    for what, appear in WAKING.items():
        if what != missing and not (missing == "a node" and what in ("a node", "a slice")):
            appear(world, make)
    if missing != "a node":
        world.api.add(NODES, make.node("node-0"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    world.start()
    async with world.running():
        await world.quiet()
        assert "nodeName" not in world.api[PODS, "ns/pod"]["spec"]
        (condition,) = world.api[PODS, "ns/pod"]["status"]["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == (
            "PodScheduled",
            "False",
            "Unschedulable",
        )
        assert world.messages("FailedScheduling") == [condition["message"]]
        WAKING[missing](world, make)
        await world.quiet()
    assert world.api[PODS, "ns/pod"]["spec"]["nodeName"] == target


async def test_a_pod_that_waits_in_vain_writes_its_reason_once(world: World, make: type[Make]) -> None:
    world.furnish(devices=0)
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    world.start()
    async with world.running():
        await world.quiet()
        for number in range(5):
            world.api.add(NODES, make.node("extra") | {"metadata": {"name": "extra", "labels": {"n": str(number)}}})
            await world.quiet()
    conditions = [call for call in world.api.writes if call.plural == "pods"]
    assert len(conditions) == 2  # one for one node, one for two


async def test_a_claim_allocated_where_the_pod_cannot_run_is_given_back_and_allocated_anew(
    world: World, make: type[Make]
) -> None:
    """4.3: no other pod has a reservation, so its devices come back and the next attempt places the pod."""
    world.furnish(nodes=2, devices=1)
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod("first", claims=[make.use("claim")], nodeSelector={"zone": "a"}))
    world.api.change(NODES, "node-0", lambda node: node["metadata"].update(labels={"zone": "a"}))
    world.api.change(NODES, "node-1", lambda node: node["metadata"].update(labels={"zone": "b"}))
    await world.settle()
    assert devices_of(world.api[RESOURCE_CLAIMS, "ns/claim"]) == ["node-0/dev-0"]
    world.api.drop(PODS, "ns/first")
    world.api.change(
        RESOURCE_CLAIMS, "ns/claim", lambda claim: claim["status"].pop("reservedFor")
    )  # allocated, not reserved: left alone by the claim life cycle (CC-05)
    world.api.add(PODS, make.pod("second", claims=[make.use("claim")], nodeSelector={"zone": "b"}))
    await world.settle()
    assert world.api[PODS, "ns/second"]["spec"]["nodeName"] == "node-1"
    assert devices_of(world.api[RESOURCE_CLAIMS, "ns/claim"]) == ["node-1/dev-0"]


async def test_pods_of_other_schedulers_are_left_alone(world: World, make: type[Make]) -> None:
    world.furnish(devices=2)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE], schedulerName="default-scheduler"))
    await world.settle()
    assert "nodeName" not in world.api[PODS, "ns/pod"]["spec"]
    (claim,) = world.api.of(RESOURCE_CLAIMS)  # generated all the same: that is not the scheduler's business
    assert "status" not in claim


async def test_devices_that_another_scheduler_allocated_are_never_given_again(world: World, make: type[Make]) -> None:
    world.furnish(devices=2)
    foreign = make.claim("foreign", finalizers=[FINALIZER])
    taken = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
    foreign["status"] = {"allocation": {"devices": {"results": [taken]}}}
    world.api.add(RESOURCE_CLAIMS, foreign)
    world.api.add(RESOURCE_CLAIMS, make.claim("ours"))
    world.api.add(PODS, make.pod(claims=[make.use("ours")]))
    await world.settle()
    assert devices_of(world.api[RESOURCE_CLAIMS, "ns/ours"]) == ["node-0/dev-1"]


def fill_claim(world: World, make: type[Make], consumers: int) -> None:
    """A claim that so many running pods share."""
    users = [{"resource": "pods", "name": f"pod-{number}", "uid": f"other-{number}"} for number in range(consumers)]
    taken = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
    claim = make.claim("full", finalizers=[FINALIZER])
    claim["status"] = {"allocation": {"devices": {"results": [taken]}}, "reservedFor": users}
    world.api.add(RESOURCE_CLAIMS, claim)
    for user in users:
        pod = make.pod(user["name"], claims=[make.use("full")], node="node-0")
        pod["metadata"]["uid"] = user["uid"]
        world.api.add(PODS, pod)
    world.api.change(NODES, "node-0", lambda node: node["status"]["allocatable"].update(pods="500"))


async def test_a_257th_consumer_waits_with_a_reason_until_another_one_ends(world: World, make: type[Make]) -> None:
    world.furnish(devices=2)
    fill_claim(world, make, 256)
    world.api.add(PODS, make.pod("late", claims=[make.use("full")]))
    world.start()
    async with world.running():
        await world.quiet()
        assert "nodeName" not in world.api[PODS, "ns/late"]["spec"]
        (message,) = world.messages("FailedScheduling")
        assert message == (
            "claim ns/full is used by 256 pods, the most that can share one claim: "
            "wait until one of them ends, or use another claim"
        )
        assert [call for call in world.api.writes if call.plural == "resourceclaims"] == []
        world.api.change(PODS, "ns/pod-7", lambda pod: pod["status"].update(phase="Succeeded"))
        await world.quiet()
    assert world.api[PODS, "ns/late"]["spec"]["nodeName"] == "node-0"
    assert len(world.api[RESOURCE_CLAIMS, "ns/full"]["status"]["reservedFor"]) == 256


async def test_pods_that_share_a_claim_are_reserved_together(world: World, make: type[Make]) -> None:
    """100 pods at once: a few writes, and no conflict among them."""
    world.furnish(devices=2)
    world.api.change(NODES, "node-0", lambda node: node["status"]["allocatable"].update(pods="500"))
    world.api.add(RESOURCE_CLAIMS, make.claim("shared"))
    for number in range(100):
        world.api.add(PODS, make.pod(f"pod-{number}", claims=[make.use("shared")]))
    world.api.way = world.tick
    await world.settle()
    assert all(pod["spec"]["nodeName"] == "node-0" for pod in world.api.of(PODS))
    writes = [call for call in world.api.writes if call.plural == "resourceclaims"]
    assert len(writes) < 40
    assert world.api.conflicts == 0


def publish(devices: int, slice_: dict[str, Any]) -> None:
    slice_["spec"]["devices"] = [{"name": f"dev-{number}"} for number in range(devices)]


async def test_the_pod_of_the_highest_priority_gets_what_comes_free_then_the_oldest(
    world: World, make: type[Make]
) -> None:
    world.furnish(devices=0)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    for name, priority, born in (
        ("low", 0, "00:01"),
        ("young", 2_000_000_000, "00:03"),
        ("old", 2_000_000_000, "00:02"),
    ):
        pod = make.pod(name, claims=[make.FROM_TEMPLATE], priority=priority)
        pod["metadata"]["creationTimestamp"] = f"2026-01-01T{born}:00Z"
        world.api.add(PODS, pod)
    world.start()
    order: list[str] = []
    async with world.running():
        await world.quiet()
        for number in range(1, 4):
            world.api.change(RESOURCE_SLICES, "node-0-gpu.example.com", partial(publish, number))
            await world.quiet()
            bound = {pod["metadata"]["name"] for pod in world.api.of(PODS) if pod["spec"].get("nodeName")}
            order += sorted(bound - set(order))
    assert order == ["old", "young", "low"]


async def test_a_pod_moves_on_when_room_comes_free_where_its_claim_is_not(world: World, make: type[Make]) -> None:
    """Its claim is allocated on a cordoned node, and the other node is full: the end of a pod there is what helps."""
    world.furnish(nodes=2, devices=1)
    full = [{"name": "main", "resources": {"requests": {"cpu": "3"}}}]
    world.api.add(PODS, make.pod("runs", node="node-1", containers=full))
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    taken = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-0"]}]}
    allocation = {"devices": {"results": [taken]}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    world.api.change(
        RESOURCE_CLAIMS,
        "ns/claim",
        lambda claim: claim.update(
            status={"allocation": allocation}, metadata={**claim["metadata"], "finalizers": [FINALIZER]}
        ),
    )
    world.api.change(NODES, "node-0", lambda node: node.update(spec={"unschedulable": True}))
    world.api.add(PODS, make.pod("waits", claims=[make.use("claim")], containers=full))
    world.start()
    async with world.running():
        await world.quiet()
        assert "nodeName" not in world.api[PODS, "ns/waits"]["spec"]
        world.api.change(PODS, "ns/runs", lambda pod: pod["status"].update(phase="Succeeded"))
        await world.quiet()
    assert world.api[PODS, "ns/waits"]["spec"]["nodeName"] == "node-1"
    assert devices_of(world.api[RESOURCE_CLAIMS, "ns/claim"]) == ["node-1/dev-0"]
