"""The example driver for GPUs, on GPUs that exist in memory: partitions, sharing, health, kills and restarts."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from dra_kubeletplugin import Pool
from dra_kubeletplugin.testing import ClaimFailed, DriverNode, RunningDriver

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "gpu"
WHOLE = "gpu-0-7g-80gb-0"


@pytest.fixture(scope="module")
def modules() -> Iterator[tuple[Any, Any]]:
    """The driver and the fake. Afterwards others may have their names, as a new driver for GPUs has."""
    names = ("gpu_driver", "fake_nvml")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        driver, fake = map(importlib.import_module, names)
        yield driver, fake
    for name in names:
        del sys.modules[name]


@pytest.fixture
def fake(modules: tuple[Any, Any]) -> Any:
    modules[1].reset(gpus=2, mig=1)
    return modules[1]


@pytest.fixture
async def gpu(driver_node: DriverNode, modules: tuple[Any, Any], fake: Any) -> AsyncIterator[RunningDriver]:
    """The driver on a node with a GPU that is cut by MIG and one that is not, published."""
    driver, _ = modules
    async with driver_node.run(lambda: driver.GpuDriver(lambda: fake), driver.NAME) as running:
        await publish(running)
        yield running


async def publish(running: RunningDriver) -> None:
    await running.plugin.publish({running.node.name: running.driver.pool()})  # type: ignore[attr-defined]
    await running.plugin.published()


async def test_partitions_are_made_and_destroyed_with_their_claims(gpu: RunningDriver, fake: Any) -> None:
    claim = await gpu.claim("gpu-0-2g-20gb-4", "gpu-0-1g-10gb-0")
    container = await gpu.prepare(claim)
    assert fake.instances() == [(0, 14, 4, True), (0, 19, 0, True)]
    assert container.environment["NVIDIA_VISIBLE_DEVICES"].startswith("MIG-")
    await gpu.restart()
    assert await gpu.prepare(claim) == container
    await gpu.unprepare(claim)
    assert fake.instances() == []


async def test_what_overlaps_is_refused_before_nvml_is_asked(gpu: RunningDriver, fake: Any) -> None:
    part = await gpu.claim("gpu-0-1g-10gb-3", name="part")
    await gpu.prepare(part)
    with pytest.raises(ClaimFailed, match=r"device gpu-0-7g-80gb-0 of pool worker-1 needs .* of the counter gpu-0/"):
        await gpu.prepare(await gpu.claim(WHOLE, name="whole"))
    await gpu.prepare(await gpu.claim("gpu-0-3g-40gb-4", name="beside"))
    assert len(fake.instances()) == 2


async def test_what_a_killed_process_made_is_used_or_destroyed(gpu: RunningDriver, fake: Any) -> None:
    place = fake.c_nvmlGpuInstancePlacement_t(0, 4)
    fake.nvmlDeviceCreateGpuInstanceWithPlacement(0, 9, place)  # without its compute instance
    claim = await gpu.claim("gpu-0-3g-40gb-0")
    await gpu.prepare(claim)
    assert fake.instances() == [(0, 9, 0, True)]
    fake.nvmlDeviceCreateGpuInstanceWithPlacement(0, 9, fake.c_nvmlGpuInstancePlacement_t(4, 4))
    await gpu.restart()
    assert fake.instances() == [(0, 9, 0, True)]


async def test_a_claim_that_fails_half_way_leaves_nothing(gpu: RunningDriver, fake: Any) -> None:
    with pytest.raises(ClaimFailed, match="there is no device gone"):
        await gpu.prepare(await gpu.claim("gpu-0-1g-10gb-0", "other/gone"))
    assert fake.instances() == []


async def test_a_claim_says_how_its_containers_share_a_gpu(gpu: RunningDriver, fake: Any) -> None:
    claim = await gpu.claim("gpu-1", parameters={"sharing": "exclusiveProcess"}, class_parameters={"sharing": "shared"})
    await gpu.prepare(claim)
    assert fake.nvmlDeviceGetComputeMode(1) == fake.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    await gpu.unprepare(claim)
    assert fake.nvmlDeviceGetComputeMode(1) == fake.NVML_COMPUTEMODE_DEFAULT
    for parameters, message in (({"shraing": "shared"}, "unknown field `shraing`"), ({"sharing": "x"}, "sharing")):
        claim = await gpu.claim("gpu-1", parameters=parameters)
        with pytest.raises(ClaimFailed, match=message):
            await gpu.prepare(claim)
        await gpu.unprepare(claim)
    with pytest.raises(ClaimFailed, match="sharing exclusiveProcess is for whole GPUs only"):
        await gpu.prepare(await gpu.claim("gpu-0-1g-10gb-0", parameters={"sharing": "exclusiveProcess"}))


async def test_a_gpu_that_fails_is_unhealthy_and_tainted(gpu: RunningDriver, fake: Any) -> None:
    driver: Any = gpu.driver
    reports, pools = driver.health(), driver.pools()
    assert all(each.healthy for each in await anext(reports))
    assert not any(each.taints for part in (await anext(pools)).slices for each in part.devices)
    async with driver.listening(gpu.plugin):
        fake.fail(0, 13)  # a fault of a program
        fake.fail(0, 79)  # the GPU has fallen off the bus
        unhealthy = [each.device for each in await anext(reports) if not each.healthy]
        assert unhealthy == list(driver.gpus[0].partitions)
        devices = [each for part in (await anext(pools)).slices for each in part.devices]
    assert [each.name for each in devices if each.taints] == unhealthy
    assert "gpu-1" not in unhealthy


def test_a_gpu_offers_each_profile_at_each_placement(modules: tuple[Any, Any], fake: Any) -> None:
    driver: Any = modules[0].GpuDriver(lambda: fake)
    pool: Pool = driver.pool()
    sets = {each.name: each for part in pool.slices for each in part.shared_counters}
    assert {name: counter.value.text for name, counter in (sets["gpu-0"].counters or {}).items()}["compute"] == "7"
    assert len([each for part in pool.slices for each in part.devices]) == 7 + 3 + 2 + 1 + 1 + 1


def test_the_fake_has_the_functions_of_pynvml(fake: Any) -> None:
    """With nvidia-ml-py installed (``kopf-dra[nvml]``): the same names, and the same arguments."""
    pynvml = pytest.importorskip("pynvml")
    for name, function in inspect.getmembers(fake, inspect.isfunction):
        if name.startswith("nvml"):
            theirs = list(inspect.signature(getattr(pynvml, name)).parameters)
            assert list(inspect.signature(function).parameters) == theirs, name
    for name in dir(fake):
        if name.startswith(("NVML", "c_nvml", "nvmlEvent")):
            assert hasattr(pynvml, name), name
            if isinstance(getattr(fake, name), int):
                assert getattr(fake, name) == getattr(pynvml, name), name
