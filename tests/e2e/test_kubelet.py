"""Kubelet basics, one node with ten devices (scenarios E2E-010 to E2E-017)."""

from __future__ import annotations

from dra_kube import NAMESPACES, PODS, Object, Resource
from dra_kubeletplugin import ClaimRef
from scene import Scene
from waiting import NotObserved, until

DAEMON_SETS = Resource("apps", ("v1",), "daemonsets", "DaemonSet", True)


async def test_e2e_010_a_plugin_registers(scene: Scene) -> None:
    await scene.start_driver(devices=10)
    status = scene.plugins[0].plugin.registration_status
    assert status is not None
    assert status.registered


async def test_e2e_011_a_failing_prepare_is_retried_until_it_works(scene: Scene) -> None:
    await scene.start_driver(devices=10)
    running = scene.plugins[0]
    with running.faults.failing("NodePrepareResources"):
        await scene.create_claim()
        await scene.create_pod(scene.pod())
        await running.recorder.arrived("NodePrepareResources")
        await scene.event("tester", "FailedPrepareDynamicResources", "injected error")
        await scene.stays_pending(seconds=1)
    failed = running.count("NodePrepareResources")
    await scene.runs()
    assert running.count("NodePrepareResources") > failed


async def test_e2e_012_a_pod_put_on_a_node_without_allocation_stays_pending(scene: Scene) -> None:
    await scene.start_driver(devices=10)
    await scene.create_claim()
    await scene.create_pod(scene.pod(nodeName=scene.node_names[0]))
    await scene.event("tester", "FailedPrepareDynamicResources")
    await scene.stays_pending(seconds=5)
    assert not (await scene.get_claim()).get("status", {}).get("allocation")


async def test_e2e_013_a_force_deleted_pod_gets_its_claim_unprepared(scene: Scene) -> None:
    await scene.start_driver(devices=10)
    await scene.create_claim()
    await scene.create_pod(scene.pod())
    await scene.runs()
    await scene.delete_pod("tester", grace_seconds=0)

    async def unprepared() -> bool:
        return scene.plugins[0].plugin.prepared_claims == []

    await until("claim unprepared", unprepared)
    await scene.deallocated()


async def test_e2e_014_a_claim_that_no_container_uses_is_prepared_all_the_same(scene: Scene) -> None:
    await scene.start_driver(devices=10)
    claim = await scene.create_claim()
    await scene.create_pod(scene.pod(containers=[scene.container("with-resource")]))
    await scene.runs()
    assert await scene.environment() == set()
    uid = claim["metadata"]["uid"]
    assert scene.plugins[0].plugin.prepared_claims == [ClaimRef(scene.namespace, "external-claim", uid)]


async def test_e2e_015_each_container_sees_exactly_the_claims_and_requests_that_it_names(scene: Scene) -> None:
    await scene.start_driver(devices=10)
    requests = [f"req-{number}" for number in range(3)]

    def key(claim: str, request: str) -> str:  # shells drop variables whose names have hyphens
        return f"{claim}_{request}".replace("-", "_")

    for claim in ("claim-0", "claim-1", "claim-2"):
        exactly = {"deviceClassName": scene.class_name}
        spec = scene.claim_spec(*({"name": name, "exactly": exactly} for name in requests))
        spec["devices"]["config"] = [
            {"requests": [name], "opaque": {"driver": scene.driver_name, "parameters": {key(claim, name): "on"}}}
            for name in requests
        ]
        await scene.create_claim(claim, spec)
    await scene.create_pod(
        scene.pod(
            claims=[{"name": f"entry-{number}", "resourceClaimName": f"claim-{number}"} for number in range(3)],
            containers=[
                scene.container("all-of-two", "entry-0", "entry-1"),
                scene.container("one-request", {"name": "entry-2", "request": "req-1"}),
            ],
        )
    )
    await scene.runs()

    def given(claim: str, request: str) -> set[str]:
        return {f"claim_{key(claim, request)}=true", f"user_{key(claim, request)}=on", "admin_x=y"}

    expected = set().union(*(given(claim, name) for claim in ("claim-0", "claim-1") for name in requests))
    assert await scene.environment(container="all-of-two") == expected
    assert await scene.environment(container="one-request") == given("claim-2", "req-1")


async def test_e2e_016_a_claim_of_the_same_name_waits_until_the_old_one_is_unprepared(scene: Scene) -> None:
    await scene.start_driver(devices=10)
    faults = scene.plugins[0].faults
    await scene.create_claim()
    await scene.create_pod(scene.pod())
    await scene.runs()
    with faults.blocking("NodeUnprepareResources"):
        await scene.delete_pod("tester", grace_seconds=0)
        await scene.deallocated()
        await scene.delete_claim()
        await scene.create_claim()
        await scene.create_pod(scene.pod())
        await scene.event(
            "tester",
            "FailedPrepareDynamicResources",
            "old ResourceClaim with same name external-claim and different UID .* still exists",
        )
        await scene.stays_pending(seconds=1)
    await scene.runs()


async def test_e2e_017_a_daemon_set_with_admin_access_runs_where_the_devices_are_in_use(scene: Scene) -> None:
    await scene.api.patch(
        NAMESPACES, scene.namespace, {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    )
    await scene.start_driver(nodes=2, devices=1)
    await scene.create_claim()
    await scene.create_pod(scene.pod())
    await scene.runs()
    admin = {"deviceClassName": scene.class_name, "allocationMode": "All", "adminAccess": True}
    await scene.create_template("monitor", scene.claim_spec({"name": "req", "exactly": admin}))
    template = scene.inline_pod(template="monitor", restartPolicy="Always")
    template["spec"]["nodeSelector"]["kubernetes.io/hostname"] = scene.node_names[0]
    del template["metadata"]["name"], template["metadata"]["namespace"]
    template["metadata"]["labels"] = {"app": "monitor"}
    daemon_set = {
        "metadata": {"name": "monitor", "namespace": scene.namespace},
        "spec": {"selector": {"matchLabels": {"app": "monitor"}}, "template": template},
    }
    await scene.api.create(DAEMON_SETS, daemon_set)

    async def running() -> Object | None:
        pods, _ = await scene.api.list(PODS, scene.namespace, labelSelector="app=monitor")
        return pods[0] if pods and pods[0]["status"]["phase"] == "Running" else None

    try:
        pod = await until("the daemon's pod running", running)
    except NotObserved as error:
        for found in (await scene.api.list(PODS, scene.namespace))[0]:
            error.add_note(await scene.story_of(found["metadata"]["name"]))
        raise
    claim = await scene.get_claim(pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"])
    assert claim["status"]["allocation"]["devices"]["results"][0]["adminAccess"] is True
    await scene.api.delete(DAEMON_SETS, "monitor", scene.namespace)
