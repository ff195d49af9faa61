"""Devices that a taint gives to our scheduler: taken without a toleration, and without waiting for anybody."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any, Final

import pytest
from controllers_world import World
from dra_kube import DEVICE_TAINT_RULES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_operator.allocator import Features, LeftAlone
from dra_operator.cache import shared_drivers
from objects import Make, Obj

OURS: Final = {"key": "dra.kopf.dev/scheduler", "value": "dra-scheduler", "effect": "NoSchedule"}
FOR_ANOTHER: Final = {**OURS, "value": "default-scheduler"}
EVERYTHING: Final = ({"operator": "Exists"},)


async def parked(world: World, claim: str) -> None:
    """The claim lost a contest, and keeps its device without a pod."""
    async with asyncio.timeout(20):
        while [it["resource"] for it in world.api[RESOURCE_CLAIMS, f"ns/{claim}"]["status"]["reservedFor"]] != [
            "contests"
        ]:
            world.bring_events()
            await world.tick()


def rule(taint: Mapping[str, str] = OURS, name: str = "territory", **selector: str) -> Obj:
    spec = {"deviceSelector": selector or {"driver": "gpu.example.com"}, "taint": dict(taint)}
    return {"metadata": {"name": name}, "spec": spec}


def tolerating(claim: Obj, *tolerations: Mapping[str, str]) -> Obj:
    claim["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = [*map(dict, tolerations)]
    return claim


def add_ours(world: World, make: type[Make], name: str = "ours", **spec: Any) -> None:
    world.api.add(RESOURCE_CLAIMS, make.claim(name))
    world.api.add(PODS, make.pod(name, claims=[make.use(name)], **spec))


def add_theirs(world: World, make: type[Make], *tolerations: Mapping[str, str]) -> None:
    """A pod of kube-scheduler with a claim, about which it may be deciding."""
    world.api.add(RESOURCE_CLAIMS, tolerating(make.claim("theirs"), *tolerations))
    world.api.add(PODS, make.pod("theirs", claims=[make.use("theirs")], schedulerName="default-scheduler"))


def allocate_theirs(world: World, device: str) -> None:
    taken = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": device}

    def edit(claim: dict[str, Any]) -> None:
        claim["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
        claim["status"] = {"allocation": {"devices": {"results": [taken]}}}

    world.api.change(RESOURCE_CLAIMS, "ns/theirs", edit)


async def is_bound_without_an_event(world: World, pod: str = "ours") -> bool:
    """Whether the pod is bound before the watch brings anything: so it neither deferred nor was checked again."""
    for _ in range(20):
        await world.idle()
        await world.tick()
    return world.node_of(pod) == "node-0"


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The territory has been there for long."""
    monkeypatch.setattr(shared_drivers, "SETTLED_SECONDS", 0.0)


@pytest.mark.usefixtures("settled")
class TestOwnDevices:
    @pytest.mark.parametrize("by", ["a rule", "the driver"])
    async def test_are_taken_without_a_toleration_and_without_a_wait(
        self, by: str, world: World, make: type[Make]
    ) -> None:
        world.furnish(devices=2)
        if by == "a rule":
            world.api.add(DEVICE_TAINT_RULES, rule())
        else:
            taint_devices(world, OURS)
        add_theirs(world, make)
        add_ours(world, make)
        world.start()
        async with world.running():
            assert await is_bound_without_an_event(world)
        assert not [call for call in world.api.calls if call.name == "(list)"]

    async def test_beside_open_ones_of_the_same_driver_defer_but_need_no_last_look(
        self, world: World, make: type[Make]
    ) -> None:
        """The decision may take an open device; the one that it took belongs to nobody else."""
        world.furnish(devices=2)
        world.api.add(DEVICE_TAINT_RULES, rule(driver="gpu.example.com", pool="node-0", device="dev-0"))
        add_theirs(world, make)
        add_ours(world, make)
        await world.settle()
        assert world.node_of("ours") == "node-0"
        assert not [call for call in world.api.calls if call.name == "(list)"]

    async def test_of_two_schedulers_make_all_devices_of_a_driver_safe(self, world: World, make: type[Make]) -> None:
        """Each has a part, as two operators with a scheduler name each: none of the devices is open."""
        world.furnish(devices=2)
        world.api.add(DEVICE_TAINT_RULES, rule(name="a", driver="gpu.example.com", device="dev-1"))
        world.api.add(DEVICE_TAINT_RULES, rule(FOR_ANOTHER, name="b", driver="gpu.example.com", device="dev-0"))
        add_theirs(world, make)
        add_ours(world, make)
        world.start()
        async with world.running():
            assert await is_bound_without_an_event(world)
        assert world.holders() == {"node-0/dev-1": 1}

    async def test_are_given_to_pods_of_another_scheduler_at_our_gate(self, world: World, make: type[Make]) -> None:
        world.furnish()
        world.api.add(DEVICE_TAINT_RULES, rule())
        gates = [{"name": "dra.kopf.dev/allocate"}]
        add_ours(world, make, schedulerName="default-scheduler", schedulingGates=gates)
        await world.settle()
        assert not world.api[PODS, "ns/ours"]["spec"].get("schedulingGates")
        assert world.holders() == {"node-0/dev-0": 1}


