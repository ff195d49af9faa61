"""Claims that the pods of a PodGroup share (kubernetes-1.37.md section 8)."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from controllers_world import World
from dra_api.releases import Release
from dra_kube import (
    DEVICE_TAINT_RULES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Api,
    Connection,
    Forbidden,
)
from dra_operator.allocator import Features
from dra_operator.controllers import OwnControllers
from dra_operator.controllers.errors import BindingFailed, GenerationFailed, PlacementFailed
from dra_operator.controllers.workers import Decided
from dra_operator.kube import PodGroupWriter
from dra_operator.scheduling import Snapshot, WriteUnderWay, pre_filter
from fake_api import Call
from objects import Make, Obj

TEMPLATE = {"name": "entry-0", "resourceClaimTemplateName": "tmpl"}
BY_NAME = {"name": "entry-0", "resourceClaimName": "shared"}
RESERVED = [{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "group", "uid": "group-uid"}]
FINALIZER = "resource.kubernetes.io/delete-protection"
FAR = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "nowhere", "operator": "Exists"}]}]}


def features(release: Release = Release.V1_37) -> Features:
    return Features(release=release, generic_workload=True, workload_resource_claims=True)


def group(*claims: Obj, **spec: Any) -> Obj:
    meta = {"name": "group", "namespace": "ns", "uid": "group-uid"}
    return {"metadata": meta, "spec": {"schedulingPolicy": {"basic": {}}, "resourceClaims": list(claims), **spec}}


def member(name: str, *claims: Obj, **spec: Any) -> Obj:
    return Make.pod(name, [*claims], schedulingGroup={"podGroupName": "group"}, **spec)


def shared(**status: Any) -> Obj:
    """A claim that is allocated where no node is, and reserved for the group unless said otherwise."""
    allocation = {"devices": {}, "nodeSelector": FAR}
    claim = Make.claim("shared", finalizers=[FINALIZER])
    return {**claim, "status": {"allocation": allocation, "reservedFor": RESERVED, **status}}


def the_claim(world: World) -> Obj:
    [claim] = world.api.of(RESOURCE_CLAIMS)
    return claim


def the_snapshot(world: World) -> Snapshot:
    return world.control.placer._snapshot()


def end(world: World, pod: str) -> None:
    world.api.change(PODS, f"ns/{pod}", lambda obj: obj["status"].update(phase="Succeeded"))


@pytest.fixture
def world() -> World:
    world = World(features())
    world.furnish(nodes=2)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    return world


@pytest.mark.rule("K37-MET-03", "K37-WL-02", "K37-WL-03", "K37-WL-04", "K37-WL-20")
async def test_int_033_three_pods_share_one_claim_that_is_made_for_their_group(world: World) -> None:
    """On one node, since it has the device; a fourth entry of another template stays the pod's own."""
    world.api.add(POD_GROUPS, group(TEMPLATE))
    for name in ("a", "b", "c"):
        world.api.add(PODS, member(name, TEMPLATE))
    await world.settle()
    claim = the_claim(world)
    [owner] = claim["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "name": "group",
        "uid": "group-uid",
        "controller": True,
    }
    assert claim["metadata"]["annotations"] == {"resource.kubernetes.io/pod-claim-name": "entry-0"}
    assert claim["status"]["reservedFor"] == RESERVED
    recorded = [{"name": "entry-0", "resourceClaimName": claim["metadata"]["name"]}]
    assert world.api[POD_GROUPS, "ns/group"]["status"]["resourceClaimStatuses"] == recorded
    pods = world.api.of(PODS)
    assert [pod["status"]["resourceClaimStatuses"] for pod in pods] == [recorded] * 3
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 1
    made = "dynamic_resource_allocation_resourceclaim_creates_total"
    labels = {"status": "success", "admin_access": "false"}
    owner = {"owner_api_group": "scheduling.k8s.io", "owner_api_kind": "PodGroup"}
    assert world.registry.get_sample_value(made, {**labels, **owner}) == 1


