"""Scenarios of one node and one plugin (e2e-scenarios.md section 2.1): faults, restarts, deletions.

The scheduler is not part of it: the test allocates and reserves the claims and presets the node.
"""

from __future__ import annotations

from typing import Any

import pytest
from dra_devcluster.agent import LocalRuntime
from dra_devcluster.agent.checkpoint import decode
from fake_plugin import CountingSocket, FakePlugin, MakePlugin
from one_node import OneNode
from waiting import becomes, until

PRINT = "echo CLAIM_gpu=$CLAIM_gpu"


async def make_pod(node: OneNode, script: str = PRINT, name: str = "pod-a", **spec: Any) -> None:
    """A pod with one claim; the pod comes first, since the reservation needs its UID."""
    await node.pod(name, script, claims=("gpu",), **spec)
    await node.claim("gpu", name)


async def test_nod001_a_restarted_agent_registers_the_plugin_again(node: OneNode, plugin: FakePlugin) -> None:
    await node.stop()
    await node.start()
    await becomes(lambda: plugin.statuses == [(True, "")] * 2)
    await make_pod(node)
    await node.phase("pod-a", "Succeeded")


async def test_nod002_a_restarted_plugin_is_registered_again(node: OneNode, plugin: FakePlugin) -> None:
    await plugin.unregister()
    await plugin.stop_serving()
    await plugin.serve()
    await plugin.register()
    await becomes(lambda: len(plugin.statuses) == 2)
    await make_pod(node)
    await node.phase("pod-a", "Succeeded")


async def test_nod003_a_plugin_whose_info_fails_once_is_registered_later(
    node: OneNode, make_plugin: MakePlugin
) -> None:
    plugin = make_plugin(root=node.root)
    plugin.info_failures = 1
    async with plugin:
        await becomes(lambda: plugin.statuses == [(True, "")])
    assert plugin.infos >= 2


async def test_nod004_a_plugin_whose_notification_fails_once_is_registered_later(
    node: OneNode, make_plugin: MakePlugin
) -> None:
    plugin = make_plugin(root=node.root)
    plugin.notify_failures = 1
    async with plugin:
        await becomes(lambda: plugin.statuses == [(True, "")])
    assert plugin.infos >= 2


async def test_nod005_a_pod_made_while_the_agent_is_down_runs_after_its_start(
    node: OneNode, plugin: FakePlugin
) -> None:
    await node.stop()
    await make_pod(node)
    await node.start()
    await node.phase("pod-a", "Succeeded")
    assert (plugin.prepared, plugin.unprepared) == ([["gpu"]], [["gpu"]])


@pytest.mark.parametrize("call_timeout", [0.5])
async def test_nod006_a_pod_whose_prepare_hangs_stays_pending(node: OneNode, plugin: FakePlugin) -> None:
    plugin.gate.clear()
    await make_pod(node)
    event = await node.event("pod-a", "FailedPrepareDynamicResources", "NodePrepareResources")
    assert event["message"] == (
        "Failed to prepare dynamic resources: prepare dynamic resources: "
        "NodePrepareResources: rpc error: code = DeadlineExceeded desc = Deadline Exceeded"
    )
    assert event["type"] == "Warning"
    assert (await node.get("pod-a"))["status"]["phase"] == "Pending"
    plugin.gate.set()
    await node.phase("pod-a", "Succeeded")


