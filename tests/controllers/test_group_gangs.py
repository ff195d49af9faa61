"""PodGroups as gangs: their pods are bound together or not at all (kubernetes-1.37.md section 8, docs/gangs.md)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from controllers_world import World
from dra_api.codec import convert
from dra_api.releases import Release
from dra_api.scheduling import PodGroup
from dra_kube import NODES, POD_GROUPS, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Unreachable
from dra_operator.allocator import Features
from dra_operator.controllers import OwnControllers
from dra_operator.controllers.claims.group import GroupConditions
from dra_operator.kube.writers import PodGroupWriter
from fake_api import Call, FakeApi
from objects import Make, Obj

RACK = "example.com/rack"
ALL = {
    "generic_workload": True,
    "workload_resource_claims": True,
    "gang_scheduling": True,
    "topology_aware_scheduling": True,
}


def group(min_count: int | None = None, topology: str = "", uid: str = "group-uid", **spec: Any) -> Obj:
    """With the policy ``basic`` if there is no count."""
    policy: Obj = {"basic": {}} if min_count is None else {"gang": {"minCount": min_count}}
    constraints = {"schedulingConstraints": {"topology": [{"key": topology}]}} if topology else {}
    meta = {"name": "group", "namespace": "ns", "uid": uid}
    return {"metadata": meta, "spec": {"schedulingPolicy": policy, **constraints, **spec}}


def add(world: World, pods: range, group: str = "group", *claims: Obj, **annotations: str) -> None:
    for number in pods:
        entries = claims or (Make.FROM_TEMPLATE,)
        pod = Make.pod(f"{group}-{number}", [*entries], schedulingGroup={"podGroupName": group})
        if annotations:
            pod["metadata"]["annotations"] = annotations
        world.api.add(PODS, pod)


def bound(world: World) -> dict[str, str]:
    pods = ((pod["metadata"]["name"], pod["spec"].get("nodeName")) for pod in world.api.of(PODS))
    return {name: node for name, node in sorted(pods) if node}


def with_devices(world: World) -> int:
    return sum("allocation" in (claim.get("status") or {}) for claim in world.api.of(RESOURCE_CLAIMS))


def said(world: World, pod: str) -> str:
    conditions = world.api[PODS, f"ns/{pod}"]["status"].get("conditions", [])
    return next((str(it.get("message", "")) for it in conditions if it["type"] == "PodScheduled"), "")


def change(world: World, min_count: int) -> None:
    policy = {"gang": {"minCount": min_count}}
    world.api.change(POD_GROUPS, "ns/group", lambda it: it["spec"].update(schedulingPolicy=policy))


def label(world: World, *racks: str) -> None:
    for number, rack in enumerate(racks):
        world.api.change(NODES, f"node-{number}", partial(_put_into, rack))


def _put_into(rack: str, node: Obj) -> None:
    node["metadata"]["labels"][RACK] = rack


async def stop_before_bindings(world: World) -> None:
    """All pods have their devices, and none its node; then the operator ends."""
    await world.stop_before_bindings()
    assert not bound(world)


@pytest.fixture
def world() -> World:
    return make(Release.V1_37)


def make(release: Release, nodes: int = 2, **gates: bool) -> World:
    world = World(Features(release=release, **{**ALL, **gates}))
    world.furnish(nodes, 2)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    return world


@pytest.mark.parametrize("release", [Release.V1_36, Release.V1_37])
async def test_int_034_the_pods_of_a_group_start_once_there_are_as_many_as_it_needs(release: Release) -> None:
    world = make(release)
    world.api.add(POD_GROUPS, group(3))
    add(world, range(2))
    await world.settle()
    assert not bound(world)
    assert not with_devices(world)
    assert (
        said(world, "group-0") == "waits for other pods: gang of PodGroup group has fewer than the 3 pods that it needs"
    )
    add(world, range(2, 3))
    having: list[int] = []
    world.api.before = lambda call: having.append(with_devices(world)) if call.sub == "binding" else None
    await world.settle()
    assert len(bound(world)) == 3
    assert having[0] == 3


@pytest.mark.rule("K37-WL-23")
async def test_a_group_that_does_not_fit_keeps_no_devices_and_says_why(world: World) -> None:
    world.api.add(POD_GROUPS, group(5))
    add(world, range(5))
    await world.settle()
    assert not bound(world)
    assert not with_devices(world)
    texts = [said(world, f"group-{number}") for number in range(5)]
    assert sum(text.startswith("gang of PodGroup group: only 4 of 5 pods fit together; ") for text in texts) == 1


async def test_further_pods_join_a_group_that_runs(world: World) -> None:
    world.api.add(POD_GROUPS, group(2))
    add(world, range(4))
    await world.settle()
    assert len(bound(world)) == 4


async def test_a_group_with_the_policy_basic_is_no_gang(world: World) -> None:
    """Three pods are placed though a fourth one would not fit."""
    world.api.add(POD_GROUPS, group())
    add(world, range(5))
    await world.settle()
    assert len(bound(world)) == 4


async def test_pods_wait_for_their_group_and_start_when_it_comes(world: World) -> None:
    add(world, range(2))
    await world.settle()
    assert said(world, "group-0").startswith('podgroup "group" not found: ')
    world.start()
    async with world.running():
        world.api.add(POD_GROUPS, group(2))
        await world.quiet()
    assert len(bound(world)) == 2


async def test_a_smaller_minimum_lets_a_group_start_that_did_not_fit(world: World) -> None:
    """What was refused once is planned again; the fifth pod then waits by itself."""
    world.api.add(POD_GROUPS, group(5))
    add(world, range(5))
    world.start()
    async with world.running():
        await world.quiet()
        assert not bound(world)
        change(world, 4)
        await world.quiet()
    assert len(bound(world)) == 4


async def test_a_greater_minimum_leaves_pods_alone_that_run_and_counts_for_those_that_come(world: World) -> None:
    world.api.add(POD_GROUPS, group(1))
    add(world, range(1))
    world.start()
    async with world.running():
        await world.quiet()
        change(world, 4)
        add(world, range(1, 3))
        await world.quiet()
        assert bound(world).keys() == {"group-0"}
        assert "fewer than the 4 pods" in said(world, "group-1")
        add(world, range(3, 4))
        await world.quiet()
    assert len(bound(world)) == 4


@pytest.mark.parametrize("how", ["deleted", "more than is supported", "gate off"])
async def test_pods_with_devices_give_them_back_when_it_is_not_known_any_more_what_their_gang_is(
    how: str, world: World
) -> None:
    """They do not run yet, since the operator ended between the devices and the first binding."""
    world.api.add(POD_GROUPS, group(2))
    add(world, range(2))
    await stop_before_bindings(world)
    assert with_devices(world) == 2
    if how == "deleted":
        world.api.drop(POD_GROUPS, "ns/group")
    elif how == "more than is supported":
        change(world, 1001)
    else:
        world.features = Features(release=Release.V1_36, **{**ALL, "gang_scheduling": False})
    await world.settle()
    assert not bound(world)
    assert not with_devices(world)
    expected = {
        "deleted": 'podgroup "group" not found: create it, or correct spec.schedulingGroup of the pod',
        "more than is supported": "PodGroup group: spec.schedulingPolicy.gang.minCount 1001 is more than the 1000 pods "
        "that are supported",
        "gate off": 'podgroup "group": spec.schedulingPolicy.gang needs the feature gate GangScheduling, which is off: '
        "turn it on, or have kube-scheduler place the pods (spec.schedulerName: default-scheduler)",
    }
    assert said(world, "group-0") == said(world, "group-1") == expected[how]


async def test_pods_that_run_stay_when_their_group_is_deleted_and_others_wait(world: World) -> None:
    world.api.add(POD_GROUPS, group(2))
    add(world, range(2))
    world.start()
    async with world.running():
        await world.quiet()
        world.api.drop(POD_GROUPS, "ns/group")
        add(world, range(2, 3))
        await world.quiet()
        assert len(bound(world)) == 2
        assert said(world, "group-2").startswith('podgroup "group" not found: ')
        world.api.add(POD_GROUPS, group(3, uid="another"))
        await world.quiet()
    assert len(bound(world)) == 3


async def test_after_a_restart_a_group_is_completed(world: World) -> None:
    world.api.add(POD_GROUPS, group(3))
    add(world, range(3))
    await stop_before_bindings(world)
    await world.settle()
    assert len(bound(world)) == 3


@pytest.mark.rule("K37-WL-03", "K37-WL-04", "K37-WL-22")
@pytest.mark.parametrize("release", [Release.V1_36, Release.V1_37])
@pytest.mark.parametrize("fails", [False, True])
async def test_the_pods_of_a_gang_share_the_claim_of_their_group(release: Release, fails: bool) -> None:
    """If one of them cannot be bound before any was, the shared devices are given back as well."""
    world = make(release)
    entry = {"name": "entry-0", **Make.FROM_TEMPLATE}
    world.api.add(POD_GROUPS, group(3, resourceClaims=[entry]))
    add(world, range(3))
    if fails:
        await stop_before_bindings(world)
        world.api.drop(PODS, "ns/group-2")
        await world.settle()
        assert not with_devices(world)
        add(world, range(2, 3))
    await world.settle()
    [claim] = world.api.of(RESOURCE_CLAIMS)
    assert [it["resource"] for it in claim["status"]["reservedFor"]] == ["podgroups"]
    assert len(bound(world)) == 3
    assert len(set(bound(world).values())) == 1


async def test_a_group_gets_nodes_with_the_same_value_of_a_label_and_later_pods_follow(world: World) -> None:
    """Neither of two racks takes five pods; three go to one of them, and the fourth one to the same."""
    world = make(Release.V1_37, nodes=4)
    label(world, "a", "a", "b", "b")
    world.api.add(POD_GROUPS, group(3, topology=RACK))
    add(world, range(5))
    await world.settle()
    racks = [{"node-0": "a", "node-1": "a", "node-2": "b", "node-3": "b"}[node] for node in bound(world).values()]
    assert len(racks) == 4
    assert len(set(racks)) == 1
    assert [name for name in (f"group-{n}" for n in range(5)) if f"the same value of {RACK}" in said(world, name)]


async def test_the_pods_of_a_basic_group_with_a_topology_follow_the_first_one(world: World) -> None:
    """It is a gang of one: the first pod chooses the rack, and no pod waits for others."""
    world = make(Release.V1_37, nodes=4)
    label(world, "a", "a", "b", "b")
    world.api.add(POD_GROUPS, group(topology=RACK))
    add(world, range(5))
    await world.settle()
    racks = [node in ("node-0", "node-1") for node in bound(world).values()]
    assert len(racks) == 4
    assert len(set(racks)) == 1


async def test_a_topology_needs_its_gate() -> None:
    world = make(Release.V1_37, topology_aware_scheduling=False)
    world.api.add(POD_GROUPS, group(2, topology=RACK))
    add(world, range(2))
    await world.settle()
    assert "needs the feature gate TopologyAwareWorkloadScheduling" in said(world, "group-0")


async def test_pods_of_a_gang_say_whose_claim_is_awaited(world: World) -> None:
    """kube-controller-manager makes the claims, and has made those of two pods of three."""
    world.controllers = OwnControllers.of({"placement", "release"})
    world.api.add(POD_GROUPS, group(3))
    add(world, range(3))
    for number in range(2):
        make_claim(world, number)
    world.start()
    async with world.running():
        await world.quiet()
        texts = sorted(said(world, f"group-{number}") for number in range(3))
        assert texts[0].startswith('pod "ns/group-2": ResourceClaim not created yet')
        assert texts[1].startswith("waits for pod group-2 of its gang, which is not tried: ")
        assert texts[2].startswith("waits with gang of PodGroup group: pod group-")
        make_claim(world, 2)
        await world.quiet()
    assert len(bound(world)) == 3


def make_claim(world: World, number: int) -> None:
    name = f"group-{number}"
    pod = world.api[PODS, f"ns/{name}"]
    world.api.add(RESOURCE_CLAIMS, Make.claim(f"claim-{number}", owner=pod["metadata"]))
    recorded = [{"name": "entry-0", "resourceClaimName": f"claim-{number}"}]
    world.api.change(PODS, f"ns/{name}", lambda it: it["status"].update(resourceClaimStatuses=recorded))


def shown(world: World, kind: str = "PodGroupInitiallyScheduled") -> tuple[str, str, str] | None:
    """Status, reason and message of the condition of the group."""
    conditions = world.api[POD_GROUPS, "ns/group"].get("status", {}).get("conditions", [])
    return next(((it["status"], it["reason"], it["message"]) for it in conditions if it["type"] == kind), None)


def status_writes(world: World) -> int:
    return sum((call.verb, call.plural, call.sub) == ("update", "podgroups", "status") for call in world.api.calls)


PLACED = ("True", "Scheduled", "")


@pytest.mark.parametrize(
    ("release", "kind"), [(Release.V1_36, "PodGroupScheduled"), (Release.V1_37, "PodGroupInitiallyScheduled")]
)
async def test_a_group_says_that_its_pods_wait_and_once_that_they_were_placed(release: Release, kind: str) -> None:
    """As the leader of the gang says it; what becomes of the pods later changes nothing of it."""
    world = make(release)
    world.api.add(POD_GROUPS, group(5))
    add(world, range(4))
    await world.settle()
    assert shown(world, kind) is None  # it was not tried
    add(world, range(4, 5))
    await world.settle()
    reason = [text for number in range(5) if "fit together" in (text := said(world, f"group-{number}"))]
    assert shown(world, kind) == ("False", "Unschedulable", *reason)
    [condition] = world.api[POD_GROUPS, "ns/group"]["status"]["conditions"]
    assert condition.keys() >= {"lastTransitionTime", "observedGeneration"}
    change(world, 4)
    await world.settle()
    assert len(bound(world)) == 4
    assert shown(world, kind) == PLACED
    writes = status_writes(world)
    for number in range(4):
        world.api.change(PODS, f"ns/group-{number}", lambda pod: pod["status"].update(phase="Failed"))
    world.api.add(PODS, Make.pod("next", [Make.FROM_TEMPLATE], schedulingGroup={"podGroupName": "group"}))
    await world.settle()
    assert (shown(world, kind), status_writes(world)) == (PLACED, writes)


async def test_a_group_with_the_policy_basic_says_so_with_its_first_pod(world: World) -> None:
    """Until then what one of its pods says, which is not written again while that pod says it."""
    world.api.add(POD_GROUPS, group())
    for number in range(3):
        node, grouped = {"example.com/none": str(number)}, {"podGroupName": "group"}
        world.api.add(PODS, Make.pod(f"far-{number}", schedulingGroup=grouped, nodeSelector=node))
    await world.settle()
    found = shown(world)
    assert found is not None
    assert found[:2] == ("False", "Unschedulable")
    assert found[2] in {said(world, f"far-{number}") for number in range(3)}
    writes = status_writes(world)
    world.control.look_again()
    await world.settle()
    assert status_writes(world) == writes
    add(world, range(1))
    await world.settle()
    assert shown(world) == PLACED


async def test_a_group_whose_conditions_are_null_gets_its_own(world: World) -> None:
    world.api.add(POD_GROUPS, group() | {"status": {"conditions": None}})
    add(world, range(1))
    await world.settle()
    assert shown(world) == PLACED


async def test_a_message_that_is_too_long_for_a_condition_of_a_group_is_cut() -> None:
    api = FakeApi()
    api.add(POD_GROUPS, group())
    writer = PodGroupWriter(api, lambda _obj: None, lambda: "2030-01-01T00:00:00Z")
    await writer.report(convert(PodGroup, group()), "PodGroupScheduled", "False", "Unschedulable", "ü" * 40_000)
    [condition] = api[POD_GROUPS, "ns/group"]["status"]["conditions"]
    assert 15_000 < len(condition["message"].encode()) < 32_768


async def test_what_many_pods_of_a_group_say_costs_few_looks_at_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty pods that wait are tried ten times each: the group is looked at for it after pauses that grow."""
    world.api.add(POD_GROUPS, group())
    for number in range(50):
        node, grouped = {"example.com/none": str(number)}, {"podGroupName": "group"}
        world.api.add(PODS, Make.pod(f"far-{number}", schedulingGroup=grouped, nodeSelector=node))
    looks: list[str] = []
    handle = GroupConditions.handle

    async def counted(self: GroupConditions, key: str) -> None:
        looks.append(key)
        await handle(self, key)

    monkeypatch.setattr(GroupConditions, "handle", counted)
    world.start()
    async with world.running():
        for _ in range(10):
            world.control.look_again()
            await world.busy()
    found = shown(world)
    assert found is not None
    assert found[2] in {said(world, f"far-{number}") for number in range(50)}
    assert len(looks) <= 20