@pytest.mark.rule("K37-WL-02")
async def test_an_entry_that_only_has_the_name_of_the_groups_is_the_pods_own(world: World) -> None:
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template("other"))
    world.api.add(POD_GROUPS, group(TEMPLATE))
    world.api.add(PODS, member("a", {"name": "entry-0", "resourceClaimTemplateName": "other"}))
    await world.settle()
    by_owner = {it["metadata"]["ownerReferences"][0]["kind"]: it for it in world.api.of(RESOURCE_CLAIMS)}
    assert by_owner.keys() == {"Pod", "PodGroup"}
    assert [it["resource"] for it in by_owner["Pod"]["status"]["reservedFor"]] == ["pods"]
    assert "allocation" not in by_owner["PodGroup"].get("status", {})


@pytest.mark.rule("K37-WL-10")
@pytest.mark.parametrize("release", [Release.V1_36, Release.V1_37])
async def test_the_devices_come_free_with_the_last_pod_or_before_1_37_with_the_group(release: Release) -> None:
    world = World(features(release))
    world.furnish()
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    world.api.add(POD_GROUPS, group(TEMPLATE))
    for name in ("a", "b"):
        world.api.add(PODS, member(name, TEMPLATE))
    await world.settle()
    end(world, "a")
    await world.settle()
    assert the_claim(world)["status"]["reservedFor"] == RESERVED
    end(world, "b")
    await world.settle()
    assert ("allocation" in the_claim(world)["status"]) == (release < Release.V1_37)
    world.api.drop(POD_GROUPS, "ns/group")
    await world.settle()
    assert not the_claim(world)["status"].get("allocation")


async def test_pods_keep_their_devices_when_their_group_is_deleted(world: World) -> None:
    """DEVIATE: Kubernetes would give away what they run with."""
    world.api.add(POD_GROUPS, group(TEMPLATE))
    world.api.add(PODS, member("a", TEMPLATE))
    await world.settle()
    world.api.drop(POD_GROUPS, "ns/group")
    await world.settle()
    assert the_claim(world)["status"]["allocation"]
    end(world, "a")
    await world.settle()
    assert not the_claim(world)["status"].get("allocation")


async def test_a_reservation_stays_for_a_pod_that_only_the_server_knows(world: World) -> None:
    """Another scheduler reserves the claim, and its pod comes by another watch than the claim."""
    world.api.add(POD_GROUPS, group(BY_NAME))
    world.start()
    world.api.add(PODS, member("a", BY_NAME, schedulerName="another"))
    world.api.add(RESOURCE_CLAIMS, shared())
    world.api.events = [event for event in world.api.events if event[1] is not PODS]
    async with world.running():
        await world.quiet()
    assert the_claim(world)["status"]["reservedFor"] == RESERVED


async def test_a_pod_waits_while_the_reservation_of_its_group_is_taken_off(world: World) -> None:
    """It would be placed with a claim that loses its devices."""
    world.api.add(POD_GROUPS, group(BY_NAME))
    world.api.add(RESOURCE_CLAIMS, Make.claim("shared"))
    world.api.add(PODS, member("a", BY_NAME))
    await world.settle()
    end(world, "a")
    world.start()
    tried: list[bool] = []

    def on_its_way(call: Call) -> None:
        if (call.verb, call.plural) == ("patch", "resourceclaims"):
            world.api.add(PODS, member("b", BY_NAME))
            world.bring_events()
            pod = world.cluster.pods.get("ns/b")
            tried.append(pod is not None and isinstance(pre_filter(pod, the_snapshot(world)), WriteUnderWay))

    world.api.before = on_its_way
    async with world.running():
        await world.quiet()
    assert tried == [True]
    assert world.api[PODS, "ns/b"]["spec"]["nodeName"]
    assert the_claim(world)["status"]["reservedFor"] == RESERVED


async def test_the_last_pod_of_a_group_ends_the_reservations_that_it_did_not_use(world: World) -> None:
    world.api.add(POD_GROUPS, group(TEMPLATE))
    world.api.add(PODS, member("a", TEMPLATE))
    world.api.add(PODS, member("b"))
    await world.settle()
    end(world, "a")
    await world.settle()
    assert the_claim(world)["status"]["reservedFor"] == RESERVED
    world.start()
    async with world.running():
        await world.quiet()
        end(world, "b")
        await world.quiet()
    assert not the_claim(world)["status"].get("reservedFor")


