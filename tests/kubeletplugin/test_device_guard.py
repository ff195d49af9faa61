"""Two instances of a driver without ``serialize`` that want one device for two claims at the same instant.

The other instance is a process, which stops at a step of its prepare and says so.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from dra_kubeletplugin import DeviceInUse, Prepared
from dra_kubeletplugin.claims.calls import Turns
from node_world import NodeWorld, allocated, ref

SUPPORT = Path(__file__).parents[1] / "support"
OTHER_INSTANCE = """
import asyncio, sys
from pathlib import Path
from dra_kubeletplugin.claims.calls import Turns
from node_world import NodeWorld, allocated

root, step = Path(sys.argv[1]), sys.argv[2]
node = NodeWorld(root / "node", deciding=Turns(serialize=False, folder=root).deciding)
owner, name = (node.records, "write") if step == "before its record" else (node.driver, "prepare")
function = getattr(owner, name)

def stopping(*arguments, **named):
    print("stopped", flush=True)
    sys.stdin.readline()
    return function(*arguments, **named)

setattr(owner, name, stopping)
print(asyncio.run(node.prepared.prepare(allocated("theirs", "p/gpu-0"))), flush=True)
"""

Result = Prepared | Exception


@pytest.fixture
def node(tmp_path: Path) -> NodeWorld:
    return NodeWorld(tmp_path / "node", deciding=Turns(serialize=False, folder=tmp_path).deciding)


@asynccontextmanager
async def other_instance(folder: Path, step: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """It prepares the device for a claim of its own, and has stopped at the step."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        OTHER_INSTANCE,
        str(folder),
        step,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": str(SUPPORT)},
    )
    assert process.stdout
    try:
        assert await asyncio.wait_for(process.stdout.readline(), 60) == b"stopped\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def continues(process: asyncio.subprocess.Process) -> None:
    output, _ = await process.communicate(b"\n")
    assert b"PreparedDevice" in output


async def dies(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


Then = Callable[[asyncio.subprocess.Process], Awaitable[None]]


@pytest.mark.parametrize(("then", "ours"), [(continues, False), (dies, True)], ids=["continues", "is killed"])
async def test_who_has_found_the_device_free_gets_it_unless_it_dies(
    node: NodeWorld, tmp_path: Path, then: Then, ours: bool
) -> None:
    async with other_instance(tmp_path, "before its record") as process:
        call = asyncio.create_task(node.prepared.prepare(allocated("ours", "p/gpu-0")))
        await asyncio.sleep(0.05)  # in which it would take the device as well
        assert not call.done()
        await then(process)
        result = await asyncio.wait_for(call, 60)
    assert isinstance(result, DeviceInUse) is not ours
    assert node.driver.calls == (["prepare ours: p/gpu-0"] if ours else [])
    assert node.records.uids() == ["uid-of-ours" if ours else "uid-of-theirs"]


@pytest.mark.parametrize("then", [continues, dies])
async def test_a_device_is_taken_from_the_record_on_even_if_the_work_on_it_is_cut_short(
    node: NodeWorld, tmp_path: Path, then: Then
) -> None:
    async with other_instance(tmp_path, "in the driver") as process:
        early = await asyncio.wait_for(node.prepared.prepare(allocated("ours", "p/gpu-0")), 60)
        assert isinstance(early, DeviceInUse), "work of the driver keeps other claims waiting no longer than a look"
        assert not isinstance(await node.prepared.prepare(allocated("another", "p/gpu-1")), Exception)
        await then(process)
    assert isinstance(await node.prepared.prepare(allocated("ours", "p/gpu-0")), DeviceInUse)
    assert await node.prepared.unprepare(ref("theirs")) is None
    assert not isinstance(await node.prepared.prepare(allocated("ours", "p/gpu-0")), Exception)


async def test_each_device_goes_to_one_of_many_claims(tmp_path: Path) -> None:
    """Two instances get claims for few devices in another order each; what is refused is so for good."""
    nodes = [NodeWorld(tmp_path / "node", deciding=Turns(serialize=False, folder=tmp_path).deciding) for _ in range(2)]
    claims = [allocated(f"c{number}", f"p/gpu-{number % 4}") for number in range(24)]
    calls = [nodes[number % 2].prepared.prepare(claim) for number, claim in enumerate(claims)]
    results: list[Result] = await asyncio.gather(*calls)
    assert sum(not isinstance(result, Exception) for result in results) == 4
    assert all(isinstance(result, DeviceInUse) for result in results if isinstance(result, Exception))
    assert sorted(call.split()[-1] for each in nodes for call in each.driver.calls) == [f"p/gpu-{n}" for n in range(4)]
