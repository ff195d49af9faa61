"""Gangs whose claims of volumes are bound when their pods have nodes: all get volumes, or none is bound."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from controllers_world import World
from dra_kube import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    Unreachable,
)
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Features
from dra_operator.controllers import PreemptionSettings
from dra_operator.controllers.scheduling import gang, planning
from fake_api import Call
from objects import Make, Obj
from volume_lab import HOST, SELECTED, bind_volumes, due, on_nodes, storage_class, store, uses, volume, volume_claim

START, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:11:00Z"
FAST = "fast"


@pytest.fixture
def world() -> World:
    world = World(Features())
    world.now = START
    world.furnish(2, 1)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    store(world.api, storage_class(), storage_class(FAST, "csi.example.com"))
    return world


def local(world: World, *nodes: int) -> None:
    """A volume on each of these nodes, and as many claims as there are pods."""
    store(world.api, *(volume(f"pv-{number}", affinity=on_nodes(f"node-{number}")) for number in nodes))
    store(world.api, volume_claim("data-0"), volume_claim("data-1"))


def add(world: World, claims: Sequence[str] = ("data-0", "data-1"), *, with_devices: bool = True) -> None:
    """A gang of two pods, each with a device and a claim of a volume."""
    for number, claim in enumerate(claims):
        pod = Make.pod(f"g-{number}", [Make.FROM_TEMPLATE] if with_devices else [], volumes=uses(claim))
        pod["metadata"]["annotations"] = {"dra.kopf.dev/gang": "g", "dra.kopf.dev/gang-size": str(len(claims))}
        world.api.add(PODS, pod)


def nodes(world: World) -> list[str | None]:
    return [world.node_of("g-0"), world.node_of("g-1")]


def said(world: World) -> list[str]:
    return [str(world.api[PODS, f"ns/g-{number}"]["status"]["conditions"][0]["message"]) for number in range(2)]


def held(world: World) -> int:
    return sum("allocation" in claim.get("status", {}) for claim in world.api.of(RESOURCE_CLAIMS))


def bind_one(world: World, claim: str) -> None:
    """As the PV controller does it; it leaves the other claims for later."""
    api = world.api
    volumes, claims, classes = map(api.of, (PERSISTENT_VOLUMES, PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES))
    for resource, obj, _ in due(volumes, claims, classes, HOST):
        if claim in (obj["metadata"]["name"], obj["spec"].get("claimRef", {}).get("name")):
            api.store("MODIFIED", resource, obj)


def begun(world: World) -> int:
    """Volumes that are reserved, and claims for which a node is selected."""
    reserved = sum("claimRef" in it["spec"] for it in world.api.of(PERSISTENT_VOLUMES))
    claims = world.api.of(PERSISTENT_VOLUME_CLAIMS)
    return reserved + sum(SELECTED in (it["metadata"].get("annotations") or {}) for it in claims)


@pytest.mark.parametrize("with_devices", [True, False])
async def test_the_pods_are_bound_once_the_volumes_of_all_are(world: World, with_devices: bool) -> None:
    """Volumes come after the devices of all, since what is begun with them is never taken back."""
    local(world, 0, 1)
    add(world, with_devices=with_devices)
    having: list[int] = []

    def look(call: Call) -> None:
        if (call.verb, call.plural) == ("update", "persistentvolumes"):
            having.append(held(world))

    world.start()
    world.api.before = look
    async with world.running():
        await world.busy()
        assert (nodes(world), begun(world)) == ([None, None], 2)
        assert min(having) == (2 if with_devices else 0)
        bind_one(world, "data-0")
        await world.busy()
        assert nodes(world) == [None, None]
        bind_volumes(world.api)
        await world.quiet()
    where = {world.api[PERSISTENT_VOLUME_CLAIMS, f"ns/data-{it}"]["spec"]["volumeName"][-1:] for it in range(2)}
    assert set(nodes(world)) == {"node-0", "node-1"}
    assert {f"node-{it}" for it in where} == set(nodes(world))
    assert world.messages("FailedScheduling") == []


@pytest.mark.parametrize("class_name", ["late", FAST])
async def test_pods_of_a_gang_that_share_a_claim_go_where_its_volume_is(world: World, class_name: str) -> None:
    store(world.api, *(volume(f"pv-{number}", affinity=on_nodes(f"node-{number}")) for number in range(2)))
    store(world.api, volume_claim("data", class_name=class_name))
    add(world, ("data", "data"), with_devices=False)
    world.others.append(bind_volumes)
    await world.settle()
    assert len(set(nodes(world))) == 1
    assert nodes(world) != [None, None]


async def test_a_gang_for_which_there_are_too_few_volumes_begins_nothing(world: World) -> None:
    local(world, 0)
    add(world)
    await world.settle()
    assert (nodes(world), held(world), begun(world)) == ([None, None], 0, 0)
    [text] = [text for text in said(world) if "fit together" in text]
    assert text.startswith("gang g: only 1 of 2 pods fit together; ")
    assert "didn't find available persistent volumes to bind" in text


async def test_each_pod_gets_a_volume_of_its_own_whichever_is_planned_first(world: World) -> None:
    """The first pod has its devices already, so that it is planned before the others."""
    store(world.api, volume("small"), volume("big", size="2Gi"), volume_claim("data-0"), volume_claim("data-1"))
    add(world)
    world.others.append(bind_volumes)
    await world.settle()
    assert set(nodes(world)) == {"node-0", "node-1"}


async def test_devices_of_a_node_are_chosen_anew_for_a_pod_with_volumes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pod would take the only device that serves the second one. The first plan is carried out."""
    fits: list[bool] = []

    def has_room(*case: Any) -> bool:
        fits.append(planning.has_room(*case))
        return fits[-1]

    monkeypatch.setattr(gang, "has_room", has_room)
    world.api.drop(RESOURCE_SLICES, "node-1-gpu.example.com")
    slice_ = Make.slice("node-0", 2)
    slice_["spec"]["devices"][0]["attributes"] = {"special": {"string": "yes"}}
    world.api.change(RESOURCE_SLICES, "node-0-gpu.example.com", lambda it: it.update(spec=slice_["spec"]))
    world.language = CelSelectors(Features())
    is_special = "'special' in device.attributes['gpu.example.com']"
    special = {**Make.claim("second"), "spec": Make.claim_spec(1, "gpu", is_special)}
    for claim in (Make.claim("first"), special):
        world.api.add(RESOURCE_CLAIMS, claim)
    local(world)
    store(world.api, *(volume(f"pv-{number}") for number in range(2)))
    add(world)
    for number, name in enumerate(("first", "second")):
        entry = {"name": "entry-0", **Make.use(name)}
        world.api.change(PODS, f"ns/g-{number}", partial(_put, entry))
    world.others.append(bind_volumes)
    await world.settle()
    assert nodes(world) == ["node-0", "node-0"]
    assert all(fits)
    assert len({it["spec"]["volumeName"] for it in world.api.of(PERSISTENT_VOLUME_CLAIMS)}) == 2