@pytest.mark.rule("K37-WL-24", "K37-WL-25", "K37-WL-26")
@pytest.mark.parametrize("release", [Release.V1_36, Release.V1_37])
async def test_devices_in_the_wrong_place_are_given_back_while_no_pod_of_the_group_runs(release: Release) -> None:
    world = World(features(release))
    world.furnish()
    world.api.add(POD_GROUPS, group(BY_NAME))
    world.api.add(RESOURCE_CLAIMS, shared())
    world.api.add(PODS, member("a", BY_NAME))
    await world.settle()
    assert world.api[PODS, "ns/a"]["spec"]["nodeName"] == "node-0"
    assert the_claim(world)["status"]["reservedFor"] == RESERVED
    to_claims = [call.sub for call in world.api.writes if call.plural == "resourceclaims"]
    assert len(to_claims) == (3 if release < Release.V1_37 else 2)  # the reservation goes first, before 1.37


@pytest.mark.rule("K37-WL-25")
async def test_devices_in_the_wrong_place_stay_with_the_pods_of_the_group_that_run(world: World) -> None:
    world.api.add(POD_GROUPS, group(BY_NAME))
    world.api.add(RESOURCE_CLAIMS, shared())
    world.api.add(PODS, member("running", BY_NAME, node="elsewhere"))
    world.api.add(PODS, member("a", BY_NAME))
    await world.settle()
    assert not world.api[PODS, "ns/a"]["spec"].get("nodeName")
    assert the_claim(world)["status"]["reservedFor"] == RESERVED


@pytest.mark.rule("K37-WL-25")
@pytest.mark.parametrize("release", [Release.V1_36, Release.V1_37])
async def test_devices_in_the_wrong_place_stay_if_a_pod_of_the_group_got_a_node_meanwhile(release: Release) -> None:
    world = World(features(release))
    world.furnish()
    world.api.add(POD_GROUPS, group(BY_NAME))
    world.api.add(RESOURCE_CLAIMS, shared())
    world.api.add(PODS, member("a", BY_NAME))

    def goes(call: Call) -> None:
        """Another pod, while this one is told that it waits."""
        if call.plural == "pods" and (PODS, "ns", "running") not in world.api.objects:
            world.api.add(PODS, member("running", BY_NAME, node="elsewhere"))
            world.bring_events()

    world.api.before = goes
    world.start()
    with pytest.raises(PlacementFailed, match="in use by another pod of PodGroup group by now"):
        await world.attempt("ns/a")
    assert the_claim(world)["status"]["reservedFor"] == RESERVED
    assert the_claim(world)["status"]["allocation"]


async def test_no_claim_is_reserved_for_a_pod_whose_group_is_gone_by_then() -> None:
    """It would be for the pod alone, and the kubelet asks for the group's."""
    world = World(features())
    world.furnish()
    world.api.add(POD_GROUPS, group(BY_NAME))
    world.api.add(RESOURCE_CLAIMS, Make.claim("shared"))
    world.api.add(PODS, member("a", BY_NAME))
    decided = await world.start().placer.decide("ns/a")
    assert isinstance(decided, Decided)
    assert decided.follow_up is not None
    world.api.drop(POD_GROUPS, "ns/group")
    world.bring_events()
    with pytest.raises(BindingFailed, match="PodGroup group is gone"):
        await decided.follow_up()
    assert not the_claim(world).get("status")


@pytest.mark.rule("K37-WL-21", "K37-WL-22")
@pytest.mark.parametrize("others", [0, 1])
async def test_a_binding_that_fails_leaves_the_claim_to_the_other_pods_of_the_group(world: World, others: int) -> None:
    world.api.add(POD_GROUPS, group(TEMPLATE))
    for number in range(others):
        world.api.add(PODS, member(f"other-{number}", TEMPLATE))
    await world.settle()
    world.api.add(PODS, member("a", TEMPLATE))
    world.controllers = OwnControllers.of({"templates"})
    await world.settle()
    world.controllers = OwnControllers()
    refused = Forbidden(403, "Forbidden", "no")
    world.api.before = lambda call: refused if (call.name, call.sub) == ("a", "binding") else None
    world.start()
    with pytest.raises(BindingFailed):
        await world.attempt("ns/a")
    assert not world.api[PODS, "ns/a"]["spec"].get("nodeName")
    assert bool(the_claim(world)["status"].get("allocation")) == bool(others)


