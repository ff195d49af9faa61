"""Pods, claims and templates for which the cache has no room: they are read when their turn comes."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
from controllers_world import World
from dra_api.codec import encode
from dra_api.resource import ResourceClaim
from dra_kube import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Unreachable
from dra_operator.allocator import Allocator, claim_program
from dra_operator.allocator.claim_program import Alternative
from dra_operator.cache import BulkLimits
from fake_api import Call
from objects import Make

PARAMETERS = {"opaque": {"driver": "gpu.example.com", "parameters": {"text": "x" * 3_000}}}


@pytest.fixture
def crowded(world: World) -> World:
    """An operator that has no room for anything that is not short."""
    world.limits = BulkLimits(whole=0)
    return world


def bulky_claim(make: type[Make], name: str) -> dict[str, Any]:
    claim = make.claim(name)
    claim["spec"]["devices"]["config"] = [PARAMETERS]
    return claim


def own_claim(make: type[Make], name: str) -> dict[str, Any]:
    """A large claim that has no part in common with another one."""
    claim = make.claim(name)
    parameters = {"text": name.ljust(3_000, "x")}
    claim["spec"]["devices"]["config"] = [{"opaque": {"driver": "gpu.example.com", "parameters": parameters}}]
    return claim


def held(world: World) -> int:
    objects = (*world.cluster.pods, *world.cluster.claims, *world.cluster.templates)
    return sum(len(encode(obj)) for obj in objects)


async def test_a_pod_gets_what_its_claim_asks_for_though_little_of_that_is_kept(
    crowded: World, make: type[Make]
) -> None:
    crowded.furnish(devices=2)
    crowded.api.add(RESOURCE_CLAIMS, bulky_claim(make, "claim"))
    crowded.api.add(PODS, make.pod("pod", claims=[make.use("claim")]))
    await crowded.settle()
    assert crowded.api[PODS, "ns/pod"]["spec"]["nodeName"] == "node-0"
    allocation = crowded.api[RESOURCE_CLAIMS, "ns/claim"]["status"]["allocation"]
    assert allocation["devices"]["config"] == [{"source": "FromClaim", **PARAMETERS}]
    reads = [call for call in crowded.api.calls if call.verb == "get" and call.name == "claim"]
    assert len(reads) >= 1


async def test_a_claim_is_made_from_the_whole_template(crowded: World, make: type[Make]) -> None:
    crowded.furnish()
    template = make.template()
    template["spec"]["spec"]["devices"]["config"] = [PARAMETERS]
    crowded.api.add(RESOURCE_CLAIM_TEMPLATES, template)
    crowded.api.add(PODS, make.pod("pod", claims=[{"name": "gpu", "resourceClaimTemplateName": "tmpl"}]))
    await crowded.settle()
    (claim,) = crowded.api.of(RESOURCE_CLAIMS)
    assert claim["spec"]["devices"]["config"] == [PARAMETERS]
    assert crowded.api[PODS, "ns/pod"]["spec"]["nodeName"] == "node-0"


async def test_pods_of_very_many_claims_get_all_of_them_though_few_are_kept(crowded: World, make: type[Make]) -> None:
    """Half are made from a template, and the others come one by one while the pods wait."""
    crowded.limits = BulkLimits(whole=0, lent=1)  # one pod at a time is held whole
    crowded.furnish(devices=60)
    crowded.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    names = {pod: [f"{pod}-{number:02d}-".ljust(200, "x") for number in range(10)] for pod in ("a", "b", "c")}
    made = [{"name": f"made-{number}", "resourceClaimTemplateName": "tmpl"} for number in range(10)]
    for pod, named in names.items():
        crowded.api.add(
            PODS, make.pod(pod, claims=[*made, *[{"name": it[:4], "resourceClaimName": it} for it in named]])
        )
    crowded.start()
    async with crowded.running():
        await crowded.quiet()
        for number in reversed(range(10)):
            for named in names.values():
                crowded.api.add(RESOURCE_CLAIMS, make.claim(named[number]))
                await crowded.quiet()
    for pod in names:
        found = crowded.api[PODS, f"ns/{pod}"]
        assert len(found["status"]["resourceClaimStatuses"]) == 10
        assert found["spec"].get("nodeName") == "node-0", found["status"]["conditions"]
    assert len(crowded.api.of(RESOURCE_CLAIMS)) == 60
    assert all(claim["status"]["reservedFor"] for claim in crowded.api.of(RESOURCE_CLAIMS))


async def test_claims_are_made_for_another_schedulers_pod_though_few_are_kept(crowded: World, make: type[Make]) -> None:
    """It is never held whole, as nothing places it here."""
    crowded.api.add(RESOURCE_CLAIM_TEMPLATES, make.template())
    entries = [{"name": f"{'made' * 10}-{number}", "resourceClaimTemplateName": "tmpl"} for number in range(150)]
    crowded.api.add(PODS, make.pod("theirs", claims=entries, schedulerName="default-scheduler"))
    await crowded.settle()
    assert len(crowded.api[PODS, "ns/theirs"]["status"]["resourceClaimStatuses"]) == 150
    assert len(crowded.api.of(RESOURCE_CLAIMS)) == 150
    (kept,) = crowded.cluster.pods
    assert len(kept.spec.resource_claims or ()) < 5


async def test_a_pod_of_many_large_claims_gets_devices_for_all(crowded: World, make: type[Make]) -> None:
    crowded.furnish(devices=20)
    names = [f"claim-{number}-".ljust(200, "x") for number in range(20)]
    for name in names:
        crowded.api.add(RESOURCE_CLAIMS, bulky_claim(make, name))
    crowded.api.add(PODS, make.pod("pod", claims=[{"name": it[:8], "resourceClaimName": it} for it in names]))
    await crowded.settle()
    assert crowded.api[PODS, "ns/pod"]["spec"]["nodeName"] == "node-0"


async def test_a_pod_runs_where_its_own_rules_want_it(crowded: World, make: type[Make]) -> None:
    crowded.furnish(nodes=3)
    values = ["node-2", *(f"absent-{it:06d}" for it in range(400))]
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": values}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    pod = make.pod("pod")
    pod["spec"]["affinity"] = {"nodeAffinity": affinity}
    crowded.api.add(PODS, pod)
    await crowded.settle()
    assert crowded.api[PODS, "ns/pod"]["spec"]["nodeName"] == "node-2"


async def test_of_a_hundred_pods_that_wait_little_is_held_and_all_are_tried(crowded: World, make: type[Make]) -> None:
    crowded.limits = BulkLimits(whole=0, lent=20_000)
    crowded.furnish(devices=3)
    for number in range(100):
        crowded.api.add(RESOURCE_CLAIMS, own_claim(make, f"claim-{number}"))
        crowded.api.add(PODS, make.pod(f"pod-{number}", claims=[make.use(f"claim-{number}")]))
    await crowded.settle()
    pods = crowded.api.of(PODS)
    assert sum(bool(pod["spec"].get("nodeName")) for pod in pods) == 3
    said = [it["message"] for pod in pods for it in pod["status"].get("conditions", ()) if it["status"] == "False"]
    assert len(said) == 97
    assert all("device" in it for it in said), said[:3]
    assert held(crowded) < 100 * 2_000 + 25_000


async def test_no_memory_of_attempts_keeps_many_whole_claims(
    crowded: World, make: type[Make], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs of claims, answers of nodes, verdicts of selectors: all are of what tenants write."""
    monkeypatch.setattr(Allocator, "_PROGRAM_BYTES", 50_000)
    monkeypatch.setattr(claim_program, "KEPT_PROGRAM_BYTES", 1_000_000)
    crowded.limits = BulkLimits(whole=0, lent=50_000)
    crowded.furnish(nodes=2)
    for number in range(100):
        claim = make.claim(f"claim-{number}", count=2)
        tolerations = [{"key": f"{'k' * 200}{number}-{it}", "operator": "Exists"} for it in range(16)]
        selectors = [{"cel": {"expression": f"true || {number} == {it}{'0' * 200}"}} for it in range(16)]
        claim["spec"]["devices"]["requests"][0]["exactly"] |= {"tolerations": tolerations, "selectors": selectors}
        crowded.api.add(RESOURCE_CLAIMS, claim)
        crowded.api.add(PODS, make.pod(f"pod-{number}", claims=[make.use(f"claim-{number}")]))
    crowded.start()
    async with crowded.running():
        await crowded.quiet()
        gc.collect()
        objects = gc.get_objects()
        claims = [it for it in objects if isinstance(it, ResourceClaim) and len(encode(it.spec)) > 3_000]
        programs = [it for it in objects if isinstance(it, Alternative) and len(it.expressions) == 16]
    assert all(pod["status"]["conditions"] for pod in crowded.api.of(PODS))
    assert 0 < len(claims) < 30
    assert 0 < len(programs) < 30


