"""No wake-up is lost: once nothing is left to do, no pod that waits would find a place (SC-02)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest
from controllers_world import World
from dra_api.resource import Device
from dra_kube import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_operator.allocator import Allocator, Features
from dra_operator.cache import Key
from dra_operator.controllers import OwnControllers, PreemptionSettings
from dra_operator.scheduling import CycleState, NoPlace, decided, plan, pre_filter
from fake_api import ERRORS
from hypothesis import example, given, settings
from hypothesis import strategies as st
from objects import Make, Obj
from rounds import fewer

GPU = "example.com/gpu"
HAPPENING = ["pod", "pod", "sharer", "end", "node", "fewer devices", "more devices", "cordon", "uncordon"]
HAPPENING += ["serving class", "no serving class", "device plugin", "no device plugin"]
HAPPENING += ["rare pod", "rare devices", "no rare devices"]
RARE = "rare.example.com"
STEPS = st.lists(
    st.tuples(
        st.sampled_from(HAPPENING),
        st.integers(0, 5),
        st.sampled_from([True, True, False]),
    ),
    min_size=8,
    max_size=16,
)


def step(world: World, make: type[Make], what: str, number: int) -> None:
    """One thing that happens in the cluster; things that cannot happen now do not."""
    api, node, pod, claim = world.api, f"node-{number // 2 % 2}", f"pod-{number}", f"claim-{number}"
    if what == "sharer":
        what, number, pod, claim = "pod", 2, f"sharer-{number}", "shared"
    if what == "rare pod" and (PODS, "ns", f"rare-{number}") not in api.objects:
        spec = make.claim_spec(1 + number % 2, "gpu", "rare")
        if number > 3:  # a device of any kind first
            spec["devices"]["requests"].insert(0, make.claim_spec()["devices"]["requests"][0] | {"name": "any"})
        api.add(RESOURCE_CLAIMS, make.claim(f"rare-{number}") | {"spec": spec})
        api.add(PODS, make.pod(f"rare-{number}", [make.use(f"rare-{number}")]))
    elif what.endswith("rare devices") and (NODES, "", node) in api.objects:
        body = make.slice(node, 0 if what.startswith("no") else 2, RARE, rare="yes")
        if (RESOURCE_SLICES, "", body["metadata"]["name"]) in api.objects:
            api.change(RESOURCE_SLICES, body["metadata"]["name"], lambda obj: obj.update(spec=body["spec"]))
        else:
            api.add(RESOURCE_SLICES, body)
    elif what == "pod" and number > 3 and (PODS, "ns", pod) not in api.objects:
        api.add(PODS, make.pod(pod, containers=[make.asking("main", **{GPU: "1"})]))
    elif what == "pod" and (PODS, "ns", pod) not in api.objects:
        wanted = {"requests": {"cpu": "1" if claim == "shared" else "3"}}
        uses = [make.use(claim)] if number else []
        if (RESOURCE_CLAIMS, "ns", claim) not in api.objects:
            api.add(RESOURCE_CLAIMS, make.claim(claim, count=1 + number % 2))
        api.add(PODS, make.pod(pod, uses, containers=[{"name": "main", "resources": wanted}]))
    elif what == "end" and (PODS, "ns", pod) in api.objects:
        api.change(PODS, f"ns/{pod}", lambda obj: obj["status"].update(phase="Succeeded"))
    elif what == "node" and (NODES, "", node) not in api.objects:
        api.add(NODES, make.node(node))
        api.add(RESOURCE_SLICES, make.slice(node, 1))
    elif what.endswith("devices") and (NODES, "", node) in api.objects:
        devices = [{"name": f"dev-{each}"} for each in range(2 if what.startswith("more") else 0)]
        name = make.slice(node, 1)["metadata"]["name"]
        api.change(RESOURCE_SLICES, name, lambda obj: obj["spec"].update(devices=devices))
    elif what in ("cordon", "uncordon") and (NODES, "", node) in api.objects:
        api.change(NODES, node, lambda obj: obj.update(spec={"unschedulable": what == "cordon"}))
    elif what.endswith("device plugin") and (NODES, "", node) in api.objects:
        amount = "0" if what.startswith("no") else "1"
        api.change(NODES, node, lambda obj: obj["status"]["allocatable"].update({GPU: amount}))
    elif what == "serving class" and (DEVICE_CLASSES, "", "serving") not in api.objects:
        body = make.device_class("serving")
        api.add(DEVICE_CLASSES, body | {"spec": {"extendedResourceName": GPU}})
    elif what == "no serving class" and (DEVICE_CLASSES, "", "serving") in api.objects:
        api.drop(DEVICE_CLASSES, "serving")


def would_fit(world: World, key: str) -> bool:
    """Whether an attempt that is made now finds a place."""
    cluster = world.cluster
    pod = cluster.pods.get(key)
    assert pod is not None
    allocator = Allocator(cluster.inventory, new_share_id=lambda: "share")
    found = pre_filter(pod, cluster.snapshot(allocator, datetime.now(UTC)))
    return isinstance(found, CycleState) and not isinstance(decided(plan(found)), NoPlace)


def delays(world: World, ticks: list[int]) -> Callable[[], Awaitable[None]]:
    """Requests and answers take so long in turn; meanwhile others act, and watches bring what happened."""
    rest = itertools.cycle(ticks)

    async def way() -> None:
        for _ in range(next(rest)):
            await world.tick()

    return way


@pytest.mark.rule("SC-02")
@given(STEPS, st.lists(st.integers(0, 3), min_size=1, max_size=5))
@example([("sharer", 1, False), ("sharer", 2, True)], [0, 2])
@example([("pod", 2, True), ("pod", 0, True), ("end", 2, True)], [0])
@example([("fewer devices", 0, True), ("pod", 2, True), ("more devices", 0, True)], [0])
@example([("pod", 4, True), ("serving class", 0, True)], [0])
@example([("pod", 4, True), ("device plugin", 0, True)], [0])
@example([("serving class", 0, True), ("pod", 2, True), ("pod", 4, True), ("end", 2, True)], [0])
@example([("serving class", 0, True), ("pod", 4, True), ("pod", 5, True), ("end", 4, True)], [0])
@example([("rare pod", 0, True), ("rare devices", 0, True), ("rare pod", 2, True), ("end", 2, True)], [0])
@example([("pod", 2, True), ("rare pod", 4, True), ("rare devices", 0, True), ("end", 2, True)], [0])
@example([("cordon", 0, True), ("pod", 2, True), ("uncordon", 0, True)], [0])
@settings(max_examples=fewer(100), deadline=None)
def test_no_pod_waits_for_what_is_there(make: type[Make], steps: list[tuple[str, int, bool]], ticks: list[int]) -> None:
    async def history() -> None:
        world = World(Features())
        world.api.add(DEVICE_CLASSES, make.device_class())
        world.language = Having()
        step(world, make, "node", 0)
        world.start()
        world.api.way = delays(world, ticks)
        async with world.running():
            for what, number, wait in steps:
                step(world, make, what, number)
                world.bring_events()
                if wait:
                    await world.quiet()
            await world.quiet()
            assert [key for key in world.cluster.waiting if would_fit(world, key)] == []

    asyncio.run(history())


def noted_decisions(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the pods that are decided about from now on."""
    decided: list[str] = []
    take_up = world.control.placer._taken_up

    def noted(key: str) -> object:
        decided.append(key)
        return take_up(key)

    monkeypatch.setattr(world.control.placer, "_taken_up", noted)
    return decided