@pytest.mark.rule("K37-WL-07")
@pytest.mark.parametrize("release", [Release.V1_36, Release.V1_37])
@pytest.mark.parametrize("has_groups", [False, True])
async def test_a_pod_of_a_group_gets_no_claim_of_its_own_from_1_37_on_while_the_gates_are_off(
    release: Release, has_groups: bool
) -> None:
    world = World(Features(release=release, generic_workload=has_groups))
    world.api.add(RESOURCE_CLAIM_TEMPLATES, Make.template())
    world.api.add(PODS, member("a", TEMPLATE))
    if has_groups:
        world.api.add(POD_GROUPS, group(TEMPLATE))
    world.start()
    if release < Release.V1_37:
        await world.control.generator.handle("ns/a")
        assert the_claim(world)["metadata"]["ownerReferences"][0]["kind"] == "Pod"
    else:
        with pytest.raises(GenerationFailed, match="PodResourceClaim entry-0: the pod is in a PodGroup"):
            await world.control.generator.handle("ns/a")
        assert not world.api.of(RESOURCE_CLAIMS)


@pytest.mark.parametrize("claims", [[], [TEMPLATE]])
async def test_a_pod_waits_for_its_group_and_says_so(world: World, claims: list[Obj]) -> None:
    world.api.add(PODS, member("a", *claims))
    world.start()
    async with world.running():
        await world.quiet()
        told = [it["message"] for it in world.api[PODS, "ns/a"]["status"].get("conditions") or ()]
        missing = 'podgroup "group" not found: create it, or correct spec.schedulingGroup of the pod'
        assert told == [missing]
        world.api.add(POD_GROUPS, group(*claims))
        await world.quiet()
    assert world.api[PODS, "ns/a"]["spec"]["nodeName"]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            {"schedulingConstraints": {"topology": [{"key": "rack"}]}},
            "spec.schedulingConstraints needs the feature gate TopologyAwareWorkloadScheduling, which is off",
        ),
        ({"parentCompositePodGroupName": "whole"}, "spec.parentCompositePodGroupName is not supported by dra-operator"),
    ],
)
async def test_a_wish_of_the_group_that_is_not_minded_keeps_its_pods_waiting(
    world: World, spec: Obj, text: str
) -> None:
    world.api.add(POD_GROUPS, group(**spec))
    world.api.add(PODS, member("a"))
    await world.settle()
    [condition] = world.api[PODS, "ns/a"]["status"]["conditions"]
    assert condition["message"].startswith(f'podgroup "group": {text}')


@pytest.mark.rule("K37-WL-08")
async def test_a_pods_own_reservation_beside_that_of_its_group_ends_with_the_pod(world: World) -> None:
    world.api.add(POD_GROUPS, group(BY_NAME))
    world.api.add(PODS, {**member("old", BY_NAME, node="node-0"), "status": {"phase": "Succeeded"}})
    world.api.add(PODS, member("a", BY_NAME, node="node-0"))
    uid = world.api[PODS, "ns/old"]["metadata"]["uid"]
    own = {"resource": "pods", "name": "old", "uid": uid}
    world.api.add(RESOURCE_CLAIMS, shared(reservedFor=[own, *RESERVED]))
    await world.settle()
    assert the_claim(world)["status"]["reservedFor"] == RESERVED


@pytest.mark.rule("K37-TAINT-09")
async def test_e2e_086_a_rule_evicts_all_pods_of_a_group_that_use_the_device(world: World) -> None:
    world.api.add(POD_GROUPS, group(TEMPLATE))
    for name in ("a", "b"):
        world.api.add(PODS, member(name, TEMPLATE))
    await world.settle()
    taint = {"key": "broken", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}
    selector = {"driver": "gpu.example.com"}
    world.api.add(
        DEVICE_TAINT_RULES, {"metadata": {"name": "rule"}, "spec": {"deviceSelector": selector, "taint": taint}}
    )
    world.start()
    async with world.running():
        await world.busy()
    left = [pod for pod in world.api.of(PODS) if not pod["metadata"].get("deletionTimestamp")]
    assert left == []


