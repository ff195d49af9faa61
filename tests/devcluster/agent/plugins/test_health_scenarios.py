"""Device health from the plugin's stream to the pod's status (e2e-scenarios.md section 2.4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from dra_api.releases import Release
from dra_devcluster.agent import AgentSettings, LocalRuntime
from dra_kube import PODS
from fake_plugin import CountingSocket, FakePlugin, MakePlugin
from one_node import OneNode
from waiting import becomes, until

DRA = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
HEALTH = "v1alpha1.DRAResourceHealth"
ID = "gpu.example.com/claim=gpu"


@pytest.fixture
def gates() -> dict[str, object]:
    """Fields of the settings that differ from the defaults."""
    return {}


@pytest.fixture
def fast(fast: AgentSettings, gates: dict[str, object]) -> AgentSettings:
    return replace(fast, health_retry=0.05, **gates)  # type: ignore[arg-type]  # of the types of the fields


@pytest.fixture
def health_service() -> str:
    return HEALTH


@pytest.fixture
async def plugin(node: OneNode, make_plugin: MakePlugin, health_service: str) -> AsyncIterator[FakePlugin]:
    """A registered plugin on the node that reports health."""
    plugin = make_plugin(root=node.root, services=(*DRA, health_service))
    plugin.cdi_root = node.cdi_root
    async with plugin:
        await becomes(lambda: plugin.statuses == [(True, "")])
        yield plugin


async def running_pod(node: OneNode, name: str = "pod-a", claim: str = "gpu") -> None:
    await node.pod(name, claims=(claim,))
    await node.claim(claim, name)
    await node.phase(name, "Running")


async def shows(node: OneNode, *resources: dict[str, Any], pod: str = "pod-a", name: str = "claim:gpu") -> None:
    """Wait until the status of the pod's container shows exactly these devices."""
    wanted = [{"name": name, "resources": list(resources)}]

    async def shown() -> bool:
        statuses = (await node.get(pod))["status"].get("containerStatuses") or [{}]
        return bool(statuses[0].get("allocatedResourcesStatus") == wanted)

    await until(f"{pod} shows {wanted}", shown)


def device(health: str, message: str = "", identity: str = ID) -> dict[str, Any]:
    return {"resourceID": identity, "health": health} | ({"message": message} if message else {})


@pytest.mark.parametrize(
    ("health_service", "gates"),
    [("v1alpha1.DRAResourceHealth", {}), ("v1.DRAResourceHealth", {"release": Release.V1_37})],
)
async def test_nod050_healthy_unhealthy_and_healthy_again_is_seen_in_the_pod(node: OneNode, plugin: FakePlugin) -> None:
    await running_pod(node)
    await shows(node, device("Unknown"))
    for health, shown in (("HEALTHY", "Healthy"), ("UNHEALTHY", "Unhealthy"), ("HEALTHY", "Healthy")):
        await plugin.health.report({"health": health})
        await shows(node, device(shown))


async def test_e2e110_the_message_of_the_driver_is_shown_as_it_changes(node: OneNode, plugin: FakePlugin) -> None:
    await running_pod(node)
    for health, message in (("Healthy", "ok"), ("Unhealthy", "hot"), ("Unhealthy", "hotter"), ("Healthy", "")):
        await plugin.health.report({"health": health.upper(), "message": message})
        await shows(node, device(health, message))


@asynccontextmanager
async def counted(node: OneNode, make_plugin: MakePlugin) -> AsyncIterator[tuple[FakePlugin, CountingSocket]]:
    """A plugin whose connections are counted, and a running pod that shows a healthy device of it."""
    plugin = make_plugin(root=node.root, services=(*DRA, HEALTH))
    plugin.cdi_root = node.cdi_root
    await plugin.serve()
    async with CountingSocket(plugin.service_socket.with_name("front.sock"), plugin.service_socket) as front:
        plugin.endpoint = str(front.path)
        await plugin.register()
        await running_pod(node)
        await plugin.health.report({})
        await shows(node, device("Healthy"))
        yield plugin, front