@pytest.mark.rule("SC-02")
async def test_devices_that_come_free_wake_only_pods_whose_classes_may_hold_them(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.api.add(NODES, make.node("node-0"))
    for driver in ("gpu", "nic"):
        name = f"{driver}.example.com"
        selector = f'device.driver == "{name}"'
        world.api.add(DEVICE_CLASSES, make.device_class(driver, selector))
        world.api.add(RESOURCE_SLICES, make.slice("node-0", 1, name))
        for pod in ("runs", "waits"):
            claim = make.claim(f"{driver}-{pod}") | {"spec": make.claim_spec(1, driver)}
            world.api.add(RESOURCE_CLAIMS, claim)
            world.api.add(PODS, make.pod(f"{driver}-{pod}", [make.use(f"{driver}-{pod}")]))
    world.language = OneDriver()
    world.start()
    async with world.running():
        await world.quiet()
        decided = noted_decisions(world, monkeypatch)
        world.api.change(PODS, "ns/gpu-runs", lambda pod: pod["status"].update(phase="Succeeded"))
        await world.quiet()
    assert world.api[PODS, "ns/gpu-waits"]["spec"]["nodeName"] == "node-0"
    assert set(decided) == {"ns/gpu-waits"}


@pytest.mark.parametrize("preemption", [None, PreemptionSettings()], ids=["alone", "with preemption"])
async def test_of_many_pods_only_those_are_tried_for_whom_something_is_left(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch, preemption: PreemptionSettings | None
) -> None:
    """A thousand pods that wait would be tried with each end of a pod."""
    world.preemption = preemption
    world.furnish(1, devices=2)
    for second, (pod, count) in enumerate((("runs", 1), ("stays", 1), ("large", 2), ("first", 1), ("second", 1))):
        world.api.add(RESOURCE_CLAIMS, make.claim(pod, count=count))
        created = {"creationTimestamp": f"2026-01-01T00:00:{second:02}Z"}
        body = make.pod(pod, [make.use(pod)])
        world.api.add(PODS, body | {"metadata": body["metadata"] | created})
    world.start()
    async with world.running():
        await world.quiet()
        decided = noted_decisions(world, monkeypatch)
        world.api.change(PODS, "ns/runs", lambda pod: pod["status"].update(phase="Succeeded"))
        await world.quiet()
        assert set(decided) == {"ns/large", "ns/first"}
        assert world.api[PODS, "ns/first"]["spec"]["nodeName"] == "node-0"
        decided.clear()
        world.api.change(PODS, "ns/stays", lambda pod: pod["status"].update(phase="Succeeded"))
        await world.quiet()
    assert set(decided) == {"ns/large", "ns/second"}
    assert world.api[PODS, "ns/second"]["spec"]["nodeName"] == "node-0"


def ends(world: World, pod: str) -> None:
    world.api.change(PODS, f"ns/{pod}", lambda it: it["status"].update(phase="Succeeded"))


def with_cpu(make: type[Make], name: str, cpu: str) -> Obj:
    return make.node(name) | {"status": {"allocatable": {"cpu": cpu, "pods": "9"}}}


def asks(make: type[Make], name: str, second: int, **requests: str) -> Obj:
    """A pod that came at this second."""
    pod = make.pod(name, containers=[make.asking("main", **requests)])
    return pod | {"metadata": pod["metadata"] | {"creationTimestamp": f"2026-01-01T00:00:{second:02}Z"}}


async def test_of_many_pods_only_those_are_tried_for_whom_some_room_is_left(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cpu that comes free on one node is not there twice, and no more of it than there is."""
    for node in ("small", "large"):
        world.api.add(NODES, with_cpu(make, node, "2" if node == "small" else "4"))
    wanted = (("runs", 4), ("stays", 2), ("huge", 8), ("big", 3), ("first", 2), ("second", 2), ("third", 2))
    for second, (pod, cpu) in enumerate(wanted):
        world.api.add(PODS, asks(make, pod, second, cpu=str(cpu)))
    world.start()
    async with world.running():
        await world.quiet()
        assert world.bound() == ["runs", "stays"]
        decided = noted_decisions(world, monkeypatch)
        ends(world, "stays")
        await world.quiet()
        assert set(decided) == {"ns/first"}, "it takes all that came free, and for the two before it that is too little"
        decided.clear()
        ends(world, "runs")
        await world.quiet()
        assert set(decided) == {"ns/big"}
        decided.clear()
        ends(world, "first")
        await world.quiet()
    assert set(decided) == {"ns/second"}
    assert world.bound() == ["big", "first", "runs", "second", "stays"]


async def test_room_that_was_kept_for_another_pod_is_found_when_that_one_goes(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that is being bound has its room; if the binding is refused for good and the pod goes, the next has it."""
    world.api.add(NODES, with_cpu(make, "node", "2"))
    world.api.before = lambda call: ERRORS["server error"]() if call.sub == "binding" and call.name == "first" else None
    for second, pod in enumerate(("first", "second")):
        world.api.add(PODS, asks(make, pod, second, cpu="2"))
    world.start()
    async with world.running():
        await world.busy()
        assert world.bound() == []
        world.api.drop(PODS, "ns/first")
        await world.quiet()
    assert world.bound() == ["second"]


async def test_a_host_port_that_comes_free_is_found_though_no_other_room_was_lacking(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.api.add(NODES, with_cpu(make, "node", "9"))
    for second, pod in enumerate(("runs", "waits")):
        body = asks(make, pod, second, cpu="1")
        body["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 80}]
        world.api.add(PODS, body)
    world.start()
    async with world.running():
        await world.quiet()
        assert world.bound() == ["runs"]
        ends(world, "runs")
        await world.quiet()
    assert world.bound() == ["runs", "waits"]


async def test_devices_that_come_free_wake_no_pod_that_asks_for_what_no_device_is(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two thousand pods that wait for a kind of device that is not there yet would be tried with each end of a pod."""
    world.furnish(1, devices=1)
    for pod in ("runs", "waits", "rare"):
        selectors = ["rare"] if pod == "rare" else []
        world.api.add(RESOURCE_CLAIMS, make.claim(pod) | {"spec": make.claim_spec(1, "gpu", *selectors)})
        world.api.add(PODS, make.pod(pod, [make.use(pod)]))
    world.language = Having()
    world.start()
    async with world.running():
        await world.quiet()
        decided = noted_decisions(world, monkeypatch)
        world.api.change(PODS, "ns/runs", lambda pod: pod["status"].update(phase="Succeeded"))
        await world.quiet()
        assert set(decided) == {"ns/waits"}
        world.api.add(RESOURCE_SLICES, make.slice("node-0", 1, RARE, rare="yes"))
        await world.quiet()
    assert world.api[PODS, "ns/rare"]["spec"]["nodeName"] == "node-0"


async def test_devices_that_come_free_wake_no_gang_of_which_a_pod_asks_for_what_no_device_is(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand such gangs of one tenant would be planned with each end of a pod, and count as a lack of devices."""
    world.furnish(1, devices=2)
    for pod, selectors in (("runs", []), ("vain-0", []), ("vain-1", ["rare"])):
        world.api.add(RESOURCE_CLAIMS, make.claim(pod) | {"spec": make.claim_spec(1, "gpu", *selectors)})
        made = make.pod(pod, [make.use(pod)])
        if pod != "runs":
            made["metadata"]["annotations"] = {"dra.kopf.dev/gang": "vain", "dra.kopf.dev/gang-size": "2"}
        world.api.add(PODS, made)
    world.language = Having()
    world.start()
    async with world.running():
        await world.quiet()
        decided, scarce = noted_decisions(world, monkeypatch), []
        monkeypatch.setattr(world.control.placer._context.delayed_deletion, "scarce", lambda: scarce.append(True))
        world.api.change(PODS, "ns/runs", lambda pod: pod["status"].update(phase="Succeeded"))
        await world.quiet()
        assert (set(decided), scarce) == (set(), [])
        world.api.add(RESOURCE_SLICES, make.slice("node-0", 1, RARE, rare="yes"))
        await world.quiet()
    assert world.node_of("vain-0") == world.node_of("vain-1") == "node-0"


class Having:
    """A selector is the name of an attribute that the device has."""

    def compile(self, expression: str) -> Callable[[str, Device], bool]:
        return lambda driver, device: expression in (device.attributes or {})


class OneDriver:
    """The only kind of selector here: ``device.driver == "..."``."""

    def compile(self, expression: str) -> Callable[[str, Device], bool]:
        wanted = expression.split('"')[1]
        return lambda driver, device: driver == wanted


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ((RESOURCE_CLAIMS, "ns/claim"), 'resourceclaim "claim" not found: create it, or correct resourceClaimName'),
        ((DEVICE_CLASSES, "gpu"), "device class gpu does not exist"),
    ],
)
async def test_a_pod_that_waits_says_so_when_what_it_uses_is_gone(
    gone: tuple[Resource, str], says: str, world: World, make: type[Make]
) -> None:
    """That helps the pod in no way, but it waits for another reason now."""
    world.api.add(DEVICE_CLASSES, make.device_class())
    world.api.add(NODES, make.node("node-0"))
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    world.start()
    async with world.running():
        await world.quiet()
        assert "0/1 nodes are available" in message(world)
        world.api.drop(*gone)
        await world.quiet()
    assert says in message(world)


def message(world: World) -> str:
    (condition,) = world.api[PODS, "ns/pod"]["status"]["conditions"]
    return str(condition["message"])


@pytest.mark.rule("SC-02")
async def test_a_pod_whose_claim_gets_the_right_owner_is_tried_again(world: World, make: type[Make]) -> None:
    world.furnish()
    body = make.pod(claims=[make.FROM_TEMPLATE])
    body["status"]["resourceClaimStatuses"] = [{"name": "entry-0", "resourceClaimName": "claim"}]
    pod = world.api.add(PODS, body)
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.controllers = OwnControllers(templates=False)  # they are another controller's
    world.start()
    async with world.running():
        await world.quiet()
        assert message(world) == "ResourceClaim ns/claim was not created for Pod ns/pod (Pod is not owner)"
        owned = make.claim("claim", owner=pod["metadata"])["metadata"]
        world.api.change(RESOURCE_CLAIMS, "ns/claim", lambda claim: claim["metadata"].update(owned))
        await world.quiet()
    assert world.api[PODS, "ns/pod"]["spec"]["nodeName"] == "node-0"


async def test_a_pod_that_has_waited_comes_before_younger_ones_of_the_same_second(
    world: World, make: type[Make]
) -> None:
    """Times of creation are whole seconds, and a device that comes free wakes the waiting pod after new ones."""
    world.furnish()
    for name in ("waits", "younger", "youngest"):
        world.api.add(RESOURCE_CLAIMS, make.claim(name))
        world.api.add(PODS, make.pod(name, [make.use(name)]))
    place = world.start().queues.of("placement")
    while place.depth:
        place.done(await place.get())
    for name in ("youngest", "younger", "waits"):
        place.add(Key("placement", f"ns/{name}"))
    assert [(await place.get()).object for _ in range(3)] == ["ns/waits", "ns/younger", "ns/youngest"]
    world.api.drop(PODS, "ns/waits")
    world.bring_events()
    assert world.cluster.arrivals.keys() == world.cluster.waiting.keys() == {"ns/younger", "ns/youngest"}