@pytest.mark.parametrize("case", ["e2e_084 a taint keeps the pods waiting", "e2e_085 tolerated, they run"])
async def test_a_tainted_device_for_a_group(world: World, case: str) -> None:
    spec = {"deviceSelector": {"driver": "gpu.example.com"}, "taint": {"key": "broken", "effect": "NoSchedule"}}
    world.api.add(DEVICE_TAINT_RULES, {"metadata": {"name": "rule"}, "spec": spec})
    template = Make.template("tolerant")
    exactly = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    is_tolerated = case.startswith("e2e_085")
    exactly["tolerations"] = [{"operator": "Exists"}] if is_tolerated else []
    world.api.add(RESOURCE_CLAIM_TEMPLATES, template)
    entry = {**TEMPLATE, "resourceClaimTemplateName": "tolerant"}
    world.api.add(POD_GROUPS, group(entry))
    world.api.add(PODS, member("a", entry))
    await world.settle()
    assert bool(world.api[PODS, "ns/a"]["spec"].get("nodeName")) == is_tolerated


async def test_a_claim_of_the_group_is_made_again_when_it_is_gone(world: World) -> None:
    world.api.add(POD_GROUPS, group(TEMPLATE))
    await world.settle()
    first = the_claim(world)["metadata"]["name"]
    world.api.drop(RESOURCE_CLAIMS, f"ns/{first}")
    await world.settle()
    second = the_claim(world)["metadata"]["name"]
    assert second != first
    [status] = world.api[POD_GROUPS, "ns/group"]["status"]["resourceClaimStatuses"]
    assert status["resourceClaimName"] == second


async def test_a_crash_before_the_record_makes_no_second_claim(world: World) -> None:
    world.api.add(POD_GROUPS, group(TEMPLATE))
    refused = Forbidden(403, "Forbidden", "no")
    world.api.before = lambda call: refused if call.plural == "podgroups" and call.verb == "update" else None
    world.start()
    with pytest.raises(Forbidden):
        await world.control.group_generator.handle("ns/group")
    assert "status" not in world.api[POD_GROUPS, "ns/group"]
    world.api.before = lambda call: None
    await world.settle()
    [status] = world.api[POD_GROUPS, "ns/group"]["status"]["resourceClaimStatuses"]
    assert status["resourceClaimName"] == the_claim(world)["metadata"]["name"]


async def test_without_the_gate_a_pod_of_a_group_waits_as_before(world: World) -> None:
    world = World(Features())
    world.furnish()
    world.api.add(PODS, member("a"))
    await world.settle()
    [condition] = world.api[PODS, "ns/a"]["status"]["conditions"]
    assert condition["message"].startswith("spec.schedulingGroup is not supported by dra-operator yet; turn on")
    assert not world.cluster.groups.members


async def test_the_pods_of_a_namespace_are_not_kept_while_a_group_is_asked_for_active_ones() -> None:
    """Users decide how many there are, and how large: as raw objects these took five times their JSON."""
    tolerations = [{"key": f"example.com/{number}", "operator": "Exists"} for number in range(1000)]
    pods = [Make.pod(f"pod-{number}", tolerations=tolerations) for number in range(20)]
    page = json.dumps({"metadata": {"resourceVersion": "1"}, "items": pods}).encode()

    async def answer(*_: object, **__: object) -> bytes:
        return page

    async with Api(Connection("http://127.0.0.1:1", None, lambda: None)) as api:
        api._transport.read = answer  # type: ignore[method-assign]
        tracemalloc.start()
        try:
            assert not await PodGroupWriter(api, lambda _: None, lambda: "").has_active_pods("ns", "group")
            assert tracemalloc.get_traced_memory()[1] < 1.5 * len(page)
        finally:
            tracemalloc.stop()
