"""Plans that the server refuses: reported, taken back completely, and repeated with growing pauses."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from controllers_world import World
from dra_kube import (
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Resource,
    TooManyRequests,
)
from dra_operator.controllers.errors import BindingFailed
from dra_operator.controllers.scheduling.planning import BIND_ATTEMPTS, RemoveGate
from dra_operator.controllers.workers import Decided
from fake_api import Call
from objects import Make, Obj

FINALIZER = "resource.kubernetes.io/delete-protection"


def furnish(world: World, make: type[Make], devices: int = 2) -> None:
    world.furnish(devices=devices)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())


def waiting(world: World, name: str = "pod") -> tuple[str, str]:
    """Reason and message of the condition that says why the pod waits."""
    (condition,) = world.api[PODS, f"ns/{name}"]["status"]["conditions"]
    return condition["reason"], condition["message"]


REFUSALS = {
    "by a missing permission": Forbidden(403, "Forbidden", 'pods "pod" is forbidden: User "dra" cannot create pods'),
    "by validation": Invalid(422, "Invalid", "status.allocation: Invalid value"),
    "by a webhook": Forbidden(403, "Forbidden", 'admission webhook "policy.example.com" denied the request: no'),
}
GATES: Obj = {"schedulerName": "another-scheduler", "schedulingGates": [{"name": "dra.kopf.dev/allocate"}]}
CLAIM: Obj = {"claims": [Make.use("claim")]}
USED: Obj = {"claims": [Make.use("used")]}
EXTENDED: Obj = {"containers": [Make.asking("main", **{"deviceclass.resource.kubernetes.io/gpu": "1"})]}
STEPS: dict[str, tuple[tuple[str, str, str | None], Obj, str]] = {
    "the finalizer": (("update", "resourceclaims", None), CLAIM, "allocate claim ns/claim"),
    "the allocation": (("update", "resourceclaims", "status"), CLAIM, "allocate claim ns/claim"),
    "the reservation": (("update", "resourceclaims", "status"), USED, "reserve claim ns/used"),
    "the binding": (("create", "pods", "binding"), CLAIM, "bind the pod to node node-0"),
    "the opening of the gate": (
        ("update", "pods", None),
        CLAIM | GATES,
        "remove the scheduling gate dra.kopf.dev/allocate",
    ),
    "the claim for extended resources": (
        ("create", "resourceclaims", None),
        EXTENDED,
        "create the claim for extended resources of pod ns/pod",
    ),
}
"""The write that is refused, the pod, and what could not be done."""


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", REFUSALS)
async def test_a_refused_commit_is_reported_in_condition_and_event(
    how: str, step: str, world: World, make: type[Make]
) -> None:
    furnish(world, make)
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(RESOURCE_CLAIMS, make.claim("used"))
    world.api.add(PODS, make.pod("user", claims=[make.use("used")]))
    await world.settle()
    refused, pod, doing = STEPS[step]
    world.api.add(PODS, make.pod(**pod))
    world.api.before = lambda call: REFUSALS[how] if (call.verb, call.plural, call.sub) == refused else None
    world.start()

    def has_devices() -> bool:
        return bool((world.api[RESOURCE_CLAIMS, "ns/claim"].get("status") or {}).get("allocation"))

    async with world.running(), asyncio.timeout(30):
        while has_devices() or not world.messages("FailedScheduling"):
            world.bring_events()
            await world.tick()
        world.api.before = lambda call: None
    rights = "; the ClusterRole dra-operator allows it: apply manifests/operator/rbac.yaml, or upgrade the chart"
    remedy = rights if how == "by a missing permission" else ""
    message = f"cannot {doing}: the API server refused: {REFUSALS[how]}{remedy}; retrying with back-off"
    assert waiting(world) == ("SchedulingGated" if "schedulingGates" in pod else "SchedulerError", message)
    assert world.messages("FailedScheduling") == [message]
    await world.settle()
    current = world.api[PODS, "ns/pod"]["spec"]
    assert current.get("nodeName") == "node-0" or not current.get("schedulingGates", True)


async def test_prj_008_after_half_a_commit_each_claim_has_a_device_of_its_own(world: World, make: type[Make]) -> None:
    """The second allocation is refused; the next attempt finds the first one made, and makes the other."""
    furnish(world, make)
    for name in ("a", "b"):
        world.api.add(RESOURCE_CLAIMS, make.claim(name))
    world.api.add(PODS, make.pod(claims=[make.use("a"), make.use("b")]))
    refusals = iter([None, Forbidden(403, "Forbidden", "no")])
    status = ("update", "resourceclaims", "status")
    world.api.before = lambda call: next(refusals, None) if (call.verb, call.plural, call.sub) == status else None
    await world.settle()
    assert world.api[PODS, "ns/pod"]["spec"]["nodeName"] == "node-0"
    results = [world.api[RESOURCE_CLAIMS, f"ns/{name}"]["status"]["allocation"]["devices"]["results"] for name in "ab"]
    assert {result["device"] for (result,) in results} == {"dev-0", "dev-1"}
    assert next(refusals, "used up") == "used up"


async def test_pods_whose_writes_are_refused_do_not_wake_each_other(world: World, make: type[Make]) -> None:
    """Each failure gives a device back, which the other waits for: without pauses that goes round for ever."""
    furnish(world, make, devices=1)
    for name in ("one", "two"):
        world.api.add(PODS, make.pod(name, claims=[make.FROM_TEMPLATE]))
    refused, allocation = Forbidden(403, "Forbidden", "no"), ("update", "resourceclaims", "status")
    world.api.before = lambda call: refused if call[:3] == allocation else None
    world.start()
    loop = asyncio.get_running_loop()
    async with world.running():
        ends = loop.time() + 1
        while loop.time() < ends:
            world.bring_events()
            await world.tick()
    refusals = [call for call in world.api.calls if call[:3] == allocation]
    assert 2 <= len(refusals) <= 12  # after 50, 100, 200, 400 ms each


async def test_a_pause_that_the_server_asks_for_is_kept(world: World, make: type[Make]) -> None:
    furnish(world, make)
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    busy = TooManyRequests(429, "TooManyRequests", "later", {"retryAfterSeconds": 1})
    answers = [busy]
    world.api.before = lambda call: answers.pop() if answers and call.sub == "status" else None
    loop = asyncio.get_running_loop()
    world.start()
    async with world.running():
        began = loop.time()
        await world.quiet()
        assert loop.time() - began >= 1
    assert world.api[PODS, "ns/pod"]["spec"]["nodeName"] == "node-0"
    assert world.messages("FailedScheduling") == []


async def test_a_pod_that_vanishes_right_before_its_binding_leaves_its_claim_free(
    world: World, make: type[Make]
) -> None:
    furnish(world, make, devices=1)
    world.api.add(RESOURCE_CLAIMS, make.claim("mine"))
    world.api.add(RESOURCE_CLAIMS, make.claim("next"))
    world.api.add(PODS, make.pod("gone", claims=[make.use("mine")]))

    def vanish(call: Call) -> Exception | None:
        if call.sub != "binding" or call.name != "gone" or (PODS, "ns", "gone") not in world.api.objects:
            return None
        world.api.drop(PODS, "ns/gone")
        return NotFound(404, "NotFound", 'pods "gone" not found')

    world.api.before = vanish
    world.start()
    async with world.running():
        await world.quiet()
        assert not world.api[RESOURCE_CLAIMS, "ns/mine"]["status"].get("allocation")
        world.api.add(PODS, make.pod("next", claims=[make.use("next")]))
        await world.quiet()
    assert world.api[PODS, "ns/next"]["spec"]["nodeName"] == "node-0"


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "gated for a moment"])
async def test_a_pod_that_cannot_be_bound_now_keeps_no_device(is_deleted: bool, world: World, make: type[Make]) -> None:
    """The server answers both with a conflict, as if the pod were assigned already."""
    furnish(world, make, devices=1)
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    answers = [Conflict(409, "Conflict", "the pod cannot be assigned to a host")]

    def refuse(call: Call) -> Exception | None:
        if call.sub != "binding" or not answers:
            return None
        if is_deleted:
            deletion = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/slow"]}
            world.api.change(PODS, "ns/pod", lambda pod: pod["metadata"].update(deletion))
        return answers.pop()

    world.api.before = refuse
    await world.settle()
    status = world.api[RESOURCE_CLAIMS, "ns/claim"]["status"]
    assert world.api[PODS, "ns/pod"]["spec"].get("nodeName") == (None if is_deleted else "node-0")
    assert bool(status.get("allocation")) is not is_deleted
    assert bool(status.get("reservedFor")) is not is_deleted


async def test_a_pod_that_another_writer_bound_elsewhere_keeps_nothing_here(world: World, make: type[Make]) -> None:
    furnish(world, make, devices=1)
    world.api.add(NODES, make.node("node-1"))
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))

    def bind_elsewhere(call: Call) -> None:
        pod = world.api[PODS, "ns/pod"]
        if call.sub == "binding" and not pod["spec"].get("nodeName"):
            world.api.change(PODS, "ns/pod", lambda obj: obj["spec"].update(nodeName="node-1"))

    world.api.before = bind_elsewhere
    await world.settle()
    assert world.api[PODS, "ns/pod"]["spec"]["nodeName"] == "node-1"
    status = world.api[RESOURCE_CLAIMS, "ns/claim"]["status"]
    assert not status.get("allocation")
    assert not status.get("reservedFor")
    assert world.messages("Scheduled") == []
    assert world.cluster.loads.used("node-0") == {}


async def test_a_pod_that_has_its_node_by_then_counts_as_bound(world: World, make: type[Make]) -> None:
    """A proxy sent the binding twice, and the second answer came back."""
    furnish(world, make, devices=1)
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))

    def bind(call: Call) -> None:
        if call.sub == "binding":
            world.api.change(PODS, "ns/pod", lambda obj: obj["spec"].update(nodeName="node-0"))

    world.api.before = bind
    world.start()
    await world.attempt("ns/pod")
    assert sum(call.sub == "binding" for call in world.api.calls) == 1
    assert world.api[RESOURCE_CLAIMS, "ns/claim"]["status"]["allocation"]


async def test_a_pod_that_others_write_again_and_again_is_bound_later(world: World, make: type[Make]) -> None:
    """Each version is another one than that which was to be bound."""
    furnish(world, make, devices=1)
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))

    def change(call: Call) -> Exception | None:
        if call.sub != "binding":
            return None
        world.api.change(PODS, "ns/pod", lambda obj: obj["metadata"].update(labels={"n": str(len(world.api.calls))}))
        return Conflict(409, "Conflict", "the object has been modified")

    world.api.before = change
    world.start()
    with pytest.raises(BindingFailed, match="cannot bind the pod to node node-0: the object has been modified"):
        await world.attempt("ns/pod")
    assert sum(call.sub == "binding" for call in world.api.calls) == BIND_ATTEMPTS
    assert not world.cluster.loads.node_of(world.api[PODS, "ns/pod"]["metadata"]["uid"])
    world.api.before = lambda call: None
    async with world.running():
        await world.quiet()
    assert world.node_of() == "node-0"


async def test_a_gate_is_not_opened_for_a_node_that_is_gone(world: World, make: type[Make]) -> None:
    """Its scheduler would be told to choose any node, and the devices are not there."""
    furnish(world, make, devices=1)
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(**CLAIM, **GATES))
    context = world.start().placer._context
    await world.attempt("ns/pod")
    world.api.drop(NODES, "node-0")
    world.bring_events()
    (pod,), (claim,) = context.cluster.pods, context.cluster.claims
    assert claim.status.allocation is not None
    with pytest.raises(BindingFailed, match="node node-0 no longer reaches the devices of pod ns/pod"):
        await RemoveGate(context.cluster, context.pods).write(pod, "node-0", [claim])
    assert world.api[PODS, "ns/pod"]["spec"]["schedulingGates"] == GATES["schedulingGates"]


async def test_a_pod_that_is_gone_by_then_is_not_told_that_its_attempt_failed(world: World, make: type[Make]) -> None:
    furnish(world, make, devices=1)
    world.times = replace(world.times, silence=0.0)
    world.api.add(RESOURCE_CLAIMS, make.claim("claim"))
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    placer, bug = world.start().placer, ZeroDivisionError("a bug")

    def broken(*_: object) -> None:
        raise bug

    placer._snapshot = broken  # type: ignore[method-assign,assignment]
    decided = await placer.decide("ns/pod")
    assert isinstance(decided, Decided)
    assert decided.follow_up is not None
    world.api.drop(PODS, "ns/pod")
    world.bring_events()
    with pytest.raises(ZeroDivisionError) as raised:
        await decided.follow_up()
    assert raised.value is bug
    assert world.api.writes == []


async def test_a_shared_claim_whose_last_pod_cannot_be_bound_gives_its_device_back(
    world: World, make: type[Make]
) -> None:
    """The other pod ends while the binding is under way: the claim stays reserved then, and keeps its device."""
    furnish(world, make, devices=1)
    world.api.add(RESOURCE_CLAIMS, make.claim("shared"))
    world.api.add(PODS, make.pod("first", claims=[make.use("shared")]))
    bind = world.api.create_subresource

    def users() -> list[str]:
        return [consumer["name"] for consumer in world.api[RESOURCE_CLAIMS, "ns/shared"]["status"]["reservedFor"]]

    async def refuse(resource: Resource, name: str, subresource: str, body: Obj, namespace: str | None = None) -> Obj:
        if name == "first":
            return await bind(resource, name, subresource, body, namespace)
        world.api.change(PODS, "ns/first", lambda pod: pod["status"].update(phase="Succeeded"))
        async with asyncio.timeout(60):
            while users() != ["second"]:
                world.bring_events()
                await world.tick()
        world.api.drop(PODS, "ns/second")
        raise REFUSALS["by a webhook"]

    world.api.create_subresource = refuse  # type: ignore[method-assign]
    world.start()
    async with world.running():
        await world.quiet()
        world.api.add(PODS, make.pod("second", claims=[make.use("shared")]))
        await world.quiet()
    status = world.api[RESOURCE_CLAIMS, "ns/shared"]["status"]
    assert not status.get("allocation")
    assert not status.get("reservedFor")


@pytest.mark.rule("CC-05")
async def test_an_allocation_without_consumer_stays_when_its_first_pod_cannot_be_bound(
    world: World, make: type[Make]
) -> None:
    """Another component made it (CC-05)."""
    furnish(world, make, devices=1)
    result = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
    made = make.claim("claim", finalizers=[FINALIZER]) | {"status": {"allocation": {"devices": {"results": [result]}}}}
    world.api.add(RESOURCE_CLAIMS, made)
    world.api.add(PODS, make.pod(claims=[make.use("claim")]))
    world.api.before = lambda call: REFUSALS["by a webhook"] if call.sub == "binding" else None
    world.start()
    async with world.running():
        async with asyncio.timeout(60):
            while not world.messages("FailedScheduling"):
                world.bring_events()
                await world.tick()
    status = world.api[RESOURCE_CLAIMS, "ns/claim"]["status"]
    assert status["allocation"] == made["status"]["allocation"]
    assert not status.get("reservedFor")
