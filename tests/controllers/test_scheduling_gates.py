"""Pods of other schedulers at our scheduling gate: devices, narrowed nodes, the gate removed; whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from controllers_world import World
from dra_kube import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_operator.controllers import OwnControllers
from fake_api import ERRORS, Call, Nth
from objects import Make, Obj

GATE = "dra.kopf.dev/allocate"
OTHER = "kueue.x-k8s.io/admission"
VOLCANO = "scheduling.volcano.sh/queue-allocation-gate"
POD = "ns/pod"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
FINALIZER = "resource.kubernetes.io/delete-protection"


def furnish(world: World, make: type[Make], nodes: str = "a", devices: int = 1) -> None:
    world.furnish(nodes, devices)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())


def gated(world: World, make: type[Make], name: str = "pod", gates: tuple[str, ...] = (GATE,), **spec: Any) -> Obj:
    """A pod of kube-scheduler with a claim from the template, as the API server makes it."""
    named: Obj = {"schedulerName": "default-scheduler", "schedulingGates": [{"name": gate} for gate in gates]}
    claims = spec.pop("claims", [make.FROM_TEMPLATE])
    body = make.pod(name, claims, **(named | spec))
    body["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
    added: Obj = world.api.add(PODS, body)
    return added


def named_nodes(world: World, key: str = POD) -> list[str]:
    """The nodes that the pod's terms name, one by term."""
    affinity = world.api[PODS, key]["spec"].get("affinity") or {}
    terms = affinity.get("nodeAffinity", {}).get(REQUIRED, {}).get("nodeSelectorTerms", [])
    return [item["values"][0] for term in terms for item in term.get("matchFields", ())]


def gates_of(world: World, key: str = POD) -> list[str]:
    return [gate["name"] for gate in world.api[PODS, key]["spec"].get("schedulingGates") or ()]


def condition(world: World, key: str = POD) -> Obj:
    found: Obj = world.api[PODS, key]["status"]["conditions"][0]
    return found


def fail_to_open(world: World, error: str) -> None:
    """The update of a pod that opens its gate ends so."""
    opens = ("update", "pods", None)
    world.api.before = lambda call: ERRORS[error]() if (call.verb, call.plural, call.sub) == opens else None


async def reached(world: World, state: Callable[[], object]) -> None:
    """The events come and the operator works until this is true."""
    while not state():
        world.bring_events()
        await world.tick()


def held(world: World) -> dict[str, list[str]]:
    """The consumers of each device."""
    found: dict[str, list[str]] = {}
    for claim in world.api.of(RESOURCE_CLAIMS):
        status = claim.get("status") or {}
        users = [consumer["name"] for consumer in status.get("reservedFor") or ()]
        for result in (status.get("allocation") or {"devices": {"results": []}})["devices"]["results"]:
            assert f"{result['pool']}/{result['device']}" not in found
            found[f"{result['pool']}/{result['device']}"] = users
    return found


def nothing_is_loose(world: World) -> None:
    """The gate is open only for a pod that has its devices, and nothing is allocated without a consumer."""
    devices = held(world)
    assert all(devices.values()), devices
    for pod in world.api.of(PODS):
        if not pod["spec"].get("schedulingGates") and pod["spec"].get("resourceClaims"):
            assert any(pod["metadata"]["name"] in users for users in devices.values()), pod["metadata"]["name"]


@pytest.mark.rule("AA-03")
async def test_a_gated_pod_gets_its_claim_its_devices_and_its_nodes_and_is_let_go(
    world: World, make: type[Make]
) -> None:
    furnish(world, make)
    gated(world, make)
    await world.settle()
    assert gates_of(world) == []
    assert named_nodes(world) == ["a"]
    assert held(world) == {"a/dev-0": ["pod"]}
    assert "nodeName" not in world.api[PODS, POD]["spec"]
    (claim,) = world.api.of(RESOURCE_CLAIMS)
    assert claim["metadata"]["finalizers"] == [FINALIZER]
    writes = [(call.verb, call.plural, call.sub) for call in world.api.writes]
    assert writes == [
        ("create", "resourceclaims", None),
        ("update", "pods", "status"),
        ("update", "resourceclaims", "status"),
        ("update", "pods", None),
    ]
    assert world.messages("SchedulingGateRemoved") == [f"Scheduling gate {GATE} removed: claims allocated for node a"]