async def test_a_condition_that_was_not_written_before_the_operator_ended_is_written_afterwards(world: World) -> None:
    world.api.add(POD_GROUPS, group(2))
    add(world, range(2))

    def cut(call: Call) -> Exception | None:
        return Unreachable("cut") if (call.verb, call.plural) == ("update", "podgroups") else None

    world.start()
    world.api.before = cut
    async with world.running():
        for _ in range(60):
            world.bring_events()
            await world.tick()
    assert (len(bound(world)), shown(world)) == (2, None)
    world.api.before = lambda _: None
    await world.settle()
    assert shown(world) == PLACED


async def test_of_a_group_that_another_scheduler_places_nothing_is_said(world: World) -> None:
    world.api.add(POD_GROUPS, group(1))
    world.api.add(PODS, Make.pod("p", schedulingGroup={"podGroupName": "group"}, schedulerName="default-scheduler"))
    await world.settle()
    world.api.change(PODS, "ns/p", lambda pod: pod["spec"].update(nodeName="node-0"))
    await world.settle()
    assert shown(world) is None


async def test_where_another_component_places_pods_nothing_is_said_of_groups(world: World) -> None:
    world.controllers = OwnControllers.of({"templates", "release"})
    world.api.add(POD_GROUPS, group(1))
    add(world, range(1))
    world.api.change(PODS, "ns/group-0", lambda pod: pod["spec"].update(nodeName="node-0"))
    await world.settle()
    assert shown(world) is None


@pytest.mark.parametrize(("min_count", "gangs"), [(None, {}), (3, {"devices": 1})])
async def test_only_a_group_that_asks_for_a_gang_is_counted_as_one_that_waits(
    world: World, min_count: int | None, gangs: dict[str, int]
) -> None:
    world.furnish(2, 1)
    world.api.add(POD_GROUPS, group(min_count))
    for number in range(3):
        world.api.add(RESOURCE_CLAIMS, Make.claim(f"large-{number}", count=3))
        add(world, range(number, number + 1), "group", Make.use(f"large-{number}"))
    await world.settle()
    (family,) = (it for it in world.registry.collect() if it.name == "dra_operator_waiting_gangs")
    assert {sample.labels["reason"]: sample.value for sample in family.samples} == gangs
