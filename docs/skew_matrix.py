"""Prints which releases work together, tried on the development cluster; docs/kubernetes-1.37.md has the result.

    .venv/bin/python docs/skew_matrix.py

It takes some minutes. Each row is a cluster of one release, with a node agent of
that release and a plugin. Each column is the operator, told to decide as a release, or by itself. In each cell a pod
asks for a device by a template, runs, and ends; the claim has to go with it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from dra_api.releases import AUTO, BUILT, Release
from dra_devcluster.cluster import DevCluster
from dra_devcluster.demo import claim_spec, device_class, pod
from dra_kube import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES, Api, NotFound

NAMESPACE = "default"
STEP_SECONDS = 180.0
"""A step takes a second on an idle machine."""


async def main() -> int:
    """The whole matrix, row by row; 1 if a cell failed."""
    columns = [AUTO, *BUILT]
    print("| API server, node agent and plugin | " + " | ".join(f"operator {name}" for name in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    failed = False
    for release in BUILT.values():
        cells = await row(release, columns)
        failed |= any(cell != "runs" for cell in cells)
        print(f"| {release} | " + " | ".join(cells) + " |", flush=True)
    return int(failed)


async def row(release: Release, columns: list[str]) -> list[str]:
    """A cluster of the release, and each operator on it."""
    with tempfile.TemporaryDirectory(prefix="skew-") as folder:
        async with DevCluster(Path(folder), devices=2, release=release) as cluster, Api(cluster.connection()) as api:
            await until(lambda: published(api))
            template = {"metadata": {"name": "any", "namespace": NAMESPACE}, "spec": {"spec": claim_spec()}}
            for resource, body in ((DEVICE_CLASSES, device_class()), (RESOURCE_CLAIM_TEMPLATES, template)):
                await api.create(resource, {"apiVersion": resource.api_version(), "kind": resource.kind, **body})
            return [await cell(api, cluster.kubeconfig, name) for name in columns]


async def cell(api: Api, kubeconfig: Path, release: str) -> str:
    """What became of a pod."""
    operator = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("dra-operator")),
        "run",
        "--kubernetes-version",
        release,
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await api.create(PODS, pod("p", resourceClaimTemplateName="any"))
        await until(lambda: runs(api))
        await api.delete(PODS, "p", NAMESPACE)
        await until(lambda: is_empty(api))
    except TimeoutError as error:
        with suppress(NotFound):  # so that the next cell can have its own
            await api.delete(PODS, "p", NAMESPACE, grace_seconds=0)
        return f"fails: {error}"
    finally:
        if operator.returncode is None:
            operator.terminate()
        await operator.wait()
    return "runs"


async def published(api: Api) -> str:
    """Empty once the plugin's slice is there, else what is missing."""
    slices, _ = await api.list(RESOURCE_SLICES)
    return "" if any(slice_["spec"].get("devices") for slice_ in slices) else "no ResourceSlice"


async def runs(api: Api) -> str:
    """The same for the pod: it runs, so that its device was allocated and prepared."""
    phase = (await api.get(PODS, "p", NAMESPACE)).get("status", {}).get("phase")
    return "" if phase == "Running" else f"the pod is {phase}"


async def is_empty(api: Api) -> str:
    """The same for what the pod leaves."""
    try:
        await api.get(PODS, "p", NAMESPACE)
    except NotFound:
        claims, _ = await api.list(RESOURCE_CLAIMS, NAMESPACE)
        return "the claim is left" if claims else ""
    return "the pod is left"


async def until(missing: Callable[[], Awaitable[str]]) -> None:
    """Wait until nothing is missing. Raises TimeoutError, which says what is."""
    deadline = time.monotonic() + STEP_SECONDS
    while found := await missing():
        if time.monotonic() > deadline:
            raise TimeoutError(found)
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(asyncio.run(main()))