@pytest.mark.rule("AA-01")
async def test_the_gate_is_ours_only_when_no_other_holds_the_pod_back(world: World, make: type[Make]) -> None:
    """A queue that has not admitted the pod may still say where it has to run."""
    furnish(world, make, nodes="ab")
    gated(world, make, gates=(GATE, OTHER))
    world.start()
    async with world.running():
        await world.quiet()
        assert held(world) == {}
        assert gates_of(world) == [GATE, OTHER]

        def admit(pod: Obj) -> None:
            pod["spec"]["schedulingGates"] = [{"name": GATE}]
            pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "b"}

        world.api.change(PODS, POD, admit)
        await world.quiet()
    assert (gates_of(world), named_nodes(world)) == ([], ["b"])


@pytest.mark.rule("AA-01")
async def test_volcanos_gate_is_not_waited_for_and_stays(world: World, make: type[Make]) -> None:
    """Volcano removes its own only from a pod that has no other: each would wait for the other one."""
    furnish(world, make)
    gated(world, make, gates=(VOLCANO, GATE))
    await world.settle()
    assert (gates_of(world), named_nodes(world)) == ([VOLCANO], ["a"])
    assert held(world) == {"a/dev-0": ["pod"]}


@pytest.mark.rule("AA-05")
async def test_every_term_of_the_pod_is_narrowed(world: World, make: type[Make]) -> None:
    furnish(world, make)
    terms = [{"matchExpressions": [{"key": "disk", "operator": operator}]} for operator in ("Exists", "DoesNotExist")]
    gated(world, make, affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}})
    await world.settle()
    narrowed = world.api[PODS, POD]["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert [term["matchExpressions"] for term in narrowed] == [term["matchExpressions"] for term in terms]
    assert named_nodes(world) == ["a", "a"]


async def test_devices_that_several_nodes_reach_leave_the_choice_among_these(world: World, make: type[Make]) -> None:
    furnish(world, make, nodes="abc", devices=0)
    for name in "ab":
        world.api.change(NODES, name, lambda node: node["metadata"]["labels"].update(rack="one"))
    attached = make.slice("rack", 1)
    where = [{"key": "rack", "operator": "In", "values": ["one"]}]
    attached["spec"]["nodeSelector"] = {"nodeSelectorTerms": [{"matchExpressions": where}]}
    del attached["spec"]["nodeName"]
    world.api.add(RESOURCE_SLICES, attached)
    gated(world, make)
    await world.settle()
    terms = world.api[PODS, POD]["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": where}]


@pytest.mark.rule("AA-09")
async def test_a_pod_without_devices_waits_gated_with_a_reason_until_some_come(world: World, make: type[Make]) -> None:
    furnish(world, make, devices=0)
    gated(world, make)
    world.start()
    async with world.running():
        await world.quiet()
        found = condition(world)
        assert (found["status"], found["reason"]) == ("False", "SchedulingGated")
        assert "0/1 nodes are available: 1 cannot satisfy claim ns/pod-entry-0" in found["message"]
        assert world.messages("FailedScheduling") == [found["message"]]
        written = len(world.api.writes)
        await world.quiet()
        assert len(world.api.writes) == written
        world.api.change(RESOURCE_SLICES, "a-gpu.example.com", lambda old: old.update(make.slice("a", 1)))
        await world.quiet()
    assert gates_of(world) == []


