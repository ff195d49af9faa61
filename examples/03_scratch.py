"""Work that takes its time, and that must be undone: a claim gets an empty directory, which is deleted afterwards.

python examples/03_scratch.py --node-name NODE        # SCRATCH is the directory of the directories
"""

import asyncio
import os
import shutil
from pathlib import Path

import dra_kubeletplugin as dra
from dra_api.resource import ResourceClaim

NAME = "scratch.example.com"
ROOT = Path(os.environ.get("SCRATCH", "/var/lib/scratch"))


class ScratchDriver(dra.Driver):
    async def prepare(self, claim: ResourceClaim) -> dra.Prepared:
        prepared = []
        for result in dra.results_for(NAME, claim):
            # A thread, because deleting may take long. The kubelet gives up after 45 s and calls again; the thread ends
            # in peace, and the next call gets what this one returns.
            path = await asyncio.to_thread(empty, ROOT / result.device)
            mount = dra.Mount(host_path=str(path), container_path="/scratch", options=("rw", "bind"))
            prepared.append(dra.PreparedDevice.of(result, edits=dra.ContainerEdits(mounts=(mount,))))
        return prepared

    async def unprepare(self, claim: dra.ClaimRef) -> None:
        for prepared in claim.devices:  # what `prepare` returned, perhaps of an earlier process
            await asyncio.to_thread(shutil.rmtree, ROOT / prepared.device, ignore_errors=True)


def empty(path: Path) -> Path:
    """Make the directory, without what a crash may have left in it: this may be the second attempt."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


if __name__ == "__main__":
    dra.run(ScratchDriver(), NAME, [dra.device(f"scratch-{number}") for number in range(8)])
