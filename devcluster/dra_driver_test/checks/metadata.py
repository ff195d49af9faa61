"""Device metadata: the files that tell containers about their devices, if the driver writes some."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dra_api.releases import Release

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding, Skipped
from dra_driver_test.harness.bench import Bench, ids_of
from dra_driver_test.harness.server import Claim

FOLDER = "/var/run/kubernetes.io/dra-device-attributes/"
GROUP = "metadata.resource.k8s.io"


async def _files(bench: Bench, claim: Claim | None = None) -> list[Path]:
    """Those that a container with a device gets. Raises Skipped if there are none."""
    prepared = await bench.prepared(claim or await bench.claim())
    mounts = bench.cdi.edits(ids_of(prepared)).mounts
    files = [Path(mount.host_path) for mount in mounts if mount.container_path.startswith(FOLDER)]
    if not files:
        raise Skipped("the driver gives containers no device metadata")
    return files


@check("PH-11", "PH-14", level=Level.SHOULD)
async def have_a_version_of_the_release(bench: Bench) -> None:
    """Files with device metadata have v1beta1 of their format from 1.37 on, and v1alpha1 before.

    Programs in containers look for the first version that they know, and may know no other one.
    """
    version = f"{GROUP}/{'v1beta1' if bench.release >= Release.V1_37 else 'v1alpha1'}"
    for file in await _files(bench):
        found = [str(one["apiVersion"]) for one in _objects(file)]
        if version not in found:
            raise Finding(f"the device metadata {file} have {found}, and programs of {bench.release} need {version}")


def _objects(file: Path) -> Iterator[dict[str, Any]]:
    """The objects that stand one after the other in a file, each with a version. Raises Finding."""
    decoder = json.JSONDecoder()
    try:
        text = file.read_text().lstrip()
        while text:
            entry, end = decoder.raw_decode(text)
            entry["apiVersion"]
            yield entry
            text = text[end:].lstrip()
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Finding(f"the device metadata {file} are not JSON objects with a version: {error!r}") from error


@check("PH-11", level=Level.SHOULD)
async def name_the_device(bench: Bench) -> None:
    """The file of a device names its driver, its pool and the device itself, in each version of the format."""
    device = await bench.device()
    wanted = (device.driver, device.pool, device.name)
    for file in await _files(bench, await bench.claim(device)):
        for entry in _objects(file):
            described = [one for request in entry.get("requests") or () for one in request.get("devices") or ()]
            found = [(one.get("driver"), one.get("pool"), one.get("name")) for one in described]
            if found != [wanted]:
                raise Finding(f"the device metadata {file} name {found}, and the claim holds {wanted}")


@check("PH-11", "TD-03", level=Level.SHOULD)
async def go_with_the_claim(bench: Bench) -> None:
    """Files with device metadata are removed when the claim is unprepared."""
    claim = await bench.claim()
    files = await _files(bench, claim)
    await bench.unprepare(claim)
    if left := [str(file) for file in files if file.exists()]:
        raise Finding(f"the claim was unprepared, and its device metadata are still there: {', '.join(left)}")
