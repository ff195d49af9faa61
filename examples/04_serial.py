"""Hardware that comes and goes, and says how it is: serial adapters, which users plug in and pull out.

python examples/04_serial.py --node-name NODE         # SERIAL is the pattern of the device files
"""

import asyncio
import glob
import os
from collections.abc import AsyncIterator, Sequence

import dra_kubeletplugin as dra
from dra_api.resource import Device, ResourceClaim

NAME = "serial.example.com"
PATTERN = os.environ.get("SERIAL", "/dev/ttyUSB*")


def plugged() -> dict[str, str]:
    """The path of each adapter by the name of its device."""
    return {os.path.basename(path).lower(): path for path in sorted(glob.glob(PATTERN))}


async def changes() -> AsyncIterator[dict[str, str]]:
    """What is plugged in, now and after each change."""
    last = None
    while True:
        if (now := plugged()) != last:
            yield now
            last = now
        await asyncio.sleep(1)


async def devices() -> AsyncIterator[list[Device]]:
    async for now in changes():
        yield [dra.device(name, attributes={"path": path}) for name, path in now.items()]


class SerialDriver(dra.Driver):
    async def prepare(self, claim: ResourceClaim) -> dra.Prepared:
        paths = plugged()
        prepared = []
        for result in dra.results_for(NAME, claim):
            if result.device not in paths:
                raise dra.ClaimError(f"adapter {result.device} was pulled out; plug it in again")
            node = dra.DeviceNode(path="/dev/serial", host_path=paths[result.device], permissions="rw")
            prepared.append(dra.PreparedDevice.of(result, edits=dra.ContainerEdits(device_nodes=(node,))))
        return prepared

    async def health(self) -> AsyncIterator[Sequence[dra.DeviceHealth]]:
        known: set[str] = set()
        async for now in changes():
            known |= now.keys()  # one that was pulled out is still in the pods that use it
            yield [
                dra.DeviceHealth(device=name, healthy=name in now, message="" if name in now else "pulled out")
                for name in sorted(known)
            ]


if __name__ == "__main__":
    dra.run(SerialDriver(), NAME, devices())