@pytest.mark.rule("AA-03")
@pytest.mark.parametrize("fault", ["crash before", "crash after", *ERRORS])
@pytest.mark.parametrize("number", range(1, 8))
async def test_whatever_befalls_one_of_its_writes_the_pod_is_let_go_with_devices(
    number: int, fault: str, world: World, make: type[Make]
) -> None:
    """Nothing is allocated without a consumer at any moment, and the gate opens last."""
    furnish(world, make, devices=2)
    gated(world, make, claims=[make.FROM_TEMPLATE, make.use("own")])
    world.api.add(RESOURCE_CLAIMS, make.claim("own"))
    write = Nth(number, ERRORS["no answer" if fault.startswith("crash") else fault])
    if fault in ("no answer", "server error", "crash after"):
        world.api.after = write
    else:
        world.api.before = write
    world.start()
    async with world.running():
        while not write.hit or not fault.startswith("crash"):
            world.bring_events()
            await world.tick()
            nothing_is_loose(world)
            if world.control.queues.is_quiet and not world.api.events:
                break
    world.api.before = world.api.after = lambda call: None
    await world.settle()
    nothing_is_loose(world)
    assert (gates_of(world), named_nodes(world)) == ([], ["a"])
    assert held(world) == {"a/dev-0": ["pod"], "a/dev-1": ["pod"]}
    assert len(world.api.of(RESOURCE_CLAIMS)) == 2


async def test_a_server_that_refuses_the_opening_is_reported_and_the_devices_are_free(
    world: World, make: type[Make]
) -> None:
    furnish(world, make)
    gated(world, make)
    world.start()
    fail_to_open(world, "forbidden")
    async with world.running():
        await reached(world, lambda: world.messages("FailedScheduling"))
        world.api.before = lambda call: None
    refused = f"cannot remove the scheduling gate {GATE}: the API server refused: not allowed"
    assert refused in condition(world)["message"]
    assert condition(world)["reason"] == "SchedulingGated"


@pytest.mark.rule("AA-04")
async def test_a_pod_that_chooses_other_nodes_meanwhile_is_planned_anew(world: World, make: type[Make]) -> None:
    furnish(world, make, nodes="ab")
    gated(world, make)
    world.start()

    def move(call: Call) -> None:
        if (call.verb, call.plural, call.sub) == ("update", "resourceclaims", "status"):
            world.api.after = lambda call: None
            other = {"kubernetes.io/hostname": "b"}
            world.api.change(PODS, POD, lambda pod: pod["spec"].update(nodeSelector=other))

    world.api.after = move
    async with world.running():
        await world.quiet()
    assert (gates_of(world), named_nodes(world)) == ([], ["b"])
    assert held(world) == {"b/dev-0": ["pod"]}


@pytest.mark.rule("AA-04")
async def test_a_gate_that_a_person_opens_meanwhile_stays_open_and_the_devices_stay(
    world: World, make: type[Make]
) -> None:
    furnish(world, make)
    gated(world, make)
    world.start()

    def open_by_hand(call: Call) -> None:
        if (call.verb, call.plural, call.sub) == ("update", "resourceclaims", "status"):
            world.api.change(PODS, POD, lambda pod: pod["spec"].pop("schedulingGates"))

    world.api.after = open_by_hand
    async with world.running():
        await world.quiet()
    assert held(world) == {"a/dev-0": ["pod"]}
    assert ("update", "pods", None, "pod") not in world.api.calls


async def test_a_gated_pod_that_is_deleted_gives_its_devices_back(world: World, make: type[Make]) -> None:
    furnish(world, make)
    gated(world, make)
    world.start()
    fail_to_open(world, "no answer")
    async with world.running():
        await reached(world, lambda: held(world))
        world.api.drop(PODS, POD)
        await world.quiet()
    assert held(world) == {}


