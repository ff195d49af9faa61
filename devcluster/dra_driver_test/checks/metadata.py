"""Device metadata: the files that tell containers about their devices, if the driver writes some."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from dra_api.releases.release import Release

from dra_driver_test.check import Level, check
from dra_driver_test.errors import Finding, Skipped
from dra_driver_test.harness.bench import Bench, ids_of

FOLDER = "/var/run/kubernetes.io/dra-device-attributes/"
GROUP = "metadata.resource.k8s.io"


async def _files(bench: Bench) -> list[Path]:
    """Those that a container with a device gets. Raises Skipped if there are none."""
    prepared = await bench.prepared(await bench.claim(await bench.device()))
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
        found = list(_versions(file))
        if version not in found:
            raise Finding(f"the device metadata {file} have {found}, and programs of {bench.release} need {version}")


def _versions(file: Path) -> Iterator[str]:
    """The versions of the objects that stand one after the other in a file. Raises Finding."""
    decoder = json.JSONDecoder()
    try:
        text = file.read_text().lstrip()
        while text:
            entry, end = decoder.raw_decode(text)
            yield str(entry["apiVersion"])
            text = text[end:].lstrip()
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Finding(f"the device metadata {file} are not JSON objects with a version: {error!r}") from error
