"""Claims of volumes that are bound when their first pod has a node: reserve or select, wait, bind the pod."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from controllers_world import World
from dra_kube import (
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Forbidden,
)
from fake_api import Call
from objects import Make, Obj
from volume_lab import (
    HOST,
    SELECTED,
    bind_volumes,
    on_labels,
    on_nodes,
    storage_class,
    store,
    uses,
    volume,
    volume_claim,
)

START, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:11:00Z"
FAST = "fast"
ZONE_1 = [{"matchLabelExpressions": [{"key": HOST, "values": ["node-1"]}]}]


def furnish(world: World, make: type[Make], nodes: int = 2, devices: int = 1) -> None:
    """Nodes with devices, a claim to one of these, and classes of volumes."""
    world.now = START
    world.furnish(nodes, devices)
    world.api.add(RESOURCE_CLAIMS, make.claim("gpu"))
    store(world.api, storage_class(), storage_class(FAST, "csi.example.com"))


@asynccontextmanager
async def waiting(world: World, make: type[Make], *stored: Obj) -> AsyncIterator[None]:
    """An operator that has done what it can for a pod with the claim ``gpu`` and the volume ``data``."""
    store(world.api, *stored)
    world.api.add(PODS, make.pod(claims=[make.use("gpu")], volumes=uses("data")))
    world.start()
    async with world.running():
        await world.busy()
        yield


def why(world: World, pod: str = "pod") -> str:
    return str(world.api[PODS, f"ns/{pod}"]["status"]["conditions"][0]["message"])


def selected(world: World, claim: str = "data") -> str | None:
    found: str | None = world.api[PERSISTENT_VOLUME_CLAIMS, f"ns/{claim}"]["metadata"]["annotations"].get(SELECTED)
    return found


def reference(world: World, name: str = "pv") -> Any:
    return world.api[PERSISTENT_VOLUMES, name]["spec"].get("claimRef")


def allocation(world: World) -> Any:
    return world.api[RESOURCE_CLAIMS, "ns/gpu"].get("status", {}).get("allocation")


@pytest.mark.rule("NR-38", "NR-39")
async def test_a_pod_is_bound_when_the_volume_that_exists_is_bound(world: World, make: type[Make]) -> None:
    furnish(world, make)
    async with waiting(world, make, volume(affinity=on_nodes("node-1")), volume_claim()):
        claim = world.api[PERSISTENT_VOLUME_CLAIMS, "ns/data"]["metadata"]
        named = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "ns", "name": "data"}
        assert reference(world) == {**named, "uid": "uid-data", "resourceVersion": claim["resourceVersion"]}
        chosen = world.api[PERSISTENT_VOLUMES, "pv"]["metadata"]["annotations"]
        assert chosen == {"pv.kubernetes.io/bound-by-controller": "yes"}
        assert (world.node_of(), selected(world)) == (None, None)
        assert allocation(world)["devices"]["results"][0]["pool"] == "node-1"
        bind_volumes(world.api)
        await world.busy()
    assert world.node_of() == "node-1"
    assert world.messages("VolumeBindingPending") == [
        "waiting for PersistentVolumeClaim data to be bound on node node-1"
    ]
    assert world.messages("FailedScheduling") == []


@pytest.mark.rule("NR-38")
async def test_a_node_is_selected_for_a_claim_whose_class_makes_volumes(world: World, make: type[Make]) -> None:
    furnish(world, make)
    world.api.drop(RESOURCE_SLICES, "node-0-gpu.example.com")
    async with waiting(world, make, volume_claim(class_name=FAST)):
        assert (selected(world), world.node_of()) == ("node-1", None)
        written = [call for call in world.api.writes if call.plural == "persistentvolumeclaims"]
        assert len(written) == 1
        bind_volumes(world.api)
        await world.busy()
    assert world.node_of() == "node-1"


def provisioner_fails(world: World) -> None:
    """It takes the annotation away."""
    world.api.change(PERSISTENT_VOLUME_CLAIMS, "ns/data", lambda claim: claim["metadata"]["annotations"].pop(SELECTED))


def claim_is_made_anew(world: World) -> None:
    world.api.drop(PERSISTENT_VOLUME_CLAIMS, "ns/data")
    world.api.events.clear()  # the watch brings the new one only
    store(world.api, volume_claim(class_name=FAST, metadata={"uid": "uid-anew"}))


@pytest.mark.rule("NR-39")
@pytest.mark.parametrize("lose", [provisioner_fails, claim_is_made_anew])
async def test_a_claim_that_lost_its_node_gets_another_chance(
    lose: Callable[[World], None], world: World, make: type[Make]
) -> None:
    """The devices are free until the next attempt."""
    furnish(world, make, nodes=1)
    async with waiting(world, make, volume_claim(class_name=FAST)):
        assert selected(world) == "node-0"
        held: list[bool] = []
        world.api.after = lambda _: held.append(allocation(world) is not None)
        lose(world)
        await world.busy()
        assert why(world) == (
            "binding volumes: PersistentVolumeClaim data is no longer meant for node node-0: provisioning failed, "
            "or it was changed or recreated; retrying with back-off"
        )
        assert False in held  # at once; the next attempt may have begun by now
        world.others.append(bind_volumes)
        await world.quiet()
    assert (selected(world), world.node_of()) == ("node-0", "node-0")


@pytest.mark.rule("NR-39")
async def test_devices_are_given_back_when_the_time_is_over(world: World, make: type[Make]) -> None:
    """Another pod gets them; the first one waits for the node that is still selected for its claim."""
    furnish(world, make, nodes=1)
    world.api.add(RESOURCE_CLAIMS, make.claim("other"))
    async with waiting(world, make, volume_claim(class_name=FAST)):
        world.api.add(PODS, make.pod("other", claims=[make.use("other")]))
        await world.busy()
        assert world.node_of("other") is None
        world.now = LATER  # eleven minutes
        world.control.look_again()
        await world.busy()
        late = "timed out waiting for PersistentVolumeClaim data to be bound"
        assert any(late in message for message in world.messages("FailedScheduling"))
        assert (world.node_of(), world.node_of("other")) == (None, "node-0")
        assert selected(world) == "node-0"
        world.api.drop(PODS, "ns/other")
        bind_volumes(world.api)
        await world.quiet()
    assert world.node_of() == "node-0"


async def test_two_pods_never_get_one_volume(world: World, make: type[Make]) -> None:
    """Both come at once, so the second one is decided while the volume is being reserved for the first."""
    furnish(world, make)
    store(world.api, volume(affinity=on_nodes("node-1")), volume_claim("first"), volume_claim("second"))
    for name in ("first", "second"):
        world.api.add(PODS, make.pod(name, volumes=uses(name)))
    world.others.append(bind_volumes)
    world.start()
    async with world.running():
        await world.quiet()
        assert (world.node_of("first"), world.node_of("second")) == ("node-1", None)
        assert why(world, "second") == (
            "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind"
        )
        assert world.api.conflicts == 0
        store(world.api, volume("new", affinity=on_nodes("node-0")))
        await world.quiet()
    assert world.node_of("second") == "node-0"


@pytest.mark.parametrize("class_name", ["late", FAST])
async def test_pods_that_share_a_claim_go_to_one_node(class_name: str, world: World, make: type[Make]) -> None:
    furnish(world, make, nodes=3)
    volumes = [volume(f"pv-{number}", affinity=on_nodes(f"node-{number}")) for number in range(3)]
    store(world.api, *volumes, volume_claim(class_name=class_name))
    for name in ("first", "second", "third"):
        world.api.add(PODS, make.pod(name, volumes=uses("data")))
    world.others.append(bind_volumes)
    await world.settle()
    nodes = {world.node_of(name) for name in ("first", "second", "third")}
    assert len(nodes) == 1
    assert nodes != {None}


async def test_a_class_may_make_volumes_for_some_nodes_only(world: World, make: type[Make]) -> None:
    furnish(world, make)
    store(world.api, storage_class("zonal", "csi.example.com", allowedTopologies=ZONE_1))
    store(world.api, volume_claim(class_name="zonal"))
    world.api.add(PODS, make.pod(volumes=uses("data")))
    world.others.append(bind_volumes)
    await world.settle()
    assert world.node_of() == "node-1"


LOSSES: dict[str, tuple[Callable[[World], object], str]] = {
    "its node": (lambda world: world.api.drop(NODES, "node-0"), "node node-0 is gone"),
    "its claim": (
        lambda world: world.api.drop(PERSISTENT_VOLUME_CLAIMS, "ns/data"),
        "PersistentVolumeClaim data is gone",
    ),
}


@pytest.mark.rule("NR-39")
@pytest.mark.parametrize("lost", LOSSES)
async def test_a_pod_that_loses_what_it_waits_for_gives_its_devices_back(
    lost: str, world: World, make: type[Make]
) -> None:
    event, expected = LOSSES[lost]
    furnish(world, make, nodes=1)
    async with waiting(world, make, volume_claim(class_name=FAST)):
        event(world)
        await world.busy()
        assert f"binding volumes: {expected}; retrying with back-off" in world.messages("FailedScheduling")
        assert allocation(world) is None
    assert world.node_of() is None


async def test_a_fresh_operator_takes_up_what_was_begun(world: World, make: type[Make]) -> None:
    furnish(world, make)
    store(world.api, volume(affinity=on_nodes("node-1")), volume_claim(), volume_claim("more", class_name=FAST))
    world.api.add(PODS, make.pod(claims=[make.use("gpu")], volumes=uses("data", "more")))
    for _ in range(3):
        world.start()
        async with world.running():
            await world.busy()
        assert (reference(world)["uid"], selected(world, "more"), world.node_of()) == ("uid-data", "node-1", None)
    writes = [call for call in world.api.writes if call.plural.startswith("persistentvolume")]
    assert len(writes) == 2
    world.others.append(bind_volumes)
    await world.settle()
    assert world.node_of() == "node-1"


async def test_a_refused_write_is_reported_and_takes_the_devices_back(world: World, make: type[Make]) -> None:
    furnish(world, make, nodes=1)
    store(world.api, volume_claim(class_name=FAST))
    world.api.add(PODS, make.pod(claims=[make.use("gpu")], volumes=uses("data")))

    def refuse(call: Call) -> Exception | None:
        forbidden = call.plural == "persistentvolumeclaims" and call.verb == "update"
        return Forbidden(403, "Forbidden", "not allowed") if forbidden else None

    world.api.before = refuse
    world.start()
    async with world.running():
        await world.busy()
    assert why(world).startswith("cannot select node node-0 for PersistentVolumeClaim ns/data: the API server refused:")
    assert allocation(world) is None


async def test_a_volume_that_another_writer_took_meanwhile_is_left_alone(world: World, make: type[Make]) -> None:
    furnish(world, make)
    store(world.api, volume(affinity=on_labels(HOST, "node-0", "node-1")), volume_claim())
    world.start()
    taken: Obj = {"kind": "PersistentVolumeClaim", "namespace": "ns", "name": "other", "uid": "uid-other"}
    world.api.add(PODS, make.pod(volumes=uses("data")))
    async with world.running():
        for event in world.api.events:
            assert event[1] == PODS
        world.bring_events()
        world.api.change(PERSISTENT_VOLUMES, "pv", lambda pv: pv["spec"].update(claimRef=taken))
        world.api.events.clear()  # the watch is late
        await world.busy()
        assert reference(world) == taken
        assert world.node_of() is None


async def test_a_volume_that_was_made_anew_under_the_name_is_judged_anew(world: World, make: type[Make]) -> None:
    furnish(world, make)
    store(world.api, volume(affinity=on_nodes("node-0")), volume_claim())
    world.start()
    world.api.add(PODS, make.pod(volumes=uses("data")))
    async with world.running():
        world.bring_events()
        world.api.drop(PERSISTENT_VOLUMES, "pv")
        store(world.api, volume(affinity=on_nodes("node-1"), metadata={"uid": "uid-anew"}))
        late, world.api.events[:] = world.api.events[:], []
        await world.busy()
        assert reference(world) is None, "it is not on the node that was chosen"
        world.api.events[:] = late
        world.others.append(bind_volumes)
        await world.quiet()
    assert world.node_of() == "node-1"


async def test_the_volumes_of_a_pod_at_the_gate_are_left_to_its_scheduler(world: World, make: type[Make]) -> None:
    """Its devices are where its volumes can be."""
    furnish(world, make)
    store(world.api, volume(affinity=on_nodes("node-1")), volume_claim())
    gated: dict[str, Any] = {
        "schedulerName": "default-scheduler",
        "schedulingGates": [{"name": "dra.kopf.dev/allocate"}],
    }
    world.api.add(PODS, make.pod(claims=[make.use("gpu")], volumes=uses("data"), **gated))
    await world.settle()
    assert allocation(world)["devices"]["results"][0]["pool"] == "node-1"
    assert not world.api[PODS, "ns/pod"]["spec"].get("schedulingGates")
    assert (reference(world), selected(world)) == (None, None)
