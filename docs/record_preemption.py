"""Records a gang that displaces smaller pods as docs/preemption.svg.

    .venv/bin/python docs/record_preemption.py

A development cluster of four nodes with four devices each is full: two pods of high priority have four devices each,
and four small ones have two. Then a gang of two pods comes that needs eight devices. Everything that is drawn was
printed by kubectl.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from dra_devcluster.cluster import DRIVER, DevCluster
from dra_devcluster.processes import ChildProcess, command
from record_demo import draw

PICTURE: Final = Path(__file__).with_name("preemption.svg")
PRIORITIES: Final = {"production": 1000, "training": 100, "patient": 10}
PODS: Final = "custom-columns=NAME:.metadata.name,NODE:.spec.nodeName,PRIORITY:.spec.priorityClassName"
EVENTS: Final = "custom-columns=POD:.involvedObject.name,MESSAGE:.message"
JSON = dict[str, Any]


class Recorder:
    """Runs kubectl in a cluster, and keeps what is to be drawn."""

    def __init__(self, kubeconfig: Path) -> None:
        self._folder = kubeconfig.parent
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # kubectl finds the plugin dra there
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": path}
        self.lines: list[str] = []

    async def apply(self, file: str, objects: Iterable[JSON], *, is_shown: bool = False) -> None:
        """Write the objects to a file, and apply it."""
        (self._folder / file).write_text(yaml.safe_dump_all(objects))
        await self.run("apply", "-f", file, is_shown=is_shown)

    async def run(self, *words: str, is_shown: bool = True) -> None:
        """Run a command; it is drawn with what it printed. Raises CalledProcessError when it fails."""
        done = await asyncio.to_thread(
            subprocess.run, ["kubectl", *words], env=self._environment, text=True, check=True,
            stdout=subprocess.PIPE, cwd=self._folder,
        )  # fmt: skip
        if is_shown:
            shown = [word for word in words if not word.startswith(("custom-columns", "-o", "--sort-by"))]
            self.lines += [f"$ kubectl {' '.join(shown)}", *done.stdout.splitlines(), ""]


async def record() -> list[str]:
    """What a person sees who applies the gang."""
    with tempfile.TemporaryDirectory(prefix="dra-") as made:
        folder = Path(made)
        async with DevCluster(folder, nodes=4, devices=4) as cluster:
            words = command("dra-operator", "run", "--kubeconfig", str(cluster.kubeconfig), "--preemption")
            async with ChildProcess("operator", words, folder / "operator.log"):
                return await story(Recorder(cluster.kubeconfig))


async def story(recorder: Recorder) -> list[str]:
    """Fill the cluster, then apply the gang."""
    run, wait = recorder.run, ("wait", "--for=condition=Ready", "--timeout=60s", "pod")
    await recorder.apply("background.yaml", background())
    for name, count, priority in (("api", 4, "production"), ("batch", 2, "patient")):
        pods = [pod(f"{name}-{number}", count, priority) for number in range(8 // count)]
        await recorder.apply(f"{name}.yaml", pods)
        await run(*wait, *(made["metadata"]["name"] for made in pods), is_shown=False)
    await run("dra", "top")
    await run("get", "pods", "-o", PODS)
    gang = {"dra.kopf.dev/gang": "train", "dra.kopf.dev/gang-size": "2"}
    ranks = [pod(f"train-{number}", 4, "training", gang) for number in range(2)]
    recorder.lines.append("# two pods that start together, with four devices each, and a priority between the others'")
    await recorder.apply("train.yaml", ranks, is_shown=True)
    await run(*wait, "train-0", "train-1")
    await run("get", "pods", "-o", PODS)
    await run("get", "events", "--field-selector=reason=Preempted", "-o", EVENTS)
    return recorder.lines


def background() -> Iterator[JSON]:
    """The device class, the priority classes, and a template for each number of devices."""
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
    yield {**kind, "metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}}
    for name, value in PRIORITIES.items():
        yield {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
        }
    for count in (2, 4):
        request = {"name": "gpus", "exactly": {"deviceClassName": "gpu", "count": count}}
        yield {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": f"gpus-{count}"},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        }


def pod(name: str, devices: int, priority: str, annotations: dict[str, str] | None = None) -> JSON:
    """A pod with so many devices."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {
            "schedulerName": "dra-scheduler",
            "priorityClassName": priority,
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": f"gpus-{devices}"}],
            "containers": [
                {
                    "name": "main",
                    "image": "busybox",
                    "command": ["sh", "-c", "trap exit TERM; sleep 3600 & wait"],
                    "resources": {"claims": [{"name": "gpus"}]},
                }
            ],
        },
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    draw(asyncio.run(record()), PICTURE)