def give_node(world: World, taint: Mapping[str, str] = OURS) -> None:
    """``kubectl taint nodes node-0 dra.kopf.dev/scheduler=...:NoSchedule``."""
    world.api.change(NODES, "node-0", lambda node: node.setdefault("spec", {}).update(taints=[dict(taint)]))


@pytest.mark.usefixtures("settled")
class TestOwnNodes:
    """Where an API server has no taints of devices: those of nodes every scheduler knows."""

    async def test_are_used_without_a_toleration_and_their_devices_without_a_wait(
        self, world: World, make: type[Make]
    ) -> None:
        world.furnish(devices=2)
        give_node(world)
        add_theirs(world, make)
        add_ours(world, make)
        world.start()
        async with world.running():
            assert await is_bound_without_an_event(world)

    async def test_are_used_by_pods_at_our_gate_only_if_their_own_scheduler_gets_them_there(
        self, world: World, make: type[Make]
    ) -> None:
        world.furnish(devices=2)
        give_node(world)
        gates = [{"name": "dra.kopf.dev/allocate"}]
        alike: dict[str, Any] = {"schedulerName": "default-scheduler", "schedulingGates": gates}
        add_ours(world, make, "kept-away", **alike)
        add_ours(world, make, "tolerant", tolerations=[OURS | {"operator": "Equal"}], **alike)
        await world.settle()
        assert world.api[PODS, "ns/kept-away"]["spec"].get("schedulingGates")
        assert not world.api[PODS, "ns/tolerant"]["spec"].get("schedulingGates")

    @pytest.mark.parametrize("first", ["the pod", "its claim"])
    async def test_may_be_entered_by_pods_of_theirs_that_tolerate_the_taint_which_brings_back_the_rules(
        self, first: str, world: World, make: type[Make]
    ) -> None:
        world.furnish(devices=2)
        give_node(world)
        claim = make.claim("theirs")
        pod = make.pod(
            "theirs", claims=[make.use("theirs")], schedulerName="default-scheduler", tolerations=[*EVERYTHING]
        )
        add_ours(world, make)
        add_ours(world, make, "other")
        for resource, obj in ((PODS, pod), (RESOURCE_CLAIMS, claim))[:: 1 if first == "the pod" else -1]:
            world.api.add(resource, obj)
        world.start()
        async with world.running():
            assert not await is_bound_without_an_event(world)
            await world.quiet()
            assert world.node_of("ours") == "node-0"

    async def test_of_another_scheduler_are_left_alone_by_pods_and_by_immediate_claims(
        self, world: World, make: type[Make]
    ) -> None:
        world.furnish(devices=2)
        give_node(world, FOR_ANOTHER)
        add_ours(world, make)
        world.api.add(RESOURCE_CLAIMS, make.claim("kept", annotations={"dra.kopf.dev/allocate": "immediate"}))
        await world.settle()
        assert not world.holders()

    async def test_of_ours_serve_immediate_claims(self, world: World, make: type[Make]) -> None:
        world.furnish()
        give_node(world)
        world.api.add(RESOURCE_CLAIMS, make.claim("kept", annotations={"dra.kopf.dev/allocate": "immediate"}))
        await world.settle()
        assert world.holders() == {"node-0/dev-0": 1}


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "visit",
    [
        pytest.param(EVERYTHING, id="tolerates-everything"),
        pytest.param(({"key": "dra.kopf.dev/scheduler", "operator": "Exists"},), id="the-key"),
        pytest.param((OURS | {"operator": "Equal"},), id="the-very-taint"),
    ],
)
async def test_a_claim_of_theirs_that_tolerates_the_taint_brings_back_the_rules_of_shared_drivers(
    visit: tuple[Mapping[str, str], ...], world: World, make: type[Make]
) -> None:
    world.furnish(devices=2)
    world.api.add(DEVICE_TAINT_RULES, rule())
    add_theirs(world, make, *visit)
    add_ours(world, make)
    world.start()
    async with world.running():
        assert not await is_bound_without_an_event(world)
        allocate_theirs(world, "dev-0")
        await parked(world, "ours")
        assert world.node_of("ours") is None
    assert world.holders() == {"node-0/dev-0": 2}


