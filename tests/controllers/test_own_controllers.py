"""Which work is ours: beside a claim controller, without one, and while one comes or goes."""

from __future__ import annotations

from typing import Any

import pytest
from controllers_world import World
from dra_api.core import Pod
from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from dra_operator.allocator import Features
from dra_operator.controllers import OwnControllers
from dra_operator.controllers.settings import UnknownController
from fake_api import Call
from objects import Make, Obj

ANNOTATION = "resource.kubernetes.io/pod-claim-name"
FINALIZER = "resource.kubernetes.io/delete-protection"


def allocation(device: str = "dev-0") -> Obj:
    result = {"request": "req", "driver": "gpu.example.com", "pool": "node-a", "device": device}
    field = {"key": "metadata.name", "operator": "In", "values": ["node-a"]}
    return {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }


def furnish(world: World, make: type[Make], **pod: Any) -> Obj:
    """A node with devices, a template, and a pod with one claim from it."""
    world.furnish(("node-a",), devices=4)
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    added: Obj = world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE], **pod))
    return added


def generated(world: World, make: type[Make], pod: Obj, name: str, **status: Any) -> Obj:
    """A claim for the pod's entry, as a claim controller makes it."""
    claim = make.claim(name, owner=pod["metadata"], annotations={ANNOTATION: "entry-0"})
    if status:
        claim["metadata"]["finalizers"] = [FINALIZER]
        claim["status"] = status
    added: Obj = world.api.add(RESOURCE_CLAIMS, claim)
    return added


def record(world: World, name: str) -> None:
    statuses = [{"name": "entry-0", "resourceClaimName": name}]
    world.api.change(PODS, "ns/pod", lambda pod: pod["status"].update(resourceClaimStatuses=statuses))


def recorded(world: World) -> str | None:
    statuses = world.api[PODS, "ns/pod"]["status"].get("resourceClaimStatuses") or [{}]
    name: str | None = statuses[0].get("resourceClaimName")
    return name


def claims(world: World) -> list[str]:
    return sorted(claim["metadata"]["name"] for claim in world.api.of(RESOURCE_CLAIMS))


def consumer(pod: Obj) -> Obj:
    return {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}


@pytest.mark.parametrize(("theirs", "made"), [("templates", 0), ("placement", 1)])
async def test_work_that_is_not_ours_waits_until_it_becomes_ours(
    theirs: str, made: int, world: World, make: type[Make]
) -> None:
    furnish(world, make)
    world.controllers = OwnControllers(**{theirs: False})
    world.start()
    async with world.running() as control:
        await world.quiet()
        assert (len(claims(world)), bool(world.node_of())) == (made, False)
        setattr(world.controllers, theirs, True)
        control.look_again() if theirs == "placement" else await control.look_at_everything()
        await world.quiet()
    assert (len(claims(world)), bool(world.node_of())) == (1, True)


async def test_a_claim_that_another_controller_made_is_used_and_none_is_made_beside_it(
    world: World, make: type[Make]
) -> None:
    pod = furnish(world, make)
    world.controllers = OwnControllers(templates=False, release=False)
    world.start()
    async with world.running():
        await world.quiet()
        generated(world, make, pod, "theirs")
        record(world, "theirs")
        await world.quiet()
    assert claims(world) == ["theirs"]
    assert bool(world.node_of())
    assert world.api[RESOURCE_CLAIMS, "ns/theirs"]["status"]["reservedFor"][0]["uid"] == pod["metadata"]["uid"]


async def test_without_release_the_claim_of_a_finished_pod_stays_until_it_becomes_ours(
    world: World, make: type[Make]
) -> None:
    furnish(world, make)
    await world.settle()
    world.controllers = OwnControllers(release=False)
    world.start()
    async with world.running() as control:
        world.api.change(PODS, "ns/pod", lambda pod: pod["status"].update(phase="Succeeded"))
        await world.quiet()
        (claim,) = world.api.of(RESOURCE_CLAIMS)
        assert claim["status"]["reservedFor"]
        world.controllers.release = True
        await control.look_at_everything()
        await world.quiet()
    assert claims(world) == []


