"""The node for tests of drivers, which comes with the library: what it does, and what it finds."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from dra_api.resource import ResourceClaim
from dra_cdi import CdiError
from dra_kubeletplugin import (
    ClaimError,
    ClaimRef,
    ContainerEdits,
    Driver,
    Prepared,
    PreparedDevice,
    configs_for,
    results_for,
)
from dra_kubeletplugin.testing import ClaimFailed, DriverNode

NAME = "gpu.example.com"


class Gpu(Driver):
    """Numbers its processes; ``made`` are those of this test. It prepares nothing until ``idle`` is set."""

    made: list[Gpu]
    idle: asyncio.Event

    def __init__(self) -> None:
        self.made.append(self)
        self.number = len(self.made)
        self.calls: list[str] = []

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        self.calls.append(f"prepare {claim.metadata.name}")
        await self.idle.wait()
        results = results_for(NAME, claim)
        if any(result.device == "broken" for result in results):
            raise ClaimError("out of order: use another device")
        edits = [ContainerEdits(env=(f"GPU_{result.device}={self.number}",)) for result in results]
        return [PreparedDevice.of(result, edits=each) for result, each in zip(results, edits, strict=True)]

    async def unprepare(self, claim: ClaimRef) -> None:
        self.calls.append(f"unprepare {claim.name}")


@pytest.fixture
def gpu() -> type[Gpu]:
    """A class of its own for each test, because it counts."""

    class Counted(Gpu):
        made: list[Gpu] = []  # noqa: RUF012  # counts on purpose
        idle = asyncio.Event()

    Counted.idle.set()
    return Counted


async def test_a_container_gets_what_the_driver_says_until_the_claim_is_unprepared(
    driver_node: DriverNode, gpu: type[Gpu]
) -> None:
    async with driver_node.run(gpu, NAME) as driver:
        claim = await driver.claim("0", "other-pool/1", request="gpus")
        container = await driver.prepare(claim)
        assert container.environment == {"GPU_0": "1", "GPU_1": "1"}
        assert container.devices == ("worker-1/0", "other-pool/1")
        assert [driver.calls.count(method) for method in ("GetInfo", "NodePrepareResources")] == [1, 1]
        await driver.unprepare(claim)
        assert list(driver_node.cdi_dir.iterdir()) == []
        assert gpu.made[0].calls == ["prepare claim", "unprepare claim"]


async def test_a_restarted_process_answers_from_files_and_one_after_a_reboot_prepares_again(
    driver_node: DriverNode, gpu: type[Gpu]
) -> None:
    async with driver_node.run(gpu, NAME) as driver:
        claim = await driver.claim("0")
        await driver.prepare(claim)
        await driver.restart()
        assert (await driver.prepare(claim)).environment == {"GPU_0": "1"}
        (driver_node.cdi_dir / "of-another-driver.json").touch()
        await driver.reboot()
        assert list(driver_node.cdi_dir.iterdir()) == []
        assert (await driver.prepare(claim)).environment == {"GPU_0": "3"}
        assert [process.calls for process in gpu.made] == [["prepare claim"], [], ["prepare claim"]]


async def test_two_instances_of_a_rolling_update_share_what_is_prepared(
    driver_node: DriverNode, gpu: type[Gpu]
) -> None:
    async with driver_node.run(gpu, NAME, rolling_update_uid="old") as old:
        claim = await old.claim("0")
        await old.prepare(claim)
        async with driver_node.run(gpu, NAME, rolling_update_uid="new") as new:
            assert (await new.prepare(claim)).environment == {"GPU_0": "1"}
            await new.unprepare(claim)
        await old.unprepare(claim)
        assert gpu.made[1].calls == ["unprepare claim"]


async def test_a_call_that_takes_too_long_fails_and_is_answered_at_the_next(
    driver_node: DriverNode, gpu: type[Gpu]
) -> None:
    gpu.idle.clear()
    async with driver_node.run(gpu, NAME) as driver:
        claim = await driver.claim("0")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await driver.prepare(claim, deadline=0.2)
        assert failed.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert "prepare of claim default/claim is still at work" in str(failed.value.details())
        gpu.idle.set()
        assert (await driver.prepare(claim, deadline=20)).environment == {"GPU_0": "1"}
        assert gpu.made[0].calls == ["prepare claim"]


async def test_errors_of_claims_and_of_calls_are_raised(driver_node: DriverNode, gpu: type[Gpu]) -> None:
    async with driver_node.run(gpu, NAME) as driver:
        with pytest.raises(ClaimFailed, match="out of order: use another device"):
            await driver.prepare(await driver.claim("broken"))
        claim = await driver.claim("0")
        with driver.faults.failing("NodePrepareResources", "no route"), pytest.raises(grpc.aio.AioRpcError):
            await driver.prepare(claim)
        gone = await driver.claim("1")
        await driver.claim("2")
        with pytest.raises(grpc.aio.AioRpcError, match="got replaced"):
            await driver.prepare(gone)


async def test_any_file_that_a_runtime_would_refuse_is_an_error(driver_node: DriverNode, gpu: type[Gpu]) -> None:
    async with driver_node.run(gpu, NAME) as driver:
        (driver_node.cdi_dir / "mine.json").write_text('{"cdiVersion": "0.3.0", "kind": "a/b", "devices": []}')
        with pytest.raises(CdiError, match=r"mine\.json: the file has no devices: add one, or remove the file"):
            await driver.prepare(await driver.claim("0"))


async def test_a_claim_may_have_several_requests_and_parameters_of_its_class(driver_node: DriverNode) -> None:
    class Seeing(Driver):
        async def prepare(self, claim: ResourceClaim) -> Prepared:
            edits = {
                result.device: ContainerEdits(
                    env=(f"D_{result.device}={[config.parameters for config in configs_for(NAME, claim, result)]}",)
                )
                for result in results_for(NAME, claim)
            }
            return [PreparedDevice.of(each, edits=edits[each.device]) for each in results_for(NAME, claim)]

    async with driver_node.run(Seeing, NAME) as driver:
        claim = await driver.claim(
            requests={"gpu/large": ["0"], "nic": ["1", "p/2"]}, parameters={"a": 1}, class_parameters={"a": 0}
        )
        assert (await driver.prepare(claim)).environment == {f"D_{n}": "[{'a': 0}, {'a': 1}]" for n in (0, 1, 2)}
        answer = (await driver.kubelet.prepare([claim]))[claim.uid]
        assert [(each.device_name, *each.request_names) for each in answer.devices] == [
            ("0", "gpu"),
            ("1", "nic"),
            ("2", "nic"),
        ]
