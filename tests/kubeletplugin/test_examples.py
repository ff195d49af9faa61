"""The drivers in ``examples/``: the first from driver to container, the others called by a kubelet."""

from __future__ import annotations

import asyncio
import json
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
from dra_kubeletplugin import ClaimRef, Driver, KubeletPlugin, PluginSettings
from dra_kubeletplugin.testing import FakeKubelet
from dra_proto.health.v1alpha1 import api_pb2 as health_pb2
from plugin_api import MakeClaim, PluginApi

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
class Called:
    """An example's driver at work, and a kubelet."""

    names: dict[str, Any]
    folder: Path
    kubelet: FakeKubelet
    claim: MakeClaim

    async def prepare(self, name: str, device: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """What containers get of the device, or ``{"error": text}``."""
        driver = self.names["NAME"]
        config = [{"source": "FromClaim", "opaque": {"driver": driver, "parameters": parameters}}] if parameters else []
        await self.claim(name, device=device, result={"driver": driver}, config=config)
        answer = (await self.kubelet.prepare([self.ref(name)]))[f"uid-of-{name}"]
        if answer.error:
            return {"error": answer.error}
        (found,) = [path for path in (self.folder / "cdi").iterdir() if f"uid-of-{name}" in path.name]
        edits: dict[str, Any] = json.loads(found.read_text())["devices"][0]["containerEdits"]
        return edits

    async def unprepare(self, name: str) -> None:
        """Undo it."""
        assert (await self.kubelet.unprepare([self.ref(name)]))[f"uid-of-{name}"].error == ""

    def ref(self, name: str) -> ClaimRef:
        """The claim as the kubelet names it."""
        return ClaimRef("default", name, f"uid-of-{name}")


@pytest.fixture
async def example(
    request: pytest.FixtureRequest, api: PluginApi, claim: MakeClaim, short_path: Path
) -> AsyncIterator[Called]:
    names = runpy.run_path(str(EXAMPLES / request.param))
    (driver,) = [item for item in names.values() if isinstance(item, type) and issubclass(item, Driver)]
    settings = PluginSettings(
        driver_name=names["NAME"],
        node_name="worker-1",
        registry_dir=short_path,
        data_dir=short_path,
        cdi_dir=short_path / "cdi",
    )
    async with KubeletPlugin(driver(), settings, api.client), FakeKubelet(settings) as kubelet:
        yield Called(names, short_path, kubelet, claim)


@pytest.mark.parametrize("example", ["02_paint.py"], indirect=True)
async def test_configuration_is_decoded_and_checked(example: Called) -> None:
    assert await example.prepare("a", "brush-0") == {"env": ["PAINT=red", "COATS=1"]}
    assert await example.prepare("b", "brush-1", {"color": "blue"}) == {"env": ["PAINT=blue", "COATS=1"]}
    assert (
        "Invalid enum value 'pink' - at `$.color`"
        in (await example.prepare("c", "brush-2", {"color": "pink"}))["error"]
    )
    assert "9 coats do not dry" in (await example.prepare("d", "brush-3", {"coats": 9}))["error"]


@pytest.mark.parametrize("example", ["03_scratch.py"], indirect=True)
async def test_a_scratch_directory_is_empty_at_first_and_gone_in_the_end(example: Called, tmp_path: Path) -> None:
    example.names["ScratchDriver"].prepare.__globals__["ROOT"] = tmp_path
    (tmp_path / "scratch-0").mkdir()
    (tmp_path / "scratch-0/of-a-crash").touch()
    edits = await example.prepare("a", "scratch-0")
    assert edits["mounts"][0]["hostPath"] == str(tmp_path / "scratch-0")
    assert not (tmp_path / "scratch-0/of-a-crash").exists()
    await example.unprepare("a")
    assert not (tmp_path / "scratch-0").exists()


@pytest.mark.parametrize("example", ["04_serial.py"], indirect=True)
async def test_adapters_come_and_go_and_say_how_they_are(example: Called, tmp_path: Path) -> None:
    example.names["plugged"].__globals__["PATTERN"] = f"{tmp_path}/tty*"
    published, reports = example.names["devices"](), example.kubelet.health()
    assert await anext(published) == []
    assert "ttyusb0 was pulled out" in (await example.prepare("a", "ttyusb0"))["error"]
    (tmp_path / "ttyUSB0").touch()
    assert [device.name for device in await anext(published)] == ["ttyusb0"]
    nodes = (await example.prepare("a", "ttyusb0"))["deviceNodes"]
    assert (nodes[0]["path"], nodes[0]["hostPath"]) == ("/dev/serial", str(tmp_path / "ttyUSB0"))
    while not (report := await anext(reports)):
        pass
    assert (report[0].device.pool_name, report[0].health) == ("worker-1", health_pb2.HEALTHY)
    (tmp_path / "ttyUSB0").unlink()
    assert await anext(published) == []
    assert [(device.health, device.message) for device in await anext(reports)] == [(2, "pulled out")]
