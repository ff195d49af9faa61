"""Claims and templates of half a megabyte: their pods say so, and their devices come free as those of others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from controllers_world import World
from dra_kube import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_operator.kube.claims import LARGE_CLAIMS_AT_ONCE, ClaimWriter
from fake_api import Call, Effect
from objects import Make
from waiting import until

CONFIG = [{"opaque": {"driver": "gpu.example.com", "parameters": {"text": "x" * 10_000}}}] * 32
SIZE = "has a spec of 315 KiB, and dra-operator allocates at most 64 KiB: shorten selectors, tolerations, opaque "


def furnish(world: World, make: type[Make]) -> None:
    world.api.add(DEVICE_CLASSES, make.device_class("gpu"))
    world.api.add(NODES, make.node("node-0"))
    world.api.add(RESOURCE_SLICES, make.slice("node-0", 1))


def large(make: type[Make], **status: Any) -> dict[str, Any]:
    claim = make.claim("large")
    claim["spec"]["devices"]["config"] = CONFIG
    return claim | ({"status": status} if status else {})


async def test_the_pod_of_a_large_claim_says_how_large_it_is_and_runs_when_it_is_replaced(
    world: World, make: type[Make]
) -> None:
    furnish(world, make)
    world.api.add(RESOURCE_CLAIMS, large(make))
    world.api.add(PODS, make.pod("pod", [make.use("large")]))
    world.start()
    async with world.running():
        await world.quiet()
        assert f"claim ns/large {SIZE}" in said(world)
        world.api.drop(RESOURCE_CLAIMS, "ns/large")
        world.api.add(RESOURCE_CLAIMS, make.claim("large"))
        await world.quiet()
    assert world.api[PODS, "ns/pod"]["spec"]["nodeName"] == "node-0"


async def test_an_event_at_the_pod_says_that_its_template_is_too_large_until_a_shorter_one_is_there(
    world: World, make: type[Make]
) -> None:
    template = make.template()
    template["spec"]["spec"]["devices"]["config"] = CONFIG
    world.api.add(RESOURCE_CLAIM_TEMPLATES, template)
    world.api.add(PODS, make.pod("pod", [make.FROM_TEMPLATE]))
    world.start()
    with pytest.raises(Exception, match="resource claim template tmpl has a spec of 315 KiB"):
        await world.control.generator.handle("ns/pod")
    assert not world.api.of(RESOURCE_CLAIMS)
    async with world.running():
        world.api.drop(RESOURCE_CLAIM_TEMPLATES, "ns/tmpl")
        world.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
        await world.quiet()
    (message,) = world.messages("FailedResourceClaimCreation")
    assert f"resource claim template tmpl {SIZE}" in message
    assert len(world.api.of(RESOURCE_CLAIMS)) == 1


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_large_claim_that_another_scheduler_allocated_is_released_with_its_devices(
    world: World, make: type[Make], *, is_deleted: bool
) -> None:
    furnish(world, make)
    pod = make.pod("theirs", [make.use("large")])
    pod["spec"] |= {"schedulerName": "another", "nodeName": "node-0"}
    world.api.add(PODS, pod)
    uid = world.api[PODS, "ns/theirs"]["metadata"]["uid"]
    result = {"request": "req", "driver": "gpu.example.com", "pool": "node-0", "device": "dev-0"}
    allocation = {"devices": {"results": [result], "config": [{"source": "FromClaim", **it} for it in CONFIG]}}
    claim = large(make, allocation=allocation, reservedFor=[{"resource": "pods", "name": "theirs", "uid": uid}])
    claim["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    world.api.add(RESOURCE_CLAIMS, claim)
    world.api.add(RESOURCE_CLAIMS, make.claim("other"))
    world.api.add(PODS, make.pod("ours", [make.use("other")]))
    world.start()
    async with world.running():
        await world.quiet()
        assert "nodeName" not in world.api[PODS, "ns/ours"]["spec"]
        if is_deleted:
            world.api.deleted(RESOURCE_CLAIMS, "large", "ns")
        world.api.drop(PODS, "ns/theirs")
        await world.quiet()
    assert world.api[PODS, "ns/ours"]["spec"]["nodeName"] == "node-0"
    left = {claim["metadata"]["name"]: claim for claim in world.api.of(RESOURCE_CLAIMS)}
    assert ("large" in left) != is_deleted
    if not is_deleted:
        assert left["large"]["spec"]["devices"]["config"] == CONFIG
        assert "allocation" not in left["large"]["status"]


def said(world: World) -> str:
    conditions = world.api[PODS, "ns/pod"]["status"]["conditions"]
    return str(next(it["message"] for it in conditions if it["type"] == "PodScheduled"))


def most_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The most requests about single claims that were under way at the same time, from now on."""
    request, now, peak = world.api.request, 0, 0

    async def counted(call: Call, effect: Effect) -> dict[str, Any]:
        nonlocal now, peak
        is_about_one = call.plural == RESOURCE_CLAIMS.plural and call.name != "(list)"
        now += is_about_one
        peak = max(peak, now)
        try:
            await asyncio.sleep(0.01)
            return await request(call, effect)
        finally:
            now -= is_about_one

    monkeypatch.setattr(world.api, "request", counted)
    return lambda: peak