async def test_nod007_a_failing_prepare_is_repeated_until_it_succeeds(node: OneNode, plugin: FakePlugin) -> None:
    plugin.prepare_error = "injected"
    await make_pod(node)
    await becomes(lambda: len(plugin.prepared) >= 2)
    status = (await node.get("pod-a"))["status"]
    assert status["phase"] == "Pending"
    assert status["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}
    plugin.prepare_error = ""
    await node.phase("pod-a", "Succeeded")
    assert await node.log("pod-a") == "CLAIM_gpu=true\n"


async def test_nod008_a_pod_succeeds_only_after_its_claims_were_given_back(node: OneNode, plugin: FakePlugin) -> None:
    plugin.unprepare_error = "injected"
    await make_pod(node)
    await becomes(lambda: len(plugin.unprepared) >= 2)
    status = (await node.get("pod-a"))["status"]
    assert status["phase"] != "Succeeded"
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    plugin.unprepare_error = ""
    await node.phase("pod-a", "Succeeded")


async def test_nod009_a_failing_prepare_is_repeated_after_a_restart(node: OneNode, plugin: FakePlugin) -> None:
    plugin.prepare_error = "injected"
    await make_pod(node)
    await becomes(lambda: plugin.prepared)
    await node.stop()
    plugin.prepare_error = ""
    await node.start()
    await node.phase("pod-a", "Succeeded")


async def test_nod010_a_failing_unprepare_is_repeated_after_a_restart_and_nothing_runs_twice(
    node: OneNode, plugin: FakePlugin
) -> None:
    plugin.unprepare_error = "injected"
    await make_pod(node)
    await becomes(lambda: plugin.unprepared)
    await node.stop()
    plugin.unprepare_error = ""
    await node.start()
    status = await node.phase("pod-a", "Succeeded")
    assert status["containerStatuses"][0]["restartCount"] == 0
    assert plugin.prepared == [["gpu"]]


async def test_nod011_unprepare_of_a_deleted_pod_is_repeated_until_it_succeeds(
    node: OneNode, plugin: FakePlugin
) -> None:
    plugin.prepare_error = plugin.unprepare_error = "injected"
    await make_pod(node)
    await becomes(lambda: plugin.prepared)
    await node.delete("pod-a")
    await becomes(lambda: len(plugin.unprepared) >= 2)
    assert (await node.get("pod-a"))["metadata"]["deletionTimestamp"]
    plugin.unprepare_error = ""
    await node.gone("pod-a")


async def test_nod012_unprepare_of_a_deleted_pod_survives_a_restart(node: OneNode, plugin: FakePlugin) -> None:
    plugin.prepare_error = plugin.unprepare_error = "injected"
    await make_pod(node)
    await becomes(lambda: plugin.prepared)
    await node.delete("pod-a")
    await becomes(lambda: plugin.unprepared)
    await node.stop()
    await node.start()
    tries = len(plugin.unprepared)
    await becomes(lambda: len(plugin.unprepared) > tries)
    plugin.unprepare_error = ""
    await node.gone("pod-a")


async def test_nod013_a_pod_deleted_while_the_agent_was_down_is_not_prepared(node: OneNode, plugin: FakePlugin) -> None:
    await node.stop()
    await make_pod(node)
    await node.delete("pod-a")
    await node.start()
    await node.gone("pod-a")
    assert plugin.prepared == []


async def test_nod014_a_plugin_may_register_before_it_serves(node: OneNode, make_plugin: MakePlugin) -> None:
    plugin = make_plugin(root=node.root)
    plugin.cdi_root = node.cdi_root
    await plugin.register()
    await becomes(lambda: plugin.statuses == [(True, "")])
    await make_pod(node)
    await node.event("pod-a", "FailedPrepareDynamicResources")
    await plugin.serve()
    await node.phase("pod-a", "Succeeded")


async def test_nod015_a_service_socket_among_the_registration_sockets_is_harmless(
    node: OneNode, make_plugin: MakePlugin
) -> None:
    plugin = make_plugin(root=node.root)
    plugin.cdi_root = node.cdi_root
    plugin.service_socket = plugin.registration_socket.with_name("service.sock")
    async with plugin:
        await becomes(lambda: plugin.statuses == [(True, "")])
        await make_pod(node)
        await node.phase("pod-a", "Succeeded")


@pytest.mark.parametrize("wipe_delay", [0.05])
@pytest.mark.parametrize("common", [False, True], ids=["nod016 separate directories", "nod017 common directory"])
async def test_nod016_nod017_a_service_that_stopped_after_prepare_gives_back_after_its_restart(
    common: bool, node: OneNode, make_plugin: MakePlugin
) -> None:
    plugin = make_plugin(root=node.root)
    plugin.cdi_root = node.cdi_root
    if common:
        plugin.service_socket = plugin.registration_socket.with_name("service.sock")
    async with plugin:
        await becomes(lambda: plugin.statuses == [(True, "")])
        await node.publish("slice")
        await make_pod(node, "")
        await node.phase("pod-a", "Running")
        await plugin.stop_serving()
        await node.shows_slices()
        await node.delete("pod-a")
        await plugin.serve()
        await node.gone("pod-a")
        assert plugin.unprepared == [["gpu"]]


async def test_nod020_two_pods_in_sequence_are_served_over_one_connection(
    node: OneNode, make_plugin: MakePlugin
) -> None:
    plugin = make_plugin(root=node.root)
    plugin.cdi_root = node.cdi_root
    await plugin.serve()
    async with CountingSocket(plugin.service_socket.with_name("front.sock"), plugin.service_socket) as front:
        plugin.endpoint = str(front.path)
        await plugin.register()
        for name in ("pod-a", "pod-b"):
            await node.pod(name, "true", claims=(f"gpu-of-{name}",))
            await node.claim(f"gpu-of-{name}", name)
            await node.phase(name, "Succeeded")
        assert (front.connections, len(plugin.prepared), len(plugin.unprepared)) == (1, 2, 2)


SHARES: dict[str, list[str | None]] = {
    "nod057 no share id": [None],
    "nod058 one share id": ["11111111-0000-4000-8000-000000000001"],
    "nod059 two share ids of one device": [
        "11111111-0000-4000-8000-000000000001",
        "11111111-0000-4000-8000-000000000002",
    ],
}


@pytest.mark.parametrize("case", SHARES)
async def test_nod057_nod058_nod059_devices_keep_the_share_ids_that_the_driver_reports(
    case: str, node: OneNode, plugin: FakePlugin
) -> None:
    one = {"pool_name": "pool", "device_name": "device-0"}
    plugin.devices["gpu"] = [one | ({"share_id": share} if share else {}) for share in SHARES[case]]
    await make_pod(node, "")
    await node.phase("pod-a", "Running")
    (claim,) = decode((node.root / "dra_manager_state").read_bytes())
    assert [device.share_id for device in claim.drivers["gpu.example.com"]] == SHARES[case]
    await node.delete("pod-a")
    await node.gone("pod-a")
    assert (plugin.prepared, plugin.unprepared) == ([["gpu"]], [["gpu"]])


async def test_e2e013_a_pod_deleted_by_force_gives_its_claims_back(node: OneNode, plugin: FakePlugin) -> None:
    await make_pod(node, "")
    await node.phase("pod-a", "Running")
    await node.delete("pod-a", grace_seconds=0)
    await node.gone("pod-a")
    await becomes(lambda: plugin.unprepared == [["gpu"]])


@pytest.mark.rule("KM-20")
async def test_a_pod_deleted_by_force_while_the_agent_was_down_gives_its_claims_back(
    node: OneNode, plugin: FakePlugin
) -> None:
    await make_pod(node, "")
    await node.phase("pod-a", "Running")
    await node.stop()
    await node.delete("pod-a", grace_seconds=0)
    await node.start()
    await becomes(lambda: plugin.unprepared == [["gpu"]])


async def test_e2e014_a_claim_that_no_container_uses_is_prepared(node: OneNode, plugin: FakePlugin) -> None:
    container = {"name": "c", "image": "busybox", "command": ["sh", "-c", PRINT]}
    await make_pod(node, containers=[container])
    await node.phase("pod-a", "Succeeded")
    assert plugin.prepared == [["gpu"]]
    assert await node.log("pod-a") == "CLAIM_gpu=\n"


async def test_e2e016_a_pod_of_the_same_name_waits_for_the_teardown_of_the_old_one(
    node: OneNode, plugin: FakePlugin
) -> None:
    plugin.unprepare_error = "injected"
    await make_pod(node, "")
    await node.phase("pod-a", "Running")
    await node.delete("pod-a", grace_seconds=0)
    await node.delete_claim("gpu")
    await make_pod(node)
    await node.event("pod-a", "FailedPrepareDynamicResources", "old ResourceClaim with same name gpu and different UID")
    plugin.unprepare_error = ""
    await node.phase("pod-a", "Succeeded")


async def test_prj019_a_claim_allocated_anew_while_its_old_pod_stops_is_prepared_again_for_the_new_pod(
    node: OneNode, plugin: FakePlugin
) -> None:
    ready, go = node.root / "trap-is-set", node.root / "go"
    stop = f"while [ ! -e {go} ]; do sleep 0.05; done; exit 0"
    script = f"trap '{stop}' TERM; touch {ready}; while :; do sleep 0.05; done"
    await make_pod(node, script, "old", terminationGracePeriodSeconds=60)
    await becomes(ready.exists)
    await node.delete("old", grace_seconds=0)
    await node.pod("new", PRINT, claims=("gpu",))
    await node.reallocate("gpu", "device-7", "new")
    await node.event("new", "FailedPrepareDynamicResources", "this node still holds gpu.example.com/pool/device-0")
    go.touch()
    await node.phase("new", "Succeeded")
    assert plugin.prepared == plugin.unprepared == [["gpu"], ["gpu"]]


async def test_e2e021_an_init_container_sees_its_claim(node: OneNode, plugin: FakePlugin) -> None:
    init = {
        "name": "init",
        "image": "busybox",
        "command": ["sh", "-c", PRINT],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    await make_pod(node, "true", initContainers=[init])
    await node.phase("pod-a", "Succeeded")
    assert await node.log("pod-a", container="init") == "CLAIM_gpu=true\n"


async def test_containers_of_a_longer_living_runtime_survive_the_restart_of_the_agent(
    node: OneNode, plugin: FakePlugin
) -> None:
    await node.stop()
    async with LocalRuntime(node.root) as runtime:
        node.runtime = runtime
        await node.start()
        await make_pod(node, "")
        before = await node.phase("pod-a", "Running")
        await node.stop()
        await node.start()
        after = await node.phase("pod-a", "Running")
        assert after["containerStatuses"] == before["containerStatuses"]
        assert plugin.prepared == [["gpu"]]
        await node.delete("pod-a")
        await node.gone("pod-a")
        assert plugin.unprepared == [["gpu"]]
        await node.stop()


async def test_containers_that_ended_with_the_agent_are_started_again_by_the_next(
    node: OneNode, plugin: FakePlugin
) -> None:
    await make_pod(node, "", policy="Always")
    await node.phase("pod-a", "Running")
    await node.stop()
    await node.start()

    async def restarted() -> bool:
        container = (await node.get("pod-a"))["status"]["containerStatuses"][0]
        return bool(container["restartCount"] == 1 and container["state"].get("running"))

    await until("restarted", restarted)
    assert plugin.prepared == [["gpu"], ["gpu"]]
