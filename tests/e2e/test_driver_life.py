"""The life of a driver beside its pods: late start, updates, replacement, both versions of the protocol (E2E-030 to
E2E-033, E2E-078 to E2E-080)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest
from dra_kube import RESOURCE_SLICES, Object
from dra_kubeletplugin import DeviceHealth, Pool, Resources, device
from dra_kubeletplugin.drivers.simulated import SimulatedDriver
from scene import Scene
from waiting import until


def one_device(scene: Scene) -> Resources:
    return {scene.node_names[0]: Pool.of([device("device-00")])}


async def slices(scene: Scene) -> list[tuple[str, str]]:
    """Names and versions of the driver's slices."""
    found, _ = await scene.api.list(RESOURCE_SLICES, fieldSelector=f"spec.driver={scene.driver_name}")
    return sorted((one["metadata"]["name"], one["metadata"]["resourceVersion"]) for one in found)


async def runs_a_pod(scene: Scene, name: str = "tester") -> None:
    await scene.create_claim()
    await scene.create_pod(scene.pod(name))
    await scene.runs(name)


async def test_e2e_030_a_pod_waits_for_its_driver_and_then_runs(scene: Scene) -> None:
    await scene.create_class()
    await scene.create_claim()
    await scene.create_pod(scene.pod())
    await scene.pending(says="cannot satisfy|no device")
    await scene.start_plugin(0, one_device(scene))
    await scene.runs()
    await scene.delete_pod("tester")


@pytest.mark.parametrize("fails", [False, True], ids=["e2e031 the update succeeds", "e2e032 the update fails"])
async def test_e2e_031_032_two_instances_overlap_and_the_slices_stay(scene: Scene, fails: bool) -> None:
    await scene.create_class()
    old = await scene.start_plugin(0, one_device(scene), rolling_update_uid="old")
    before = await slices(scene)
    new = await scene.start_plugin(0, one_device(scene), rolling_update_uid="new")
    assert old is not None
    assert new is not None
    gone, left = (new, old) if fails else (old, new)
    await gone.stop()
    await runs_a_pod(scene)
    assert left.count("NodePrepareResources") == 1
    assert await slices(scene) == before


async def test_e2e_033_a_driver_that_is_replaced_in_time_keeps_its_slices_and_one_that_is_gone_loses_them(
    scene: Scene,
) -> None:
    await scene.create_class()
    old = await scene.start_plugin(0, one_device(scene))
    assert old is not None
    before = await slices(scene)
    await old.stop()
    new = await scene.start_plugin(0, one_device(scene))
    assert new is not None
    assert await slices(scene) == before
    await runs_a_pod(scene)
    await scene.delete_pod("tester")
    await new.stop()
    await until("slices wiped", lambda: _none(scene))


async def _none(scene: Scene) -> bool:
    return not await slices(scene)


class Frail(SimulatedDriver):
    """Reports what ``says`` holds."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.says: asyncio.Queue[DeviceHealth] = asyncio.Queue()

    async def health(self) -> AsyncIterator[Sequence[DeviceHealth]]:
        while True:
            yield [await self.says.get()]


async def test_the_health_that_a_driver_reports_is_in_the_status_of_the_pod(scene: Scene) -> None:
    await scene.create_class()
    driver = Frail(scene.driver_name)
    await scene.start_plugin(0, one_device(scene), driver=driver)
    await runs_a_pod(scene)
    for healthy, message, shown in (
        (True, "", {"health": "Healthy"}),
        (False, "61 degrees", {"health": "Unhealthy", "message": "61 degrees"}),
        (None, "", {"health": "Unknown"}),
        (True, "", {"health": "Healthy"}),
    ):
        driver.says.put_nowait(DeviceHealth(device="device-00", healthy=healthy, message=message))
        await until(f"the pod shows {shown}", partial(_shows, scene, shown))


async def _shows(scene: Scene, health: dict[str, str]) -> bool:
    (status,) = (await scene.get_pod("tester"))["status"]["containerStatuses"]
    devices = [one for entry in status.get("allocatedResourcesStatus", ()) for one in entry["resources"]]
    return [{name: value for name, value in one.items() if name != "resourceID"} for one in devices] == [health]


SERVED: dict[str, dict[str, Any]] = {
    "e2e078 only v1beta1": {"serve_v1": False},
    "e2e079 only v1": {"serve_v1beta1": False},
    "e2e080 both": {},
}


@pytest.mark.parametrize("case", SERVED)
async def test_e2e_078_079_080_a_pod_with_two_claims_of_each_of_two_drivers(
    case: str, scene: Scene, neighbour: Scene
) -> None:
    entries: list[Object] = []
    for number, one in enumerate((scene, neighbour)):
        await one.create_class()
        devices = [device(f"device-{index}") for index in range(2)]
        await one.start_plugin(0, {f"{one.namespace}-pool": Pool.of(devices)}, **SERVED[case])
        for index in range(2):
            await scene.create_claim(f"claim-{number}-{index}", one.claim_spec())
            entries.append({"name": f"claim-{number}-{index}", "resourceClaimName": f"claim-{number}-{index}"})
    await scene.create_pod(scene.pod(claims=entries))
    await scene.runs()
    assert len([line for line in await scene.environment() if line.startswith("claim_")]) == 4
    for one in (scene, neighbour):
        assert len(one.plugins[0].plugin.prepared_claims) == 2
    await scene.delete_pod("tester")
    assert [one.plugins[0].plugin.prepared_claims for one in (scene, neighbour)] == [[], []]