@pytest.mark.parametrize("is_large", [False, True])
async def test_of_large_claims_few_are_read_and_written_at_the_same_time(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch, *, is_large: bool
) -> None:
    furnish(world, make)
    world.api.add(RESOURCE_SLICES, make.slice("node-0", 10))
    labels = {f"{'x' * 60 * is_large}{number}": "" for number in range(1200)}
    for number in range(10):
        world.api.add(RESOURCE_CLAIMS, make.claim(f"claim-{number}", labels=labels))
        world.api.add(PODS, make.pod(f"pod-{number}", [make.use(f"claim-{number}")]))

    async def are_bound() -> bool:
        return all(pod["spec"].get("nodeName") for pod in world.api.of(PODS))

    peak = most_at_once(world, monkeypatch)
    world.start()
    async with world.running():
        await until("all pods are bound", are_bound)
    assert all(claim["metadata"]["labels"] == labels for claim in world.api.of(RESOURCE_CLAIMS))
    # The last turn is for the claims of another namespace.
    assert peak() == LARGE_CLAIMS_AT_ONCE - 1 if is_large else peak() > LARGE_CLAIMS_AT_ONCE


async def test_large_claims_that_wait_for_their_turns_keep_no_worker_from_the_pods_of_others(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant may have many namespaces, and its writes take as long as the server needs."""
    furnish(world, make)
    world.api.add(RESOURCE_SLICES, make.slice("node-0", 100))
    world.times = replace(world.times, workers={**world.times.workers, "placement": 8})

    def add(namespace: str, number: int, labels: dict[str, str]) -> None:
        claim, pod = (
            make.claim(f"claim-{number}", labels=labels),
            make.pod(f"pod-{number}", [make.use(f"claim-{number}")]),
        )
        for kind, obj in ((RESOURCE_CLAIMS, claim), (PODS, pod)):
            obj["metadata"]["namespace"] = namespace
            world.api.add(kind, obj)

    labels = {f"{'x' * 60}{number}": "" for number in range(1200)}
    for number in range(9):
        add(f"hoarder-{number}", number, labels)
    request, answers = world.api.request, asyncio.Event()

    async def slow(call: Call, effect: Effect) -> dict[str, Any]:
        if call.plural == RESOURCE_CLAIMS.plural and call.name not in ("claim-100", "(list)"):
            await answers.wait()
        return await request(call, effect)

    monkeypatch.setattr(world.api, "request", slow)

    async def is_bound() -> bool:
        return bool(world.api[PODS, "neighbour/pod-100"]["spec"].get("nodeName"))

    async def are_bound() -> bool:
        return all(pod["spec"].get("nodeName") for pod in world.api.of(PODS))

    world.start()
    async with world.running():
        for _ in range(20):
            await asyncio.sleep(0)
        add("neighbour", 100, {})
        world.bring_events()
        await until("the neighbour's pod is bound", is_bound, 5)
        assert len(world.cluster.large_claims) == 9
        answers.set()
        await until("all pods are bound", are_bound)
        for pod in list(world.api.of(PODS)):
            world.api.drop(PODS, f"{pod['metadata']['namespace']}/{pod['metadata']['name']}")
        for claim in list(world.api.of(RESOURCE_CLAIMS)):
            world.api.deleted(RESOURCE_CLAIMS, claim["metadata"]["name"], claim["metadata"]["namespace"])
        await world.quiet()
    assert not world.api.of(RESOURCE_CLAIMS)
    assert not world.cluster.large_claims


async def test_of_claims_that_are_looked_up_by_their_names_few_are_read_at_the_same_time(
    world: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says before the answer how large they are."""
    for number in range(10):
        world.api.add(RESOURCE_CLAIMS, make.claim(f"claim-{number}"))
    peak = most_at_once(world, monkeypatch)
    writer = ClaimWriter(world.api, lambda _: None, lambda _: None, lambda: None)
    found = await asyncio.gather(*(writer.find("ns", f"claim-{number}") for number in range(10)))
    assert [claim.metadata.name for claim in found] == [f"claim-{number}" for number in range(10)]
    assert peak() == LARGE_CLAIMS_AT_ONCE
