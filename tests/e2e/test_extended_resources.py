"""Pods that ask for devices by extended resources (E2E-090 to E2E-100, E2E-102 to E2E-105; PRJ-018)."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from dra_kube import DEVICE_CLASSES, NODES, ApiError, Object, Resource
from dra_kubeletplugin import Pool, device
from scene import Scene, both, control_plane
from waiting import until

QUOTAS = Resource("", ("v1",), "resourcequotas", "ResourceQuota", namespaced=True)
SHORT = "env | grep -E '^claim_' | sort; echo ready"
Shape = dict[str, dict[str, int]]
"""Amounts by container."""


def explicit(scene: Scene, number: int = 0) -> str:
    """A resource that a class of the test names."""
    return f"{scene.namespace}.example.com/resource-{number}"


def implicit(scene: Scene) -> str:
    """The resource that the test's class serves by its own name."""
    return f"deviceclass.resource.kubernetes.io/{scene.class_name}"


async def start_driver(scene: Scene, resources: int = 1) -> None:
    """Ten devices on one node, and a class for each resource."""
    await scene.start_driver(devices=10, with_class=False)
    await scene.create_class(resource=explicit(scene))
    for number in range(1, resources):
        await scene.create_class(name=f"{scene.class_name}-{number}", resource=explicit(scene, number))


def pod(scene: Scene, containers: Shape, name: str = "tester") -> Object:
    """A pod whose containers ask for amounts of resources."""
    parts = [scene.container(each, amounts=wanted) for each, wanted in containers.items()]
    return scene.pod(name, (), containers=parts)


def pod_with_init_containers(scene: Scene, *resources: str) -> Object:
    """An init container, a sidecar, another init container, and the main container; the second one asks for most."""
    return scene.pod(
        claims=(),
        initContainers=[
            scene.container("first", script=SHORT, amounts=dict.fromkeys(resources, 1)),
            scene.container("sidecar", amounts=dict.fromkeys(resources, 1)) | {"restartPolicy": "Always"},
            scene.container("second", script=SHORT, amounts=dict.fromkeys(resources, 2)),
        ],
        containers=[scene.container("main", amounts=dict.fromkeys(resources, 1))],
    )


async def the_claim(scene: Scene) -> Object:
    """The only claim there is: the one for the extended resources."""
    [claim] = await scene.claims()
    assert claim["metadata"]["annotations"]["resource.kubernetes.io/extended-resource-claim"] == "true"
    return claim


async def counts(scene: Scene) -> Counter[str]:
    """How many devices each request of the claim got."""
    results = (await the_claim(scene))["status"]["allocation"]["devices"]["results"]
    assert len({result["device"] for result in results}) == len(results)
    return Counter(result["request"] for result in results)


async def mapped(scene: Scene) -> dict[tuple[str, str], set[str]]:
    """The requests by container and resource, as the pod's status has them."""
    status = (await scene.get_pod())["status"]["extendedResourceClaimStatus"]
    assert status["resourceClaimName"] == (await the_claim(scene))["metadata"]["name"]
    found: dict[tuple[str, str], set[str]] = {}
    for mapping in status["requestMappings"]:
        found.setdefault((mapping["containerName"], mapping["resourceName"]), set()).add(mapping["requestName"])
    return found


async def containers_see(scene: Scene, expected: dict[str, set[str]]) -> None:
    """Each container got the devices of exactly these requests, and none of another one's."""
    prefix = re.sub(r"[^a-zA-Z0-9]", "_", f"claim_{(await the_claim(scene))['metadata']['name']}_")
    for container, requests in expected.items() if scene.kubelet else ():
        seen = {line for line in await scene.environment(container=container) if line.startswith("claim_")}
        assert seen == {f"{prefix}{request.replace('-', '_')}=true" for request in requests}, container


async def test_e2e_090_a_quota_counts_explicit_names_implicit_names_and_claims_alike(scene: Scene) -> None:
    await start_driver(scene)
    devices = f"{scene.class_name}.deviceclass.resource.k8s.io/devices"
    names = [devices, f"requests.{implicit(scene)}", f"requests.{explicit(scene)}"]
    hard = dict.fromkeys(names, "5") | {"count/resourceclaims.resource.k8s.io": "2"}
    quota = {"metadata": {"name": "q", "namespace": scene.namespace}, "spec": {"hard": hard}}

    async def counted() -> Object | None:
        status = (await scene.api.get(QUOTAS, "q", scene.namespace)).get("status") or {}
        return status.get("used")

    async def in_force() -> bool:
        """A quota older than the class in a real server's cache does not count its names for five minutes."""
        await scene.api.delete_collection(QUOTAS, scene.namespace)
        await scene.api.create(QUOTAS, quota)
        used = await until("the quota has been counted", counted)
        assert used == dict.fromkeys(hard, "0")
        return True

    async def all_used() -> bool:
        assert await counted() == hard
        return True

    await until("the quota knows the names of the class", in_force)
    count = {"deviceClassName": scene.class_name, "allocationMode": "ExactCount", "count": 2}
    await scene.create_claim(spec=scene.claim_spec({"name": "req", "exactly": count}))
    await scene.create_pod(pod(scene, {"main": {explicit(scene): 2, implicit(scene): 1}}))
    await scene.runs()
    await until("two claims and five devices used", all_used)
    with pytest.raises(ApiError, match="exceeded quota: q"):
        await scene.create_claim("one-more")


