"""The drivers in ``examples/``: the first from driver to container, the others called by a kubelet."""

from __future__ import annotations

import asyncio
import runpy
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from dra_devcluster.cluster import DevCluster
from dra_devcluster.processes import ChildProcess, command
from dra_kube import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES, Api
from dra_kubeletplugin import Driver
from dra_kubeletplugin.testing import ClaimFailed, Container, DriverNode, RunningDriver
from dra_proto.health.v1 import api_pb2 as health_pb2

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KINDS = {kind.kind: kind for kind in (DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, PODS)}


async def test_a_container_is_greeted(short_path: Path) -> None:
    async with DevCluster(short_path, nodes=1) as cluster, Api(cluster.connection()) as api:
        (node,) = cluster.nodes
        environment = {"KUBECONFIG": str(cluster.kubeconfig)}
        flags = {"node-name": node.name, "kubelet-dir": node.agent.root, "cdi-dir": node.cdi_dir}
        hello = [sys.executable, str(EXAMPLES / "01_hello.py"), *(f"--{name}={value}" for name, value in flags.items())]
        async with (
            ChildProcess("hello driver", hello, short_path / "hello.log", env=environment) as driver,
            ChildProcess(
                "operator", command("dra-operator", "run"), short_path / "op.log", env=environment
            ) as operator,
        ):
            for body in yaml.safe_load_all((EXAMPLES / "01_hello.yaml").read_text()):
                await api.create(KINDS[body["kind"]], body)

            for _ in range(1900):
                pod = await api.get(PODS, "hello", "default")
                if pod.get("status", {}).get("phase") == "Succeeded":
                    break
                driver.check()
                operator.check()
                await asyncio.sleep(0.05)
            else:
                story = [path.read_text() for path in (driver.log, operator.log)]
                pytest.fail("\n".join(["the pod did not succeed:", str(pod["status"]), *story]))
            logs = await api.raw_text("/api/v1/namespaces/default/pods/hello/log")
            assert logs == "I was told: good night\n"
            assert not list(node.cdi_dir.iterdir()), "a finished pod's devices are unprepared"


def test_the_documentation_shows_the_code_of_the_example() -> None:
    shown = (EXAMPLES.parent / "docs/driver-author.md").read_text().split("```python\n")[1].partition("```")[0]
    without_comments = [line for line in shown.splitlines() if line.strip()]
    example = iter((EXAMPLES / "01_hello.py").read_text().splitlines())
    missing = [line for line in without_comments if not any(part.partition("  #")[0] == line for part in example)]
    assert not missing, "in this order, each line is in the example too"


def test_the_smallest_example_is_short() -> None:
    assert len((EXAMPLES / "01_hello.py").read_text().splitlines()) < 40


@dataclass
class Example:
    """An example's driver at work, and the names of its file."""

    names: dict[str, Any]
    driver: RunningDriver

    async def container(self, device: str, parameters: dict[str, Any] | None = None) -> Container:
        """What a container gets with a claim of its own for the device."""
        return await self.driver.prepare(await self.driver.claim(device, name=device, parameters=parameters))


@pytest.fixture
async def example(request: pytest.FixtureRequest, driver_node: DriverNode) -> AsyncIterator[Example]:
    names = runpy.run_path(str(EXAMPLES / request.param))
    (driver,) = [item for item in names.values() if isinstance(item, type) and issubclass(item, Driver)]
    async with driver_node.run(driver, names["NAME"]) as running:
        yield Example(names, running)


@pytest.mark.parametrize("example", ["01_hello.py"], indirect=True)
async def test_a_greeting_survives_restart_and_reboot(example: Example) -> None:
    claim = await example.driver.claim("hello-2")
    assert (await example.driver.prepare(claim)).environment == {"GREETING": "good night"}
    for again in (example.driver.restart, example.driver.reboot):
        await again()
        assert (await example.driver.prepare(claim)).environment == {"GREETING": "good night"}
    await example.driver.unprepare(claim)


@pytest.mark.parametrize("example", ["02_paint.py"], indirect=True)
async def test_configuration_is_decoded_and_checked(example: Example) -> None:
    assert (await example.container("brush-0")).environment == {"PAINT": "red", "COATS": "1"}
    assert (await example.container("brush-1", {"color": "blue"})).environment == {"PAINT": "blue", "COATS": "1"}
    with pytest.raises(ClaimFailed, match=r"Invalid enum value 'pink' - at `\$\.color`"):
        await example.container("brush-2", {"color": "pink"})
    with pytest.raises(ClaimFailed, match="9 coats do not dry"):
        await example.container("brush-3", {"coats": 9})


@pytest.mark.parametrize("example", ["03_scratch.py"], indirect=True)
async def test_a_scratch_directory_is_empty_at_first_and_gone_in_the_end(example: Example, tmp_path: Path) -> None:
    example.names["ScratchDriver"].prepare.__globals__["ROOT"] = tmp_path
    (tmp_path / "scratch-0").mkdir()
    (tmp_path / "scratch-0/of-a-crash").touch()
    claim = await example.driver.claim("scratch-0")
    (mount,) = (await example.driver.prepare(claim)).edits.mounts
    assert mount.host_path == str(tmp_path / "scratch-0")
    assert not (tmp_path / "scratch-0/of-a-crash").exists()
    await example.driver.unprepare(claim)
    assert not (tmp_path / "scratch-0").exists()


@pytest.mark.parametrize("example", ["04_serial.py"], indirect=True)
async def test_adapters_come_and_go_and_say_how_they_are(example: Example, short_path: Path) -> None:
    example.names["plugged"].__globals__["PATTERN"] = f"{short_path}/tty*"
    published, reports = example.names["devices"](), example.driver.kubelet.health()
    assert await anext(published) == []
    claim = await example.driver.claim("ttyusb0")
    with pytest.raises(ClaimFailed, match="ttyusb0 was pulled out"):
        await example.driver.prepare(claim)
    (short_path / "ttyUSB0").touch()
    assert [device.name for device in await anext(published)] == ["ttyusb0"]
    (node,) = (await example.driver.prepare(claim)).edits.device_nodes
    assert (node.path, node.host_path) == ("/dev/serial", str(short_path / "ttyUSB0"))
    while not (report := await anext(reports)):
        pass
    assert (report[0].device.pool_name, report[0].health) == ("worker-1", health_pb2.HEALTHY)
    (short_path / "ttyUSB0").unlink()
    assert await anext(published) == []
    assert [(device.health, device.message) for device in await anext(reports)] == [(2, "pulled out")]
