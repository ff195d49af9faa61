"""Claims with alternatives, older API versions, partitions and shares (E2E-057 to E2E-066)."""

from __future__ import annotations

from typing import Any

import pytest
from dra_kube import RESOURCE_CLAIMS, Object
from dra_kubeletplugin import Pool, counter_set, device
from scene import Scene, both


def alternatives(scene: Scene, *counts: int, **fields: Any) -> Object:
    """A request with one sub-request for each count."""
    options = [
        {"name": f"sub-request-{index}", "deviceClassName": scene.class_name, "count": count} | fields
        for index, count in enumerate(counts, 1)
    ]
    return {"name": "request-1", "firstAvailable": options}


async def requests_of(scene: Scene, claim: str = "external-claim") -> list[str]:
    allocation = (await scene.get_claim(claim))["status"]["allocation"]
    return [result["request"] for result in allocation["devices"]["results"]]


@both
async def test_e2e_057_int_015_the_first_alternative_that_fits_is_taken(scene: Scene) -> None:
    await scene.start_driver(devices=2)
    await scene.create_claim(spec=scene.claim_spec(alternatives(scene, 3, 2, 1)))
    await scene.create_pod(scene.pod())
    await scene.runs()
    assert await requests_of(scene) == ["request-1/sub-request-2"] * 2


async def test_e2e_058_060_configuration_of_the_parent_and_of_the_chosen_alternative_reaches_the_containers(
    scene: Scene,
) -> None:
    await scene.start_driver(devices=3)
    spec = scene.claim_spec(
        alternatives(scene, 3, 1), {"name": "request-2", "exactly": {"deviceClassName": scene.class_name}}
    )
    chosen = ("request-1", "request-1/sub-request-1", "request-1/sub-request-2", "request-2")
    spec["devices"]["config"] = [
        {"requests": [name], "opaque": {"driver": scene.driver_name, "parameters": {f"p{index}": "on"}}}
        for index, name in enumerate(chosen)
    ]
    await scene.create_claim(spec=spec)
    containers = [
        scene.container("with-resource", {"name": "my-claim", "request": "request-1"}),
        scene.container("other", {"name": "my-claim", "request": "request-2"}),
    ]
    await scene.create_pod(scene.pod(containers=containers))
    await scene.runs()
    assert await requests_of(scene) == ["request-1/sub-request-2", "request-2"]
    seen = {line for line in await scene.environment() if line.startswith("user_p")}
    other = {line for line in await scene.environment(container="other") if line.startswith("user_p")}
    assert (seen, other) == ({"user_p0=on", "user_p2=on"}, {"user_p3=on"})


async def test_e2e_059_a_constraint_across_two_drivers_forces_the_second_alternative(
    scene: Scene, neighbour: Scene
) -> None:
    for one, colors in ((scene, ("red", "blue")), (neighbour, ("blue",))):
        await one.create_class()
        devices = [device(f"{color}-{one.namespace}", attributes={"color.example.com/is": color}) for color in colors]
        await one.start_plugin(0, {f"{one.namespace}-pool": Pool.of(devices)})
    options = [
        {"name": "red", "deviceClassName": scene.class_name, "selectors": [_is(scene, "red")]},
        {"name": "blue", "deviceClassName": scene.class_name, "selectors": [_is(scene, "blue")]},
    ]
    other = {"name": "other", "exactly": {"deviceClassName": neighbour.class_name}}
    spec = scene.claim_spec({"name": "request-1", "firstAvailable": options}, other)
    spec["devices"]["constraints"] = [{"matchAttribute": "color.example.com/is"}]
    await scene.create_claim(spec=spec)
    await scene.create_pod(scene.pod())
    await scene.runs()
    assert await requests_of(scene) == ["request-1/blue", "other"]
    await scene.delete_pod("tester")  # before the other driver goes


def _is(scene: Scene, color: str) -> Object:
    return {"cel": {"expression": f'device.attributes["color.example.com"].is == "{color}"'}}


async def test_e2e_065_a_partition_waits_until_the_counters_suffice(scene: Scene) -> None:
    counters = counter_set("memory", {"amount": "8Gi"})
    parts = [device(f"part-{index}", consumes={"memory": {"amount": "8Gi"}}) for index in range(2)]
    await scene.create_class()
    await scene.start_plugin(0, {scene.node_names[0]: Pool.of(parts, shared_counters=[counters])})
    for name in ("first", "second"):
        await scene.create_claim(name)
        await scene.create_pod(scene.pod(name, [{"name": "my-claim", "resourceClaimName": name}]))
        if name == "first":
            await scene.runs(name)
    await scene.pending("second")
    await scene.delete_pod("first")
    await scene.runs("second")


VERSIONS = ("v1beta1", "v1beta2")


@pytest.mark.parametrize("shape", ["exact", "with alternatives"])
@pytest.mark.parametrize("version", VERSIONS)
async def test_e2e_061_062_063_064_a_claim_of_an_older_version_works(scene: Scene, version: str, shape: str) -> None:
    await scene.start_driver(devices=2)
    wanted: Object = {"name": "request-1", "firstAvailable": alternatives(scene, 3, 1)["firstAvailable"]}
    if shape == "exact":
        exactly = {"deviceClassName": scene.class_name}
        wanted = {"name": "request-1"} | (exactly if version == "v1beta1" else {"exactly": exactly})
    body = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {"name": "external-claim", "namespace": scene.namespace},
        "spec": {"devices": {"requests": [wanted]}},
    }
    await scene.post(RESOURCE_CLAIMS, version, body)
    await scene.create_pod(scene.pod())
    await scene.runs()
    assert await requests_of(scene) == ["request-1" if shape == "exact" else "request-1/sub-request-2"]


@both
async def test_e2e_066_a_device_is_shared_until_its_capacity_is_used_up(scene: Scene) -> None:
    shared = device("device-00", capacity={"memory": "8Gi"}, allow_multiple_allocations=True)
    await scene.create_class()
    await scene.start_plugin(0, {scene.node_names[0]: Pool.of([shared])})
    for name, amount in (("small-1", "4Gi"), ("small-2", "4Gi"), ("large", "8Gi")):
        exactly = {"deviceClassName": scene.class_name, "capacity": {"requests": {"memory": amount}}}
        await scene.create_claim(name, scene.claim_spec({"name": "req", "exactly": exactly}))
        await scene.create_pod(scene.pod(name, [{"name": "my-claim", "resourceClaimName": name}]))
        if name != "large":
            await scene.runs(name)
    await scene.pending("large")
    await scene.delete_pod("small-1")
    await scene.delete_pod("small-2")
    await scene.runs("large")
