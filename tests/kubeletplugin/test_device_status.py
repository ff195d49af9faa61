"""The status of a claim's devices, on an API server: what a driver reports, and whose entries it leaves alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from dra_api.meta import Condition
from dra_api.releases import Release
from dra_api.resource import NetworkDeviceData, ResourceClaim
from dra_devcluster.apiserver import DevApiServer
from dra_kube import RESOURCE_CLAIMS, Api, Conflict, connection
from dra_kubeletplugin import (
    ClaimError,
    ClaimRef,
    DeviceStatus,
    Driver,
    KubeletPlugin,
    PluginSettings,
    Prepared,
    report_devices,
)
from dra_kubeletplugin.testing import DriverNode, PluginApi
from hypothesis import given, settings
from hypothesis import strategies as st

NAME, OTHER = "gpu.example.com", "nic.example.com"
READY = Condition(type="Ready", status="True", reason="Up", message="runs")


class Idle(Driver):
    """No kubelet calls it here."""

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        return []


@dataclass
class World:
    """An API server with a claim that holds devices of two drivers, and a plugin of each."""

    api: Api
    gpu: KubeletPlugin
    nic: KubeletPlugin
    claim: ClaimRef

    async def stored(self) -> dict[str, Any]:
        return await self.api.get(RESOURCE_CLAIMS, "claim", "default")

    async def devices(self) -> list[dict[str, Any]]:
        """The entries, times of conditions left out; a real server has ``null`` for no conditions."""
        entries: list[dict[str, Any]] = (await self.stored())["status"].get("devices", [])
        for condition in (condition for entry in entries for condition in entry.get("conditions") or ()):
            assert condition.pop("lastTransitionTime")
        return [{name: value for name, value in entry.items() if value is not None} for entry in entries]


async def make_claim(api: Api) -> ClaimRef:
    """The claim, allocated."""
    requests = [{"name": name, "exactly": {"deviceClassName": name}} for name in ("gpu", "nic")]
    claim = {"metadata": {"name": "claim", "namespace": "default"}, "spec": {"devices": {"requests": requests}}}
    made = await api.create(RESOURCE_CLAIMS, claim, "default")
    results = [
        {"request": request, "driver": driver, "pool": "p", "device": f"{request}-{number}"}
        for request, driver in (("gpu", NAME), ("nic", OTHER))
        for number in (0, 1)
    ]
    await api.update(RESOURCE_CLAIMS, made | {"status": {"allocation": {"devices": {"results": results}}}}, "status")
    return ClaimRef("default", "claim", made["metadata"]["uid"])


WITHOUT_STATUS = dict.fromkeys(
    (
        "DRAResourceClaimDeviceStatus",
        # they need it
        "DRADeviceBindingConditions",
        "DRAResourceClaimGranularStatusAuthorization",
    ),
    False,
)


@pytest.fixture
async def world(driver_node: DriverNode, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    options = getattr(request, "param", {})
    async with DevApiServer(**options) as server:
        async with Api(connection(server.write_kubeconfig(driver_node.root / "kubeconfig"))) as api:
            gpu, nic = (KubeletPlugin(Idle(), driver_node.settings(name), api) for name in (NAME, OTHER))
            yield World(api, gpu, nic, await make_claim(api))


async def test_each_driver_owns_the_entries_of_its_devices(world: World) -> None:
    network = NetworkDeviceData(interface_name="net1", ips=("10.9.8.7/24",), hardware_address="02:00:00:00:00:01")
    await world.nic.report_devices(world.claim, [DeviceStatus(pool="p", device="nic-0", network=network)])
    await world.gpu.report_devices(
        world.claim,
        [
            DeviceStatus(pool="p", device="gpu-0", conditions=[READY]),
            DeviceStatus(pool="p", device="gpu-1", data={"temperature": 71}),
        ],
    )
    nic = {
        "driver": OTHER,
        "pool": "p",
        "device": "nic-0",
        "networkData": {"interfaceName": "net1", "ips": ["10.9.8.7/24"], "hardwareAddress": "02:00:00:00:00:01"},
    }
    ready = {"type": "Ready", "status": "True", "reason": "Up", "message": "runs"}
    first = {"driver": NAME, "pool": "p", "device": "gpu-0", "conditions": [ready]}
    second = {"driver": NAME, "pool": "p", "device": "gpu-1", "data": {"temperature": 71}}
    assert await world.devices() == [nic, first, second]
    await world.gpu.report_devices(world.claim, [DeviceStatus(pool="p", device="gpu-1")])
    assert await world.devices() == [nic, {"driver": NAME, "pool": "p", "device": "gpu-1"}]
    await world.gpu.report_devices(world.claim, [])
    assert await world.devices() == [nic]


async def test_a_repeated_report_writes_nothing_and_a_condition_keeps_the_time_of_its_change(world: World) -> None:
    def at(status: str, message: str) -> list[DeviceStatus]:
        condition = Condition(type="Ready", status=status, reason="Up", message=message)
        return [DeviceStatus(pool="p", device="gpu-0", conditions=[condition], data={"b": [1, 2], "a": None})]

    await world.gpu.report_devices(world.claim, at("True", "runs"))
    first = await world.stored()
    await world.gpu.report_devices(world.claim, at("True", "runs"))
    assert (await world.stored())["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    long_ago = first["status"]["devices"][0]
    long_ago["conditions"][0]["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    await world.api.update(RESOURCE_CLAIMS, first, "status")
    times = []
    for status, message in (("True", "runs well"), ("False", "stands")):
        await world.gpu.report_devices(world.claim, at(status, message))
        (entry,) = (await world.stored())["status"]["devices"]
        times.append(entry["conditions"][0]["lastTransitionTime"])
    assert times[0] == "2020-01-01T00:00:00Z" < times[1]


async def test_what_cannot_be_reported_is_refused(world: World) -> None:
    with pytest.raises(ClaimError, match="claim default/claim does not hold the device nic-0 of pool p"):
        await world.gpu.report_devices(world.claim, [DeviceStatus(pool="p", device="nic-0")])
    with pytest.raises(ClaimError, match="got replaced"):
        await world.gpu.report_devices(ClaimRef("default", "claim", "another-uid"), [])
    with pytest.raises(ClaimError, match="claim default/gone does not exist any more"):
        await world.gpu.report_devices(ClaimRef("default", "gone", "uid"), [])


async def test_a_claim_made_anew_between_reading_and_writing_is_left_alone(world: World) -> None:
    before = await world.stored()
    await world.api.delete(RESOURCE_CLAIMS, "claim", "default")
    await make_claim(world.api)
    with mock.patch.object(world.api, "get", return_value=before), pytest.raises(Conflict, match="uid"):
        await report_devices(world.api, NAME, world.claim, [DeviceStatus(pool="p", device="gpu-0")])
    assert await world.devices() == []


def said(kind: str, *devices: str, status: str = "True") -> list[DeviceStatus]:
    """A report of one condition of some devices."""
    condition = Condition(type=kind, status=status, reason="R", message="")
    return [DeviceStatus(pool="p", device=device, conditions=[condition]) for device in devices]


async def writers(api: Api, claim: ClaimRef, node: Path) -> dict[str, Callable[..., Awaitable[None]]]:
    """Those of one driver: plugins of two nodes, one of a long name, and two controllers."""
    all_settings = [PluginSettings(driver_name=NAME, node_name=name, data_dir=node, cdi_dir=node, registry_dir=node)
                for name in ("worker-1", "w" * 253)]  # fmt: skip
    plugins = [KubeletPlugin(Idle(), each, api) for each in all_settings]
    return {
        "node": partial(plugins[0].report_devices, claim),
        "other node": partial(plugins[1].report_devices, claim),
        "controller": partial(report_devices, api, NAME, claim),
        "attacher": partial(report_devices, api, NAME, claim, part="attacher"),
    }


async def test_a_condition_of_one_writer_survives_the_reports_of_others(world: World, tmp_path: Path) -> None:
    reports = await writers(world.api, world.claim, tmp_path)
    for _ in range(2):
        for name, report in reports.items():
            await report(said(name.title().replace(" ", ""), "gpu-0"))
    (entry,) = await world.devices()
    assert [each["type"] for each in entry["conditions"]] == ["Node", "OtherNode", "Controller", "Attacher"]
    version = (await world.stored())["metadata"]["resourceVersion"]
    for name, report in reports.items():
        await report(said(name.title().replace(" ", ""), "gpu-0"))
    assert (await world.stored())["metadata"]["resourceVersion"] == version, "a repeated report writes nothing"
    await reports["node"](said("Ready", "gpu-1"))
    entries = {entry["device"]: [each["type"] for each in entry["conditions"]] for entry in await world.devices()}
    assert entries == {"gpu-0": ["OtherNode", "Controller", "Attacher"], "gpu-1": ["Ready"]}, "its own is replaced"
    for report in reports.values():
        await report([])
    assert await world.devices() == []


REPORTS = st.lists(
    st.tuples(
        st.sampled_from(["node", "other node", "controller", "attacher"]),
        st.lists(st.sampled_from(["gpu-0", "gpu-1"]), unique=True),
        st.sampled_from(["True", "False"]),
    ),
    max_size=8,
)


@settings(max_examples=30, deadline=None)
@given(REPORTS)
def test_each_writer_finds_what_it_said_last(tmp_path_factory: pytest.TempPathFactory, reports: list[Any]) -> None:
    async def story() -> None:
        api = PluginApi()
        results = [{"request": "r", "driver": NAME, "pool": "p", "device": f"gpu-{number}"} for number in (0, 1)]
        claim = {
            "metadata": {"name": "claim", "namespace": "default", "uid": "u"},
            "status": {"allocation": {"devices": {"results": results}}},
        }
        await api.put(RESOURCE_CLAIMS, claim)
        by_name = await writers(api.client, ClaimRef("default", "claim", "u"), tmp_path_factory.mktemp("node"))
        last: dict[tuple[str, str], str] = {}
        for name, devices, status in reports:
            kind = name.title().replace(" ", "")
            for _ in range(2):
                requests = len(api.requests)
                await by_name[name](said(kind, *devices, status=status))
            assert [verb for verb, _ in api.requests[requests:]] == ["get"], "a repeated report writes nothing"
            last = {key: value for key, value in last.items() if key[1] != kind}
            last |= {(device, kind): status for device in devices}
        stored = await api.get(RESOURCE_CLAIMS, "claim", "default")
        found = {(entry["device"], each["type"]): each["status"] for entry in stored["status"].get("devices", ())
                 for each in entry["conditions"]}  # fmt: skip
        assert found == last

    asyncio.run(story())


@pytest.mark.parametrize("world", [{"feature_gates": WITHOUT_STATUS, "release": Release.V1_36}], indirect=True)
async def test_a_server_that_drops_the_status_is_an_error_with_a_remedy(world: World) -> None:
    with pytest.raises(ClaimError, match="enable its feature gate DRAResourceClaimDeviceStatus"):
        await world.gpu.report_devices(world.claim, [DeviceStatus(pool="p", device="gpu-0")])


async def test_the_api_server_of_the_testing_package_takes_reports_too(driver_node: DriverNode) -> None:
    assert isinstance(driver_node.api, PluginApi)
    async with driver_node.run(Idle, NAME) as driver:
        claim = await driver.claim("gpu-0")
        for _ in range(3):
            await driver.plugin.report_devices(claim, [DeviceStatus(pool="worker-1", device="gpu-0", data={"a": 1})])
        assert driver_node.api.requests.count(("patch", "resourceclaims")) == 1
        stored = await driver_node.api.get(RESOURCE_CLAIMS, "claim", "default")
        entry = {"driver": NAME, "pool": "worker-1", "device": "gpu-0", "data": {"a": 1}}
        assert stored["status"]["devices"] == [entry]