async def test_nod051_calls_and_health_share_one_connection(node: OneNode, make_plugin: MakePlugin) -> None:
    async with counted(node, make_plugin) as (plugin, front):
        await node.delete("pod-a")
        await node.gone("pod-a")
        assert (front.connections, plugin.prepared, plugin.unprepared) == (1, [["gpu"]], [["gpu"]])


async def test_nod052_a_plugin_that_stops_is_unknown_and_reports_again_after_its_restart(
    node: OneNode, plugin: FakePlugin
) -> None:
    await running_pod(node)
    await plugin.health.report({})
    await shows(node, device("Healthy"))
    await plugin.stop_serving()
    await shows(node, device("Unknown"))
    await plugin.serve()
    await shows(node, device("Healthy"))
    await plugin.unregister()
    await shows(node, device("Unknown"))


async def test_nod053_calls_and_health_recover_from_a_broken_connection(node: OneNode, make_plugin: MakePlugin) -> None:
    async with counted(node, make_plugin) as (plugin, front):
        front.cut()
        await becomes(lambda: plugin.health.streams == 2)
        await plugin.health.report({"health": "UNHEALTHY"})
        await shows(node, device("Unhealthy"))
        await running_pod(node, "pod-b", "gpu2")
        assert front.connections == 2


async def test_nod054_pods_come_and_go_while_health_changes(node: OneNode, plugin: FakePlugin) -> None:
    async def live(number: int) -> None:
        await node.pod(f"pod-{number}", "true", claims=(f"gpu-{number}",))
        await node.claim(f"gpu-{number}", f"pod-{number}")
        await node.phase(f"pod-{number}", "Succeeded")

    async def flap() -> None:
        while True:
            for health in ("HEALTHY", "UNHEALTHY"):
                await plugin.health.report({"health": health})
                await asyncio.sleep(0)

    flapping = asyncio.create_task(flap())
    await asyncio.gather(*map(live, range(4)))
    flapping.cancel()
    assert sorted(plugin.prepared) == sorted(plugin.unprepared) == [[f"gpu-{number}"] for number in range(4)]
    await running_pod(node)
    await plugin.health.report({"health": "UNHEALTHY", "message": "at last"})
    await shows(node, device("Unhealthy", "at last"))


@pytest.mark.parametrize("gates", [{"resource_health_status": False}])
async def test_nod055_without_the_gate_nothing_is_watched_or_shown(node: OneNode, plugin: FakePlugin) -> None:
    await running_pod(node)
    status = (await node.get("pod-a"))["status"]["containerStatuses"][0]
    assert "allocatedResourcesStatus" not in status
    assert plugin.health.streams == 0


@pytest.mark.parametrize("gates", [{"resource_health_status_message": False}])
async def test_without_its_gate_the_message_is_not_shown(node: OneNode, plugin: FakePlugin) -> None:
    await running_pod(node)
    await plugin.health.report({"message": "secret"})
    await shows(node, device("Healthy"))


async def test_nod056_devices_with_a_share_id_have_the_health_of_the_device(node: OneNode, plugin: FakePlugin) -> None:
    one = {"pool_name": "pool", "device_name": "device-0"}
    plugin.devices["gpu"] = [one | {"share_id": share} for share in ("one", "two")]
    await running_pod(node)
    await plugin.health.report({"health": "UNHEALTHY"})
    await shows(node, device("Unhealthy", identity="gpu.example.com/pool/device-0"))


@pytest.mark.rule("KM-25")
async def test_a_change_is_shown_in_each_pod_with_the_device_and_in_no_other(node: OneNode, plugin: FakePlugin) -> None:
    plugin.devices = {
        claim: [{"pool_name": "pool", "device_name": device}]
        for claim, device in (("gpu", "device-0"), ("other", "device-1"))
    }
    for name, claim in (("pod-a", "gpu"), ("pod-b", "gpu"), ("pod-c", "other")):
        await node.pod(name, claims=(claim,))
    await node.claim("gpu", "pod-a", "pod-b")
    await node.claim("other", "pod-c")
    for name in ("pod-a", "pod-b", "pod-c"):
        await node.phase(name, "Running")
    first, second = (f"gpu.example.com/pool/device-{number}" for number in (0, 1))
    await plugin.health.report({"device": "device-0"}, {"device": "device-1"})
    await shows(node, device("Healthy", identity=second), pod="pod-c", name="claim:other")
    unchanged = (await node.get("pod-c"))["metadata"]["resourceVersion"]
    await plugin.health.report({"device": "device-0", "health": "UNHEALTHY"}, {"device": "device-1"})
    for name in ("pod-a", "pod-b"):
        await shows(node, device("Unhealthy", identity=first), pod=name)
    assert (await node.get("pod-c"))["metadata"]["resourceVersion"] == unchanged


