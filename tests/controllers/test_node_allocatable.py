"""What devices take of their node is counted there, and recorded in the status of pods (kubernetes-1.37.md 12)."""

from __future__ import annotations

from typing import Any

import pytest
from controllers_world import World
from dra_api.releases import Release
from dra_kube import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Forbidden
from dra_operator.allocator import Features
from fake_api import Call
from objects import Make, Obj

BRINGS = {"cpu": {"mapping": {"deviceMultiplier": "2"}, "overhead": {"perPod": "250m", "perContainer": "250m"}}}
RECORD = {
    "resourceClaimName": "first",
    "containers": ["main"],
    "mapping": [{"name": "cpu", "quantity": "2"}],
    "overhead": [{"name": "cpu", "perPod": "250m", "perContainer": "250m"}],
}


@pytest.fixture
def world() -> World:
    return World(Features(Release.V1_37, node_allocatable_resources=True))


def furnish(world: World, *pods: str) -> None:
    """A node with four cpus and two devices that bring two each, and pods."""
    world.furnish(1, 2)
    (slice_,) = world.api.of(RESOURCE_SLICES)
    devices = [{**device, "nodeAllocatableResources": BRINGS} for device in slice_["spec"]["devices"]]
    world.api.change(RESOURCE_SLICES, slice_["metadata"]["name"], lambda it: it["spec"].update(devices=devices))
    for name in pods:
        add_pod(world, name)


def add_pod(world: World, name: str) -> None:
    """It asks for half a cpu and one device."""
    container = Make.asking("main", cpu="500m")
    container["resources"]["claims"] = [{"name": "entry-0"}]
    world.api.add(RESOURCE_CLAIMS, Make.claim(name))
    world.api.add(PODS, Make.pod(name, [Make.use(name)], containers=[container]))


def pod(world: World, name: str) -> Obj:
    found: Obj = world.api[PODS, f"ns/{name}"]
    return found


def recorded(world: World, name: str) -> Any:
    return pod(world, name)["status"].get("nodeAllocatableResourceClaimStatuses")


@pytest.mark.rule("K37-NA-03", "K37-NA-07", "K37-NA-08")
async def test_what_devices_take_is_recorded_and_keeps_others_from_the_node(world: World) -> None:
    """Also after a restart, which knows only the status."""
    furnish(world, "first")
    await world.settle()
    assert pod(world, "first")["spec"]["nodeName"] == "node-0"
    assert recorded(world, "first") == [RECORD]
    add_pod(world, "second")
    await world.settle()
    assert "nodeName" not in pod(world, "second")["spec"]
    (condition,) = pod(world, "second")["status"]["conditions"]
    assert "Insufficient cpu (500m of the pod and 2500m for its devices)" in condition["message"]
    world.api.change(PODS, "ns/first", lambda it: it["status"].update(phase="Succeeded"))
    await world.settle()
    assert pod(world, "second")["spec"]["nodeName"] == "node-0"


@pytest.mark.rule("K37-NA-08")
async def test_a_pod_that_is_not_bound_loses_the_record(world: World) -> None:
    """By an empty list, since a list that is left out would be kept."""
    furnish(world, "first")

    def refuse(call: Call) -> Exception | None:
        return Forbidden(403, "Forbidden", "no") if call.sub == "binding" else None

    world.api.before = refuse
    world.start()
    with pytest.raises(Exception, match="refused"):
        await world.attempt("ns/first")
    assert recorded(world, "first") == []


async def test_without_the_gate_nothing_is_counted_and_nothing_recorded() -> None:
    world = World(Features(Release.V1_36))
    furnish(world, "first", "second")
    await world.settle()
    for name in ("first", "second"):
        assert pod(world, name)["spec"]["nodeName"] == "node-0"
        assert recorded(world, name) is None
