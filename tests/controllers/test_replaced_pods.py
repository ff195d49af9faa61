"""A pod or a claim with the name of another one that is not quite gone: handled like any other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from controllers_world import World
from dra_api.codec import convert
from dra_api.core import Pod
from dra_kube import NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Resource
from dra_operator.cache import Key, Source, check
from dra_operator.controllers import BackoffSettings
from fake_api import ERRORS
from objects import Make, Obj


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