@both
@pytest.mark.parametrize("kinds", ["implicit and explicit", "explicit", "implicit"])
async def test_e2e_091_092_093_int_022_023_init_containers_use_the_devices_of_later_containers(
    scene: Scene, kinds: str
) -> None:
    await start_driver(scene)
    names = {"implicit": implicit(scene), "explicit": explicit(scene)}
    resources = sorted(names[kind] for kind in kinds.split(" and "))
    await scene.create_pod(pod_with_init_containers(scene, *resources))
    await scene.runs()
    numbers = range(len(resources))
    users = {
        "first": ["container-1"],  # as many as the sidecar, which starts after it
        "sidecar": ["container-1"],
        "second": ["container-3", "container-2"],  # one of the main container, and one more
        "main": ["container-3"],
    }
    assert await counts(scene) == {f"container-{c}-request-{j}": 1 for c in (1, 2, 3) for j in numbers}
    assert await mapped(scene) == {
        (container, resource): {f"{owner}-request-{j}" for owner in owners}
        for container, owners in users.items()
        for j, resource in enumerate(resources)
    }
    seen = {name: {f"{owner}-request-{j}" for owner in owners for j in numbers} for name, owners in users.items()}
    await containers_see(scene, seen)


SHAPES = {
    "e2e_094 one container with three resources": ([[1, 2, 3]], 3),
    "e2e_095 three containers with a resource each": ([[1], [2], [3]], 1),
    "e2e_096 three containers with one, two and three resources": ([[1], [1, 2], [1, 1, 2]], 3),
}


@both
@pytest.mark.parametrize("shape", SHAPES)
async def test_e2e_094_095_096_each_container_gets_its_own_devices_of_each_resource(scene: Scene, shape: str) -> None:
    amounts, resources = SHAPES[shape]
    await start_driver(scene, resources)
    wanted = {
        f"c{i}": {explicit(scene, j): amount for j, amount in enumerate(of_container)}
        for i, of_container in enumerate(amounts)
    }
    await scene.create_pod(pod(scene, wanted))
    await scene.runs()
    requests = {
        (f"c{i}", explicit(scene, j)): (f"container-{i}-request-{j}", amount)
        for i, of_container in enumerate(amounts)
        for j, amount in enumerate(of_container)
    }
    assert await counts(scene) == dict(requests.values())
    assert await mapped(scene) == {use: {request} for use, (request, _) in requests.items()}
    await containers_see(
        scene, {name: {request for use, (request, _) in requests.items() if use[0] == name} for name in wanted}
    )


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", 0), ("Failed", 1)])
async def test_e2e_097_098_the_claim_is_there_while_the_pod_runs_and_not_when_it_is_done(
    scene: Scene, phase: str, code: int
) -> None:
    await start_driver(scene)
    once = scene.container("main", script=f"sleep 3; exit {code}", amounts={explicit(scene): 1})
    await scene.create_pod(scene.pod(claims=(), containers=[once]))
    running = await scene.runs()
    claim = await the_claim(scene)
    assert [user["uid"] for user in claim["status"]["reservedFor"]] == [running["metadata"]["uid"]]
    assert [owner["uid"] for owner in claim["metadata"]["ownerReferences"]] == [running["metadata"]["uid"]]
    await scene.ends(phase=phase)

    async def no_claims() -> bool:
        return await scene.claims() == []

    await until("the claim deleted", no_claims)
    assert (await scene.get_pod())["status"]["phase"] == phase


@both
async def test_e2e_100_a_pod_waits_until_another_gives_its_devices_back(scene: Scene) -> None:
    await start_driver(scene)
    await scene.create_pod(pod(scene, {"main": {explicit(scene): 10}}, "first"))
    await scene.runs("first")
    await scene.create_pod(pod(scene, {"main": {explicit(scene): 1}}, "second"))
    await scene.pending("second", says=f"extended resource {explicit(scene)} .device class {scene.class_name}.")
    await scene.delete_pod("first")
    await scene.runs("second")


@both
async def test_e2e_102_the_status_of_the_pod_names_claim_and_requests(scene: Scene) -> None:
    await start_driver(scene, 3)
    resources = [explicit(scene, number) for number in range(3)]
    await scene.create_pod(pod(scene, {"main": dict.fromkeys(resources, 1)}))
    bound = await scene.runs()
    claim = await the_claim(scene)
    assert claim["metadata"]["generateName"] == "tester-extended-resources-"
    assert bound["status"]["extendedResourceClaimStatus"] == {
        "resourceClaimName": claim["metadata"]["name"],
        "requestMappings": [
            {"containerName": "main", "resourceName": resource, "requestName": f"container-0-request-{number}"}
            for number, resource in enumerate(resources)
        ],
    }