async def test_a_new_territory_is_not_relied_on_before_others_can_have_seen_it(world: World, make: type[Make]) -> None:
    """What another scheduler decided before may be written within the next seconds."""
    world.furnish(devices=2)
    world.api.add(DEVICE_TAINT_RULES, rule())
    add_theirs(world, make)
    add_ours(world, make)
    world.start()
    async with world.running():
        assert not await is_bound_without_an_event(world)
        await world.quiet()
        assert world.node_of("ours") == "node-0"


@pytest.mark.parametrize("mark", ["rule", "node"])
async def test_the_time_of_a_territory_begins_when_it_is_seen_and_not_at_the_first_pod(
    mark: str, world: World, make: type[Make]
) -> None:
    world.furnish(devices=2)
    world.start()
    own, driver, now = world.cluster.own_devices, "gpu.example.com", 1000.0
    own._clock = lambda: now
    assert own.contested({driver}) == {driver}
    if mark == "rule":
        world.api.add(DEVICE_TAINT_RULES, rule())
    else:
        give_node(world)
    world.bring_events()
    now += shared_drivers.SETTLED_SECONDS - 1
    assert own.contested({driver}) == {driver}
    now += 2
    assert own.contested({driver}) == frozenset()


@pytest.mark.usefixtures("settled")
async def test_a_rule_that_goes_leaves_its_devices_to_all(world: World, make: type[Make]) -> None:
    world.furnish(devices=2)
    world.api.add(DEVICE_TAINT_RULES, rule())
    add_theirs(world, make)
    world.start()
    async with world.running():
        world.api.drop(DEVICE_TAINT_RULES, "territory")
        world.bring_events()
        add_ours(world, make)
        world.bring_events()
        assert not await is_bound_without_an_event(world)
        await world.quiet()
        assert world.node_of("ours") == "node-0"


@pytest.mark.usefixtures("settled")
async def test_a_scheduler_that_ignores_the_taint_is_named_and_the_rules_of_shared_drivers_hold_again(
    world: World, make: type[Make], caplog: pytest.LogCaptureFixture
) -> None:
    world.furnish(devices=3)
    world.api.add(DEVICE_TAINT_RULES, rule())
    add_theirs(world, make)
    world.start()
    async with world.running():
        allocate_theirs(world, "dev-0")
        await world.quiet()
        add_ours(world, make)
        world.bring_events()
        assert not await is_bound_without_an_event(world)
        await world.quiet()
        assert world.node_of("ours") == "node-0"
    assert "gpu.example.com/node-0/dev-0 to claim ns/theirs" in caplog.text
    assert "DRADeviceTaintRules" in caplog.text


@pytest.mark.usefixtures("settled")
async def test_our_own_allocation_at_the_gate_is_no_sign_of_that(
    world: World, make: type[Make], caplog: pytest.LogCaptureFixture
) -> None:
    world.furnish()
    world.api.add(DEVICE_TAINT_RULES, rule())
    gates = [{"name": "dra.kopf.dev/allocate"}]
    add_ours(world, make, schedulerName="default-scheduler", schedulingGates=gates)
    await world.settle()
    assert world.holders() == {"node-0/dev-0": 1}
    assert "another scheduler allocated" not in caplog.text


