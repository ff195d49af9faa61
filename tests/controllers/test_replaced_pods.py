"""An object with the name of another one that is not quite gone: handled like any other, reached by no late write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from controllers_world import World
from dra_api.codec import convert
from dra_api.core import NodeSelectorTerm, Pod
from dra_api.resource import ResourceClaim, ResourceClaimConsumerReference, ResourcePoolStatusRequestStatus
from dra_api.storage import PersistentVolumeClaim
from dra_kube import (
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_POOL_STATUS_REQUESTS,
    Conflict,
    Resource,
)
from dra_operator.cache import Key, Source, check
from dra_operator.controllers import BackoffSettings
from dra_operator.kube import (
    DEVICE_TAINT,
    ClaimWriter,
    ObjectChanged,
    PodGroupWriter,
    PodWriter,
    PoolRequestWriter,
    VolumeWriter,
)
from dra_operator.sources.kinds import WATCHED
from fake_api import ERRORS, FakeApi
from objects import Make, Obj
from volume_lab import SELECTED, volume, volume_claim


@pytest.mark.parametrize("deletion", ["comes late", "never comes"])
@pytest.mark.parametrize("templates", [True, False], ids=["with claims", "without claims"])
async def test_fifteen_pods_are_replaced_by_others_of_the_same_name(
    templates: bool, deletion: str, world: World, make: type[Make]
) -> None:
    """Events of a pod and of its successor come in any order, and a list tells of no deletion at all."""
    world.furnish(devices=15)
    world.api.change(NODES, "node-0", lambda node: node["status"]["allocatable"].update(pods="15"))
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    claims = [make.FROM_TEMPLATE] if templates else []
    names = [f"pod-{number}" for number in range(15)]
    for name in names:
        world.api.add(PODS, make.pod(name, claims=claims))
    world.start()
    async with world.running():
        await world.quiet()
        for name in names:
            world.api.drop(PODS, f"ns/{name}")
            (gone,) = [event for event in world.api.events if event[0] == "DELETED" and event[1] == PODS]
            world.api.events.remove(gone)
            world.api.add(PODS, make.pod(name, claims=claims))
            if deletion == "comes late":
                world.bring_events()
                world.api.events.append(gone)
            await world.quiet()
        check(world.cluster)
    assert [world.api[PODS, f"ns/{name}"]["spec"].get("nodeName") for name in names] == ["node-0"] * 15
    assert world.cluster.loads.used("node-0")["pods"] == 15 * 10**9


@pytest.mark.parametrize("deletion", ["is shown", "is not shown"])
async def test_a_pod_does_not_wait_for_the_back_off_of_its_predecessor(
    deletion: str, world: World, make: type[Make]
) -> None:
    """A person may have made it anew to mend what failed."""
    world.furnish()
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    world.times = replace(world.times, placement_retries=BackoffSettings(first=1000.0))
    world.api.before = lambda call: ERRORS["forbidden"]() if call.sub == "binding" else None
    world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
    world.start()
    async with world.running() as control:
        async with asyncio.timeout(30):
            while not control.queues.of("placement").retries:
                world.bring_events()
                await world.tick()
        world.api.before = lambda call: None
        world.bring_events()
        world.api.drop(PODS, "ns/pod")
        if deletion == "is not shown":
            world.api.events.clear()
        world.api.add(PODS, make.pod(claims=[make.FROM_TEMPLATE]))
        await world.quiet()
    assert world.api[PODS, "ns/pod"]["spec"]["nodeName"] == "node-0"


async def test_a_late_version_of_a_predecessor_takes_no_time_from_its_successor(world: World, make: type[Make]) -> None:
    """The answer to a write about the pod that had the name, and a node."""
    old, new = make.pod(), make.pod()
    old["spec"]["nodeName"] = "node-0"
    for number, obj in enumerate((old, new), 1):
        obj["metadata"].update(uid=f"uid-{number}", resourceVersion=str(number))
    world.furnish()
    control = world.start()
    control.apply(Source.WATCH, convert(Pod, new))
    queue = control.queues.of("placement")
    await queue.get()
    queue.done(KEY)
    queue.add_after(KEY, 1000)
    control.apply(Source.ANSWER, convert(Pod, old))
    assert not queue.is_quiet
    queue.close()


KEY = Key("placement", "ns/pod")
POD = Make.pod(claims=[Make.FROM_TEMPLATE])
IMMEDIATE = Make.claim("claim", annotations={"dra.kopf.dev/allocate": "immediate"})
ENDED: dict[str, Any] = {
    "finalizers": ["resource.kubernetes.io/delete-protection"],
    "deletionTimestamp": "2026-01-01T00:00:00Z",
}


@pytest.mark.parametrize("deletion", ["is shown", "is not shown"])
@pytest.mark.parametrize(
    ("kind", "obj", "refused", "key"),
    [
        (PODS, POD, "create", Key("templates", "ns/pod")),
        (RESOURCE_CLAIMS, IMMEDIATE, "update", Key("placement", "ns/claim:claim")),
        (RESOURCE_CLAIMS, Make.claim("claim", **ENDED), "patch", Key("release", "ns/claim")),
    ],
    ids=["claim to be made", "immediate claim", "claim to be released"],
)
async def test_a_back_off_ends_with_its_object(
    kind: Resource, obj: Obj, refused: str, key: Key, deletion: str, world: World, make: type[Make]
) -> None:
    world.furnish()
    world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    waits = BackoffSettings(first=0.001)
    world.times = replace(world.times, retries=waits, placement_retries=waits)
    is_refused = {("resourceclaims", refused)}
    world.api.before = lambda call: ERRORS["forbidden"]() if (call.plural, call.verb) in is_refused else None
    world.api.add(kind, obj)
    world.start()
    async with world.running() as control:
        queue = control.queues.of(key.controller)
        async with asyncio.timeout(30):
            while queue.failures(key) < 3:
                world.bring_events()
                await world.tick()
        world.bring_events()
        world.api.drop(kind, f"ns/{obj['metadata']['name']}")
        if deletion == "is not shown":
            world.api.events.clear()
        world.api.add(kind, obj)
        world.bring_events()
        assert queue.failures(key) == 0
        is_refused.clear()
        await world.quiet()


class Writers:
    """All that writes, and what the answers brought."""

    def __init__(self, api: FakeApi) -> None:
        seen: list[Any] = []
        self.seen, now = seen, lambda: "2030-01-01T00:00:00Z"
        self.claims = ClaimWriter(api, seen.append, lambda _: None, lambda: None)
        self.pods = PodWriter(api, seen.append, lambda _: None, now)
        self.groups = PodGroupWriter(api, seen.append, now)
        self.volumes = VolumeWriter(api, seen.append)
        self.requests = PoolRequestWriter(api, seen.append)


GUARD, HOLD = "resource.kubernetes.io/delete-protection", "dra.kopf.dev/hold"
RESULT = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
TAKEN = Make.claim("claim", finalizers=[GUARD]) | {
    "status": {
        "allocation": {"devices": {"results": [RESULT]}},
        "reservedFor": [{"resource": "pods", "name": "user", "uid": "user"}],
    }
}
OURS = ResourceClaimConsumerReference(resource="pods", name="ours", uid="ours")
CONTEST = ResourceClaimConsumerReference(api_group="dra.kopf.dev", resource="contests", name="one", uid="one")
REACH = NodeSelectorTerm(match_fields=())
GATE = "dra.kopf.dev/allocate"
FREE = Make.claim("claim", finalizers=[GUARD]) | {"status": {}}
GATED = Make.pod(claims=[Make.FROM_TEMPLATE], schedulingGates=[{"name": GATE}])
GROUP = {"metadata": {"name": "group", "namespace": "ns"}, "spec": {"schedulingPolicy": {"basic": {}}}}
ASKED = {"metadata": {"name": "asked"}, "spec": {"driver": "gpu.example.com"}}
WANTED = convert(PersistentVolumeClaim, volume_claim())

WRITES: dict[str, tuple[Resource, Obj, Callable[[Writers, Any], Awaitable[object]]]] = {
    "allocate": (RESOURCE_CLAIMS, FREE, lambda it, obj: it.claims.allocate(obj, allocation(), OURS)),
    "reserve": (RESOURCE_CLAIMS, TAKEN, lambda it, obj: it.claims.reserve(obj, OURS)),
    "unreserve": (RESOURCE_CLAIMS, TAKEN, lambda it, obj: it.claims.unreserve(obj, {"user"})),
    "unreserve for one that is gone": (
        RESOURCE_CLAIMS,
        TAKEN,
        lambda it, obj: it.claims.unreserve(obj, {"user"}, are_gone=True),
    ),
    "park": (RESOURCE_CLAIMS, TAKEN, lambda it, obj: it.claims.park(obj, {"user"}, CONTEST)),
    "deallocate": (RESOURCE_CLAIMS, TAKEN, lambda it, obj: it.claims.deallocate(obj, "user")),
    "release": (RESOURCE_CLAIMS, FREE, lambda it, obj: it.claims.release(obj)),
    "swap finalizers": (RESOURCE_CLAIMS, TAKEN, lambda it, obj: it.claims.swap_finalizers(obj, GUARD, HOLD)),
    "delete a claim": (RESOURCE_CLAIMS, TAKEN, lambda it, obj: it.claims.delete(obj)),
    "record the claims of a pod": (PODS, GATED, lambda it, obj: it.pods.record_claims(obj, {"entry-0": "made"})),
    "record the claim for extended resources": (PODS, GATED, lambda it, obj: it.pods.record_extended(obj, None)),
    "record the use of the node": (PODS, GATED, lambda it, obj: it.pods.record_node_use(obj, [])),
    "say why a pod waits": (PODS, GATED, lambda it, obj: it.pods.report_waiting(obj, "Unschedulable", "no")),
    "bind": (PODS, Make.pod(), lambda it, obj: it.pods.bind(obj, "node-0")),
    "nominate": (PODS, GATED, lambda it, obj: it.pods.nominate(obj, "node-0")),
    "mark as disrupted": (PODS, GATED, lambda it, obj: it.pods.mark_disrupted(obj, DEVICE_TAINT)),
    "delete a pod": (PODS, GATED, lambda it, obj: it.pods.delete(obj)),
    "open a gate": (PODS, GATED, lambda it, obj: it.pods.open_gate(obj, GATE, REACH)),
    "record the claims of a group": (POD_GROUPS, GROUP, lambda it, obj: it.groups.record_claims(obj, {"all": "made"})),
    "set a condition of a group": (POD_GROUPS, GROUP, lambda it, obj: it.groups.report(obj, "Kind", "False", "R", "m")),
    "reserve a volume": (PERSISTENT_VOLUMES, volume(), lambda it, obj: it.volumes.reserve(obj, WANTED)),
    "select a node": (
        PERSISTENT_VOLUME_CLAIMS,
        volume_claim(),
        lambda it, obj: it.volumes.select_node(obj, "node-0"),
    ),
    "answer about a pool": (
        RESOURCE_POOL_STATUS_REQUESTS,
        ASKED,
        lambda it, obj: it.requests.answer(obj, ResourcePoolStatusRequestStatus()),
    ),
}
"""The kind, an object of it, and a write to that."""
LEARN_NOTHING = {"reserve a volume", "select a node"}
"""Writes that do not show the cache the successor that they found: the watch brings that."""


def allocation() -> Any:
    return convert(ResourceClaim, TAKEN).status.allocation


def decided_on(api: FakeApi, write: str, uid: str = "first") -> tuple[Obj, Any]:
    """The object of a write as the server has it, and as it was when the write was decided."""
    kind, obj, _ = WRITES[write]
    stored = api.add(kind, obj | {"metadata": obj["metadata"] | {"uid": uid}})
    return stored, convert(WATCHED[kind], stored)


@pytest.mark.parametrize("write", WRITES)
async def test_a_write_changes_its_object_and_never_a_successor_of_the_same_name(write: str) -> None:
    """Between the decision and the write a person may have made the object anew."""
    call, api = WRITES[write][2], FakeApi()
    writers = Writers(api)
    stored, decided = decided_on(api, write)
    await call(writers, decided)
    assert [*api.objects.values()] != [stored]
    api.objects.clear()
    successor, _ = decided_on(api, write, "second")
    writers.seen.clear()
    try:
        await call(writers, decided)
    except (ObjectChanged, Conflict) as error:
        if isinstance(error, ObjectChanged) and write not in LEARN_NOTHING:
            assert [it.metadata.uid for it in writers.seen] == ["second"]
    assert [*api.objects.values()] == [successor]


def ends(obj: Obj) -> None:
    obj["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=[GUARD, "example.com/slow"])


def with_condition(status: str, reason: str, message: str) -> Callable[[Obj], None]:
    condition = {"type": "Kind", "status": status, "reason": reason, "message": message}
    return lambda obj: obj.update(status={"conditions": [condition | {"lastTransitionTime": "2020-01-01T00:00:00Z"}]})


@pytest.mark.parametrize(
    ("write", "change", "refusal"),
    [
        ("allocate", ends, "claim ns/claim got deleted in the meantime"),
        ("reserve", lambda obj: obj.update(status={}), "claim ns/claim got deallocated elsewhere in the meantime"),
        ("park", lambda obj: obj.update(status={}), "claim ns/claim got deallocated elsewhere in the meantime"),
        ("swap finalizers", lambda obj: obj.update(status={}), None),
        ("swap finalizers", ends, None),
        ("open a gate", ends, "pod ns/pod is being deleted, or was replaced by another one of the same name"),
        ("open a gate", lambda obj: obj["spec"].update(priority=3), "pod ns/pod got another spec in the meantime"),
        ("open a gate", lambda obj: obj["spec"].pop("schedulingGates"), None),
        ("set a condition of a group", with_condition("True", "Other", "of another writer"), None),
        ("set a condition of a group", with_condition("False", "R", "m"), None),
        ("reserve a volume", ends, "PersistentVolume pv got deleted in the meantime"),
        (
            "reserve a volume",
            lambda obj: obj["spec"].update(claimRef={"namespace": "ns", "name": "other", "uid": "uid-other"}),
            "PersistentVolume pv got another claim in the meantime",
        ),
        ("select a node", ends, "PersistentVolumeClaim ns/data got deleted in the meantime"),
        (
            "select a node",
            lambda obj: obj["metadata"].update(annotations={SELECTED: "node-1"}),
            "PersistentVolumeClaim ns/data got node node-1 in the meantime",
        ),
        ("select a node", lambda obj: obj["metadata"].update(annotations={SELECTED: "node-0"}), None),
    ],
)
async def test_a_write_leaves_an_object_alone_that_changed_since_it_was_decided(
    write: str, change: Callable[[Obj], object], refusal: str | None
) -> None:
    (kind, obj, call), api = WRITES[write], FakeApi()
    writers = Writers(api)
    _, decided = decided_on(api, write)
    changed = api.change(kind, f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}", change)
    expected = pytest.raises(ObjectChanged, match=f"^{refusal}$") if refusal is not None else nullcontext()
    with expected:
        await call(writers, decided)
    assert [*api.objects.values()] == [changed]
    if write not in LEARN_NOTHING:
        assert [it.metadata.resource_version for it in writers.seen] == [changed["metadata"]["resourceVersion"]]


async def test_a_pod_that_is_read_as_a_whole_is_no_successor_of_its_name(make: type[Make]) -> None:
    api = FakeApi()
    pod = api.add(PODS, make.pod())
    api.change(PODS, "ns/pod", lambda obj: obj["metadata"].update(uid="second"))
    with pytest.raises(ObjectChanged, match="pod ns/pod was replaced by another one of the same name"):
        await Writers(api).pods.whole(convert(Pod, pod))
