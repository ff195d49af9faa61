"""Each known defect of the kubelet, switched on: what the node agent does then (it is tested elsewhere without)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from dra_api.releases import Release
from dra_devcluster.agent import AgentSettings, KubeletDefect
from dra_devcluster.agent.claims import DraManager
from dra_devcluster.agent.errors import ClaimError
from dra_devcluster.agent.plugins.plugin import NodeMetrics
from dra_devcluster.agent.plugins.registration import DraPlugins
from fake_plugin import FakePlugin, MakePlugin
from one_node import DRIVER, OTHER, Claims, pod_with
from waiting import becomes

HEALTH = "v1alpha1.DRAResourceHealth"
DRA = ("v1.DRAPlugin", "v1beta1.DRAPlugin")


@pytest.fixture
def claims() -> Claims:
    return Claims()


@pytest.fixture
def defect(request: pytest.FixtureRequest) -> KubeletDefect:
    return KubeletDefect(request.param)


@pytest.fixture
async def manager(
    claims: Claims, tmp_path: Path, fast: AgentSettings, defect: KubeletDefect
) -> AsyncIterator[DraManager]:
    settings = replace(fast, defects=frozenset({defect}), health_retry=0.02, release=Release.V1_36)
    manager = DraManager(claims, "node-1", tmp_path, settings)  # type: ignore[arg-type]  # reads claims, nothing else
    yield manager
    await manager.close()


async def registered(plugins: DraPlugins, plugin: FakePlugin, services: Sequence[str] = DRA) -> FakePlugin:
    await plugin.serve()
    await plugins.register(plugin.driver, str(plugin.service_socket), services)
    return plugin


def only(defect: KubeletDefect) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("defect", [defect], indirect=True)


@only(KubeletDefect.DUPLICATED_DEVICES)
async def test_retries_give_a_container_the_same_device_twice(
    claims: Claims, manager: DraManager, make_plugin: MakePlugin
) -> None:
    await registered(manager.plugins, make_plugin(DRIVER))
    other = await registered(manager.plugins, make_plugin(OTHER))
    other.prepare_error = "injected"
    claims.add("gpu", "pod-a", drivers=(DRIVER, OTHER))
    pod = pod_with("pod-a", "gpu")
    with pytest.raises(ClaimError):
        await manager.prepare(pod)
    other.prepare_error = ""
    await manager.prepare(pod)
    assert pod.spec.containers is not None
    ids = manager.cdi_devices(pod, pod.spec.containers[0])
    assert sorted(ids) == [f"{DRIVER}/claim=gpu"] * 2 + [f"{OTHER}/claim=gpu"]


@only(KubeletDefect.UNNOTICED_REALLOCATION)
async def test_a_claim_that_is_allocated_anew_counts_as_prepared(
    claims: Claims, manager: DraManager, make_plugin: MakePlugin
) -> None:
    plugin = await registered(manager.plugins, make_plugin(DRIVER))
    claims.add("gpu", "pod-a")
    await manager.prepare(pod_with("pod-a", "gpu"))
    claims.add("gpu", "pod-b", device="other")
    await manager.prepare(pod_with("pod-b", "gpu"))
    assert (plugin.prepared, plugin.unprepared) == ([["gpu"]], [])


@only(KubeletDefect.FOREIGN_UNPREPARE)
async def test_a_pod_unprepares_the_claim_of_another_pod_by_its_name(
    claims: Claims, manager: DraManager, make_plugin: MakePlugin
) -> None:
    plugin = await registered(manager.plugins, make_plugin(DRIVER))
    claims.add("gpu", "pod-a", uid="old")
    await manager.prepare(pod_with("pod-a", "gpu"))
    await manager.unprepare("uid-pod-b", pod_with("pod-b", "gpu"))
    assert plugin.unprepared == [["gpu"]]
    assert not manager.cache.of_pod("uid-pod-a")


@only(KubeletDefect.HEALTH_STREAM_FOR_ALL)
async def test_a_driver_without_health_is_asked_again_and_again(
    claims: Claims, manager: DraManager, make_plugin: MakePlugin, caplog: pytest.LogCaptureFixture
) -> None:
    await registered(manager.plugins, make_plugin(DRIVER))
    await becomes(lambda: caplog.text.count("rpc error: code = Unimplemented") >= 2)


@pytest.mark.rule("K37-HEALTH-09")
async def test_a_kubelet_of_1_37_does_not_ask_again_for_a_service_that_is_offered_and_not_served(
    claims: Claims, tmp_path: Path, fast: AgentSettings, make_plugin: MakePlugin, caplog: pytest.LogCaptureFixture
) -> None:
    """One of 1.36 asks every 5 s."""
    caplog.set_level(logging.INFO)
    settings = replace(fast, health_retry=0.0, release=Release.V1_37)
    manager = DraManager(claims, "node-1", tmp_path, settings)  # type: ignore[arg-type]  # reads claims, nothing else
    await registered(manager.plugins, make_plugin(DRIVER), (*DRA, "v1.DRAResourceHealth"))
    names = [f"health of {DRIVER}"]
    assert names == [task.get_name() for task in asyncio.all_tasks() if task.get_name() in names]
    await becomes(lambda: not [task for task in asyncio.all_tasks() if task.get_name() in names])
    assert caplog.text.count("rpc error: code = Unimplemented") == 1
    ours = [record for record in caplog.records if record.name.startswith("dra_devcluster")]
    assert not [record for record in ours if record.levelno > logging.INFO]
    await manager.close()


@only(KubeletDefect.HEALTH_BY_DRIVER)
async def test_the_end_of_an_old_instance_forgets_what_the_new_one_reported(
    claims: Claims, manager: DraManager, make_plugin: MakePlugin
) -> None:
    told: list[set[str]] = []
    services = (*DRA, HEALTH)
    old = await registered(manager.plugins, make_plugin(DRIVER, services=services), services)
    new = await registered(manager.plugins, make_plugin(DRIVER, services=services, instance="-new"), services)
    health = manager.plugins.health
    await old.health.report({})
    await becomes(lambda: health.get(DRIVER, "pool", "device-0").status == "Healthy")
    await new.health.report({}, {"device": "device-1"})
    await becomes(lambda: health.get(DRIVER, "pool", "device-1").status == "Healthy")
    manager.pods_changed = told.append
    await manager.plugins.deregister(DRIVER, str(old.service_socket))
    assert health.get(DRIVER, "pool", "device-0").status == "Unknown"
    assert told == []


# --- the services of older kubelets ---

OFFERS = {
    "both of its time": (("v1beta1.DRAPlugin", "v1alpha3.NodeService"), "v1beta1.DRAPlugin"),
    "the legacy service only": (("v1alpha3.NodeService",), "v1alpha3.NodeService"),
    "version numbers, as the oldest plugins": (("1.0.0",), "v1alpha3.NodeService"),
}


@pytest.mark.parametrize("case", OFFERS)
async def test_a_kubelet_of_1_32_speaks_the_legacy_service(
    case: str, claims: Claims, tmp_path: Path, fast: AgentSettings, make_plugin: MakePlugin
) -> None:
    offered, chosen = OFFERS[case]
    settings = replace(fast, legacy_service=True)
    manager = DraManager(claims, "node-1", tmp_path, settings)  # type: ignore[arg-type]  # reads claims, nothing else
    plugin = await registered(manager.plugins, make_plugin(DRIVER, services=(chosen,)), offered)
    claims.add("gpu", "pod-a")
    await manager.prepare(pod_with("pod-a", "gpu"))
    await manager.unprepare("uid-pod-a")
    assert [one.service for one in manager.plugins.instances()] == [chosen]
    assert (plugin.prepared, plugin.unprepared) == ([["gpu"]], [["gpu"]])
    await manager.close()


@pytest.mark.parametrize(("legacy", "offered"), [(False, ("v1alpha3.NodeService",)), (True, ())])
def test_other_services_are_refused(legacy: bool, offered: tuple[str, ...], tmp_path: Path) -> None:
    settings = AgentSettings(legacy_service=legacy)
    plugins = DraPlugins(None, "node-1", tmp_path, settings, NodeMetrics(), lambda driver, keys: None)  # type: ignore[arg-type]  # asks no server
    with pytest.raises(Exception, match="supported gRPC services"):
        plugins.validate(DRIVER, "endpoint", offered)