async def test_without_release_the_finalizer_of_a_deleted_claim_stays(world: World, make: type[Make]) -> None:
    claim = make.claim("c", finalizers=[FINALIZER], deletionTimestamp="2026-01-01T00:00:00Z")
    world.api.add(RESOURCE_CLAIMS, {**claim, "status": {"allocation": allocation()}})
    world.controllers = OwnControllers(release=False)
    await world.settle()
    assert world.api[RESOURCE_CLAIMS, "ns/c"]["metadata"]["finalizers"] == [FINALIZER]
    assert world.api.writes == []


async def test_without_templates_nothing_is_reserved_for_a_pod_with_a_preset_node(
    world: World, make: type[Make]
) -> None:
    world.api.add(RESOURCE_CLAIMS, {**make.claim("c", finalizers=[FINALIZER]), "status": {"allocation": allocation()}})
    world.api.add(PODS, make.pod(claims=[make.use("c")], node="node-a"))
    world.controllers = OwnControllers(templates=False)
    await world.settle()
    assert world.api.writes == []


@pytest.mark.parametrize("release", [True, False], ids=["release is ours", "release is another one's"])
async def test_a_claim_for_extended_resources_made_in_vain_goes_with_placement(release: bool, make: type[Make]) -> None:
    world = World(Features(extended_resources=True))
    pod = world.api.add(PODS, make.pod(node="node-a"))
    annotations = {"resource.kubernetes.io/extended-resource-claim": "true"}
    world.api.add(RESOURCE_CLAIMS, make.claim("vain", owner=pod["metadata"], annotations=annotations))
    world.controllers = OwnControllers(release=release)
    await world.settle()
    assert claims(world) == []


def in_use(pod: Obj, device: str = "dev-0") -> Obj:
    return {"allocation": allocation(device), "reservedFor": [consumer(pod)]}


EVERYONE = [OwnControllers(), OwnControllers(templates=False, release=False)]
IDS = ["all ours", "only placement ours"]


@pytest.mark.parametrize("controllers", EVERYONE, ids=IDS)
@pytest.mark.parametrize("node", ["", "node-a"], ids=["before it is bound", "after it is bound"])
@pytest.mark.parametrize("when", ["at start", "by an event"])
async def test_a_pod_that_records_another_claim_than_the_one_allocated_for_it_is_repaired(
    world: World, make: type[Make], controllers: OwnControllers, node: str, when: str
) -> None:
    pod = furnish(world, make, node=node)
    generated(world, make, pod, "allocated", **in_use(pod))
    if when == "by an event":
        record(world, "allocated")
    else:
        generated(world, make, pod, "second")
        record(world, "second")
    world.controllers = controllers
    world.start()
    async with world.running():
        await world.quiet()
        if when == "by an event":
            generated(world, make, pod, "second")
            record(world, "second")
            await world.quiet()
    assert recorded(world) == "allocated"
    assert claims(world) == ["allocated"]
    assert bool(world.node_of())


@pytest.mark.parametrize("controllers", EVERYONE, ids=IDS)
async def test_of_two_unused_claims_the_recorded_one_stays_and_is_bound_with(
    world: World, make: type[Make], controllers: OwnControllers
) -> None:
    pod = furnish(world, make)
    generated(world, make, pod, "a-first")
    generated(world, make, pod, "b-recorded")
    record(world, "b-recorded")
    world.controllers = controllers
    await world.settle()
    assert (recorded(world), claims(world)) == ("b-recorded", ["b-recorded"])
    assert world.api[RESOURCE_CLAIMS, "ns/b-recorded"]["status"]["allocation"]


async def test_a_second_claim_that_is_in_use_is_left_alone(world: World, make: type[Make]) -> None:
    pod = furnish(world, make, node="node-a")
    generated(world, make, pod, "one", **in_use(pod))
    generated(world, make, pod, "two", **in_use(pod, "dev-1"))
    record(world, "two")
    world.controllers = OwnControllers(templates=False, release=False)
    await world.settle()
    assert (recorded(world), claims(world)) == ("two", ["one", "two"])
    assert world.api.writes == []