async def test_a_pod_whose_claim_cannot_be_read_says_so(crowded: World, make: type[Make]) -> None:
    crowded.times = replace(crowded.times, silence=0.0)
    crowded.furnish()
    crowded.api.add(RESOURCE_CLAIMS, bulky_claim(make, "claim"))
    crowded.api.add(PODS, make.pod("pod", claims=[make.use("claim")]))
    is_cut = True

    def cut(call: Call) -> Exception | None:
        return Unreachable("the line is cut") if is_cut and (call.verb, call.name) == ("get", "claim") else None

    crowded.api.before = cut
    crowded.start()
    async with crowded.running():
        for _ in range(50):
            await crowded.tick()
            crowded.bring_events()
        (said,) = [it["message"] for it in crowded.api[PODS, "ns/pod"]["status"]["conditions"]]
        assert "the line is cut" in said
        is_cut = False
        await crowded.quiet()
    assert crowded.api[PODS, "ns/pod"]["spec"]["nodeName"] == "node-0"


async def test_a_pod_whose_claims_are_more_than_fit_says_so_and_is_not_read_without_a_pause(
    crowded: World, make: type[Make]
) -> None:
    crowded.limits = BulkLimits(whole=0, lent=1)
    crowded.times = replace(crowded.times, silence=0.0)
    crowded.furnish(devices=3)
    for number in range(3):
        crowded.api.add(RESOURCE_CLAIMS, own_claim(make, f"claim-{number}"))
    crowded.api.add(PODS, make.pod("pod", claims=[make.use(f"claim-{number}") for number in range(3)]))
    crowded.start()
    async with crowded.running():
        for _ in range(200):
            await crowded.tick()
            crowded.bring_events()
    (said,) = [it["message"] for it in crowded.api[PODS, "ns/pod"]["status"]["conditions"]]
    assert "more large objects than dra-operator keeps in memory" in said
    reads = [call for call in crowded.api.calls if call.verb == "get" and call.plural == "resourceclaims"]
    assert len(reads) < 60