async def test_devices_of_another_scheduler_are_left_alone(world: World, make: type[Make]) -> None:
    world.furnish()
    world.api.add(DEVICE_TAINT_RULES, rule(FOR_ANOTHER))
    add_ours(world, make)
    await world.settle()
    assert world.node_of("ours") is None
    (said,) = world.messages("FailedScheduling")
    assert "belong to the scheduler default-scheduler" in said
    assert "toleration" not in said


@pytest.mark.parametrize("effect", ["NoExecute"])
async def test_no_other_effect_makes_a_territory(effect: str, world: World, make: type[Make]) -> None:
    world.furnish()
    world.api.add(DEVICE_TAINT_RULES, rule({**OURS, "effect": effect}))
    add_ours(world, make)
    await world.settle()
    assert world.node_of("ours") is None


def taint_devices(world: World, taint: Mapping[str, str]) -> None:
    """What a driver publishes by itself."""

    def edit(slice_: dict[str, Any]) -> None:
        for device in slice_["spec"]["devices"]:
            device["taints"] = [dict(taint)]

    for slice_ in list(world.api.of(RESOURCE_SLICES)):
        world.api.change(RESOURCE_SLICES, slice_["metadata"]["name"], edit)


class TestLeftAlone:
    """By settings: where the API server or another scheduler knows no taints of devices."""

    @pytest.mark.parametrize("gates", [Features(), Features(device_taints=False, taint_rules=False)])
    @pytest.mark.parametrize(
        "leaves",
        [
            pytest.param(LeftAlone.of("other.example.com, gpu.example.com", "", unmarked=False), id="drivers"),
            pytest.param(LeftAlone.of("", "pool in (theirs),!ours", unmarked=False), id="nodes"),
            pytest.param(LeftAlone.of("", "", unmarked=True), id="what-is-not-marked"),
        ],
    )
    async def test_no_toleration_opens_what_settings_leave_to_others(
        self, leaves: LeftAlone, gates: Features, make: type[Make]
    ) -> None:
        world = World(gates)
        world.leaves = leaves
        world.furnish()
        world.api.change(NODES, "node-0", lambda node: node["metadata"].update(labels={"pool": "theirs"}))
        world.api.add(RESOURCE_CLAIMS, tolerating(make.claim("ours"), *EVERYTHING))
        world.api.add(PODS, make.pod("ours", claims=[make.use("ours")], tolerations=[*EVERYTHING]))
        add_ours(world, make, "other")
        await world.settle()
        assert not world.holders()
        assert all("left to other schedulers" in said for said in world.messages("FailedScheduling"))

    @pytest.mark.usefixtures("settled")
    async def test_a_node_that_is_given_to_us_meanwhile_wakes_the_pods_that_wait(
        self, world: World, make: type[Make]
    ) -> None:
        world.leaves = LeftAlone(unmarked=True)
        world.furnish()
        add_ours(world, make)
        world.start()
        async with world.running():
            await world.quiet()
            assert world.node_of("ours") is None
            give_node(world)
            await world.quiet()
            assert world.node_of("ours") == "node-0"

    async def test_a_pod_without_claims_runs_on_a_node_whose_devices_are_left(
        self, world: World, make: type[Make]
    ) -> None:
        world.leaves = LeftAlone.of("", "pool", unmarked=False)
        world.furnish()
        world.api.change(NODES, "node-0", lambda node: node["metadata"].update(labels={"pool": "theirs"}))
        world.api.add(PODS, make.pod("plain"))
        await world.settle()
        assert world.node_of("plain") == "node-0"

    async def test_nothing_is_contested_where_we_take_only_our_own(self, world: World, make: type[Make]) -> None:
        """Theirs is beside it: we need not defer for devices that we leave alone."""
        world.leaves = LeftAlone(unmarked=True)
        world.furnish(devices=2)
        world.api.add(DEVICE_TAINT_RULES, rule(driver="gpu.example.com", device="dev-0"))
        world.start()
        assert world.cluster.own_devices.contested(frozenset({"gpu.example.com"}))  # it is new
        world.cluster.own_devices._clock = lambda: math.inf
        assert not world.cluster.own_devices.contested(frozenset({"gpu.example.com"}))

    def test_a_selector_that_cannot_be_read_is_refused_at_the_start(self) -> None:
        with pytest.raises(ValueError, match="--leave-nodes: cannot read 'pool in'"):
            LeftAlone.of("", "pool in", unmarked=False)