@pytest.mark.rule("KM-27")
async def test_a_reference_to_one_request_shows_the_devices_of_that_request(node: OneNode, plugin: FakePlugin) -> None:
    plugin.devices["gpu"] = [
        {"pool_name": "pool", "device_name": f"device-{number}", "request_names": [f"req-{number}"]}
        for number in (0, 1)
    ]
    container = {"name": "c", "image": "busybox", "resources": {"claims": [{"name": "gpu", "request": "req-1"}]}}
    await node.pod("pod-a", claims=("gpu",), containers=[container])
    await node.claim("gpu", "pod-a")
    await plugin.health.report({"device": "device-0"}, {"device": "device-1", "health": "UNHEALTHY"})
    identity = "gpu.example.com/pool/device-1"
    await shows(node, device("Unhealthy", identity=identity), name="claim:gpu/req-1")


@pytest.mark.rule("KM-24")
async def test_a_report_that_is_not_repeated_in_time_ends(node: OneNode, plugin: FakePlugin) -> None:
    await running_pod(node)
    await plugin.health.report({"health_check_timeout_seconds": 1})
    await shows(node, device("Healthy"))
    await shows(node, device("Unknown"))


@pytest.mark.rule("KM-22")
async def test_a_plugin_that_offers_no_health_service_is_not_asked(node: OneNode, make_plugin: MakePlugin) -> None:
    plugin = make_plugin(root=node.root, services=DRA)
    plugin.cdi_root = node.cdi_root
    async with plugin:
        await running_pod(node)
        await shows(node, device("Unknown"))
    assert plugin.health.streams == 0


@pytest.mark.rule("KM-26")
async def test_prj014_a_rolling_update_never_shows_unknown(
    node: OneNode, plugin: FakePlugin, make_plugin: MakePlugin
) -> None:
    await running_pod(node)
    await plugin.health.report({})
    await shows(node, device("Healthy"))
    history = asyncio.create_task(shown_until(node, "the end"))
    new = make_plugin(root=node.root, services=(*DRA, HEALTH), instance="-new")
    new.cdi_root = node.cdi_root
    async with new:
        await becomes(lambda: new.health.watching)
        await new.health.report({"message": "by the new instance"})
        await shows(node, device("Healthy", "by the new instance"))
        await plugin.unregister()
        await plugin.stop_serving()
        await becomes(lambda: not plugin.health.watching)
        await new.health.report({"message": "the end"})
        assert "Unknown" not in await history


async def shown_until(node: OneNode, message: str) -> list[str]:
    """The health of the pod's device in every version of the pod, up to the one with this message."""
    seen: list[str] = []
    version = (await node.get("pod-a"))["metadata"]["resourceVersion"]
    async for event in node.api.watch(PODS, resource_version=version):
        for status in event.object["status"]["containerStatuses"][0].get("allocatedResourcesStatus", ()):
            seen += [resource["health"] for resource in status["resources"]]
            if status["resources"][0].get("message") == message:
                return seen
    raise AssertionError("the watch ended")


@pytest.mark.rule("KM-23")
async def test_health_survives_a_restart_of_the_agent(node: OneNode, plugin: FakePlugin) -> None:
    await node.stop()
    async with LocalRuntime(node.root) as runtime:
        node.runtime = runtime
        await node.start()
        await running_pod(node)
        await plugin.health.report({"health": "UNHEALTHY"})
        await shows(node, device("Unhealthy"))
        await node.stop()
        await plugin.unregister()
        history = asyncio.create_task(shown_until(node, "the end"))
        await node.start()
        await plugin.register()
        await plugin.health.report({"health": "UNHEALTHY", "message": "the end"})
        assert set(await history) == {"Unhealthy"}
        await node.stop()
