"""One node with one device; with a kubelet, and the control plane alone (E2E-040 to E2E-054)."""

from __future__ import annotations

import asyncio

from dra_kube import DEVICE_CLASSES, NODES, PODS
from scene import Scene, both
from waiting import until

EXTERNAL = {"admin_x=y", "user_a=b", "claim_external_claim_req=true"}


async def inline(scene: Scene, name: str = "tester") -> set[str]:
    """What a container of a pod with a generated claim is expected to see."""
    pod = await scene.get_pod(name)
    claim = pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    return {"admin_x=y", "user_a=b", f"claim_{claim}_req=true".replace("-", "_")}


@both
async def test_e2e_040_parameters_of_class_and_claim_reach_the_container(scene: Scene) -> None:
    await scene.start_driver()
    await scene.create_claim()
    await scene.create_pod(scene.pod())
    await scene.runs()
    if scene.kubelet:
        assert await scene.environment() == EXTERNAL
    config = (await scene.get_claim())["status"]["allocation"]["devices"]["config"]
    assert [(entry["source"], entry["opaque"]["parameters"]) for entry in config] == [
        ("FromClass", {"x": "y"}),
        ("FromClaim", {"a": "b"}),
    ]


@both
async def test_e2e_041_five_pods_get_the_only_device_one_after_the_other(scene: Scene) -> None:
    await scene.start_driver()
    await scene.create_template()
    waiting = {f"tester-{number}" for number in range(5)}
    for name in sorted(waiting):
        await scene.create_pod(scene.inline_pod(name))
    while waiting:

        async def one_runs() -> str | None:
            pods, _ = await scene.api.list(PODS, scene.namespace)
            placed = [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")]
            assert len(placed) <= 1, f"one device, but {placed} are placed"
            return placed[0] if placed else None

        name = await until("one of the pods placed", one_runs)
        await scene.runs(name)
        await scene.delete_pod(name)
        waiting.remove(name)


@both
async def test_e2e_042_five_pods_share_one_claim_at_the_same_time(scene: Scene) -> None:
    await scene.start_driver()
    await scene.create_claim()
    names = [f"tester-{number}" for number in range(5)]
    await asyncio.gather(*(scene.create_pod(scene.pod(name)) for name in names))
    for name in names:
        await scene.runs(name)
    consumers = (await scene.get_claim())["status"]["reservedFor"]
    assert sorted(consumer["name"] for consumer in consumers) == names
    if scene.kubelet:
        assert scene.plugins[0].count("NodePrepareResources") == 1


@both
async def test_e2e_043_a_pod_waits_for_its_class(scene: Scene) -> None:
    await scene.start_driver(with_class=False)
    await scene.create_claim()
    await scene.create_pod(scene.pod())
    await scene.pending(says=f"device class {scene.class_name} does not exist")
    await scene.create_class()
    await scene.runs()


@both
async def test_e2e_044_a_pod_waits_until_its_class_selects_a_device(scene: Scene) -> None:
    await scene.create_class('device.driver == "no-such-driver"')
    await scene.start_driver(with_class=False)
    await scene.create_claim()
    await scene.create_pod(scene.pod())
    await scene.pending()
    selectors = [{"cel": {"expression": f'device.driver == "{scene.driver_name}"'}}]
    await scene.api.patch(DEVICE_CLASSES, scene.class_name, {"spec": {"selectors": selectors}})
    await scene.runs()


@both
async def test_e2e_045_an_entry_recorded_as_needing_no_claim_gets_none(scene: Scene) -> None:
    await scene.start_driver()
    body = scene.inline_pod(template="never-made", containers=[scene.container("with-resource")])
    body["spec"]["schedulingGates"] = [{"name": "kopf-dra/e2e"}]
    await scene.create_pod(body)
    none_needed = {"status": {"resourceClaimStatuses": [{"name": "my-claim"}]}}
    await scene.api.patch(PODS, "tester", none_needed, scene.namespace, kind="strategic", subresource="status")
    await scene.api.patch(PODS, "tester", {"spec": {"schedulingGates": None}}, scene.namespace)
    await scene.runs()
    assert await scene.claims() == []
    assert (await scene.get_pod())["status"]["resourceClaimStatuses"] == [{"name": "my-claim"}]


@both
async def test_e2e_046_a_generated_claim(scene: Scene) -> None:
    await scene.start_driver()
    await scene.create_template()
    await scene.create_pod(scene.inline_pod())
    await scene.runs()
    if scene.kubelet:
        assert await scene.environment() == await inline(scene)


@both
async def test_e2e_047_a_generated_claim_in_several_containers(scene: Scene) -> None:
    await scene.start_driver()
    await scene.create_template()
    names = ["with-resource", "with-resource-1", "with-resource-2"]
    await scene.create_pod(scene.inline_pod(containers=[scene.container(name, "my-claim") for name in names]))
    await scene.runs()
    for name in names if scene.kubelet else ():
        assert await scene.environment(container=name) == await inline(scene)


@both
async def test_e2e_048_an_external_claim(scene: Scene) -> None:
    await scene.start_driver()
    await scene.create_pod(scene.pod())
    await scene.stays_pending(seconds=1)
    await scene.create_claim()
    await scene.runs()
    if scene.kubelet:
        assert await scene.environment() == EXTERNAL


@both
async def test_e2e_049_an_external_claim_for_several_pods(scene: Scene) -> None:
    await scene.start_driver()
    await scene.create_claim()
    for number in range(3):
        await scene.create_pod(scene.pod(f"tester-{number}"))
    for number in range(3):
        await scene.runs(f"tester-{number}")
        if scene.kubelet:
            assert await scene.environment(f"tester-{number}") == EXTERNAL


@both
async def test_e2e_050_an_external_claim_for_several_containers_of_several_pods(scene: Scene) -> None:
    await scene.start_driver()
    await scene.create_claim()
    names = ["with-resource", "with-resource-1", "with-resource-2"]
    for number in range(3):
        containers = [scene.container(name, "my-claim") for name in names]
        await scene.create_pod(scene.pod(f"tester-{number}", containers=containers))
    for number in range(3):
        await scene.runs(f"tester-{number}")
        for name in names if scene.kubelet else ():
            assert await scene.environment(f"tester-{number}", name) == EXTERNAL


@both
async def test_e2e_051_init_containers_use_the_claim(scene: Scene) -> None:
    await scene.start_driver()
    await scene.create_template()
    script = "env | grep -E '^(user|admin|claim)_'; echo ready"
    first = [scene.container(name, "my-claim", script=script) for name in ("init-0", "init-1")]
    await scene.create_pod(scene.inline_pod(initContainers=first))
    await scene.runs()
    for name in ("init-0", "init-1", "with-resource") if scene.kubelet else ():
        assert await scene.environment(container=name) == await inline(scene)


@both
async def test_e2e_052_a_claim_is_deallocated_after_its_last_pod_and_stays(scene: Scene) -> None:
    await scene.start_driver()
    await scene.create_claim()
    for name in ("tester-0", "tester-1"):
        await scene.create_pod(scene.pod(name))
    for name in ("tester-0", "tester-1"):
        await scene.runs(name)
    await scene.delete_pod("tester-0")
    assert (await scene.get_claim())["status"]["allocation"]
    await scene.delete_pod("tester-1")
    await scene.deallocated()

    async def unprotected() -> bool:
        return not (await scene.get_claim())["metadata"].get("finalizers")

    await until("the finalizer removed", unprotected)


async def test_e2e_053_an_external_claim_beside_an_extended_resource_of_a_device_plugin(scene: Scene) -> None:
    await scene.start_driver()
    resource = f"{scene.namespace}.example.com/thing"
    amounts = {"status": {"capacity": {resource: "1"}, "allocatable": {resource: "1"}}}
    await scene.api.patch(NODES, scene.node_names[0], amounts, kind="strategic", subresource="status")
    await scene.create_claim()
    for name in ("tester-0", "tester-1"):
        container = scene.container("with-resource", "my-claim")
        container["resources"] |= {"requests": {resource: "1"}, "limits": {resource: "1"}}
        await scene.create_pod(scene.pod(name, containers=[container]))

    async def one_runs() -> str | None:
        pods, _ = await scene.api.list(PODS, scene.namespace)
        return next((pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")), None)

    first = await until("one pod placed", one_runs)
    await scene.runs(first)
    second = ({"tester-0", "tester-1"} - {first}).pop()
    assert await scene.environment(first) == EXTERNAL
    await scene.pending(second, says=f"Insufficient {resource}")
    await scene.delete_pod(first)
    await scene.runs(second)


async def test_e2e_054_a_pod_uses_a_claim_that_is_prepared_already_and_a_new_one(scene: Scene) -> None:
    await scene.start_driver(devices=2)
    await scene.create_claim()
    await scene.create_claim("new-claim")
    await scene.create_pod(scene.pod("tester-0"))
    await scene.runs("tester-0")
    entries = [
        {"name": "old", "resourceClaimName": "external-claim"},
        {"name": "new", "resourceClaimName": "new-claim"},
    ]
    await scene.create_pod(scene.pod("tester-1", entries))
    await scene.runs("tester-1")
    assert await scene.environment("tester-1") == EXTERNAL | {"claim_new_claim_req=true"}
    sent = [
        [claim.name for claim in call.request.claims]
        for call in scene.plugins[0].recorder.calls
        if call.method.endswith("NodePrepareResources")
    ]
    assert sent == [["external-claim"], ["new-claim"]]