async def test_a_gang_of_more_large_claims_than_fit_says_what_to_do_and_is_not_read_without_a_pause(
    crowded: World, make: type[Make]
) -> None:
    crowded.limits = BulkLimits(whole=0, lent=7_000)
    crowded.times = replace(crowded.times, silence=0.0)
    crowded.furnish(nodes=2, devices=3)
    for number in range(4):
        crowded.api.add(RESOURCE_CLAIMS, own_claim(make, f"claim-{number}"))
        pod = make.pod(f"pod-{number}", claims=[make.use(f"claim-{number}")])
        pod["metadata"]["annotations"] = {"dra.kopf.dev/gang": "g", "dra.kopf.dev/gang-size": "4"}
        crowded.api.add(PODS, pod)
    crowded.start()
    async with crowded.running():
        for _ in range(200):
            await crowded.tick()
            crowded.bring_events()
    said = [it["message"] for pod in crowded.api.of(PODS) for it in pod["status"]["conditions"]]
    assert len(said) == 4
    assert any("make the pods and claims alike, by one template, or shorten them" in it for it in said)
    reads = [call for call in crowded.api.calls if call.verb == "get" and call.plural == "resourceclaims"]
    assert len(reads) < 60


async def test_a_gang_whose_pods_and_claims_are_alike_is_placed_however_large_they_are_together(
    crowded: World, make: type[Make]
) -> None:
    """Its bodies are 160 kB, and there is room for a quarter."""
    crowded.limits = BulkLimits(whole=0, lent=40_000)
    crowded.furnish(nodes=4, devices=5)
    terms = [
        {"weight": 1, "preference": {"matchExpressions": [{"key": f"k{it:06d}", "operator": "Exists"}]}}
        for it in range(50)
    ]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
    for number in range(20):
        crowded.api.add(RESOURCE_CLAIMS, bulky_claim(make, f"claim-{number}"))
        pod = make.pod(f"pod-{number}", claims=[make.use(f"claim-{number}")])
        pod["spec"]["affinity"] = affinity
        pod["metadata"]["annotations"] = {"dra.kopf.dev/gang": "g", "dra.kopf.dev/gang-size": "20"}
        crowded.api.add(PODS, pod)
    await crowded.settle()
    assert all(pod["spec"].get("nodeName") for pod in crowded.api.of(PODS))