def _put(entry: Obj, pod: Obj) -> None:
    pod["spec"]["resourceClaims"] = [entry]


async def test_all_give_their_devices_back_when_the_time_is_over(world: World) -> None:
    """And start once the volumes are there."""
    local(world)
    store(world.api, *(volume(f"pv-{number}", affinity=on_nodes(f"node-{number}")) for number in range(2)))
    add(world)
    world.start()
    async with world.running():
        await world.busy()
        assert held(world) == 2
        world.now = LATER
        world.control.look_again()
        await world.busy()
        assert any("timed out waiting for PersistentVolumeClaim" in text for text in world.messages("FailedScheduling"))
        assert nodes(world) == [None, None]
        bind_volumes(world.api)
        await world.quiet()
    assert set(nodes(world)) == {"node-0", "node-1"}


async def test_a_pod_that_has_a_node_by_now_does_not_come_back_by_itself(world: World) -> None:
    """It was to be looked at when its volumes are late, and then got its node by the attempt of another of its gang."""
    local(world, 0, 1)
    add(world)
    world.start()
    async with world.running():
        await world.busy()
        assert not world.control.queues.is_quiet
        for number in range(2):
            world.api.change(PODS, f"ns/g-{number}", lambda pod: pod["spec"].update(nodeName="node-0"))
        await world.busy()
        assert world.control.queues.is_quiet


async def test_no_pod_is_bound_if_a_volume_cannot_be_reserved(world: World) -> None:
    local(world, 0, 1)
    add(world)
    failing = [True]

    def cut(call: Call) -> Exception | None:
        is_first = failing[0] and (call.verb, call.plural, call.name) == ("update", "persistentvolumes", "pv-1")
        failing[0] = failing[0] and not is_first
        return Unreachable("cut") if is_first else None

    bindings: list[bool] = []
    world.api.before = cut
    world.api.after = lambda call: bindings.append(begun(world) == 2) if call.sub == "binding" else None
    world.others.append(bind_volumes)
    await world.settle()
    assert not failing[0]
    assert set(nodes(world)) == {"node-0", "node-1"}
    assert all(bindings)


async def test_pods_end_for_a_gang_with_volumes_which_then_gets_them(world: World) -> None:
    world.preemption = PreemptionSettings()
    for number in range(2):
        world.api.add(PODS, Make.pod(f"low-{number}", [Make.FROM_TEMPLATE], priority=-1))
    await world.settle()
    local(world, 0, 1)
    add(world)
    world.others.append(bind_volumes)
    await world.settle()
    assert {pod["metadata"]["name"] for pod in world.api.of(PODS)} == {"g-0", "g-1"}
    assert set(nodes(world)) == {"node-0", "node-1"}


async def test_another_operator_completes_what_one_has_begun(world: World) -> None:
    local(world, 0, 1)
    add(world)
    world.start()
    async with world.running():
        await world.busy()
    assert begun(world) == 2
    world.start()
    async with world.running():
        await world.busy()
        assert nodes(world) == [None, None]
        bind_volumes(world.api)
        await world.quiet()
    assert set(nodes(world)) == {"node-0", "node-1"}