async def test_a_pod_that_lost_the_room_on_its_node_before_the_gate_opened_goes_elsewhere(
    world: World, make: type[Make]
) -> None:
    """It is reserved there, and only the opening is missing: its own devices are given back, not left behind."""
    furnish(world, make, nodes="ab")
    gated(world, make, containers=[make.asking("main", cpu="3")])
    world.start()
    fail_to_open(world, "no answer")
    async with world.running():
        await reached(world, lambda: held(world))
    taken = next(iter(held(world)))[0]
    world.api.before = lambda call: None
    world.api.add(PODS, make.pod("big", node=taken, containers=[make.asking("main", cpu="3")]))
    await world.settle()
    (other,) = {"a", "b"} - {taken}
    assert (gates_of(world), named_nodes(world)) == ([], [other])


@pytest.mark.rule("AA-02")
async def test_pods_at_the_gate_do_not_crowd_on_one_node(world: World, make: type[Make]) -> None:
    """The other scheduler has bound neither yet, and each needs most of a node."""
    furnish(world, make, nodes="ab", devices=4)
    for name in ("one", "two"):
        gated(world, make, name, containers=[make.asking("main", cpu="3")])
    await world.settle()
    assert sorted(named_nodes(world, "ns/one") + named_nodes(world, "ns/two")) == ["a", "b"]


@pytest.mark.rule("AA-11")
async def test_a_pod_without_claims_is_let_go_at_once(world: World, make: type[Make]) -> None:
    gated(world, make, claims=[])
    await world.settle()
    assert gates_of(world) == []
    assert "affinity" not in world.api[PODS, POD]["spec"]


@pytest.mark.rule("AA-12")
async def test_a_pod_of_ours_may_have_the_gate_too(world: World, make: type[Make]) -> None:
    furnish(world, make)
    gated(world, make, schedulerName="dra-scheduler")
    await world.settle()
    assert world.api[PODS, POD]["spec"]["nodeName"] == "a"


@pytest.mark.rule("AA-10")
@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            {"volumes": [{"name": "v", "iscsi": {}}]},
            "spec.volumes[0].iscsi is not supported",
        ),
        (
            {"containers": [Make.asking("main", **{"example.com/gpu": "1"})]},
            "the pod's scheduler allocates devices for the extended resource example.com/gpu",
        ),
    ],
)
async def test_what_the_pods_scheduler_has_to_decide_itself_is_reported(
    spec: Obj, says: str, world: World, make: type[Make]
) -> None:
    furnish(world, make)
    world.api.change(DEVICE_CLASSES, "gpu", lambda old: old["spec"].update(extendedResourceName="example.com/gpu"))
    gated(world, make, **spec)
    await world.settle()
    message = condition(world)["message"]
    assert says in message
    assert f"remove the scheduling gate {GATE}" in message
    assert held(world) == {}


@pytest.mark.rule("AA-13")
@pytest.mark.parametrize(
    ("controllers", "opens"),
    [
        (["templates", "release", "placement"], False),
        (["allocation"], True),
        (["templates", "release", "placement", "allocation"], True),
    ],
)
async def test_the_gate_is_the_concern_of_allocation(
    controllers: list[str], opens: bool, world: World, make: type[Make]
) -> None:
    furnish(world, make, devices=2)
    world.api.add(RESOURCE_CLAIMS, make.claim("own"))
    gated(world, make, claims=[make.use("own")])
    world.api.add(PODS, make.pod("ours", [make.FROM_TEMPLATE]))
    world.controllers = OwnControllers.of(controllers)
    await world.settle()
    assert gates_of(world) == ([] if opens else [GATE])
    assert bool(world.api[PODS, "ns/ours"]["spec"].get("nodeName")) is ("placement" in controllers)


async def test_a_shared_claim_takes_all_its_pods_to_its_node(world: World, make: type[Make]) -> None:
    furnish(world, make, nodes="ab")
    world.api.add(RESOURCE_CLAIMS, make.claim("shared"))
    for name in ("one", "two"):
        gated(world, make, name, claims=[make.use("shared")])
    await world.settle()
    assert named_nodes(world, "ns/one") == named_nodes(world, "ns/two")
    (users,) = held(world).values()
    assert sorted(users) == ["one", "two"]