async def test_a_pod_is_bound_only_with_the_claim_that_it_records(world: World, make: type[Make]) -> None:
    """Another controller records a claim of its own while the allocation of the first one is written."""
    pod = furnish(world, make)
    generated(world, make, pod, "first")
    record(world, "first")
    bound_with: list[bool] = []

    def interfere(call: Call) -> None:
        if (call.plural, call.sub) == ("resourceclaims", "status") and "second" not in claims(world):
            generated(world, make, pod, "second")
            record(world, "second")
            world.bring_events()
        if call.sub == "binding":
            status = world.api[RESOURCE_CLAIMS, f"ns/{recorded(world)}"].get("status") or {}
            bound_with.append(bool(status.get("reservedFor")))

    world.api.after = interfere
    world.controllers = OwnControllers(templates=False)
    world.start()
    async with world.running():
        await world.quiet()
    assert bool(world.node_of())
    assert bound_with == [True]
    assert claims(world) == [recorded(world)]


async def test_the_other_entries_of_a_repaired_pod_stay_recorded(world: World, make: type[Make]) -> None:
    pod = furnish(world, make, node="node-a")
    generated(world, make, pod, "allocated", **in_use(pod))
    generated(world, make, pod, "second")
    statuses = [
        {"name": "other", "resourceClaimName": "other-claim"},
        {"name": "entry-0", "resourceClaimName": "second"},
    ]
    world.api.change(PODS, "ns/pod", lambda pod: pod["status"].update(resourceClaimStatuses=statuses))
    world.controllers = OwnControllers(templates=False, release=False)
    await world.settle()
    after = world.api[PODS, "ns/pod"]["status"]["resourceClaimStatuses"]
    assert {entry["name"]: entry["resourceClaimName"] for entry in after} == {
        "other": "other-claim",
        "entry-0": "allocated",
    }


@pytest.mark.parametrize(
    ("controllers", "repaired"),
    [(OwnControllers(), True), (OwnControllers(templates=False, release=False), False)],
    ids=["templates are ours", "templates are another one's"],
)
async def test_pods_of_other_schedulers_are_repaired_by_those_who_make_their_claims(
    world: World, make: type[Make], controllers: OwnControllers, repaired: bool
) -> None:
    pod = furnish(world, make, schedulerName="default-scheduler", node="node-a")
    generated(world, make, pod, "allocated", **in_use(pod))
    generated(world, make, pod, "second")
    record(world, "second")
    world.controllers = controllers
    await world.settle()
    assert (recorded(world) == "allocated") == repaired


async def test_what_changed_since_the_view_was_made_counts(world: World, make: type[Make]) -> None:
    """The second claim got devices before the watch said so: it is no more superfluous."""
    pod = furnish(world, make, node="node-a")
    generated(world, make, pod, "one", **in_use(pod))
    generated(world, make, pod, "two")
    record(world, "one")
    world.controllers = OwnControllers(templates=False, release=False)
    world.start()

    def allocate(claim: Obj) -> None:
        claim["metadata"]["finalizers"] = [FINALIZER]
        claim["status"] = in_use(pod, "dev-1")

    world.api.change(RESOURCE_CLAIMS, "ns/two", allocate)
    world.api.events.clear()
    async with world.running():
        await world.quiet()
    assert claims(world) == ["one", "two"]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["templates", "release", "placement", "eviction"], "templates, release, placement, eviction"),
        (["placement"], "placement"),
        ([], "none"),
    ],
)
def test_concerns_are_given_by_name(names: list[str], text: str) -> None:
    assert str(OwnControllers.of(names)) == text


def test_a_concern_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownController, match=r"preemption: not among templates, release, placement, eviction"):
        OwnControllers.of(["preemption", "release"])


async def test_a_record_of_others_that_a_read_brings_is_seen(world: World, make: type[Make]) -> None:
    """The watch does not bring it any more: the cache knows that version."""
    pod = furnish(world, make)
    seen: list[tuple[str, str]] = []
    world.start()
    async with world.running() as control:
        await world.quiet()
        control.generator.pod_seen = lambda before, now: seen.append((name_in(before), name_in(now)))
        ours = recorded(world)
        generated(world, make, pod, "theirs")
        record(world, "theirs")
        world.api.events[:] = [event for event in world.api.events if event[1] == RESOURCE_CLAIMS]
        await world.quiet()
    assert (ours, "theirs") in seen


def name_in(pod: Pod | None) -> str:
    """What the pod records for its entry."""
    (status,) = (pod.status.resource_claim_statuses if pod is not None else None) or ()
    return status.resource_claim_name or ""
