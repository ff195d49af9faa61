"""The example of docs/driver-author.md, from driver to container: a development cluster, the operator, the driver."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
import yaml
from dra_devcluster.cluster import DevCluster
from dra_devcluster.processes import ChildProcess, command
from dra_kube import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES, Api

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KINDS = {kind.kind: kind for kind in (DEVICE_CLASSES, RESOURCE_CLAIM_TEMPLATES, PODS)}


async def test_a_container_is_greeted(short_path: Path) -> None:
    async with DevCluster(short_path, nodes=1) as cluster, Api(cluster.connection()) as api:
        (node,) = cluster.nodes
        environment = {"KUBECONFIG": str(cluster.kubeconfig)}
        hello = [sys.executable, str(EXAMPLES / "hello_driver.py"), node.name, str(node.agent.root), str(node.cdi_dir)]
        async with (
            ChildProcess("hello driver", hello, short_path / "hello.log", env=environment) as driver,
            ChildProcess(
                "operator", command("dra-operator", "run"), short_path / "op.log", env=environment
            ) as operator,
        ):
            for body in yaml.safe_load_all((EXAMPLES / "hello.yaml").read_text()):
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
    example = iter((EXAMPLES / "hello_driver.py").read_text().splitlines())
    missing = [line for line in without_comments if not any(part.partition("  #")[0] == line for part in example)]
    assert not missing, "in this order, each line is in the example too"


def test_the_example_is_short() -> None:
    assert len((EXAMPLES / "hello_driver.py").read_text().splitlines()) < 60
