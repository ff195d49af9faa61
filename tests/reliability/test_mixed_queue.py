"""A queue of two schedulers that is always full, on devices that belong to one of them each.

Fifteen pods of each scheduler, eight devices, and pods that are done after two seconds: each device that comes free
wakes both schedulers at once. Without a territory both then take the same one now and then, and kube-scheduler gives
one of its own devices to a second pod of its own.

``KOPF_DRA_ROUNDS=20 pytest tests/reliability/test_mixed_queue.py`` tries it twenty times.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from command import OperatorProcess
from dra_kube import DEVICE_TAINT_RULES, NODES, RESOURCE_SLICES
from dra_operator.cache.shared_drivers import SETTLED_SECONDS
from envtest import needs_stock_control_plane
from proving_ground import DRIVER, RUNS_SECONDS, ProvingGround, proving_ground
from rounds import rounds

PODS_EACH: Final = 15
DEVICES: Final = 8
SCHEDULERS: Final = ("dra-scheduler", "default-scheduler")
GATE: Final = "DRADeviceTaintRules"
OURS: Final = {"key": "dra.kopf.dev/scheduler", "value": SCHEDULERS[0], "effect": "NoSchedule"}


async def work_off(ground: ProvingGround, number: int) -> None:
    """All pods come at once, and are done."""
    names = [f"round-{number}-{scheduler}-{index}" for index in range(PODS_EACH) for scheduler in SCHEDULERS]
    annotations = {RUNS_SECONDS: "2"}
    await asyncio.gather(
        *(
            ground.add_pod(name, schedulerName=name.split("-", 2)[2].rpartition("-")[0], annotations=annotations)
            for name in names
        )
    )

    async def all_done() -> bool:
        return all(pod["status"].get("phase") == "Succeeded" for pod in await ground.pods())

    await ground.until(f"all pods of round {number} are done", all_done)
    await ground.emptied()


async def mark_half_of_the_devices(ground: ProvingGround) -> None:
    """As a driver does that was told to."""

    def marked(device: dict[str, Any], number: int) -> dict[str, Any]:
        return {**device, "taints": [OURS]} if number % 2 else device

    for slice_ in (await ground.api.list(RESOURCE_SLICES))[0]:
        devices = [marked(device, number) for number, device in enumerate(slice_["spec"]["devices"])]
        await ground.api.patch(RESOURCE_SLICES, slice_["metadata"]["name"], {"spec": {"devices": devices}})


async def mark_a_node(ground: ProvingGround) -> None:
    """``kubectl taint nodes node-0 dra.kopf.dev/scheduler=dra-scheduler:NoSchedule``."""
    await ground.api.patch(NODES, "node-0", {"spec": {"taints": [OURS]}})


@asynccontextmanager
async def two_schedulers(ground: ProvingGround, *options: str) -> AsyncIterator[OperatorProcess]:
    async with ground.operator(*options) as operator:
        await operator.becomes_ready()
        yield operator


def given_twice(ground: ProvingGround) -> list[str]:
    """Devices that two claims held at any moment, whether or not their pods ran."""
    return [found.what for found in ground.witness.findings() if " is held by " in found.what]


@needs_stock_control_plane
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mark", [mark_half_of_the_devices, mark_a_node], ids=["devices", "a-node"])
async def test_no_device_is_ever_held_by_two_claims_where_each_belongs_to_one_scheduler(
    mark: Callable[[ProvingGround], Awaitable[None]], ground: ProvingGround
) -> None:
    nodes = 2 if mark is mark_a_node else 1
    await ground.furnish(nodes=nodes, devices=DEVICES // nodes)
    await mark(ground)
    async with two_schedulers(ground, "--own-devices-only") as operator:
        tried = rounds(2)
        for number in tried:
            await work_off(ground, number)
        await ground.witness.caught_up()
        twice = given_twice(ground)
        print(f"{len(tried)} rounds, {2 * PODS_EACH * len(tried)} pods; devices held by two claims: {len(twice)}")
        assert not twice, twice[:5]
        assert "does not honour the taint" not in operator.text
    await ground.sound()


@needs_stock_control_plane
@pytest.mark.timeout(3600)
async def test_pods_of_kube_scheduler_get_our_devices_at_our_gate(ground: ProvingGround) -> None:
    """They need no toleration there: their scheduler finds the devices allocated."""
    await ground.furnish(nodes=1, devices=DEVICES)
    for slice_ in (await ground.api.list(RESOURCE_SLICES))[0]:
        devices = [{**device, "taints": [OURS]} for device in slice_["spec"]["devices"]]
        await ground.api.patch(RESOURCE_SLICES, slice_["metadata"]["name"], {"spec": {"devices": devices}})
    gates = [{"name": "dra.kopf.dev/allocate"}]
    async with two_schedulers(ground) as operator:
        await ground.add_pod("gated", schedulerName=SCHEDULERS[1], schedulingGates=gates)
        await ground.add_pod("alone", schedulerName=SCHEDULERS[1])
        await ground.bound(1)
        assert await ground.bound_names() == ["gated"]

        async def was_refused() -> bool:
            return bool(await ground.reason("alone"))

        await ground.until("kube-scheduler refuses the other one", was_refused)
        assert await ground.bound_names() == ["gated"]
        assert "does not honour the taint" not in operator.text


@needs_stock_control_plane
async def test_a_kube_scheduler_that_ignores_a_rule_is_named(tmp_path: Path) -> None:
    """That of 1.36 does up to 1.36.2 (kubernetes 139651); later ones leave the devices alone."""
    async with proving_ground(tmp_path, gates={GATE: True}) as ground:
        await ground.furnish(nodes=1, devices=DEVICES)
        async with two_schedulers(ground, "--feature-gates", f"{GATE}=true") as operator:
            spec = {"deviceSelector": {"driver": DRIVER}, "taint": OURS}
            head = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule"}
            await ground.api.create(DEVICE_TAINT_RULES, {**head, "metadata": {"name": "territory"}, "spec": spec})
            await asyncio.sleep(SETTLED_SECONDS + 1)
            await ground.add_pod("ours")
            await ground.add_pod("theirs", schedulerName=SCHEDULERS[1])

            async def theirs_is_decided() -> bool:
                bound = await ground.bound_names()
                return "ours" in bound and ("theirs" in bound or bool(await ground.reason("theirs")))

            await ground.until("both are decided", theirs_is_decided)
            is_honoured = "theirs" not in await ground.bound_names()
            assert ("does not honour the taint" in operator.text) is not is_honoured
