"""A plan that is made in pieces is not carried out if others changed in a pause what it counts on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import replace
from itertools import product
from typing import Any, cast

import pytest
from controllers_world import HOST, World
from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.resource import AllocationResult
from dra_kube import NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_operator.controllers import TimeSlices
from dra_operator.controllers.errors import PlacementFailed
from dra_operator.controllers.scheduling import cycle
from dra_operator.controllers.scheduling import gang as gang_chapter
from dra_operator.scheduling import Elapsed, Pause, plan
from dra_operator.scheduling.gang import joint_plan
from dra_operator.scheduling.state import Nomination
from fake_api import Call
from objects import Make, Obj, devices_of, on_node
from volume_lab import bind_volumes, on_nodes, storage_class, store, uses, volume, volume_claim

Change = Callable[[World, str], object]
"""What others do in the pause: the world, and the node that the plan is for."""


def other(node: str) -> str:
    return "node-1" if node == "node-0" else "node-0"


def allocation(node: str, device: str = "dev-0") -> Obj:
    taken = {"request": "req", "driver": "gpu.example.com", "pool": node, "device": device}
    return {"devices": {"results": [taken]}, "nodeSelector": on_node(node)}


def furnish(world: World) -> None:
    """Two nodes with three devices each, of which two can be in use."""
    world.furnish(nodes=2, devices=3)
    draws = [{"counterSet": "set", "counters": {"power": {"value": "1"}}}]
    for number in range(2):
        slice_ = world.api.change(RESOURCE_SLICES, f"node-{number}-gpu.example.com", partly(draws))
        counters = [{"name": "set", "counters": {"power": {"value": "2"}}}]
        spec = {key: it for key, it in slice_["spec"].items() if key != "devices"} | {"sharedCounters": counters}
        world.api.add(RESOURCE_SLICES, {"metadata": {"name": f"node-{number}-counters"}, "spec": spec})


def partly(draws: list[Obj]) -> Callable[[Obj], None]:
    def edit(slice_: Obj) -> None:
        slice_["spec"]["pool"]["resourceSliceCount"] = 2
        for device in slice_["spec"]["devices"]:
            device["consumesCounters"] = draws

    return edit


async def is_not_carried_out(world: World, pod: str) -> None:
    """The attempt is given up, and what it took by then is free."""
    with pytest.raises(PlacementFailed):
        await world.attempt(pod)
    assert not list(world.cluster.allocated_devices.flying())
    assert not any(world.cluster.loads.node_of(it["metadata"]["uid"]) for it in world.api.of(PODS))


def is_filled(world: World, node: str) -> None:
    world.api.change(NODES, node, lambda it: it["status"]["allocatable"].update(pods="0"))


def is_gone(world: World, node: str) -> None:
    world.api.drop(NODES, node)


def loses_a_counter(world: World, node: str) -> None:
    """No device of the plan is taken, but what one of them draws on."""
    claim = Make.claim("foreign", finalizers=["resource.kubernetes.io/delete-protection"])
    world.api.add(RESOURCE_CLAIMS, claim | {"status": {"allocation": allocation(node, "dev-2")}})


def is_not_where_a_claim_is(world: World, node: str) -> None:
    """The second claim: when it turns out, the devices for the first one are taken already."""
    world.api.change(RESOURCE_CLAIMS, "ns/b", lambda it: it.update(status={"allocation": allocation(other(node))}))


def is_promised(world: World, node: str, *allocations: AllocationResult) -> None:
    urgent = convert(Pod, Make.pod("urgent") | {"metadata": {"namespace": "ns", "name": "urgent", "uid": "uid-urgent"}})
    world.cluster.nominate(Nomination(urgent, node, allocations, {"pods": 10 * 10**9}))


def has_a_promised_pool(world: World, node: str) -> None:
    """The other pod goes elsewhere; with fabric devices both would be reached from there."""
    is_promised(world, "node-9", convert(AllocationResult, allocation(node)))


WRITTEN_ONCE = Counter(product("ab", (None, "status")))
"""The claims a and b: what keeps each from deletion, and its devices."""

CHANGES: dict[str, Change] = {
    "is filled": is_filled,
    "is gone": is_gone,
    "loses a counter to another scheduler": loses_a_counter,
    "is not where another scheduler put a claim": is_not_where_a_claim_is,
    "is promised to another pod": is_promised,
    "has devices that are promised": has_a_promised_pool,
}


def interrupted(world: World, change: Change, monkeypatch: pytest.MonkeyPatch, *, gang: bool = False) -> list[str]:
    """Have the first plan pause when it is made, and others do something then. Return the nodes that were planned."""
    planned, original = list[str](), cast(Any, joint_plan if gang else plan)

    def with_a_pause(*args: Any, **more: Any) -> Generator[Pause, Elapsed, Any]:
        decision = yield from original(*args, **more)
        node = getattr(decision[0] if gang else decision, "node", "")
        planned.append(node)
        if len(planned) == 1:
            yield Pause.SEARCHING
            change(world, node)
            world.bring_events()
            yield Pause.SEARCHING
        return decision

    monkeypatch.setattr(gang_chapter if gang else cycle, "joint_plan" if gang else "plan", with_a_pause)
    return planned


@pytest.mark.parametrize("how", CHANGES)
async def test_a_pod_goes_elsewhere_when_its_node(how: str, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    furnish(world)
    for name in "ab":
        world.api.add(RESOURCE_CLAIMS, Make.claim(name))
    world.api.add(PODS, Make.pod(claims=[Make.use("a"), Make.use("b")]))
    planned = interrupted(world, CHANGES[how], monkeypatch)
    world.start()
    world.cluster.nominated_pods.is_on = True
    await is_not_carried_out(world, "ns/pod")
    async with world.running():
        await world.quiet()
    (node,) = {it for it in planned if it != planned[0]}
    assert world.node_of() == node
    devices = [it for name in "ab" for it in devices_of(world.api[RESOURCE_CLAIMS, f"ns/{name}"])]
    assert [it.partition("/")[0] for it in devices] == [node, node]
    # Nothing of the first plan was on its way: each claim is written once.
    writes = Counter((call.name, call.sub) for call in world.api.writes if call.plural == "resourceclaims")
    assert writes == WRITTEN_ONCE


def add_member(world: World, name: str, **spec: Any) -> None:
    """A pod of a gang, with the claim of its name."""
    pod = Make.pod(name, claims=[Make.use(name)], **spec)
    pod["metadata"]["annotations"] = {"dra.kopf.dev/gang": "g", "dra.kopf.dev/gang-size": "2"}
    world.api.add(PODS, pod)


def loses_its_volume(world: World, node: str) -> None:
    taken: Obj = {"kind": "PersistentVolumeClaim", "namespace": "ns", "name": "other", "uid": "uid-other"}
    world.api.change(PERSISTENT_VOLUMES, f"pv-{node}", lambda pv: pv["spec"].update(claimRef=taken))


def loses_the_volume_claim(world: World, node: str) -> None:
    world.api.drop(PERSISTENT_VOLUME_CLAIMS, "ns/data")


@pytest.mark.parametrize(("change", "places"), [(loses_its_volume, ["spare"]), (loses_the_volume_claim, [])])
async def test_a_pod_goes_only_where_its_volume_is(
    change: Change, places: list[str], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.furnish(nodes=2)
    volumes = [
        volume("pv-node-0", affinity=on_nodes("node-0")),
        volume("spare", size="2Gi", affinity=on_nodes("node-0")),
    ]
    store(world.api, storage_class(), volume_claim(), *volumes)
    world.api.add(PODS, Make.pod(volumes=uses("data")))
    planned = interrupted(world, change, monkeypatch)
    world.start()
    await is_not_carried_out(world, "ns/pod")
    world.others.append(bind_volumes)
    async with world.running():
        await world.busy()
    assert planned[0] == "node-0"
    assert bool(world.node_of()) == bool(places)
    begun = [call.name for call in world.api.writes if call.plural == "persistentvolumes"]
    assert begun == places


@pytest.mark.parametrize(
    "change", [is_filled, loses_a_counter, is_not_where_a_claim_is, is_promised], ids=lambda it: it.__name__
)
async def test_no_pod_of_a_gang_gets_what_changed(
    change: Change, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(world)
    for name in "ab":
        world.api.add(RESOURCE_CLAIMS, Make.claim(name))
        add_member(world, name)
    planned = interrupted(world, change, monkeypatch, gang=True)
    world.start()
    world.cluster.nominated_pods.is_on = True
    await is_not_carried_out(world, "ns/a")
    async with world.running():
        await world.quiet()
    assert len(planned) == 2
    assert world.bound() == ["a", "b"]
    assert max(world.holders().values()) == 1
    writes = Counter((call.name, call.sub) for call in world.api.writes if call.plural == "resourceclaims")
    assert writes == WRITTEN_ONCE


def in_turns(world: World) -> None:
    """Each pause ends a turn: the plan is put aside, and its pod looked at anew before it goes on."""
    world.times = replace(world.times, time_slices=TimeSlices(turn=1e-6, rest=0.0))


def is_another_pod(world: World, _: str) -> None:
    world.api.drop(PODS, "ns/pod")
    world.api.add(PODS, Make.pod(claims=[Make.use("a"), Make.use("b")], nodeSelector={HOST: "node-1"}))


@pytest.mark.parametrize("change", [is_another_pod, is_not_where_a_claim_is], ids=lambda it: it.__name__)
async def test_a_plan_that_was_put_aside_is_made_anew_for_another_pod_or_claim(
    change: Change, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(world)
    in_turns(world)
    for name in "ab":
        world.api.add(RESOURCE_CLAIMS, Make.claim(name))
    world.api.add(PODS, Make.pod(claims=[Make.use("a"), Make.use("b")]))
    planned = interrupted(world, change, monkeypatch)
    world.start()
    await world.attempt("ns/pod")  # nothing fails: no attempt is wasted on what is known to be out of date
    assert planned == ["node-0", "node-1"]
    assert world.node_of() == "node-1"


def has_another_size(world: World, _: str) -> None:
    sized = {"dra.kopf.dev/gang-size": "3"}
    for name in "abc":
        world.api.change(PODS, f"ns/{name}", lambda it: it["metadata"]["annotations"].update(sized))


def has_another_pod(world: World, _: str) -> None:
    world.api.drop(PODS, "ns/b")
    add_member(world, "b", nodeSelector={HOST: "node-1"})


def furnish_for_a_gang(world: World) -> None:
    world.furnish(nodes=2, devices=3)
    in_turns(world)
    for name in "abc":
        world.api.add(RESOURCE_CLAIMS, Make.claim(name))
        add_member(world, name)


@pytest.mark.parametrize(
    ("change", "number"),
    [(has_another_size, 3), (has_another_pod, 2), (is_not_where_a_claim_is, 2)],
)
async def test_a_gang_whose_plan_was_put_aside_is_planned_anew(
    change: Change, number: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish_for_a_gang(world)
    planned = interrupted(world, change, monkeypatch, gang=True)
    world.start()
    await world.attempt("ns/a")
    assert len(planned) == 2
    assert len(world.bound()) == number


async def test_a_gang_whose_leader_goes_while_its_plan_is_written_is_led_until_that_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish_for_a_gang(world)
    interrupted(world, lambda *_: None, monkeypatch, gang=True)
    led = list[bool]()

    def goes(call: Call) -> None:
        if call.sub == "status" and (PODS, "ns", "a") in world.api.objects:
            world.api.drop(PODS, "ns/a")
            world.bring_events()
            world.control.placer._gangs.leave("ns/a")
            led.extend(it.is_led for it in world.control.placer._gangs._gangs.values())

    world.api.before = goes
    world.start()
    async with world.running():
        await world.quiet()
    assert led == [True]
    assert world.bound() == ["b", "c"]


async def test_another_pod_leads_when_the_leader_goes_whose_plan_was_put_aside(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish_for_a_gang(world)
    planned = interrupted(world, lambda world, _: world.api.drop(PODS, "ns/a"), monkeypatch, gang=True)
    world.start()
    async with world.running():
        await world.quiet()
    assert len(planned) == 2
    assert world.bound() == ["b", "c"]
    written = Counter((call.name, call.sub) for call in world.api.writes if call.plural == "resourceclaims")
    assert written == Counter(product("bc", (None, "status")))