@both
async def test_e2e_103_a_pod_that_asks_for_none_gets_none(scene: Scene) -> None:
    await start_driver(scene)
    await scene.create_pod(pod(scene, {"main": {explicit(scene): 0}}))
    bound = await scene.runs()
    assert "extendedResourceClaimStatus" not in bound["status"]
    assert await scene.claims() == []


@both
async def test_e2e_104_a_pod_waits_for_the_class_that_serves_its_resource(scene: Scene) -> None:
    await scene.start_driver(with_class=False)
    await scene.create_pod(pod(scene, {"main": {explicit(scene): 1}}))
    await scene.pending(says=f"cannot fit resource {explicit(scene)}: neither the node nor a device class offers it")
    await scene.event("tester", "FailedScheduling", f"cannot fit resource {explicit(scene)}")
    await scene.create_class(resource=explicit(scene))
    await scene.runs()
    await containers_see(scene, {"main": {"container-0-request-0"}})


async def device_plugin_offers(scene: Scene, number: int, amount: int) -> None:
    """What a device plugin, or its end, makes of a node's status."""
    amounts = {explicit(scene): str(amount)}
    body = {"status": {"capacity": amounts, "allocatable": amounts}}
    await scene.api.patch(NODES, scene.node_names[number], body, kind="strategic", subresource="status")


@both
async def test_e2e_099_after_a_device_plugin_has_gone_its_resource_is_served_by_the_driver(scene: Scene) -> None:
    await device_plugin_offers(scene, 0, 1)
    await scene.create_pod(pod(scene, {"main": {explicit(scene): 1}}, "before"))
    bound = await scene.runs("before")
    assert "extendedResourceClaimStatus" not in bound["status"]
    await scene.delete_pod("before")
    await start_driver(scene)
    await scene.create_pod(pod(scene, {"main": {explicit(scene): 2}}))
    await scene.pending(says=f"Insufficient {explicit(scene)}")
    await device_plugin_offers(scene, 0, 0)
    await scene.runs()
    assert await counts(scene) == {"container-0-request-0": 2}


@both
async def test_e2e_105_one_resource_of_a_driver_here_and_of_a_device_plugin_there(scene: Scene) -> None:
    await scene.start_driver(devices=1, with_class=False)
    await scene.create_class(resource=explicit(scene))
    await device_plugin_offers(scene, 1, 1)
    for name in ("one", "other"):
        await scene.create_pod(pod(scene, {"main": {explicit(scene): 1}}, name))
    pods = [await scene.runs(name) for name in ("one", "other")]
    by_node = {each["spec"]["nodeName"]: "extendedResourceClaimStatus" in each["status"] for each in pods}
    assert by_node == {scene.node_names[0]: True, scene.node_names[1]: False}
    assert await counts(scene) == {"container-0-request-0": 1}


async def two_classes(scene: Scene) -> tuple[str, str]:
    """An old class and a young one for one resource, each with devices of its kind; times are whole seconds."""
    classes = [f"{scene.namespace}-{kind}" for kind in ("a-old", "young")]  # the first would win among equals
    devices = [device(f"{name[-3:]}-{number}", attributes={"of": name}) for name in classes for number in range(5)]
    await scene.start_plugin(0, {scene.node_names[0]: Pool.of(devices)})
    ages: list[str] = []
    for name in classes:

        async def made(name: str = name) -> bool:
            """It is younger than the one before."""
            selector = f'device.attributes["{scene.driver_name}"].of == "{name}"'
            made = await scene.create_class(selector, name, explicit(scene))
            if made["metadata"]["creationTimestamp"] in ages:
                await scene.api.delete(DEVICE_CLASSES, name)
                return False
            ages.append(made["metadata"]["creationTimestamp"])
            return True

        await until("a class of another age", made)
    return classes[0], classes[1]


@control_plane
async def test_prj_018_the_youngest_class_serves_and_each_class_serves_its_own_name(scene: Scene) -> None:
    """The order shows that the operator has heard of a change before the next pod depends on it."""
    old, young = await two_classes(scene)

    async def device_for(name: str, resource: str) -> str:
        await scene.create_pod(pod(scene, {"main": {resource: 1}}, name))
        bound = await scene.runs(name)
        claim = await scene.get_claim(bound["status"]["extendedResourceClaimStatus"]["resourceClaimName"])
        return str(claim["status"]["allocation"]["devices"]["results"][0]["device"])[:3]

    own = "deviceclass.resource.kubernetes.io/"
    assert await device_for("of-young", own + young) == "ung"
    assert await device_for("of-the-youngest", explicit(scene)) == "ung"
    assert await device_for("of-old", own + old) == "old"
    await scene.api.patch(DEVICE_CLASSES, young, {"spec": {"extendedResourceName": explicit(scene, 1)}})
    assert await device_for("of-the-new-name", explicit(scene, 1)) == "ung"
    assert await device_for("of-the-only-one-left", explicit(scene)) == "old"
    await scene.api.delete(DEVICE_CLASSES, old)
    assert await device_for("of-young-again", own + young) == "ung"
